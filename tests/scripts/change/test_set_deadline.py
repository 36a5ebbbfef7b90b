"""Tests the script set_deadline: another deadline holds from now on; a passed one stays passed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.run.for_each import for_each
from tests.support.scripts.requests import HOUR, MINUTE, toks

if TYPE_CHECKING:
    from tests.support.scripts.requests import Lane


def test_nothing_starts_after_the_new_deadline(lane: Lane):
    token, *_ = lane.start(9)
    assert lane.request("set_deadline", deadline_ms=MINUTE) == [b"ok", []]
    assert lane.number("deadline") == lane.now + MINUTE
    lane.later(MINUTE)
    assert lane.acquire(token).word == "paused"
    assert lane.reap()[0] == b"ended"
    assert lane.number("dead") == 9


def test_it_counts_from_now(lane: Lane):
    lane.start(9, deadline_ms=MINUTE)
    lane.later(MINUTE - 1)
    lane.request("set_deadline", deadline_ms=MINUTE)
    assert lane.number("deadline") == lane.now + MINUTE
    lane.later(2)
    assert lane.reap()[0] == b"ok"


def test_without_a_deadline_it_runs_on(lane: Lane):
    token, *_ = lane.start(9, deadline_ms=MINUTE)
    lane.request("set_deadline", deadline_ms=0)
    lane.later(HOUR)
    assert lane.take(token).ids


def test_the_same_deadline_twice_is_once(lane: Lane):
    lane.start(9)
    lane.request("set_deadline", deadline_ms=MINUTE)
    deadline = lane.number("deadline")
    assert len(toks(lane.request("set_deadline", deadline_ms=MINUTE)[1])) == 3
    assert lane.number("deadline") == deadline


@for_each("way", ["cancelling", "expiring", "clock back", "overdue"])
def test_a_request_whose_end_is_near_keeps_its_deadline(lane: Lane, way: str):
    lane.begin(9, deadline_ms=MINUTE, lease_ms=HOUR)
    if way == "cancelling":
        lane.cancel()
    else:
        lane.later(MINUTE)
    if way in {"expiring", "clock back"}:
        lane.reap()
        assert lane.hash()["state"] == "expiring"
    if way == "clock back":
        lane.now -= MINUTE
    with lane.unchanged():
        assert lane.request("set_deadline", deadline_ms=HOUR) == [b"ending"]


def test_a_paused_request_gets_another_deadline(lane: Lane):
    lane.start(9)
    lane.pause()
    assert lane.request("set_deadline", deadline_ms=MINUTE) == [b"ok", []]
    assert lane.number("deadline") == lane.now + MINUTE


def test_what_is_held_stays_held(lane: Lane):
    held = lane.begin(9)
    lane.request("set_deadline", deadline_ms=MINUTE)
    lane.later(MINUTE)
    assert lane.complete(held)[0] == b"ok"
