"""Tests the script add_stats: measurements are added up, and a maximum keeps the largest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlane.protocol import keys

if TYPE_CHECKING:
    from tests.support.scripts.requests import Lane

STATS = keys.stats("req")


def tally(lane: Lane, *numbers: object) -> int:
    return int(lane.call("add_stats", (STATS,), numbers=numbers))


def test_measurements_are_added_up_and_the_largest_is_kept(lane: Lane):
    """A repeat adds the same again, because these are measurements and not counts to rely on."""
    assert tally(lane, "5:ran:count", 2, "5:ran:max", 9, "5:ran:12", 2) == 3
    assert tally(lane, "5:ran:count", 2, "5:ran:max", 7, "5:ran:13", 2) == 3
    assert lane.client.hgetall(STATS) == {
        b"5:ran:count": b"4", b"5:ran:max": b"9", b"5:ran:12": b"2", b"5:ran:13": b"2",
    }  # fmt: skip
