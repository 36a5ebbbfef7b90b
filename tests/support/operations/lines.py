"""Fake servers and helpers for tests of the multiplexed connection."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from fairlane.drivers.aio import AsyncDriver
from fairlane.protocol.steps import Batch, Command
from tests.support.scripts.requests import once
from tests.support.wait import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tests.support.network.fakes import FakeServer

HERE, THERE = b"{d}", b"{b}"  # slots 11298, where the lanes of "req" are near, and 3300
MIDDLE, LAST = 8_000, 16_383


class Says:
    """Answers ECHO with its word; a held reply waits for `go`."""

    def __init__(self, hold: bytes = b"") -> None:
        self.hold = hold
        self.go = threading.Event()

    def __call__(self, words: list[bytes]) -> Any:
        if words[-1] == self.hold:
            assert self.go.wait(PATIENCE_S)
        return words[-1]


@asynccontextmanager
async def connected(*servers: FakeServer, **options: Any) -> AsyncIterator[AsyncDriver]:
    """Returns a driver that already has a multiplexed connection to each server."""
    scheme = "redis" if servers[0].slots is None else "redis+cluster"
    url = f"{scheme}://" + ",".join(f"127.0.0.1:{one.port}" for one in servers)
    driver = AsyncDriver(url, **{"patience_s": 20} | options)
    try:
        await asyncio.gather(echo(driver, HERE), echo(driver, THERE))
        yield driver
    finally:
        await driver.close()


async def echo(driver: AsyncDriver, *words: bytes) -> Any:
    """Sends one call, or a batch of calls; a fake server answers each with its word."""
    steps = [Command(b"ECHO", word) for word in words]
    return await driver.run(once(steps[0] if len(steps) == 1 else Batch(steps)))


async def until(holds: Callable[[], Any]) -> None:
    """Lets the other tasks run until a condition holds; the timeout of the test ends the wait."""
    while not holds():  # noqa: ASYNC110  the server has no event to wait for
        await asyncio.sleep(0)


class Writes:
    def __init__(self, transport: Any) -> None:
        self.transport = transport
        self.sent: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.sent.append(data)
        self.transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.transport, name)


def shared_by(driver: AsyncDriver) -> Any:
    lines = driver.servers.only
    assert lines is not None
    return lines.shared


def watched(driver: AsyncDriver) -> Writes:
    """Records what is sent over the multiplexed connection from now on."""
    shared = shared_by(driver)
    writes = shared._transport = Writes(shared._transport)
    return writes


def is_closed(shared: Any) -> bool:
    return bool(shared._transport.is_closing())


def cut_once(server: FakeServer) -> Callable[[list[bytes]], Any]:
    """Closes the connection instead of sending a reply."""

    def cut(_: list[bytes]) -> Any:
        server.say = Says()
        raise ConnectionResetError

    return cut
