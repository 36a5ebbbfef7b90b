"""Tests the guards of scripts that no other test holds (see tests/explore/mutants.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlane.protocol import keys

if TYPE_CHECKING:
    from tests.support.scripts.requests import Lane

MIB = 1 << 20
ACTIVE, LOG, CONF = keys.active("req"), keys.completed("req"), keys.conf("req")


def test_postpone_makes_no_entry_out_of_a_score_that_is_no_number(lane: Lane):
    assert lane.call("reschedule_active", (ACTIVE,), rows=["r1", "x", lane.now]) == 0
    assert lane.dump() == {}


def test_drop_logs_nothing_for_a_score_that_is_no_number(lane: Lane):
    assert (
        lane.call(
            "drop_active", (ACTIVE, LOG, *keys.bound("req")), id="r1", seen="x", gone="1", most=9
        )
        == 0
    )
    assert lane.dump() == {}


def test_a_deadline_buries_what_was_released_in_calls_of_bounded_bytes(lane: Lane):
    """With bodies of 1 MiB a call buries 16, and reports that more is due now."""
    held = lane.begin([b"x" * MIB] + [b"y"] * 19, limit=1, deadline_ms=60_000)
    lane.complete(held, [], [(entry_id, "release", 0) for entry_id in held.ids])
    assert lane.pending() == {"-": 20}
    lane.later(60_000)
    assert lane.reap()[:2] == [b"stopped", 1]
    assert len(lane.dead()) == 16
    word, summary = lane.reap()
    assert (word, summary[4]) == (b"ended", 20)


def test_a_worker_leaves_though_its_record_has_expired(lane: Lane):
    """Its entry and its lock are removed, or others would take it for dead."""
    lane.raw("ZADD", keys.workers("req"), lane.now, "w:1")
    lane.raw("HSET", CONF, "lock", "w:1", "lock_until", lane.now)
    names = (keys.workers("req"), keys.worker("req", "w:1"), CONF, keys.taken("req", "w:1"))
    assert lane.call("unregister_worker", names, id="w:1", started="7") == 1
    assert lane.dump() == {}


def test_another_limit_lets_a_sleeper_sleep(lane: Lane):
    """Its token is queued already, and due together with the retry."""
    held = lane.begin(1, limit=1)
    lane.complete(held, [], [(held.ids[0], "retry", 60_000)])
    assert lane.request("set_limit", limit=2) == [b"ok", []]


def test_an_op_that_comes_with_another_token_is_no_repeat(lane: Lane):
    (token,) = lane.start(1, limit=1)
    held = lane.take(token)
    assert lane.acquire(token._replace(g="999"), op=held.op).word == "stale"
