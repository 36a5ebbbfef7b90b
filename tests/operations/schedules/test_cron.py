"""Tests when a cron line is due, also if clocks change, and how a wrong line is refused."""

from __future__ import annotations

from bisect import bisect_right
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.errors import InvalidArgument
from fairlane.operations.schedules import cron_of
from tests.support.run.for_each import for_each
from tests.support.run.params import rest_but

if TYPE_CHECKING:
    from collections.abc import Iterator

BERLIN = "Europe/Berlin"
WHEN_CLOCKS_CHANGE = [  # of all ZONES
    ("2026-03-01T00:00+00:00", "2026-04-12T00:00+00:00"),
    ("2026-09-28T00:00+00:00", "2026-11-09T00:00+00:00"),
]
ZONES = [BERLIN, "Australia/Lord_Howe", "America/New_York", "UTC"]


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def times(line: str, after: str, count: int, tz: str = BERLIN) -> list[str]:
    found = cron_of(line, tz).moments(ms(after), count)
    return [moment.isoformat(timespec="minutes") for moment in found]


def test_a_line_is_due_in_its_own_zone():
    assert times("0 7 * * mon-fri", "2026-11-20T06:00+01:00", 2) == [
        "2026-11-20T07:00+01:00",
        "2026-11-23T07:00+01:00",
    ]
    assert times("0 7 * * *", "2026-07-01T00:00+00:00", 1, "UTC") == ["2026-07-01T07:00+00:00"]


def test_a_tick_is_later_than_the_time_that_is_given():
    cron = cron_of("0 7 * * *", "UTC")
    seven = ms("2026-11-23T07:00+00:00")
    assert cron.next(seven - 1) == seven
    assert cron.next(seven) == seven + 86_400_000


def test_a_line_of_six_fields_has_seconds():
    assert cron_of("*/20 * * * * *", "UTC").next(1_000) == 20_000


# ------------------------------------------------------------------ clocks that change


def test_a_skipped_time_is_due_when_the_skipped_hour_is_over():
    assert times("30 2 * * *", "2026-03-28T12:00+01:00", 2) == [
        "2026-03-29T03:00+02:00",
        "2026-03-30T02:30+02:00",
    ]


def test_a_time_that_comes_twice_is_due_once():
    expected = ["2026-10-25T02:30+02:00", "2026-10-26T02:30+01:00"]
    assert times("30 2 * * *", "2026-10-24T12:00+02:00", 2) == expected
    assert times("30 2 * * *", "2026-10-25T02:40+02:00", 1) == expected[1:]


def test_in_the_second_of_two_equal_hours_the_first_one_is_past():
    """A time of the second hour is later than one of the first, though the clock reads less."""
    assert times("30 2 * * *", "2026-10-25T02:20+01:00", 1) == ["2026-10-26T02:30+01:00"]


def test_a_line_of_every_hour_is_due_in_both_equal_hours():
    assert times("30 * * * *", "2026-10-25T02:00+02:00", 3) == [
        "2026-10-25T02:30+02:00",
        "2026-10-25T02:30+01:00",
        "2026-10-25T03:30+01:00",
    ]


@pytest.mark.parametrize("zone", rest_but(2, zip(ZONES)))
@pytest.mark.parametrize("line", ["30 2 * * *", "0,30 2,3 * * *", "*/15 * * * *", "45 1 * * *"])
def test_ticks_do_not_depend_on_where_the_reading_begins(line: str, zone: str):
    """A leader begins at the tick of a schedule, and another one an hour later."""
    cron = cron_of(line, zone)
    for begin, end in WHEN_CLOCKS_CHANGE:
        every = cron.latest(ms(begin), ms(end), 10**6)
        assert len(every) > 40
        assert every == sorted(set(every))
        for after in range(ms(begin), ms(end), 86_400_000 // 4 + 600_000):
            expected = every[bisect_right(every, after) :][:1]
            assert not expected or cron.next(after) == expected[0]


# ------------------------------------------------------------------ the latest ticks


def test_the_latest_ticks_are_those_at_the_end():
    cron = cron_of("* * * * *", "UTC")
    assert cron.latest(0, 600_000, 3) == [480_000, 540_000, 600_000]
    assert cron.latest(0, 600_000, 100) == list(range(0, 600_001, 60_000))
    assert cron.latest(600_001, 600_002, 5) == []


def test_the_latest_tick_of_a_long_time_is_found_in_few_steps(monkeypatch: pytest.MonkeyPatch):
    """No worker ran for a year, with a tick each second."""
    cron = cron_of("* * * * * *", "UTC")
    read: list[int] = []
    after = cron.after

    def counted(ms: int) -> Iterator[int]:
        for tick in after(ms):
            read.append(tick)
            yield tick

    monkeypatch.setattr(cron, "after", counted)
    year = 365 * 86_400_000
    assert cron.latest(0, year, 3) == [year - 2_000, year - 1_000, year]
    assert len(read) < 100


# ------------------------------------------------------------------ refusals

REFUSED = [
    ("0 0 31 2 *", "UTC", "cron line '0 0 31 2 *' is never due"),
    ("0 0 31 4,6 *", "UTC", "is never due"),
    ("61 * * * *", "UTC", "minute 61 is wrong"),
    ("* * * * * 8", "UTC", "day of the week 8 is wrong"),
    ("* 25 * * *", "UTC", "hour 25 is wrong"),
    ("@daily", "UTC", "has 1 field: write 5"),
    ("", "UTC", "has 0 fields"),
    ("* " * 200, "UTC", "has 400 characters: write at most 200"),
    ("1L/2 * * * *", "UTC", "minute 1L/2 is wrong"),
    (7, "UTC", "cron line is an int"),
    ("* * * * *", "Europe/Berln", "did you mean Europe/Berlin?"),
    ("* * * * *", "berlin", "did you mean Europe/Berlin?"),
    ("* * * * *", "../passwd", "time zone '../passwd' does not exist"),
    ("* * * * *", "", "time zone '' does not exist"),
    ("* * * * *", None, "time zone is a NoneType"),
]


@for_each("line, tz, sentence", REFUSED)
def test_a_wrong_line_or_zone_is_refused_in_one_sentence(line: Any, tz: Any, sentence: str):
    with pytest.raises(InvalidArgument) as refused:
        cron_of(line, tz)
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)
