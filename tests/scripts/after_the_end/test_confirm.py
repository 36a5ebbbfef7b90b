"""Tests the script confirm: a write that always happens and changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.scripts.requests import Lane


def without_mark(lane: Lane) -> dict[str, str]:
    """Returns the request's hash without the field that confirm writes."""
    return {name: text for name, text in lane.hash().items() if name != "confirm"}


def test_confirm_writes_and_reports_what_is_there(lane: Lane):
    lane.start(3)
    before = without_mark(lane)
    assert lane.request("confirm") == [b"ok", b"active", b"d1", lane.number("born"), 0]
    assert without_mark(lane) == before
    assert lane.number("confirm") == lane.now


def test_confirm_reports_whether_the_request_is_open(lane: Lane):
    """A failover may lose the seal alone."""
    lane.start(3, open_ms=1_000)
    assert lane.request("confirm")[4] == 1
    lane.seal()
    assert lane.request("confirm")[4] == 0


def test_confirm_twice_within_a_millisecond_writes_twice(lane: Lane):
    """Otherwise WAIT behind the second call would wait for nothing."""
    lane.start(3)
    lane.request("confirm")
    changes = lane.client.info("persistence")["rdb_changes_since_last_save"]
    lane.request("confirm")
    assert lane.client.info("persistence")["rdb_changes_since_last_save"] > changes


def test_confirm_after_the_end_keeps_the_tombstones_ttl(lane: Lane):
    lane.start(3)
    lane.cancel()
    ttl = lane.client.pttl("req:{r1}")
    assert lane.request("confirm") == [b"ok", b"cancelled", b"d1", lane.number("born"), 0]
    assert 0 < lane.client.pttl("req:{r1}") <= ttl
