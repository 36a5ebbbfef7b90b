"""What several plots need: axes of time and of durations, stacks, lines, the colours."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from .cells import duration

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .axis import Rows

    Axes = Any  # matplotlib's own types do not know that a moment may stand for a number
    Figure = Any

# Legible on white and on black; on the page each is a variable with a value for either.
COLOURS = ("#e4572e", "#d99a1c", "#2a9d6f", "#3f88d8", "#8f6fd0", "#c8588f", "#5aa9a6", "#9a8c5c")
TEXT, GRID = "#7d8590", "#8b949f"
VARIABLES = {colour: f"--c{at}" for at, colour in enumerate(COLOURS)} | {
    TEXT: "--dim",
    GRID: "--grid",
}
_TICKS_MS = (
    *(0.1, 1, 10, 100, 1_000, 10_000, 60_000, 600_000),
    *(3_600_000, 36_000_000, 86_400_000, 864_000_000),
)
# How a moment is written on an axis that is at most so long, ms.
_TIMES = ((180_000, "%H:%M:%S"), (100_000_000, "%H:%M"), (600_000_000, "%a %H:%M"))
_WIDE = 9.6  # inches


def colour_of(tables: Mapping[str, Rows], priority: int | None) -> str:
    """Each priority has one colour in all plots, the most urgent the warmest."""
    found = {row["priority"] for row in tables["requests"]}
    found |= {row["priority"] for row in tables.get("windows", [])}
    known = sorted(one for one in found if one is not None)
    return COLOURS[known.index(priority) % len(COLOURS)] if priority in known else TEXT


def figure(height: float, columns: int = 1, **options: Any) -> tuple[Figure, list[Axes]]:
    """A figure as wide as the page, `height` inches high, with `columns` panels."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDE, height), layout="constrained")
    return figure, list(figure.subplots(1, columns, squeeze=False, **options)[0])


def time(ms: float) -> datetime:
    """Milliseconds as a moment."""
    return datetime.fromtimestamp(ms / 1000, UTC)


def by_priority(rows: Rows) -> dict[int, Rows]:
    """Rows that have a priority and a moment, by priority, in order."""
    found: dict[int, Rows] = {}
    for row in sorted(rows, key=lambda row: (row["priority"], row["at"])):
        found.setdefault(row["priority"], []).append(row)
    return found


def on_time(axes: Axes, span_ms: tuple[float, float]) -> None:
    """The axis below is time, of the whole report in every plot."""
    from matplotlib.dates import AutoDateLocator, DateFormatter

    where = AutoDateLocator(minticks=3, maxticks=7)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(where)
    length_ms = span_ms[1] - span_ms[0]
    form = next((form for most, form in _TIMES if length_ms <= most), "%Y-%m-%d")
    axes.xaxis.set_major_formatter(DateFormatter(form))  # type: ignore[no-untyped-call]
    axes.set_xlim(time(span_ms[0]), time(span_ms[1]))


def in_time_units(axes: Axes) -> None:
    """The axis on the left is a logarithmic one of milliseconds, labelled as people say it."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(FixedLocator(_TICKS_MS))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: duration(value)))


def legend(axes: Axes) -> None:
    """Names the colours above the plot."""
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


def stacked(
    axes: Axes, tables: Mapping[str, Rows], rows: Rows, value: str, window_s: float
) -> None:
    """Steps of each window, one priority on the other, the most urgent at the bottom."""
    below: dict[int, float] = {}
    for priority, found in by_priority(rows).items():
        heights = [row[value] for row in found]
        axes.bar(
            [time(row["at"]) for row in found],
            heights,
            bottom=[below.get(row["window"], 0.0) for row in found],
            width=window_s / 86_400 * 0.9,
            align="edge",
            color=colour_of(tables, priority),
            label=f"priority {priority}",
            linewidth=0,
        )
        for row, height in zip(found, heights, strict=True):
            below[row["window"]] = below.get(row["window"], 0.0) + height


def line(axes: Axes, rows: Rows, value: str, window_s: float, **style: Any) -> None:
    """A line through the middles of the windows; a dot where there is one alone."""
    times: list[Any] = []
    values: list[float] = []
    windows = {row["window"] for row in rows}
    alone: list[tuple[Any, float]] = []
    for row in rows:
        at, here = time(row["at"] + window_s * 500), row["window"]
        if values and here - 1 not in windows:  # nothing is known in between
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
            [one for _, one in alone],
            color=style["color"],
            linestyle="none",
            marker="o",
            markersize=1.8 if "linestyle" in style else 2.8,
        )


def as_share(axes: Axes) -> None:
    """The axis on the left is a share, in percent."""
    from matplotlib.ticker import PercentFormatter

    axes.set_ylim(0, 1.04)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
