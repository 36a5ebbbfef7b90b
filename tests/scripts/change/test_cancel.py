"""Tests the script cancel: nothing more starts, leased slices end, and the rest is counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.scripts.requests import HOUR, Lane, listening, toks

if TYPE_CHECKING:
    import redis


def test_cancel_ends_a_request_without_leases(lane: Lane, redis_client: redis.Redis):
    lane.start(6)
    with listening(redis_client, "done:{r1}") as published:
        word, summary = lane.cancel("enough")
        assert published() == [b"cancelled"]
    assert word == b"ended"
    assert (summary[0], summary[2:6], summary[8]) == (b"cancelled", [6, 0, 0, 6], b"enough")
    stored = lane.dump()
    assert set(stored) == {b"req:{r1}"}
    assert all(has_ttl for _, has_ttl in stored.values())


def test_cancel_of_a_held_request_is_ended_by_the_last_complete(
    lane: Lane, redis_client: redis.Redis
):
    tokens = lane.start(9)
    first, second = lane.take(tokens[0]), lane.take(tokens[1])
    with listening(redis_client, "done:{r1}") as published:
        assert lane.cancel() == [b"ok", []]
        assert lane.hash()["state"] == "cancelling"
        assert lane.complete(first)[:1] == [b"ok"]
        assert published() == []
        word, summary = lane.complete(second)
        assert published() == [b"cancelled"]
    assert (word, summary[2:6]) == (b"ended", [9, 5, 0, 4])


def test_cancel_mints_no_tokens_any_more(lane: Lane):
    tokens = lane.start(9)
    first, second = lane.take(tokens[0]), lane.take(tokens[1])
    third = lane.take(tokens[2])
    lane.cancel()
    assert lane.complete(first)[2] == []
    assert lane.complete(second, others=[(second.ids[0], "retry", 0)])[2] == []
    lane.later(30_000)
    assert lane.reap()[0] == b"ended"
    assert lane.complete(third)[0] == b"ended"
    assert lane.number("cancelled") == 9 - len(first.ids)


def test_cancel_twice_keeps_the_first_reason(lane: Lane):
    held = lane.begin(9)
    lane.cancel("first")
    with lane.unchanged():
        assert lane.cancel("second") == [b"ok", []]
    lane.complete(held)
    assert lane.cancel("third")[1][8] == b"first"


def test_cancel_of_an_open_request_does_not_count_the_open_one(lane: Lane):
    lane.start(2, open_ms=HOUR)
    assert lane.cancel()[1][2:6] == [2, 0, 0, 2]


def test_cancel_counts_what_waits_for_a_retry(lane: Lane):
    held = lane.begin(3, limit=1)
    lane.complete(held, held.ids[:1], [(held.ids[1], "retry", 9_000)])
    assert lane.cancel()[1][2:6] == [3, 1, 0, 2]


def test_a_chunk_that_comes_while_cancelling_is_refused(lane: Lane):
    held = lane.begin(6, open_ms=HOUR)
    lane.cancel()
    assert lane.append(4, chunk=2)[0] == b"cancelling"
    assert lane.seal(1)[0] == b"cancelling"
    word, summary = lane.complete(held)
    assert (word, summary[2:6]) == (b"ended", [6, 2, 0, 4])


def test_a_sleeper_is_parked_by_cancel(lane: Lane):
    first, second = lane.start(2, limit=2)
    one, two = lane.take(first), lane.take(second)
    (sleeper,) = toks(lane.complete(one, others=[(one.ids[0], "retry", 5_000)])[2])
    lane.cancel()
    lane.later(5_000)
    assert lane.acquire(sleeper).word == "stale"
    assert lane.complete(two)[0] == b"ended"
