"""Tests when an unreachable node is tried again, by a clock of the test's own."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from fairlane import settings
from fairlane.drivers.aio import AsyncCalls
from fairlane.drivers.topology import ServerHealth
from fairlane.errors import NodeAway
from fairlane.protocol.lua import Dialect
from fairlane.protocol.steps import Batch, Command, Pop

AWAY_S = 1.0


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The test's clock: its one number is the time."""
    made = [100.0]
    monkeypatch.setattr("fairlane.common.clock.mono_s", lambda: made[0])
    return made


def hung(now: list[float], try_s: float) -> ServerHealth:
    """Returns a server that is away, after a try that took so long."""
    server = ServerHealth()
    server.note_no_reply()
    now[0] += 10.0
    assert server.claim_try(AWAY_S)
    now[0] += try_s
    server.note_no_reply()
    return server


def pause_s(server: ServerHealth, now: list[float], *again_s: float) -> float:
    """Returns the seconds until the next try is due, counted in tenths."""
    began = now[0]
    while not server.claim_try(AWAY_S, *again_s):
        now[0] += 0.1
    return now[0] - began


@pytest.mark.parametrize(
    ("try_s", "least_s", "most_s"), [(0.0, 2.0, 3.0), (0.3, 2.5, 3.5), (2.0, 4.5, 5.2)]
)
def test_the_pause_grows_with_the_try_up_to_a_bound(
    try_s: float, least_s: float, most_s: float, now: list[float]
):
    """A node that is back after 8 s must not wait 20 s for the next call."""
    server = hung(now, try_s)
    assert least_s <= pause_s(server, now) <= most_s
    assert most_s <= settings.AWAY_AGAIN_S[1] + 0.2


def test_a_call_that_cannot_wait_is_tried_sooner(now: list[float]):
    server = hung(now, 2.0)
    assert pause_s(server, now, 1.0) == pytest.approx(1.0, abs=0.2)
    assert not server.claim_try(AWAY_S, 1.0), "one caller makes the try"


class Answering(AsyncCalls):
    """A driver whose batches have the given replies; an error is raised."""

    def __init__(self, *answers: Any) -> None:
        driver: Any = SimpleNamespace(
            patience_s=20.0, dialect=Dialect.SINGLE, servers=SimpleNamespace(IO=None)
        )
        super().__init__(driver)
        self._answers = list(answers)
        self._is_busy = True

    async def _send_batch(self, batch: Batch) -> list[Any]:
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        assert len(answer) == len(batch.steps)
        found: list[Any] = answer
        return found


def test_a_pop_that_is_given_up_takes_no_reply_from_the_others():
    """A busy asyncio unit pops without waiting first, then in a second batch with the pop alone."""
    away = NodeAway("Redis at h:1 has not answered")
    steps = [Command(b"GET", b"a"), Pop([b"l"], 250, 1)]
    batch = Batch(steps, lenient=True, away_s=AWAY_S)
    calls = Answering([1, None], away, away)
    assert asyncio.run(_perform(calls, batch)) == [1, away]
    with pytest.raises(NodeAway):
        asyncio.run(_perform(calls, batch))


@pytest.mark.parametrize("lenient", [True, False])
def test_a_pop_that_is_alone_or_strict_raises(*, lenient: bool):
    """Nothing of the batch was answered, or the first error is its result."""
    away = NodeAway("Redis at h:1 has not answered")
    pop = Pop([b"l"], 250, 1)
    steps = [pop] if lenient else [Command(b"GET", b"a"), pop]
    calls = Answering([None] if lenient else [1, None], away)
    with pytest.raises(NodeAway):
        asyncio.run(_perform(calls, Batch(steps, lenient=lenient)))


async def _perform(calls: AsyncCalls, batch: Batch) -> list[Any]:
    return await calls.batch(batch)
