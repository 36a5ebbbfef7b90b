"""Tests what a living holder releases in its first attempt: it returns together, uncharged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.support.scripts.requests import toks

if TYPE_CHECKING:
    from tests.support.scripts.requests import Held, Lane, Tok


def back(lane: Lane, held: Held, done: list[bytes]) -> list[Any]:
    """Completes these and releases the others, which were never begun."""
    return lane.complete(held, done, is_unbegun=True)


def given_back(lane: Lane, *done: int, size: int = 6, limit: int = 1) -> Tok:
    """Leases `size` sub-requests and completes these; returns the token for the others."""
    held = lane.begin([b"b%d" % i for i in range(size)] + [b"x" * 1100], limit=limit, count=size)
    return toks(back(lane, held, [held.ids[i] for i in done])[2])[0]


def test_they_come_in_one_slice_before_what_is_fresh(lane: Lane):
    token = given_back(lane, 0, 3)
    again = lane.take(token, count=1000)
    assert (again.attempt, again.bodies) == (1, [b"b1", b"b2", b"b4", b"b5"])
    assert lane.client.zcard(lane.names[5]) == 0
    assert lane.complete(again, again.ids)[:2] == [b"ok", 1]
    assert sorted(lane.results()) == list(range(6))


def test_permits_share_them_with_what_is_fresh(lane: Lane):
    first, second, third = lane.start([b"x" * 100] * 12, limit=3)
    held = lane.take(first, count=1000)
    taken = [len(held.ids), *(len(lane.take(token, count=1000).ids) for token in (second, third))]
    (token,) = toks(back(lane, held, [])[2])
    assert (taken, len(lane.take(token, count=1000).ids)) == ([4, 3, 2], 3)


def test_bodies_bound_a_slice_of_them(lane: Lane):
    held = lane.begin([b"x" * (1 << 20)] * 6, limit=1, count=1000)
    (token,) = toks(back(lane, held, [])[2])
    again = lane.take(token, count=1000)
    assert (len(held.ids), again.ids) == (4, held.ids)


def test_one_of_several_leases_may_take_them(lane: Lane):
    assert lane.acquire(given_back(lane), shared=True).word == "ok"


def test_the_same_acquire_again_is_answered_the_same(lane: Lane):
    token = given_back(lane, 1)
    first, again = lane.acquire(token, op="a" * 32), lane.acquire(token, op="a" * 32)
    assert (first.word, first.reply[4]) == ("ok", again.reply[4])


def test_one_that_failed_before_comes_alone(lane: Lane):
    """Released in its second attempt it is due now, and its death would be charged."""
    held = lane.begin(3, limit=1, count=1)
    (token,) = toks(lane.complete(held, others=[(held.ids[0], "retry", 0)])[2])
    (token,) = toks(back(lane, lane.take(token), [])[2])
    again = lane.take(token, count=1000)
    assert (again.attempt, again.ids) == (2, held.ids)


def test_after_a_death_each_comes_alone(lane: Lane):
    """Any of them may have killed the worker, also if they were together for the second time."""
    again = lane.take(given_back(lane), count=1000)
    assert len(again.ids) == 6
    lane.later(3_600_000)
    (token, *_) = toks(lane.reap()[2])
    assert lane.acquire(token, shared=True).reply == [b"alone"]
    assert lane.take(token, count=1000).bodies == [b"b0"]


def test_what_lies_between_two_of_them_is_not_theirs(lane: Lane):
    """0, 2 and 3 return together while another lease has 1: each named id is looked up."""
    first, second, third = lane.start([b"x" * 100] * 18, limit=3)
    held, other = lane.take(first, count=1000), lane.take(second, count=1000)
    lane.take(third, count=1000)
    (token,) = toks(back(lane, held, [])[2])
    zero = lane.take(token, count=1)
    (token,) = toks(lane.complete(other)[2])
    one = lane.take(token, count=1)
    (token,) = toks(back(lane, zero, [])[2])
    mine = lane.take(token, count=3)
    assert mine.ids == [held.ids[0], *held.ids[2:4]]
    lane.complete(mine, [mine.ids[0], one.ids[0], mine.ids[2]])
    assert lane.number("done") == len(other.ids) + 2


# ------------------------------------------------------------------ while the lease goes on


def split(lane: Lane, held: Held, **changed: Any) -> list[Any]:
    """Settles the first, keeps the second, and returns the others, which have not begun."""
    others = [(entry, "unbegun", 0) for entry in held.ids[2:]]
    return lane.complete(held, held.ids[:1], others, keep=True, **changed)


def test_what_a_slow_call_holds_up_comes_together_while_its_lease_goes_on(lane: Lane):
    first, second = lane.start([b"x" * 300] * 8, limit=2)
    held = lane.take(first, count=4)
    assert split(lane, held)[:2] == [b"ok", 7]
    assert (lane.number("done"), "failures" in lane.hash()) == (1, False)
    taken = lane.take(second, count=1000)
    assert (taken.attempt, taken.ids) == (1, held.ids[2:])
    assert lane.complete(held, held.ids[:2])[0] == b"ok", "the unit sends the first again"
    assert lane.number("done") == 2


def test_a_split_changes_nothing_when_it_is_repeated(lane: Lane):
    held = lane.begin(6, limit=1, count=6)
    split(lane, held)
    with lane.unchanged():
        assert split(lane, held)[:2] == [b"ok", 5]


def test_a_death_after_a_split_is_charged_to_the_call_that_ran(lane: Lane):
    held = lane.begin(3, limit=1, count=3)
    split(lane, held)
    lane.reap(worker=held.worker, started=held.started, k=held.k, fence=held.fence)
    assert lane.client.zscore(lane.names[5], held.ids[2]) == 0, "it may come with others"
    assert lane.client.zscore(lane.names[5], held.ids[1]) == lane.now
    assert lane.number("failures") == 1


def test_only_the_holder_splits_and_only_before_the_end(lane: Lane):
    held = lane.begin(3, limit=1, count=3)
    with lane.unchanged():
        assert split(lane, held, op="f" * 32) == [b"lost"]
    lane.complete(held)
    with lane.unchanged():
        assert split(lane, held)[0] == b"ended"
