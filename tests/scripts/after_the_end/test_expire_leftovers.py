"""Tests the script expire_leftovers: keys that have outlived their request get a TTL."""

from __future__ import annotations

from typing import Any

from tests.support.scripts.requests import HOUR, Lane

DAY = 24 * HOUR


def tidy(lane: Lane, ttl: Any = DAY) -> list[Any]:
    return list(lane.call("expire_leftovers", lane.names, ttl=ttl))


def ended(lane: Lane) -> Lane:
    lane.complete(lane.begin(1))
    return lane


def test_what_an_ended_request_left_behind_goes(lane: Lane):
    ended(lane)
    stream, counter, request, permits, leases, retries, results, _, few, _ = lane.names
    for key in (request, results):
        lane.client.persist(key)
    lane.client.xadd(stream, {"b": "x"})
    lane.client.set(counter, 1)
    lane.client.set(few, "1:x")
    lane.client.hset(permits, "0", "p:")
    for key in (leases, retries):
        lane.client.zadd(key, {"0": 1})
    assert tidy(lane) == [b"tidied", 8]
    assert lane.check() == []
    assert {lane.client.pttl(key) > HOUR - 60_000 for key in (request, results)} == {True}
    assert lane.client.exists(stream, counter, permits, leases, retries, few) == 0


def test_keys_without_a_request_get_the_time_given(lane: Lane):
    """Nothing is deleted, because a person may want to read it."""
    lane.start(3, open_ms=HOUR)
    lane.client.delete(lane.names[2])
    assert tidy(lane) == [b"tidied", 3]
    assert lane.client.exists(*lane.names) == 3
    assert all(0 < lane.client.pttl(key) <= DAY for key in lane.client.scan_iter())


def test_an_intent_given_up_is_no_request(lane: Lane):
    """The marker keeps its own TTL."""
    lane.start(1)
    lane.client.delete(lane.names[2])
    lane.abandon(5, ttl=1000)
    assert tidy(lane)[0] == b"tidied"
    assert 0 < lane.client.pttl(lane.names[2]) <= 1000


def test_a_request_that_goes_on_is_left_alone(lane: Lane):
    lane.begin(3)
    with lane.unchanged():
        assert tidy(lane) == [b"alive"]
