"""Tests put_schedule, move_tick, drop_schedule and due_schedules."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from fairlane.protocol import keys

if TYPE_CHECKING:
    from tests.support.scripts.requests import Lane

BOTH = SCHEDULES, TICKS = keys.schedules("req")
OLD, NEW = b'{"cron":"old"}', b'{"cron":"new"}'


def sha(text: bytes) -> str:
    return hashlib.sha1(text, usedforsecurity=False).hexdigest()


def put(lane: Lane, definition: bytes = OLD, found: str = "", tick: Any = 1_000) -> bytes:
    given = {"schedule": "s", "found": found, "definition": definition, "tick": tick}
    (word,) = lane.call("put_schedule", BOTH, **given)
    return bytes(word)


def move(lane: Lane, expected: Any, tick: Any, definition: bytes = OLD) -> bytes:
    given = {"schedule": "s", "found": sha(definition), "expected": expected, "tick": tick}
    (word,) = lane.call("move_tick", BOTH, **given)
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
    assert [lane.call("drop_schedule", BOTH, schedule="s") for _ in range(2)] == [1, 0]
    assert stored(lane) == (None, None)


def test_due_schedules_come_earliest_first_with_the_time_of_the_next_one(lane: Lane):
    lane.client.hset(SCHEDULES, mapping={"a": "A", "b": "B", "late": "L"})
    lane.client.zadd(TICKS, {"b": 1_000, "a": 2_000, "orphan": 2_500, "late": 3_001})

    def due(now: int, skip: int = 0, most: int = 10) -> list[Any]:
        return list(lane.call("due_schedules", BOTH, now=now, skip=skip, most=most))

    everything = [b"b", 1_000, b"B", b"a", 2_000, b"A", b"orphan", 2_500, b""]
    assert due(3_000) == [3_000, 3_001, *everything]
    assert due(3_000, skip=1, most=1) == [3_000, 3_001, b"a", 2_000, b"A"]
    assert due(999) == [999, 1_000]
    assert due(5_000, most=0) == [5_000, 0]
