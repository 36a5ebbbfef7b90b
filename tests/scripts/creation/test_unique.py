"""Tests enqueue with `unique`: a new life of an id follows after the former one and its window."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.scripts.requests import HOUR, MINUTE, toks

if TYPE_CHECKING:
    from tests.support.scripts.requests import Lane


def again(lane: Lane, window: int = 0, digest: str = "d2", **given: Any) -> list[Any]:
    """Submits other content under the same id."""
    return lane.enqueue(1, digest=digest, extras=f"unique={window}:ab", **given)


def end(lane: Lane) -> None:
    lane.complete(lane.take(lane.start(1, extras="unique=0:aa")[0]))


def test_another_submission_is_kept_off_while_the_request_runs(lane: Lane):
    lane.start(1, extras="unique=0:aa")
    before = lane.dump()
    lane.now += HOUR
    assert again(lane)[0] == b"kept"
    assert lane.dump() == before


def test_another_submission_is_kept_off_within_the_window_after_the_beginning(lane: Lane):
    end(lane)
    lane.now += 4_999
    assert again(lane, 5_000)[0] == b"kept"
    lane.now += 1
    assert again(lane, 5_000)[0] == b"abandoned"


def test_a_window_holds_no_longer_if_the_clock_goes_back(lane: Lane):
    end(lane)
    born = lane.number("born")
    lane.later(-MINUTE)
    assert again(lane, 5_000)[0] == b"kept"
    lane.later(-HOUR)
    assert again(lane, 5_000)[0] == b"abandoned"
    _, tokens, later = again(lane, 5_000, over=born)
    assert later > born
    lane.complete(lane.take(toks(tokens)[0]))
    lane.later(4_999)
    assert again(lane, 5_000, digest="d3")[0] == b"kept", "the new life has its own window"
    lane.later(1)
    assert again(lane, 5_000, digest="d3")[0] == b"abandoned"


def test_a_new_life_begins_when_the_ending_of_the_former_one_is_in_the_log(lane: Lane):
    end(lane)
    born = lane.number("born")
    assert again(lane)[0] == b"abandoned"
    assert again(lane, over=born)[0] == b"ok"
    assert lane.number("born") > born
    assert lane.hash()["state"] == "active"


def test_a_lease_in_the_ms_in_which_the_former_life_began_shows_a_start(lane: Lane):
    """`debounce` reads it from the fence. The new life begins a ms later than now."""
    end(lane)
    _, tokens, born = again(lane, over=lane.number("born"))
    assert born > lane.now
    lane.take(toks(tokens)[0])
    assert lane.number("seq") >= 1_000 * born


def test_what_was_cancelled_is_followed_within_the_window(lane: Lane):
    lane.start(1, extras="unique=0:aa")
    born = lane.number("born")
    lane.request("cancel", reason="replaced")
    assert again(lane, HOUR, over=born)[0] == b"ok"


def test_a_repeat_finds_its_own_request_though_it_has_ended(lane: Lane):
    end(lane)
    assert again(lane, digest="d1")[0] == b"exists"
    assert lane.hash()["state"] == "done"


def test_without_unique_a_request_that_is_done_has_no_other_life(lane: Lane):
    end(lane)
    assert lane.enqueue(1, digest="d2")[0] == b"conflict"


def test_a_request_that_a_person_cancelled_has_no_other_life_without_unique(lane: Lane):
    lane.start(1)
    lane.request("cancel", reason="enough")
    assert lane.enqueue(1, digest="d2")[0] == b"conflict"


@pytest.mark.parametrize("extras", ["", "unique=0:ab"])
def test_a_request_of_another_queue_is_never_replaced(lane: Lane, extras: str):
    """Neither while it runs nor after its end, not even if its producer abandoned it."""
    lane.start(1, extras="unique=0:aa", open_ms=HOUR)
    born = lane.number("born")
    other = {"digest": "d2", "extras": extras, "queue": "other"}
    for step in ("", "cancel", "abandoned"):
        if step == "cancel":
            lane.request("cancel", reason="abandoned")
        if step == "abandoned":
            lane.client.hset(f"req:{{{lane.id}}}", "abandoned", 1)
        before = lane.dump()
        lane.now += HOUR
        for over in (0, born):
            assert lane.enqueue(1, over=over, **other)[0] == b"conflict"
        assert lane.dump() == before
