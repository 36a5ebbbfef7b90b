"""Tests that a report's axes and colours are readable, whatever its length and priorities."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from importlib.resources import files
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("matplotlib")

from fairlane.report.axes import Axis, Bands
from fairlane.report.plots import COLOURS, TEXT, colour_of, new_figure, on_time

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.slow  # it draws
T0_US = 1_795_200_000_000_000
SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000
NOON, LATE = "2026-11-20T12:00:00", "2026-11-20T23:59:59"
SPANS = {
    "20 ms": (NOON, 20),
    "150 ms": (NOON, 150),
    "2 s": (NOON, 2 * SECOND),
    "2 s over midnight": (LATE, 2 * SECOND),
    "10 s": (NOON, 10 * SECOND),
    "10 min": (NOON, 10 * MINUTE),
    "10 min over midnight": ("2026-11-20T23:55:00", 10 * MINUTE),
    "27 h": ("2026-11-20T14:00:00", 27 * HOUR),
    "9 days": (NOON, 9 * DAY),
    "3 years": (NOON, 1_100 * DAY),
}


def moment(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000


def labels_of(begin_ms: float, length_ms: float) -> list[str]:
    """Draws an empty plot of that time, and returns the labels of its axis as they are shown."""
    drawn, (axes,) = new_figure(2.0)
    on_time(axes, (begin_ms, begin_ms + length_ms))
    drawn.canvas.draw()
    found: dict[float, list[str]] = {}
    for minor in (False, True):
        for tick, label in zip(
            axes.get_xticks(minor=minor), axes.get_xticklabels(minor=minor), strict=True
        ):
            found.setdefault(tick, []).append(label.get_text())
    return ["\n".join(lines) for _, lines in sorted(found.items())]


@pytest.mark.parametrize(("begin", "length_ms"), SPANS.values(), ids=SPANS)
def test_an_axis_of_time_has_four_to_eight_different_labels(begin: str, length_ms: float):
    labels = labels_of(moment(begin), length_ms)
    assert 4 <= len(labels) <= 8
    assert len(set(labels)) == len(labels)


def test_every_length_of_time_has_four_to_eight_labels():
    length_ms, begin_ms = 20.0, moment("2026-11-20T14:03:11")
    while length_ms < 3_000 * DAY:
        assert 4 <= len(labels_of(begin_ms, length_ms)) <= 8, length_ms
        length_ms *= 1.37


@pytest.mark.parametrize(("begin", "length_ms"), SPANS.values(), ids=SPANS)
def test_an_axis_of_time_names_its_day_and_utc(begin: str, length_ms: float):
    first, *others = labels_of(moment(begin), length_ms)
    assert re.search(r"\d{4}-\d\d-\d\d UTC$", first)
    assert [label for label in (first, *others) if "UTC" in label] == [first]
    days = [found[0] for label in (first, *others) if (found := re.search(r"\d{4}-\S+", label))]
    assert len(set(days)) == len(days), "each day is named once"
    if "T23" in begin or length_ms > DAY:
        assert len(days) > 1, "the day after midnight is named, too"


def test_labels_of_a_short_run_have_fractions_of_a_second():
    assert labels_of(moment(LATE), 2000) == [
        *("23:59:59.0\n2026-11-20 UTC", "23:59:59.5", "00:00:00.0\n2026-11-21", "00:00:00.5"),
        "00:00:01.0",
    ]


def test_windows_are_short_in_a_short_run():
    widths = {
        seconds: Axis.spanning(T0_US, T0_US + round(seconds * 1e6)).width_us / 1e6
        for seconds in (0.15, 2, 10, 600, 27 * 3600)
    }
    assert widths == {0.15: 0.02, 2: 0.1, 10: 0.5, 600: 10, 27 * 3600: 900}


def test_windows_hold_the_first_moment_and_the_last():
    for length_us in (0, 1, 150_000, 2_000_000, 97_200_000_000):
        axis = Axis.spanning(T0_US + 7, T0_US + 7 + length_us)
        assert axis.start_us <= T0_US + 7
        end_us = axis.start_us + axis.windows * axis.width_us
        assert end_us - axis.width_us <= T0_US + 7 + length_us < end_us


def test_longer_windows_end_within_the_shorter_ones():
    axis = Axis(T0_US, 100_000, 24)
    assert axis.at_least(1) == Axis(T0_US, 1_000_000, 2)
    assert axis.at_least(0.1) == axis
    assert Axis(T0_US, 20_000, 8).at_least(1).windows == 0


# ------------------------------------------------------------------ bands


@pytest.mark.parametrize(
    ("priorities", "names"),
    [
        ([0, 5, 20], ["0", "5", "20"]),
        (range(8), ["0", "1", "2", "3", "4", "5", "6", "7"]),
        (range(9), ["0 to 1", "2 to 3", "4 to 5", "6 to 7", "8"]),
        ([*range(9), 90], ["0 to 1", "2 to 3", "4 to 5", "6 to 7", "8", "90"]),
        (range(0, 90, 3), ["0 to 19", "20 to 39", "40 to 59", "60 to 79", "80 to 99"]),
        (range(100), ["0 to 19", "20 to 39", "40 to 59", "60 to 79", "80 to 99"]),
        ([], []),
        ([7, 7], ["7"]),
    ],
)
def test_many_priorities_are_shown_in_bands(priorities: Sequence[int], names: list[str]):
    bands = Bands(priorities)
    assert [bands.name(key) for key in bands.keys] == names
    colours = [colour_of(bands, key) for key in bands.keys]
    assert len(set(colours)) == len(colours)


# ------------------------------------------------------------------ contrast


def luminance(colour: str) -> float:
    digits = colour.lstrip("#")
    digits = digits if len(digits) == 6 else "".join(2 * digit for digit in digits)
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    red, green, blue = (
        part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """Returns the ratio that WCAG defines: 4.5 is enough for text, 3 for a line."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_the_page_has_enough_contrast_in_light_and_dark():
    style = files("fairlane.report").joinpath("page.css").read_text()
    modes = [dict(re.findall(r"--(\w+):(#\w+)", part)) for part in style.split("@media")[:2]]
    assert [mode["card"] for mode in modes] == ["#fff", "#1a2027"]
    for mode in modes:
        for name, colour in mode.items():
            if name in ("ink", "dim", "good", "bad"):
                assert contrast(colour, mode["card"]) >= 4.5, (name, colour)
            if re.match(r"c\d", name):
                assert contrast(colour, mode["card"]) >= 3, (name, colour)


def test_a_plot_alone_has_enough_contrast_on_white_and_on_black():
    for ground in ("#ffffff", "#000000"):
        assert contrast(TEXT, ground) >= 4.5
        assert [colour for colour in COLOURS if contrast(colour, ground) < 3] == []
