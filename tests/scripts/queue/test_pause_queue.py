"""Tests the script pause_queue: a queue is paused until a time, or until it is resumed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlane.protocol import keys

if TYPE_CHECKING:
    from tests.support.scripts.requests import Lane

CONF = keys.conf("req")
ENDLESS = 10**15


def pause(lane: Lane, period: int) -> list[int]:
    return list(lane.call("pause_queue", (CONF,), period=period, longest=ENDLESS))


def test_a_pause_ends_after_its_period(lane: Lane):
    assert pause(lane, 5_000) == [lane.now, lane.now + 5_000]
    assert lane.client.hget(CONF, "paused_until") == b"%d" % (lane.now + 5_000)


def test_a_pause_without_an_end_is_stored_as_the_longest_time(lane: Lane):
    assert pause(lane, ENDLESS) == [lane.now, ENDLESS]
    assert lane.client.hget(CONF, "paused_until") == b"%d" % ENDLESS


def test_a_second_pause_replaces_the_first(lane: Lane):
    pause(lane, 5_000)
    lane.later(1_000)
    assert pause(lane, 500) == [lane.now, lane.now + 500]


def test_the_same_pause_twice_is_one_pause(lane: Lane):
    pause(lane, ENDLESS)
    with lane.unchanged():
        assert pause(lane, ENDLESS) == [lane.now, ENDLESS]


def test_a_resume_leaves_nothing(lane: Lane):
    pause(lane, 5_000)
    assert pause(lane, 0) == [lane.now, 0]
    assert not lane.client.exists(CONF)
    with lane.unchanged():
        assert pause(lane, 0) == [lane.now, 0]


def test_other_settings_of_the_queue_stay(lane: Lane):
    lane.client.hset(CONF, "shards", "1,2")
    pause(lane, 5_000)
    pause(lane, 0)
    assert lane.client.hgetall(CONF) == {b"shards": b"1,2"}
