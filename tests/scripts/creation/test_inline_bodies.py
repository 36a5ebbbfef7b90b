"""Tests `few`: a small request needs no stream while one lease takes and completes all of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.run.for_each import for_each
from tests.support.scripts.requests import HOUR, Lane, Tok, toks

if TYPE_CHECKING:
    from tests.support.scripts.requests import Held

LEASE = 30_000
ODD = [b"", b"3:abc", bytes(range(256)), b"x" * 500]


def has_stream(lane: Lane) -> bool:
    """Returns True for a stream; otherwise `few` must be there, and no stream nor group."""
    stream, counter, *_, few, _ = lane.names
    there = {key for key in (stream, counter, few) if lane.client.exists(key)}
    assert there in ({stream, counter}, {few})
    return stream in there


def held_apart(lane: Lane, count: int = 3, **options: Any) -> Held:
    """Makes a small request, all of it in one lease."""
    held = lane.begin(count, limit=1, **options)
    assert (len(held.ids), has_stream(lane)) == (count, False)
    return held


def test_few_small_bodies_wait_and_are_held_in_one_string(lane: Lane):
    """Empty bodies and any bytes are kept as in a stream; a refused token writes nothing."""
    (token,) = lane.start(ODD, limit=1)
    assert not has_stream(lane)
    with lane.unchanged():
        assert lane.acquire(Tok(5, "0", "9")).word == "stale"
    held = lane.take(token)
    assert held.bodies == ODD
    assert [entry_id.split(b"-")[1] for entry_id in held.ids] == [b"0", b"1", b"2", b"3"]
    assert not has_stream(lane)


@pytest.mark.parametrize("bodies", [[b"x"] * 11, [b"x" * 1025], [b"x" * 600] * 2])
def test_more_or_bigger_ones_go_straight_into_the_stream(lane: Lane, bodies: list[bytes]):
    lane.start(bodies)
    assert has_stream(lane)


def test_ten_bodies_of_1024_bytes_together_are_few(lane: Lane):
    lane.start([b"x" * 102] * 9 + [b"x" * 106])
    assert not has_stream(lane)


def test_an_open_request_waits_in_the_stream(lane: Lane):
    lane.start(1, open_ms=HOUR)
    assert has_stream(lane)


def test_what_is_not_taken_as_a_whole_goes_into_the_stream(lane: Lane):
    held = lane.begin(3, limit=2)
    assert (len(held.ids), has_stream(lane)) == (2, True)
    other = Lane(lane.driver, lane.client, request_id="r2")
    held = other.begin(3, limit=1, count=2)
    assert (len(held.ids), has_stream(other)) == (2, True)


def test_results_of_a_small_request_take_what_they_need(lane: Lane):
    """A stream takes 4 KiB for its first entry; big results are not copied."""
    lane.complete(held_apart(lane))
    assert lane.client.memory_usage(lane.names[6]) < 2_000
    assert 0 < lane.client.pttl(lane.names[6]) <= HOUR * 24


def test_a_repeated_acquire_brings_the_same_from_the_string(lane: Lane):
    held = held_apart(lane)
    again = lane.acquire(Tok(5, held.k, held.g), op=held.op)
    assert (again.word, again.fence, again.ids) == ("ok", held.fence, held.ids)
    assert again.bodies == held.bodies
    assert not has_stream(lane)


@for_each("verdict", ["retry", "dead", "release", "timeout"])
def test_another_verdict_pours_them_into_the_stream(lane: Lane, verdict: str):
    held = held_apart(lane)
    word, *_ = lane.complete(held, held.ids[:1], [(held.ids[1], verdict, 0)])
    assert (word, has_stream(lane)) == (b"ok", True)
    assert lane.number("done") == 1
    assert lane.number("dead") == (verdict == "dead")


def test_a_partial_completion_pours_them_and_the_rest_is_done_later(lane: Lane):
    held = held_apart(lane)
    assert lane.complete(held, held.ids[:1], keep=True)[:2] == [b"ok", 2]
    assert has_stream(lane)
    assert lane.complete(held, held.ids[:1], keep=True)[:2] == [b"ok", 2]
    assert lane.complete(held, held.ids[1:])[0] == b"ended"


def test_ids_that_are_not_all_of_the_lease_are_looked_up(lane: Lane):
    held = held_apart(lane)
    strange = [held.ids[1], held.ids[0], held.ids[0]]
    word, left, flat = lane.complete(held, strange)
    assert (word, left, has_stream(lane)) == (b"ok", 1, True)
    again = lane.take(toks(flat)[0])
    assert again.ids == held.ids[2:]
    assert lane.complete(again, [b"1-7"])[:2] == [b"ok", 1]


@pytest.mark.parametrize(("count", "attempt"), [(1, 2), (3, 1)])
def test_a_lease_that_expires_gives_them_back(lane: Lane, count: int, attempt: int):
    held = held_apart(lane, count)
    with lane.unchanged():
        lane.reap()
    lane.later(LEASE)
    _, _, flat = lane.reap()
    assert has_stream(lane)
    again = lane.take(toks(flat)[0])
    assert (again.ids, again.attempt) == (held.ids[:1], attempt)
    assert lane.complete(held)[0] == b"lost"


@pytest.mark.parametrize("is_held", [False, True])
def test_a_cancelled_small_request_counts_what_did_not_run(lane: Lane, is_held: bool):
    if is_held:
        held = held_apart(lane)
        assert lane.cancel()[0] == b"ok"
        word, summary = lane.complete(held, held.ids[:2])
    else:
        lane.start(3)
        word, summary = lane.cancel()
    done = 2 if is_held else 0
    assert (word, summary[0], summary[2:6]) == (b"ended", b"cancelled", [3, done, 0, 3 - done])
    assert lane.check() == []


def test_pause_and_new_limits_leave_them_where_they_are(lane: Lane):
    lane.start(3, limit=1)
    lane.pause()
    lane.set_limit(2)
    lane.set_priority(9)
    flat = lane.resume()[-1]
    assert not has_stream(lane)
    assert [token.lane for token in toks(flat)] == [9, 9]


def test_no_dead_to_requeue_makes_no_counter(lane: Lane):
    """A counter would be read as the number of what is left."""
    lane.start(3)
    lane.requeue([b"1-1"])
    assert not has_stream(lane)


def test_lease_and_permit_deleted_they_wait_again(lane: Lane):
    held_apart(lane)
    lane.checked = False
    lane.client.delete(lane.names[3], lane.names[4])
    _, _, flat = lane.reap()
    assert len(lane.take(toks(flat)[0]).ids) == 3


def test_a_permit_deleted_alone_gives_them_back_when_its_lease_expires(lane: Lane):
    """Their holder is unknown then: they wait as if they had never been taken."""
    held_apart(lane)
    lane.checked = False
    lane.client.delete(lane.names[3])
    lane.later(LEASE)
    _, _, flat = lane.reap()
    assert len(lane.take(toks(flat)[0]).ids) == 3


def test_a_lease_deleted_alone_is_repaired_too(lane: Lane):
    """The permit is leased, and no such lease will ever expire: its request still ends."""
    held = held_apart(lane)
    lane.checked = False
    lane.client.delete(lane.names[4])
    assert lane.complete(held)[0] == b"ended"
