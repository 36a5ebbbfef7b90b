"""Tests the pause before another attempt."""

from __future__ import annotations

import pytest

from fairlane.common.clock import retry_delay_ms
from fairlane.errors import InvalidArgument
from fairlane.settings import duration_range_ms
from tests.support.run.for_each import for_each


def pauses(attempt: int, text: str) -> tuple[int, int]:
    """Returns the shortest and the longest of many pauses."""
    found = [retry_delay_ms(attempt, *duration_range_ms(text)) for _ in range(2_000)]
    return min(found), max(found)


@for_each("attempt", [1, 2, 3, 7, 100])
def test_a_pause_is_within_its_range(attempt: int):
    for text in ("2s..2s", "2s", "1s..5m", "0s..1s", "300ms..1s"):
        low, high = duration_range_ms(text)
        shortest, longest = pauses(attempt, text)
        assert low <= shortest <= longest <= high


def test_a_pause_of_one_length_has_this_length():
    assert pauses(1, "2s..2s") == (2_000, 2_000) == pauses(9, "2s")


@for_each(
    "attempt, low, high",
    [
        (1, 1_000, 2_000),
        (2, 1_000, 2_000),
        (3, 2_000, 4_000),
        (4, 4_000, 8_000),
        (30, 150_000, 300_000),
    ],
)
def test_a_pause_doubles_and_varies(attempt: int, low: int, high: int):
    shortest, longest = pauses(attempt, "1s..5m")
    assert low <= shortest < longest <= high


@for_each(
    "text, sentence",
    [
        ("5m..1s", "ends before it begins"),
        ("1s..", "is no range: write the shortest and the longest time, as 1s..5m"),
        ("..5m", "is no range: write the shortest and the longest time, as 1s..5m"),
        ("1s...5m", "is not a duration"),
    ],
)
def test_what_is_no_range_is_refused(text: str, sentence: str):
    with pytest.raises(InvalidArgument, match=sentence):
        duration_range_ms(text)
