"""Shared parts of plots: axes of time and of durations, stacks, lines, the colours."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from fairlane.spark.report.numbers import duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairlane.spark.report.bands import Bands
    from fairlane.spark.report.time_windows import Rows

    Axes = Any  # matplotlib's own types do not accept a moment for a number
    Figure = Any

# Legible on white and on black; on the page each is a variable with a value for either.
COLOURS = ("#e4572e", "#c08518", "#2a9d6f", "#3f88d8", "#8f6fd0", "#c8588f", "#459490", "#9a8c5c")
TEXT, GRID = "#71777f", "#8b949f"
VARIABLES = {colour: f"--c{at}" for at, colour in enumerate(COLOURS)} | {
    TEXT: "--dim",
    GRID: "--grid",
}
_TICKS_MS = (
    *(0.1, 1, 10, 100, 1_000, 10_000, 60_000, 600_000),
    *(3_600_000, 21_600_000, 86_400_000, 864_000_000),
)
_SECOND, _MINUTE, _HOUR, _DAY = 1_000, 60_000, 3_600_000, 86_400_000
# From one label of time to the next, ms. No step is more than twice the one before, because then
# one step for every length of time gives 4 to 8 labels.
_STEPS_MS = (
    *(1, 2, 4, 5, 10, 20, 25, 50, 100, 200, 250, 500),
    *(n * _SECOND for n in (1, 2, 3, 5, 10, 15, 20, 30)),
    *(n * _MINUTE for n in (1, 2, 3, 5, 10, 15, 20, 30)),
    *(n * _HOUR for n in (1, 2, 3, 4, 6, 12)),
    *(n * _DAY for n in (1, 2, 4, 7, 14, 28, 56, 112, 224, 448)),
)
_FEWEST, _BEST = 4, 6  # labels of time
_LINE = 17  # points from an axis to the second line of its labels
_WIDE = 9.6  # inches


def colour_of(bands: Bands, priority: int | None) -> str:
    """Returns the colour of a priority's band, in all plots; the most urgent is warmest."""
    return TEXT if priority is None else COLOURS[bands.keys.index(bands.key(priority))]


def name_of(bands: Bands, priority: int) -> str:
    """Returns how a legend names the band of a priority."""
    return f"priority {bands.name(bands.key(priority))}"


def figure(height: float, panels: int = 1) -> tuple[Figure, list[Axes]]:
    """Returns a figure as wide as the page, `height` inches high, with panels one above another."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDE, height), layout="constrained")
    return figure, list(figure.subplots(panels, 1, squeeze=False, sharex=True, sharey=True)[:, 0])


def time(ms: float) -> datetime:
    """Returns milliseconds as a moment."""
    return datetime.fromtimestamp(ms / 1000, UTC)


def by_priority(rows: Rows) -> dict[int, Rows]:
    """Returns the rows by priority, in the order of priority and moment."""
    series: dict[int, Rows] = {}
    for row in sorted(rows, key=lambda row: (row["priority"], row["at"])):
        series.setdefault(row["priority"], []).append(row)
    return series


def on_time(axes: Axes, span_ms: tuple[float, float]) -> None:
    """Makes the axis below one of time, of the whole report in every plot."""
    moments = _moments(span_ms)
    step_ms, days = moments[1] - moments[0], _days(moments)
    clocks = [_clock(time(at), step_ms) for at in moments] if step_ms < _DAY else []
    # Two labels, not one of two lines: a browser centres each of them by its own font.
    axes.set_xticks([time(at) for at in moments], clocks or list(days.values()))
    if clocks:
        axes.xaxis.remove_overlapping_locs = False
        axes.set_xticks([time(at) for at in days], list(days.values()), minor=True)
        axes.tick_params(axis="x", which="minor", length=0, pad=_LINE)
    axes.set_xlim(time(span_ms[0]), time(span_ms[1]))


def _moments(span_ms: tuple[float, float]) -> range:
    """Returns the moments in a span that get a label, ms."""
    fitting = [labels for step in _STEPS_MS if len(labels := _multiples(step, span_ms)) >= _FEWEST]
    return min(fitting, key=lambda labels: abs(len(labels) - _BEST))


def _multiples(step_ms: int, span_ms: tuple[float, float]) -> range:
    low, high = (round(moment) for moment in span_ms)
    return range(-(-low // step_ms) * step_ms, high + 1, step_ms)


def _days(moments_ms: Sequence[int]) -> dict[int, str]:
    """Returns the day of each moment that is the first of its day; the first of all names UTC."""
    first: dict[str, int] = {}
    for at in moments_ms:
        first.setdefault(f"{time(at):%Y-%m-%d}", at)
    days = {at: day for day, at in first.items()}
    return {at: f"{day} UTC" if at == moments_ms[0] else day for at, day in days.items()}


def _clock(moment: datetime, step_ms: int) -> str:
    """Returns the time of day, with the digits that differ from step to step."""
    if step_ms >= _MINUTE:
        return f"{moment:%H:%M}"
    digits = next(n for n in range(4) if step_ms * 10**n % _SECOND == 0)
    return f"{moment:%H:%M:%S.%f}"[: 9 + digits] if digits else f"{moment:%H:%M:%S}"


def in_time_units(axes: Axes) -> None:
    """Makes the left axis a logarithmic one of milliseconds, with labels such as "12 ms"."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(FixedLocator(_TICKS_MS))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: duration(value)))


def legend(axes: Axes) -> None:
    """Names the colours above the plot, in the order in which they were drawn."""
    handles, labels = axes.get_legend_handles_labels()
    if labels:
        axes.legend(
            handles,
            labels,
            loc="lower left",
            bbox_to_anchor=(0, 1),
            ncols=8,
            borderaxespad=0.2,
            handlelength=1.2,
            columnspacing=1.2,
            fontsize=8.5,
        )


def stacked(axes: Axes, bands: Bands, rows: Rows, value: str, window_s: float) -> None:
    """Draws steps of each window, one priority on the other, the most urgent at the bottom."""
    below: dict[int, float] = {}
    for priority, series in by_priority(rows).items():
        heights = [row[value] for row in series]
        axes.bar(
            [time(row["at"]) for row in series],
            heights,
            bottom=[below.get(row["window"], 0.0) for row in series],
            width=window_s / 86_400 * 0.9,
            align="edge",
            color=colour_of(bands, priority),
            label=name_of(bands, priority),
            linewidth=0,
        )
        for row, height in zip(series, heights, strict=True):
            below[row["window"]] = below.get(row["window"], 0.0) + height


def line(axes: Axes, rows: Rows, value: str, window_s: float, **style: Any) -> None:
    """Draws a line through the middles of the windows, and a dot for a window alone."""
    times: list[Any] = []
    values: list[float] = []
    windows = {row["window"] for row in rows}
    alone: list[tuple[Any, float]] = []
    for row in rows:
        at, here = time(row["at"] + window_s * 500), row["window"]
        if values and here - 1 not in windows:  # no value in between
            times.append(at)
            values.append(math.nan)
        times.append(at)
        values.append(row[value])
        if not {here - 1, here + 1} & windows:
            alone.append((at, row[value]))
    axes.plot(times, values, **style)
    if alone:
        axes.plot(
            [at for at, _ in alone],
            [value_alone for _, value_alone in alone],
            color=style["color"],
            linestyle="none",
            marker="o",
            markersize=1.8 if "linestyle" in style else 2.8,
        )


def as_share(axes: Axes) -> None:
    """Makes the left axis a share, in percent."""
    from matplotlib.ticker import PercentFormatter

    axes.set_ylim(0, 1.04)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
