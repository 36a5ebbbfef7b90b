"""Tests the script glance: it reads what a request needs of the maintenance, without a change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.run.for_each import for_each
from tests.support.scripts.requests import HOUR, MINUTE, Lane, change_number

if TYPE_CHECKING:
    from collections.abc import Callable

PERMITS, LEASES = "tok:{r1}", "lease:{r1}"
STREAM = [b"x" * 2_000] * 4  # too much for `few` of a small request


def glance(lane: Lane, *, queue: str = "req", grace: Any = "") -> list[Any]:
    """Calls glance, which must change nothing."""
    with lane.unchanged():
        return list(lane.call("glance", lane.names, queue=queue, grace=grace))


def look(lane: Lane) -> int:
    """Returns the next check of the request that a glance reports."""
    word, when, tokens = glance(lane)
    assert (word, tokens) == (b"ok", [])
    return int(when)


# ------------------------------------------------------------------ nothing to do


def test_the_next_lease_that_expires_is_expected(lane: Lane):
    first, second, _ = lane.start(STREAM)
    lane.take(first, count=1)
    lane.later(1_000)
    lane.take(second, count=1)
    assert look(lane) == 29_000
    lane.later(28_999)
    assert look(lane) == 2, "1 would mean now"
    lane.later(1)
    assert look(lane) == 1


def test_a_deadline_is_expected(lane: Lane):
    (token, *_) = lane.start(STREAM, deadline_ms=50_000)
    assert look(lane) == 50_000
    lane.take(token, count=1)
    assert look(lane) == 30_000
    lane.later(21_000)
    lane.request("pause")
    assert look(lane) == 9_000
    lane.later(MINUTE)
    assert look(lane) == 1


def test_a_deadline_of_a_request_that_is_cancelled_is_not_expected(lane: Lane):
    """The request waits for its last lease only, before the deadline and after it."""
    lane.begin(STREAM, deadline_ms=5_000, count=1)
    assert lane.cancel()[0] == b"ok"
    assert look(lane) == 30_000
    lane.later(6_000)
    assert look(lane) == 24_000


def test_the_end_of_an_open_requests_time_is_expected(lane: Lane):
    lane.start(3, open_ms=HOUR)
    assert look(lane) == HOUR + 1
    lane.later(HOUR)
    assert look(lane) == 2
    lane.later(1)
    assert look(lane) == 1
    assert lane.reap()[0] == b"ended"


# ------------------------------------------------------------------ reap has work


def expired(lane: Lane) -> None:
    lane.begin(STREAM)
    lane.later(MINUTE)


def past_its_deadline(lane: Lane) -> None:
    lane.start(3, deadline_ms=5_000)
    lane.later(MINUTE)


def left_open(lane: Lane) -> None:
    lane.start(3, open_ms=5_000)
    lane.later(MINUTE)


def half_buried(lane: Lane) -> None:
    """Makes a deadline that needs two calls: one buries a thousand."""
    lane.start(1_000, deadline_ms=5_000, open_ms=HOUR)
    lane.append(500, chunk=2)
    lane.seal()
    lane.later(MINUTE)
    assert lane.reap()[:2] == [b"stopped", 1]


def permits_deleted(lane: Lane) -> None:
    lane.checked = False
    lane.start(STREAM)
    lane.client.delete(PERMITS)


def sleeper_deleted(lane: Lane) -> None:
    """Deletes the one permit that waits for a retry."""
    lane.checked = False
    held = lane.begin(1)
    lane.complete(held, others=[(held.ids[0], "retry", MINUTE)])
    lane.client.delete(PERMITS)


def nothing_queued(lane: Lane) -> None:
    """Makes work, while no permit is queued, leased or asleep."""
    lane.checked = False
    lane.start(STREAM)
    lane.client.delete(PERMITS)
    change_number(lane.client, "r1", "queued", 0)
    change_number(lane.client, "r1", "high", 0)


def lease_deleted(lane: Lane) -> None:
    """Leases all entries of a small request, and deletes the lease."""
    lane.checked = False
    held_whole(lane)
    lane.client.delete(LEASES, PERMITS)


def lease_deleted_while_cancelling(lane: Lane) -> None:
    lane.checked = False
    lane.begin(STREAM)
    lane.cancel()
    lane.client.delete(LEASES)


NEEDS = [
    expired, past_its_deadline, left_open, half_buried, permits_deleted, sleeper_deleted,
    nothing_queued, lease_deleted, lease_deleted_while_cancelling,
]  # fmt: skip


@for_each("brought", NEEDS)
def test_what_reap_acts_on_is_due_now(lane: Lane, brought: Callable[[Lane], None]):
    brought(lane)
    assert look(lane) == 1
    before = lane.dump()
    lane.checked = False
    lane.reap()
    assert lane.dump() != before
    lane.client.flushall()


# ------------------------------------------------------------------ agreement with reap


def waiting(lane: Lane) -> None:
    lane.start(3)


def waiting_in_a_stream(lane: Lane) -> None:
    lane.start(STREAM)


def held(lane: Lane) -> None:
    lane.begin(STREAM)


def held_whole(lane: Lane) -> None:
    """Leases all entries of a small request together, without a stream."""
    lane.begin(3, limit=1)
    assert lane.number("few") == 2


def paused(lane: Lane) -> None:
    lane.start(STREAM)
    lane.pause()


def paused_and_held(lane: Lane) -> None:
    lane.begin(STREAM, deadline_ms=HOUR, count=1)
    lane.pause()


def cancelling(lane: Lane) -> None:
    lane.begin(STREAM)
    lane.cancel()


def cancelling_while_open(lane: Lane) -> None:
    """Makes a request whose open time ends before its lease, but is not awaited any more."""
    lane.begin(STREAM, open_ms=500)
    lane.cancel()


def open_and_idle(lane: Lane) -> None:
    held = lane.begin(1, open_ms=HOUR)
    lane.complete(held)


def asleep(lane: Lane) -> None:
    held = lane.begin(1)
    lane.complete(held, others=[(held.ids[0], "retry", MINUTE)])


def held_with_a_retry(lane: Lane) -> None:
    first, second, *_ = lane.start(STREAM, limit=2)
    given = lane.take(first, count=1)
    lane.take(second)
    lane.complete(given, others=[(given.ids[0], "retry", MINUTE)])


CALM = [
    waiting, waiting_in_a_stream, held, held_whole, paused, paused_and_held, cancelling,
    cancelling_while_open, open_and_idle, asleep, held_with_a_retry,
]  # fmt: skip


@for_each("brought", CALM)
@for_each("after_ms", [0, 1_000])
def test_where_a_glance_finds_nothing_to_do_reap_changes_nothing(
    lane: Lane, brought: Callable[[Lane], None], after_ms: int
):
    """It also returns the same moment, except the end of an open request's time."""
    brought(lane)
    lane.later(after_ms)
    expects = look(lane)
    assert expects != 1
    with lane.unchanged():
        word, when, tokens = lane.reap()
        assert (word, tokens) == (b"ok", [])
        if brought is not open_and_idle:
            assert when == expects


