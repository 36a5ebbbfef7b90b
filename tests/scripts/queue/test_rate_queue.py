"""Tests the script rate_queue: it gives a queue a rate, another one, or none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlane.protocol import keys

if TYPE_CHECKING:
    from tests.support.scripts.requests import Lane

CONF = keys.conf("req")


def rate(lane: Lane, interval: int, burst: int) -> int:
    return int(lane.call("rate_queue", (CONF,), interval=interval, burst=burst))


def test_a_queue_gets_a_rate_and_another_one(lane: Lane):
    assert rate(lane, 10_000, 5) == 1
    assert lane.client.hget(CONF, "rate") == b"10000 5"
    assert rate(lane, 86_400_000_000, 1_000_000) == 1
    assert lane.client.hget(CONF, "rate") == b"86400000000 1000000"


def test_the_same_rate_twice_is_one(lane: Lane):
    rate(lane, 10_000, 5)
    with lane.unchanged():
        assert rate(lane, 10_000, 5) == 1


def test_without_a_rate_nothing_is_left(lane: Lane):
    rate(lane, 10_000, 5)
    assert rate(lane, 0, 0) == 1
    assert not lane.client.exists(CONF)
    with lane.unchanged():
        assert rate(lane, 0, 0) == 1


def test_other_settings_of_the_queue_stay(lane: Lane):
    lane.client.hset(CONF, "max_waiting", 7)
    rate(lane, 10_000, 5)
    rate(lane, 0, 0)
    assert lane.client.hgetall(CONF) == {b"max_waiting": b"7"}
