"""What Redis does to workers: it forgets scripts, cuts connections, ends and comes back."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.drivers.aio import AsyncDriver
from fairlane.drivers.sync import SyncDriver
from fairlane.operations import tokens
from fairlane.steps import Batch

if TYPE_CHECKING:
    from collections.abc import Callable

    import redis

    from fairlane.steps import Operation


def dispatch_and_pop() -> Operation[list[Any]]:
    """What a worker sends after a slice: the tokens that came back, and the next pop."""
    calls = tokens.insert("req", "r1", [b"5", b"0.1", 0])
    return (yield Batch([*calls, tokens.pop("req", 2000)]))


def run_sync(url: str) -> list[Any]:
    """By the blocking driver."""
    with contextlib.closing(SyncDriver(url)) as driver:
        return driver.run(dispatch_and_pop())


def run_async(url: str) -> list[Any]:
    """By the driver of an event loop."""

    async def scene() -> list[Any]:
        driver = AsyncDriver(url)
        try:
            return await driver.run(dispatch_and_pop())
        finally:
            await driver.close()

    return asyncio.run(scene())


@pytest.mark.parametrize("run", [run_sync, run_async])
def test_a_forgotten_script_does_not_wait_for_the_pop_behind_it(
    run: Callable[[str], list[Any]], redis_url: str, redis_client: redis.Redis
):
    """The tokens are dispatched while the pop of the same round trip blocks: it finds them."""
    redis_client.script_flush()
    assert run(redis_url) == [1, [b"{req}:5", b"r1#0.1"]]