# ------------------------------------------------------------------ tokens on their way


def test_permits_queued_before_the_grace_are_named_with_their_lanes(lane: Lane):
    tokens = lane.start(STREAM, priority=7)
    lane.later(5_000)
    assert glance(lane, grace=5_000)[2] == []
    named = [part for one in tokens for part in (one.k.encode(), one.g.encode(), b"7", b"")]
    found = glance(lane, grace=4_999)[2]
    assert sorted(zip(*[iter(found)] * 4, strict=True)) == sorted(
        zip(*[iter(named)] * 4, strict=True)
    )


def test_what_is_held_or_parked_is_not_named(lane: Lane):
    first, second, third = lane.start(STREAM[:3], limit=3)
    lane.take(first)
    lane.complete(lane.take(second))
    lane.later(MINUTE)
    found = glance(lane, grace=0)[2]
    assert [third.k.encode()] == found[::4]


def test_a_sleeper_is_named_a_grace_after_it_was_due(lane: Lane):
    held = lane.begin(1)
    lane.complete(held, others=[(held.ids[0], "retry", MINUTE)])
    lane.later(MINUTE + 5_000)
    assert glance(lane, grace=5_000)[2] == []
    lane.later(1)
    assert len(glance(lane, grace=5_000)[2]) == 4


def test_tokens_are_named_beside_a_lease_that_expired(lane: Lane):
    lane.begin(STREAM, count=1)
    lane.later(MINUTE)
    word, when, found = glance(lane, grace=0)
    assert (word, when, len(found)) == (b"ok", 1, 8)


def test_a_permit_whose_request_names_a_tenant_is_named_with_its_turn(lane: Lane):
    lane.start(1, extras="tenant=acme\nshare=3")
    lane.later(MINUTE)
    assert glance(lane, grace=0)[2][-1] == b"@3:acme"


# ------------------------------------------------------------------ absent or foreign


def test_the_request_of_another_queue_is_foreign(lane: Lane):
    lane.start(3)
    assert glance(lane, queue="other") == [b"foreign"]
    assert glance(lane, queue="") == [b"ok", 0, []]


def test_after_the_end_a_glance_returns_the_summary(lane: Lane):
    lane.complete(lane.begin(3, limit=1))
    found = glance(lane, grace=0)
    assert found == lane.reap()
    assert found[0] == b"ended"
    assert found[1][:5] == [b"done", lane.now, 3, 3, 0]


def test_a_request_that_cannot_be_read_is_an_error(lane: Lane):
    lane.start(3)
    lane.client.hset("req:{r1}", "policy", "none")
    with pytest.raises(Exception, match="BADSTATE"):
        glance(lane)
    lane.client.flushall()


def test_a_lease_that_ends_later_than_it_can_is_due_now(lane: Lane):
    """The clock went back: reap bounds the lease to one lease from now."""
    lane.begin(STREAM, count=1)
    lane.client.zadd(LEASES, {"0": lane.now + 10 * MINUTE})
    assert look(lane) == 1
    lane.reap()
    assert look(lane) == 30_000


def test_a_token_that_was_queued_later_than_now_is_named(lane: Lane):
    """The clock went back: the time since it was queued is unknown."""
    lane.start(1)
    lane.later(-10 * MINUTE)
    assert len(glance(lane, grace=5_000)[2]) == 4
