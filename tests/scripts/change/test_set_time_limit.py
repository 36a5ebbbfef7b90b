"""Tests the script set_time_limit: the slices that follow have the limit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlane.protocol import keys

if TYPE_CHECKING:
    from tests.support.scripts.requests import Lane

NAMES = keys.request_keys("r1")


def set_limit(lane: Lane, ms: int) -> list[Any]:
    return list(lane.call("set_time_limit", NAMES, time_limit_ms=ms))


def limit_of(lane: Lane) -> str:
    return str(lane.hash()["time_limit_ms"])


def test_the_policy_has_the_limit(lane: Lane):
    """No token is minted for it; 0 removes the limit."""
    lane.start(3, limit=1)
    assert set_limit(lane, 5_000) == [b"ok", []]
    assert limit_of(lane) == "5000"
    assert set_limit(lane, 0)[0] == b"ok"
    assert limit_of(lane) == "0"


def test_the_same_limit_twice_changes_nothing(lane: Lane):
    lane.start(3, limit=1)
    set_limit(lane, 5_000)
    with lane.unchanged():
        assert set_limit(lane, 5_000)[0] == b"ok"


def test_a_lease_that_is_held_stays(lane: Lane):
    """Its worker reads the limit itself."""
    held = lane.begin(2, limit=1)
    set_limit(lane, 5_000)
    assert lane.extend(held) == "ok"


def test_what_is_not_there_or_has_ended_is_refused(lane: Lane):
    with lane.unchanged():
        assert set_limit(lane, 5_000) == [b"gone"]
    lane.complete(lane.begin(1))
    with lane.unchanged():
        assert set_limit(lane, 5_000)[0] == b"ended"
