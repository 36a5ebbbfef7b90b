"""Tests put_schedule, move_tick, drop_schedule and due_schedules."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from fairlane.protocol import keys

if TYPE_CHECKING:
    from tests.support.scripts.requests import Lane

SCHEDULES, TICKS = keys.schedules("req")
FIRING = keys.firing("req")
ALL = (SCHEDULES, TICKS, FIRING)
OLD, NEW = b'{"cron":"old"}', b'{"cron":"new"}'


def sha(text: bytes) -> str:
    return hashlib.sha1(text, usedforsecurity=False).hexdigest()


def put(lane: Lane, definition: bytes = OLD, found: str = "", tick: Any = 1_000) -> bytes:
    given = {"schedule": "s", "found": found, "definition": definition, "tick": tick}
    (word,) = lane.call("put_schedule", ALL, **given)
    return bytes(word)


def move(lane: Lane, expected: Any, tick: Any, definition: bytes = OLD) -> bytes:
    given = {"schedule": "s", "found": sha(definition), "expected": expected, "tick": tick}
    (word,) = lane.call("move_tick", ALL, **given)
    return bytes(word)


def stored(lane: Lane) -> tuple[bytes | None, float | None]:
    return lane.client.hget(SCHEDULES, "s"), lane.client.zscore(TICKS, "s")


# ------------------------------------------------------------------ put_schedule


def test_a_new_schedule_begins_with_its_tick(lane: Lane):
    assert put(lane) == b"ok"
    assert stored(lane) == (OLD, 1_000)


def test_a_repeated_put_changes_nothing(lane: Lane):
    assert [put(lane), put(lane)] == [b"ok", b"ok"]
    assert stored(lane) == (OLD, 1_000)


def test_the_same_definition_with_another_tick_moves_the_tick(lane: Lane):
    put(lane)
    assert put(lane, found=sha(OLD), tick=2_000) == b"ok"
    assert stored(lane) == (OLD, 2_000)


def test_a_schedule_that_another_caller_has_put_meanwhile_stays(lane: Lane):
    put(lane)
    assert put(lane, NEW, tick=2_000) == b"changed"
    assert put(lane, NEW, found=sha(NEW), tick=2_000) == b"changed"
    assert stored(lane) == (OLD, 1_000)


def test_a_schedule_that_was_removed_meanwhile_is_not_put_again(lane: Lane):
    assert put(lane, NEW, found=sha(OLD)) == b"changed"
    assert stored(lane) == (None, None)


def test_another_line_brings_another_tick(lane: Lane):
    put(lane)
    assert put(lane, NEW, found=sha(OLD), tick=2_000) == b"ok"
    assert stored(lane) == (NEW, 2_000)


def test_a_change_without_a_tick_keeps_the_one_it_has(lane: Lane):
    put(lane)
    assert put(lane, NEW, found=sha(OLD), tick="") == b"ok"
    assert stored(lane) == (NEW, 1_000)


def test_a_paused_schedule_stays_paused_when_it_changes(lane: Lane):
    put(lane)
    move(lane, 1_000, "")
    assert put(lane, NEW, found=sha(OLD), tick=2_000) == b"ok"
    assert stored(lane) == (NEW, None)


# ------------------------------------------------------------------ move_tick


def test_a_tick_moves_only_from_the_one_that_was_expected(lane: Lane):
    put(lane)
    assert move(lane, 999, 2_000) == b"moved"
    assert move(lane, 1_000, 2_000) == b"ok"
    assert stored(lane) == (OLD, 2_000)


def test_a_repeated_move_is_done(lane: Lane):
    put(lane)
    assert [move(lane, 1_000, 2_000), move(lane, 1_000, 2_000)] == [b"ok", b"ok"]


def test_a_tick_does_not_move_by_a_line_that_was_replaced(lane: Lane):
    """The tick of the new line may be the same by chance."""
    put(lane)
    put(lane, NEW, found=sha(OLD), tick=1_000)
    assert move(lane, 1_000, 9_000, OLD) == b"moved"
    assert stored(lane) == (NEW, 1_000)


def test_a_schedule_is_paused_and_resumed(lane: Lane):
    put(lane)
    assert [move(lane, 1_000, ""), move(lane, 1_000, "")] == [b"ok", b"ok"]
    assert stored(lane) == (OLD, None)
    assert move(lane, 1_000, 2_000) == b"moved", "it is paused, and a leader read it before"
    assert move(lane, "", 3_000) == b"ok"
    assert stored(lane) == (OLD, 3_000)


def test_a_schedule_that_is_gone_gets_no_tick(lane: Lane):
    assert move(lane, "", 1_000) == b"gone"
    assert not lane.client.exists(TICKS)


# ------------------------------------------------------------------ drop_schedule, due_schedules


def test_a_removed_schedule_leaves_nothing(lane: Lane):
    put(lane)
    assert [lane.call("drop_schedule", ALL, schedule="s") for _ in range(2)] == [1, 0]
    assert stored(lane) == (None, None)


def test_due_schedules_come_earliest_first_with_the_time_of_the_next_one(lane: Lane):
    lane.client.hset(SCHEDULES, mapping={"a": "A", "b": "B", "late": "L"})
    lane.client.zadd(TICKS, {"b": 1_000, "a": 2_000, "orphan": 2_500, "late": 3_001})

    def due(now: int, skip: int = 0, most: int = 10) -> list[Any]:
        return list(lane.call("due_schedules", (SCHEDULES, TICKS), now=now, skip=skip, most=most))

    everything = [b"b", 1_000, b"B", b"a", 2_000, b"A", b"orphan", 2_500, b""]
    assert due(3_000) == [3_000, 3_001, *everything]
    assert due(3_000, skip=1, most=1) == [3_000, 3_001, b"a", 2_000, b"A"]
    assert due(999) == [999, 1_000]
    assert due(5_000, most=0) == [5_000, 0]


# ------------------------------------------------------------------ claim_ticks


def claim(lane: Lane, now: int, skip: int = 0, most: int = 10) -> list[Any]:
    """Returns the time of the next tick, the spans, and what is due."""
    return list(lane.call("claim_ticks", ALL, now=now, skip=skip, most=most))[1:]


def test_a_claim_notes_when_a_caller_began_with_a_tick(lane: Lane):
    lane.now = 900
    put(lane)
    assert claim(lane, 999) == [1_000, b""]
    assert claim(lane, 1_000) == [0, b"1000-1000", b"s", 1_000, OLD, 0]
    assert claim(lane, 3_000) == [0, b"1000-3000", b"s", 1_000, OLD, 1_000]
    assert claim(lane, 3_000, skip=1) == [0, b"1000-3000"]


def test_the_note_goes_with_the_tick(lane: Lane):
    put(lane)
    claim(lane, 1_000)
    lane.now = 1_500
    move(lane, 1_000, 2_000)
    assert claim(lane, 2_500)[2:] == [b"s", 2_000, OLD, 0]
    move(lane, 2_000, 2_000)
    assert claim(lane, 2_600)[2:] == [b"s", 2_000, OLD, 0], "the caller has given it up"
    lane.now = 5_000
    move(lane, 2_000, 4_000)
    assert claim(lane, 5_000)[2:] == [b"s", 4_000, OLD, 2_600], "this is the rest of it"
    move(lane, 2_000, 4_000)
    assert claim(lane, 5_000)[2:] == [b"s", 4_000, OLD, 2_600], "a late copy changes nothing"
    lane.call("drop_schedule", ALL, schedule="s")
    assert not lane.client.exists(FIRING)


def test_a_pause_between_two_claims_ends_a_span(lane: Lane):
    put(lane)
    for now in (1_000, 11_000, 21_001, 25_000):
        found = claim(lane, now)
    assert found[1] == b"1000-11000,21001-25000"
    assert claim(lane, 22_000)[1] == b"1000-11000,21001-22000", "the clock went back"
    assert claim(lane, 1_000)[1] == b"1000-1000"


def test_ticks_that_lie_ahead_are_due_when_the_clock_went_back(lane: Lane):
    lane.now = 9_000
    put(lane, tick=12_000)
    assert claim(lane, 8_000) == [12_000, b""]
    assert claim(lane, 7_999) == [0, b"7999-7999", b"s", 7_999, OLD, 0]


def test_a_claim_wants_two_counts(lane: Lane):
    for given in ({"skip": "x", "most": 1}, {"skip": 0, "most": 0}):
        with lane.refuses("BADARGUMENT claim_ticks wants two counts"):
            lane.call("claim_ticks", ALL, now=1, **given)
