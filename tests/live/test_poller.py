"""Tests the poller that all watchers share: it rests without one, and continues after an outage."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from fairlane.errors import RedisUnreachable
from fairlane.live import Poller
from fairlane.web.live import Broadcast
from tests.support.run.event_loop import in_event_loop
from tests.support.scripts.snapshots import measured, request, snapshot_of
from tests.support.wait import PATIENCE_S

if TYPE_CHECKING:
    import pytest

    from fairlane.operations.observe import Snapshot

AWAY = "Redis at redis://h:1 does not answer"


class Source:
    """Makes a snapshot a second by its own clock; `is_away`: Redis does not answer."""

    def __init__(self, step_s: float = 1.0) -> None:
        self.reads, self.is_away, self.step_s = 0, False, step_s

    async def read(self) -> Snapshot:
        self.reads += 1
        if self.is_away:
            raise RedisUnreachable(AWAY)
        done = {5: measured(100 * self.reads)}
        return snapshot_of(request("r1"), after_s=self.step_s * self.reads, stats=done)


@in_event_loop
async def test_many_watchers_cost_the_looks_of_one():
    source = Source()
    poller = Poller(source.read, every_s=0.001)

    async def watch() -> None:
        async with poller.watching():
            seen = 0
            while seen < 20:
                seen = await poller.next_change(seen)

    await asyncio.gather(*(watch() for _ in range(200)))
    assert source.reads <= 2 * 20
    reads = source.reads
    await asyncio.sleep(0)
    assert source.reads == reads, "it rests without a watcher"


@in_event_loop
async def test_history_is_bounded_by_time_and_by_count():
    source = Source()
    poller = Poller(source.read, keep_s=10)
    for _ in range(40):
        await poller.look()
    assert [one.number for one in poller.frames] == list(range(31, 41))
    source.step_s = 100.0  # no watcher for an hour
    await poller.look()
    assert [one.number for one in poller.frames] == [41]


@in_event_loop
async def test_rates_are_over_a_few_seconds():
    poller = Poller(Source().read)
    for _ in range(10):
        await poller.look()
    assert [one.rates.done for one in poller.frames][:3] == [None, 100.0, 100.0]
    assert poller.frames[-1].rates.done == 100.0


@in_event_loop
async def test_an_outage_is_one_change_and_the_view_goes_on():
    source = Source()
    poller = Poller(source.read)
    await poller.look()
    source.is_away = True
    for _ in range(5):
        await poller.look()
    assert (poller.changes, poller.away, len(poller.frames)) == (2, AWAY, 1)
    source.is_away = False
    await poller.look()
    assert (poller.changes, poller.away, len(poller.frames)) == (3, "", 2)


@in_event_loop
async def test_a_slow_viewer_gets_what_it_missed_in_one_event():
    """It skips what history no longer keeps, so its memory is bounded."""
    source = Source()
    broadcast = Broadcast(source.read)
    poller = broadcast.poller = Poller(source.read, every_s=3600, keep_s=3600 * 10)
    events = broadcast.events(0)
    first = await anext(events)
    assert len(first.frames) == 1
    for _ in range(25):
        await poller.look()
    missed = await anext(events)
    numbers = [msgspec.json.decode(one)["number"] for one in missed.frames]
    assert numbers == list(range(17, 27))
    await events.aclose()


@in_event_loop
async def test_an_outage_is_an_event_without_details_and_without_the_place_of_redis():
    source = Source()
    source.is_away = True
    broadcast = Broadcast(source.read)
    events = broadcast.events(0)
    event = await anext(events)
    assert (event.frames, event.now, event.away) == ([], None, "Redis does not answer")
    await events.aclose()


@in_event_loop
async def test_two_viewers_share_the_encoded_parts():
    source = Source()
    broadcast = Broadcast(source.read)
    one, other = broadcast.events(0), broadcast.events(0)
    first, second = await anext(one), await anext(other)
    assert first.now is second.now
    assert first.frames[0] is second.frames[0]
    await one.aclose()
    await other.aclose()


@in_event_loop
async def test_a_watcher_that_begins_in_an_outage_receives_it():
    source = Source()
    source.is_away = True
    broadcast = Broadcast(source.read)
    first = broadcast.events(0)
    assert (await anext(first)).away
    second = broadcast.events(0)
    async with asyncio.timeout(PATIENCE_S):
        assert (await anext(second)).away
    await first.aclose()
    await second.aclose()


@in_event_loop
async def test_a_bug_of_a_look_is_an_outage_and_is_logged_once(caplog: pytest.LogCaptureFixture):
    async def read() -> Snapshot:
        raise TypeError("a bug")

    poller = Poller(read)
    await poller.look()
    await poller.look()
    assert (poller.away, poller.is_cut_off) == ("the queue cannot be read", False)
    assert caplog.text.count("TypeError: a bug") == 1
