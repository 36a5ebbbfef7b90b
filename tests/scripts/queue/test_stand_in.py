"""Tests the script stand_in: a program that takes also maintains the queue, without workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from fairlane.errors import FairlaneError
from fairlane.protocol import keys

if TYPE_CHECKING:
    from tests.support.scripts.requests import Lane

ACTIVE, DELAYED, CONF = keys.active("req"), keys.delayed("req"), keys.conf("req")
WORKERS, TICKS = keys.workers("req"), keys.schedules("req")[1]
LOCK, REST = 2_500, 4_000


class Standing(NamedTuple):
    """The reply of the script."""

    word: bytes
    leads: int
    now: int
    active_due: int
    delayed_due: int
    tick_due: int
    shards: bytes
    left: bytes
    paused_until: int
    audits: int
    rate: bytes


def stand_in(lane: Lane, name: str = "t:1", **given: Any) -> Standing:
    names = (WORKERS, ACTIVE, DELAYED, CONF, TICKS, keys.firing("req"))
    given = {"lock_ms": LOCK, "rest_ms": REST} | given
    return Standing(*lane.call("stand_in", names, id=name, **given))


def use(lane: Lane) -> None:
    lane.client.zadd(ACTIVE, {"r9": lane.now})


def test_it_reports_how_the_queue_stands(lane: Lane):
    lane.client.zadd(ACTIVE, {"r8": 70, "r9": 80})
    lane.client.zadd(DELAYED, {"5|r9#0.1": 90})
    lane.client.zadd(TICKS, {"daily": 95})
    lane.client.hset(CONF, mapping={"shards": "1,2", "left": "0", "paused_until": lane.now + 5})
    lane.client.hset(CONF, "rate", "10000 5")
    due = (70, 90, 95)
    assert stand_in(lane) == (b"ok", 1, lane.now, *due, b"1,2", b"0", lane.now + 5, 1, b"10000 5")


def test_a_pause_that_is_over_is_none(lane: Lane):
    lane.client.hset(CONF, "paused_until", lane.now)
    assert stand_in(lane).paused_until == 0


def test_a_queue_that_is_not_used_gets_no_key(lane: Lane):
    with lane.unchanged():
        assert stand_in(lane)[1:] == (0, lane.now, 0, 0, 0, b"", b"", 0, 0, b"")


@pytest.mark.parametrize("key", [ACTIVE, DELAYED, TICKS], ids=["active", "delayed", "ticks"])
def test_whatever_may_be_due_makes_it_lead(lane: Lane, key: bytes):
    lane.client.zadd(key, {"5|r9#0.1": 1})
    assert stand_in(lane).leads == 1
    assert lane.client.hget(CONF, "lock") == b"t:1"


def test_an_audit_is_due_only_if_there_are_requests(lane: Lane):
    lane.client.zadd(TICKS, {"daily": 1})
    assert (stand_in(lane).leads, stand_in(lane).audits) == (1, 0)


def test_one_of_several_leads_until_its_lock_is_over(lane: Lane):
    use(lane)
    assert [stand_in(lane).leads, stand_in(lane, "t:2").leads, stand_in(lane).leads] == [1, 0, 1]
    lane.later(LOCK)
    assert stand_in(lane, "t:2").leads == 0
    lane.later(1)
    assert [stand_in(lane, "t:2").leads, stand_in(lane).leads] == [1, 0]


def test_a_lock_from_before_the_clock_went_back_is_void(lane: Lane):
    use(lane)
    stand_in(lane, "t:2")
    lane.now -= 60_000
    assert stand_in(lane).leads == 1


@pytest.mark.parametrize("age", [0, LOCK, -LOCK])
def test_it_does_not_lead_while_a_worker_beats(lane: Lane, age: int):
    use(lane)
    lane.client.zadd(WORKERS, {"w:1": lane.now - age, "w:0": 1})
    with lane.unchanged():
        assert (stand_in(lane).leads, stand_in(lane).audits) == (0, 0)


@pytest.mark.parametrize("age", [LOCK + 1, -LOCK - 1])
def test_a_worker_without_a_recent_beat_does_not_count(lane: Lane, age: int):
    use(lane)
    lane.client.zadd(WORKERS, {"w:1": lane.now - age})
    assert stand_in(lane).leads == 1


def test_an_audit_is_due_once_in_each_rest_of_all_programs(lane: Lane):
    use(lane)
    assert [stand_in(lane).audits, stand_in(lane).audits] == [1, 0]
    lane.later(REST - 1)
    late = stand_in(lane, "t:2")
    assert (late.leads, late.audits) == (1, 0)
    lane.later(1)
    assert stand_in(lane, "t:2").audits == 1


def test_an_audit_from_before_the_clock_went_back_does_not_count(lane: Lane):
    use(lane)
    stand_in(lane)
    lane.now -= 60_000
    assert stand_in(lane).audits == 1


def test_a_queue_of_a_newer_release_is_refused(lane: Lane):
    lane.client.hset(CONF, "layout", 2)
    with lane.unchanged(), pytest.raises(FairlaneError, match="key layout 2"):
        stand_in(lane)
