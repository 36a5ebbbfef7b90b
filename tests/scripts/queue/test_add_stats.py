"""Tests the script add_stats: measurements are added up, and a maximum keeps the largest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlane.protocol import keys

if TYPE_CHECKING:
    from tests.support.scripts.requests import Lane

STATS = keys.stats("req")


MINUTE = 60_000


def tally(
    lane: Lane, *numbers: object, most: int = 0, key: bytes = STATS, now: int = 100 * MINUTE
) -> int:
    return int(lane.call("add_stats", (key,), now=now, most=most, numbers=numbers))


def test_measurements_are_added_up_and_the_largest_is_kept(lane: Lane):
    """A repeat adds the same again, because these are measurements and not counts to rely on."""
    assert tally(lane, "5:ran:count", 2, "5:ran:max", 9, "5:ran:12", 2) == 3
    assert tally(lane, "5:ran:count", 2, "5:ran:max", 7, "5:ran:13", 2) == 3
    assert lane.client.hgetall(STATS) == {
        b"5:ran:count": b"4", b"5:ran:max": b"9", b"5:ran:12": b"2", b"5:ran:13": b"2",
    }  # fmt: skip


def test_a_new_task_counts_as_other_if_there_are_as_many_fields_as_there_may_be(lane: Lane):
    """A task that is there keeps its own fields, also new ones."""
    key = keys.task_stats("req")
    tally(lane, "a:calls", 1, "a:ran:count", 1, most=2, key=key)
    tally(lane, "b:calls", 2, "b:ran:max", 7, "a:calls", 1, "a:failed", 1, most=2, key=key)
    tally(lane, "c:calls", 3, "c:ran:max", 5, most=2, key=key)
    assert lane.client.hgetall(key) == {
        b"a:calls": b"100 2 1 0 0", b"a:ran:count": b"1", b"a:failed": b"1",
        b"other:calls": b"100 5 0 0 0", b"other:ran:max": b"7",
    }  # fmt: skip


def test_calls_of_a_task_are_counted_by_this_minute_and_the_one_before(lane: Lane):
    """The number of a later minute takes the place of the first one."""
    key = keys.task_stats("req")

    def lately(minute: int, calls: int, *more: object) -> bytes | None:
        tally(lane, "a:calls", calls, *more, most=9, key=key, now=minute * MINUTE + 7)
        found: bytes | None = lane.client.hget(key, "a:calls")
        return found

    assert lately(100, 4, "a:failed", 1) == b"100 4 1 0 0"
    assert lately(100, 2, "a:failed", 2) == b"100 6 3 0 0"
    assert lately(101, 1) == b"101 1 0 6 3"
    assert lately(103, 5) == b"103 5 0 0 0"
    assert lately(102, 1) == b"102 1 0 0 0"
