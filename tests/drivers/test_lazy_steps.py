"""Tests that steps of a batch are made while the server works on those before."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fairlane.protocol.steps import Batch, Command, LazySteps
from tests.support.scripts.requests import once
from tests.support.servers import backends
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis

    from fairlane.drivers.sync import SyncDriver


ON_SINGLE = pytest.mark.parametrize("redis_server", backends.one(), indirect=True)


def test_each_is_made_once_and_in_their_order_whichever_is_read_first():
    made: list[int] = []

    def makes() -> Iterator[Command]:
        for i in range(5):
            made.append(i)
            yield Command(b"GET", i)

    steps = LazySteps(5, makes())
    assert (len(steps), made) == (5, [])
    assert isinstance(steps[1], Command)
    assert made == [0, 1]
    assert [step.args[1] for step in steps if isinstance(step, Command)] == [0, 1, 2, 3, 4]
    assert steps[-1] is steps[4]
    assert steps[:2] == [steps[0], steps[1]]
    assert made == [0, 1, 2, 3, 4]
    with pytest.raises(IndexError):
        steps[5]


@ON_SINGLE
@pytest.mark.any_command
def test_the_server_works_on_the_first_while_the_last_are_made(
    driver: SyncDriver, redis_client: redis.Redis
):
    if not driver.servers.is_one:
        pytest.skip("in a cluster all keys must be known before the first step goes anywhere")

    def makes() -> Iterator[Command]:
        for i in range(100):
            if i == 99:
                wait_until(lambda: redis_client.exists("{a}0"), why="it was sent before")
            yield Command(b"SET", f"{{a}}{i}", b"x" * 1000, b"PX", 60_000)

    assert driver.run(once(Batch(LazySteps(100, makes())))) == [b"OK"] * 100
