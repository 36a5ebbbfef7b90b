"""Tests the demand that all callers of a server share: exact, from one walk, with its age."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from fairlane.common import clock
from fairlane.errors import RedisUnreachable
from fairlane.live import ASKED_S, OLDEST_S, DemandNow, SharedDemand
from fairlane.records import Demand
from tests.support.scripts.snapshots import NO_BACKLOG, snapshot_of
from tests.support.wait import PATIENCE_S

if TYPE_CHECKING:
    import pytest

    from fairlane.operations.observe import Snapshot

COUNTED = Demand("req", NO_BACKLOG, 7, 1, 900, is_paused=False, is_exact=False)
EXACT = replace(COUNTED, demand=5, is_exact=True)


class Reads:
    """A snapshot that is not exact, and walks that end when a test lets them."""

    def __init__(self, counted: Demand = COUNTED) -> None:
        self.counted, self.walks = counted, 0
        self.may_end = asyncio.Event()
        self.error: Exception | None = None

    async def snapshot(self) -> Snapshot:
        return snapshot_of(demand=self.counted)

    async def walk(self) -> Demand:
        self.walks += 1
        await self.may_end.wait()
        if self.error is not None:
            raise self.error
        return EXACT


def shared(reads: Reads, patience_s: float) -> SharedDemand:
    return SharedDemand(reads.snapshot, reads.walk, patience_s)


def test_the_exact_demand_of_a_snapshot_needs_no_walk():
    async def run() -> None:
        reads = Reads(EXACT)
        assert await shared(reads, 60).get() == DemandNow(EXACT, 0.0)
        assert reads.walks == 0

    asyncio.run(run())


def test_tokens_are_counted_until_the_first_walk_has_ended():
    async def run() -> None:
        reads = Reads()
        demand = shared(reads, 0)
        assert await demand.get() == DemandNow(COUNTED, 0.0)
        demand.stop()

    asyncio.run(run())


def test_only_questions_at_the_beginning_wait_for_the_first_walk(monkeypatch: pytest.MonkeyPatch):
    now = [100.0]
    monkeypatch.setattr(clock, "mono_s", lambda: now[0])

    async def run() -> None:
        reads = Reads()
        demand = shared(reads, 60)
        first = asyncio.create_task(demand.get())
        await asyncio.sleep(0)
        now[0] += 60
        async with asyncio.timeout(PATIENCE_S):
            assert await demand.get() == DemandNow(COUNTED, 0.0)
        assert not first.done()
        reads.may_end.set()
        assert (await first).demand == EXACT
        demand.stop()

    asyncio.run(run())


def test_any_number_of_callers_share_one_walk():
    async def run() -> None:
        reads = Reads()
        demand = shared(reads, 60)
        callers = [asyncio.create_task(demand.get()) for _ in range(50)]
        await asyncio.sleep(0)
        reads.may_end.set()
        found = await asyncio.gather(*callers)
        assert [one.demand for one in found] == [EXACT] * 50
        assert reads.walks == 1
        demand.stop()

    asyncio.run(run())


def test_a_result_has_its_age_and_is_not_shown_for_ever(monkeypatch: pytest.MonkeyPatch):
    now = [100.0]
    monkeypatch.setattr(clock, "mono_s", lambda: now[0])

    async def run() -> None:
        reads = Reads()
        reads.may_end.set()
        demand = shared(reads, 60)
        assert (await demand.get()).age_s == 0
        now[0] += OLDEST_S
        assert await demand.get() == DemandNow(EXACT, OLDEST_S)
        now[0] += 1
        assert (await demand.get()).demand == COUNTED
        assert now[0] > ASKED_S
        demand.stop()

    asyncio.run(run())


def test_a_walk_that_fails_leaves_the_count_of_tokens(caplog: pytest.LogCaptureFixture):
    async def run() -> None:
        reads = Reads()
        reads.error = RedisUnreachable("Redis is away")
        reads.may_end.set()
        demand = shared(reads, 0.01)
        assert (await demand.get()).demand == COUNTED
        assert caplog.messages == ["the demand of the queue cannot be read: Redis is away"]
        assert (await demand.get()).demand == COUNTED
        demand.stop()

    asyncio.run(run())


def test_the_pause_of_the_queue_is_that_of_the_snapshot():
    """So a paused queue has no demand immediately, whatever the last walk has found."""

    async def run() -> None:
        reads = Reads()
        reads.may_end.set()
        demand = shared(reads, 60)
        await demand.get()
        reads.counted = replace(COUNTED, demand=0, is_paused=True)
        found = (await demand.get()).demand
        assert (found.demand, found.is_paused) == (0, True)
        demand.stop()

    asyncio.run(run())
