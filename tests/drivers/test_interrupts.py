"""Tests Ctrl-C and cancellation in the middle of a reply: the driver drops its connection."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.drivers.aio import AsyncDriver
from fairlane.drivers.sync import SyncDriver
from fairlane.errors import RedisUnreachable
from fairlane.protocol.steps import Batch, Command, Hurry
from tests.support.network.fakes import FakeServer, Refusal, fake_servers
from tests.support.operations.lines import until
from tests.support.run.event_loop import in_event_loop
from tests.support.scripts.requests import once
from tests.support.wait import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlane.protocol.steps import Step

HELD, NEXT = Command(b"ECHO", b"held"), Command(b"ECHO", b"next")
IN_REPLY: list[Any] = [HELD, Batch([NEXT, HELD]), Batch([HELD, NEXT])]


class Interrupts:
    """Interrupts the main thread before the first reply to `held`, which is sent later."""

    def __init__(self) -> None:
        self.go = threading.Event()

    def __call__(self, words: list[bytes]) -> Any:
        if words[-1] == b"held" and not self.go.is_set():
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            assert self.go.wait(PATIENCE_S)
        return words[-1]


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with fake_servers(1) as (made,):
        made.say = says = Interrupts()
        yield made
        says.go.set()


@pytest.mark.parametrize("step", IN_REPLY)
def test_ctrl_c_in_a_reply_drops_the_connection(step: Step, server: FakeServer):
    """Its late replies must not answer the next call."""
    with contextlib.closing(SyncDriver(f"redis://127.0.0.1:{server.port}")) as driver:
        with pytest.raises(KeyboardInterrupt):
            driver.run(once(step))
        made, says = server.connections, server.say
        assert isinstance(says, Interrupts)
        says.go.set()
        assert driver.run(once(NEXT)) == b"next"
        assert server.connections > made


@in_event_loop
async def test_a_cancellation_in_a_reply_drops_an_own_connection(server: FakeServer):
    """A long call does not use the multiplexed connection."""
    go, long = threading.Event(), b"x" * 100_000

    def hold(words: list[bytes]) -> Any:
        assert words[-1] != b"held" or go.wait(PATIENCE_S)
        return words[-1]

    server.say = hold
    driver = AsyncDriver(f"redis://127.0.0.1:{server.port}")
    try:
        task = asyncio.create_task(driver.run(once(Command(b"ECHO", long, b"held"))))
        await until(lambda: server.times(b"ECHO"))
        for _ in range(100):  # the task waits for the reply by now
            await asyncio.sleep(0)
        made = server.connections
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go.set()
        assert await driver.run(once(Command(b"ECHO", long, b"next"))) == b"next"
        assert server.connections == made + 1
    finally:
        await driver.close()


async def interrupted(server: FakeServer, first: Step) -> Any:
    """Continues after an interrupt, on a server that refuses its calls."""
    with contextlib.suppress(KeyboardInterrupt):
        await first
    server.say = lambda _: Refusal("LOADING soon")
    return await NEXT


@pytest.mark.parametrize("first", [HELD, Hurry()])
def test_after_ctrl_c_a_call_is_not_repeated_for_long(first: Step, server: FakeServer):
    """The interrupt may also come inside the operation, which then yields Hurry."""
    url = f"redis://127.0.0.1:{server.port}"
    with contextlib.closing(SyncDriver(url, patience_s=10_000)) as driver:
        driver.run(once(NEXT))
        with pytest.raises(RedisUnreachable):
            driver.run(interrupted(server, first))
