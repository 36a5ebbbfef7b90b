"""Tests a request's deadline: nothing starts after it, the rest dies, what is leased may end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.scripts.requests import HOUR, Lane, listening, toks

if TYPE_CHECKING:
    import redis


def test_what_waits_at_the_deadline_is_dead_and_the_request_ends(
    lane: Lane, redis_client: redis.Redis
):
    lane.start(3, limit=1, deadline_ms=60_000)
    lane.later(60_000)
    with listening(redis_client, "done:{r1}") as published:
        word, summary = lane.reap()
        assert published() == [b"done"]
    assert (word, summary[0], summary[2:6], summary[8]) == (
        b"ended", b"done", [3, 0, 3, 0], b"deadline",
    )  # fmt: skip
    assert [one["reason"] for one in lane.dead()] == ["deadline"] * 3
    assert [one["body"] for one in lane.dead()] == ["b0", "b1", "b2"]
    assert [one["head"] for one in lane.dead()] == [f"{i}:x:0:60000:0" for i in range(3)]
    assert sorted(lane.results()) == [0, 1, 2]


def test_nothing_is_taken_after_the_deadline(lane: Lane):
    """The token is refused and no other is minted, although reap has not run yet."""
    token, other = lane.start(9, limit=2, deadline_ms=60_000)
    held = lane.take(token, count=2)
    lane.later(60_000)
    refused = lane.acquire(other)
    assert (refused.word, refused.tokens) == ("paused", [])
    word, left, tokens = lane.complete(held)
    assert (word, left, tokens) == (b"ok", 7, [])


def test_what_is_past_its_deadline_is_not_paused(lane: Lane):
    lane.start(3, deadline_ms=60_000)
    lane.later(60_000)
    with lane.unchanged():
        assert lane.pause() == [b"ok", b"active", []]
    lane.later(-1)
    assert lane.pause() == [b"ok", b"paused", []]


def test_a_moment_before_the_deadline_nothing_has_changed(lane: Lane):
    (token,) = lane.start(2, limit=1, deadline_ms=60_000)
    lane.later(59_000)
    assert lane.reap() == [b"ok", 1_000, []]
    assert lane.take(token).ids


def test_what_is_held_at_the_deadline_may_end(lane: Lane):
    (token,) = lane.start(9, limit=3, deadline_ms=20_000)[:1]
    held = lane.take(token, count=3)
    lane.later(20_000)
    assert lane.reap()[0] == b"stopped"
    assert lane.reap()[0] == b"ok"
    assert lane.hash()["state"] == "expiring"
    assert lane.extend(held) == "cancelled"
    first, *others = held.ids
    assert lane.complete(held, [first], [(others[0], "retry", 0)])[0] == b"ok"
    word, summary = lane.reap()
    assert (word, summary[2:6]) == (b"ended", [9, 1, 8, 0])
    assert lane.dead()[-1]["head"].split(":")[2] in {"0", "1"}


def test_a_lease_that_dies_after_the_deadline_is_dead_too(lane: Lane):
    lane.begin(2, limit=1, deadline_ms=20_000, count=2)
    lane.later(20_000)
    assert lane.reap()[0] == b"stopped"
    lane.later(10_000)
    word, summary = lane.reap()
    assert (word, summary[2:6]) == (b"ended", [2, 0, 2, 0])


def test_an_open_request_ends_at_its_deadline_without_its_seal(lane: Lane):
    lane.start(2, open_ms=HOUR, deadline_ms=60_000)
    lane.later(60_000)
    word, summary = lane.reap()
    assert (word, summary[0], summary[2:6]) == (b"ended", b"done", [2, 0, 2, 0])


def test_many_die_in_calls_of_a_bounded_number(lane: Lane):
    """A call buries a thousand; the reply 1 asks for the next call immediately."""
    lane.start(1000, open_ms=HOUR, deadline_ms=1_000)
    assert lane.append(1000, chunk=2)[0] == b"ok"
    assert lane.append(7, chunk=3)[0] == b"ok"
    lane.later(1_000)
    assert [lane.reap()[:2] for _ in range(2)] == [[b"stopped", 1], [b"ok", 1]]
    assert lane.reap()[0] == b"ended"
    assert lane.number("dead") == 2007


def test_retries_that_wait_are_dead_at_the_deadline(lane: Lane):
    held = lane.begin(1, deadline_ms=5_000)
    lane.complete(held, others=[(held.ids[0], "retry", 50_000)])
    lane.later(5_000)
    assert lane.reap()[0] == b"ended"
    assert lane.dead()[0]["head"] == "0:x:1:5000:0"


def test_cancel_wins_over_the_deadline(lane: Lane):
    lane.start(4, deadline_ms=1_000)
    lane.later(2_000)
    word, summary = lane.cancel()
    assert (word, summary[0], summary[2:6]) == (b"ended", b"cancelled", [4, 0, 0, 4])


def test_a_cancelled_request_stays_cancelled_past_its_deadline(lane: Lane):
    held = lane.begin(20, limit=1, deadline_ms=1_000, count=5)
    lane.cancel()
    assert lane.reap()[:2] == [b"ok", 30_000]
    lane.later(2_000)
    assert lane.reap()[:2] == [b"ok", 28_000]
    word, summary = lane.complete(held)
    assert (word, summary[0], summary[4], summary[5]) == (b"ended", b"cancelled", 0, 15)


@pytest.mark.parametrize(("attempts", "last"), [(1, True), (2, False)])
def test_a_timeout_is_a_retry_that_is_counted(lane: Lane, attempts: int, last: bool):
    held = lane.begin(1, attempts=attempts)
    word, *_, more = lane.complete(held, others=[(held.ids[0], "timeout", 0)])
    assert lane.number("timeouts") == 1
    assert (word == b"ended") is last
    if last:
        assert lane.dead()[0]["reason"] == "timeout"
    else:
        assert len(toks(more)) == 1
    assert lane.complete(held, others=[(held.ids[0], "timeout", 0)])[0] in {b"already", b"ended"}
    assert lane.number("timeouts") == 1
