"""Draws the plots: PNG files without a background, and SVG that takes the page's colours."""

from __future__ import annotations

import io
import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlane.common.text import reason_words
from fairlane.spark.report.numbers import duration
from fairlane.spark.report.tables import FAIR_S, Bands, weighted_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from fairlane.spark.report.tables import Rows

    Axes = Any  # matplotlib's own types do not accept a moment for a number
    Figure = Any  # see style.py


# ------------------------------------------------------------------ style
# Shared parts of plots: axes of time and of durations, stacks, lines, the colours.


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


def new_figure(height: float, panels: int = 1) -> tuple[Figure, list[Axes]]:
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


_BARS = 30  # requests that are drawn
_ID = re.compile(r' id="([^"]+)"')
_USED_ID = re.compile(r'(?:url\(#|href="#)([^")]+)')


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot by name: its file, and what stands on the page."""

    name: str
    file: Path
    svg: str


class Along(NamedTuple):
    """Holds what all plots share: a window's length, the span of time in ms, and the series."""

    window_s: float
    span_ms: tuple[float, float]
    bands: Bands


def draw_all(tables: Mapping[str, Rows], summary: Mapping[str, Any], folder: Path) -> list[Plot]:
    """Draws every plot that has data; returns the plots in the page's order."""
    from matplotlib import rc_context

    makers: dict[str, Callable[[Mapping[str, Rows], Along], Figure | None]] = {
        "throughput": _throughput,
        "latency": _latency,
        "targets": _targets,
        "requests": _requests,
        "tokens": _tokens,
        "fairness": _fairness,
        "waits": _waits,
        "dead": _dead,
    }
    folder.mkdir(parents=True, exist_ok=True)
    span = tuple(
        datetime.fromisoformat(summary[edge]).timestamp() * 1000 for edge in ("from", "to")
    )
    along = Along(summary["window_s"], (span[0], span[1]), Bands.of(tables))
    plots = []
    for name, make in makers.items():
        with rc_context(_style(name)):
            figure = make(tables, along)
            if figure is not None:
                plots.append(_saved(figure, name, folder))
    return plots


def _style(name: str) -> Any:
    return {
        "svg.fonttype": "none",
        "svg.hashsalt": f"fairlane-{name}",
        "font.family": "sans-serif",
        "font.sans-serif": ["Helvetica", "Arial", "DejaVu Sans"],
        "font.size": 9,
        "axes.titlesize": 9.5,
        "axes.titlelocation": "left",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.spines.left": False,
        "axes.grid": True,
        "axes.grid.axis": "y",
        "axes.axisbelow": True,
        "grid.linewidth": 0.5,
        "grid.alpha": 0.45,
        "xtick.major.size": 3,
        "ytick.major.size": 0,
        "ytick.minor.size": 0,
        "lines.linewidth": 1.6,
        "legend.frameon": False,
        "timezone": "UTC",
        **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), TEXT),
        **dict.fromkeys(("axes.edgecolor", "grid.color"), GRID),
    }


def _saved(figure: Figure, name: str, folder: Path) -> Plot:
    file = folder / f"{name}.png"
    figure.savefig(file, dpi=160, transparent=True, bbox_inches="tight")
    text = io.StringIO()
    figure.savefig(
        text, format="svg", transparent=True, bbox_inches="tight", metadata={"Date": None}
    )
    return Plot(name, file, _for_page(text.getvalue()))


def _for_page(svg: str) -> str:
    """Returns the SVG element alone, with the page's colour variables and full width."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    # Ids must be unique on the page: those that are referred to have the plot's name as salt.
    used = set(_USED_ID.findall(svg))
    svg = _ID.sub(lambda match: match[0] if match[1] in used else "", svg)
    for colour, variable in VARIABLES.items():
        svg = svg.replace(colour, f"var({variable})")
    return svg


# ------------------------------------------------------------------ the plots


def _throughput(tables: Mapping[str, Rows], axis: Along) -> Figure | None:
    rows = [{**row, "per_s": row["finished"] / axis.window_s} for row in tables.get("windows", [])]
    if not rows:
        return None
    figure, (axes,) = new_figure(2.6)
    stacked(axes, axis.bands, rows, "per_s", axis.window_s)
    on_time(axes, axis.span_ms)
    axes.set_ylabel("sub-requests per second")
    legend(axes)
    return figure


def _latency(tables: Mapping[str, Rows], axis: Along) -> Figure | None:
    rows = tables.get("windows", [])
    if not rows:
        return None
    figure, panels = new_figure(5.4, 3)
    for axes, (name, title) in zip(
        panels,
        {"waited": "waited", "ran": "ran in the handler", "total": "in total"}.items(),
        strict=True,
    ):
        for priority, series in by_priority(rows).items():
            style = {"color": colour_of(axis.bands, priority)}
            measured = [row for row in series if row[f"{name}_p50_ms"] is not None]
            floor = [{**row, "p": max(row[f"{name}_p95_ms"], 0.1)} for row in measured]
            line(axes, floor, "p", axis.window_s, label=name_of(axis.bands, priority), **style)
            floor = [{**row, "p": max(row[f"{name}_p50_ms"], 0.1)} for row in measured]
            line(axes, floor, "p", axis.window_s, linestyle=(0, (2, 2)), linewidth=1, **style)
        axes.set_ylabel(title)
    on_time(panels[-1], axis.span_ms)
    in_time_units(panels[0])
    legend(panels[0])
    return figure


def _targets(tables: Mapping[str, Rows], axis: Along) -> Figure | None:
    rows = [
        {**row, "share": row["met"] / row["aimed"]}
        for row in tables.get("windows", [])
        if row["aimed"]
    ]
    if not rows:
        return None
    figure, (axes,) = new_figure(2.0)
    for priority, series in by_priority(rows).items():
        colour = colour_of(axis.bands, priority)
        line(
            axes, series, "share", axis.window_s, color=colour, label=name_of(axis.bands, priority)
        )
    as_share(axes)
    on_time(axes, axis.span_ms)
    legend(axes)
    return figure


def _requests(tables: Mapping[str, Rows], axis: Along) -> Figure | None:
    rows = [row for row in tables["requests"] if row["submitted"] and row["ended"]]
    if not rows:
        return None
    rows.sort(key=lambda row: row["submitted"] - row["ended"])  # those that took longest
    rows = sorted(rows[:_BARS], key=lambda row: (row["submitted"], row["ended"]), reverse=True)
    figure, (axes,) = new_figure(0.7 + 0.17 * len(rows))
    for key in axis.bands.keys:
        if any(axis.bands.key(row["priority"]) == key for row in rows):
            axes.barh(0, 0, color=colour_of(axis.bands, key), label=name_of(axis.bands, key))
    for at, row in enumerate(rows):
        colour = colour_of(axis.bands, row["priority"])
        began = min(max(row.get("first_started") or row["ended"], row["submitted"]), row["ended"])
        for low, high, alpha in ((row["submitted"], began, 0.3), (began, row["ended"], 1.0)):
            days = (high - low) / 86_400_000
            axes.barh(at, days, left=time(low), height=0.62, color=colour, alpha=alpha)
    names = [row["id"] if len(row["id"]) <= 22 else f"{row['id'][:20]}…" for row in rows]  # noqa: PLR2004
    axes.set_yticks(range(len(rows)), names, fontsize=7.5)
    axes.set_ylim(-0.7, len(rows) - 0.3)
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x")
    on_time(axes, axis.span_ms)
    legend(axes)
    return figure


def _tokens(tables: Mapping[str, Rows], axis: Along) -> Figure | None:
    groups = axis.bands.group(tables.get("tokens", []), "window")
    if not groups:
        return None
    rows = [axis.bands.total(group, "used", "allowed") for group in groups]
    figure, (axes,) = new_figure(2.4)
    stacked(axes, axis.bands, rows, "used", axis.window_s)
    allowed: dict[int, float] = {}
    for row in rows:
        allowed[row["at"]] = allowed.get(row["at"], 0.0) + row["allowed"]
    steps = sorted(allowed.items())
    times = [time(at) for at, _ in steps] + [time(steps[-1][0] + axis.window_s * 1000)]
    heights = [height for _, height in steps]
    axes.step(
        times, [*heights, heights[-1]], where="post", color=TEXT, linewidth=1, label="allowed"
    )
    on_time(axes, axis.span_ms)
    axes.set_ylabel("tokens")
    legend(axes)
    return figure


def _fairness(tables: Mapping[str, Rows], axis: Along) -> Figure | None:
    window_s = max(axis.window_s, FAIR_S)
    rows = [
        {**axis.bands.total(group), "jain": weighted_mean(group, "jain", "requests")}
        for group in axis.bands.group(tables.get("fairness", []), "window")
    ]
    if not rows:
        return None
    figure, (axes,) = new_figure(1.9)
    for priority, series in by_priority(rows).items():
        colour = colour_of(axis.bands, priority)
        line(axes, series, "jain", window_s, color=colour, label=name_of(axis.bands, priority))
    axes.set_ylim(0, 1.04)
    axes.set_ylabel("Jain's index")
    on_time(axes, axis.span_ms)
    legend(axes)
    return figure


def _waits(tables: Mapping[str, Rows], axis: Along) -> Figure | None:
    rows = [{**row, "longest": max(row["waited_max_ms"], 0.5)} for row in tables.get("windows", [])]
    if not rows:
        return None
    figure, (axes,) = new_figure(2.2)
    for priority, series in by_priority(rows).items():
        colour = colour_of(axis.bands, priority)
        line(
            axes,
            series,
            "longest",
            axis.window_s,
            color=colour,
            label=name_of(axis.bands, priority),
        )
    in_time_units(axes)
    on_time(axes, axis.span_ms)
    legend(axes)
    return figure


def _dead(tables: Mapping[str, Rows], axis: Along) -> Figure | None:
    counts: dict[str, dict[int, int]] = {}
    for group in axis.bands.group(tables.get("dead", []), "reason"):
        total = axis.bands.total(group, "count")
        counts.setdefault(total["reason"], {})[total["priority"]] = total["count"]
    if not counts:
        return None
    reasons = sorted(counts, key=lambda reason: sum(counts[reason].values()))
    figure, (axes,) = new_figure(0.7 + 0.32 * len(reasons))
    left = dict.fromkeys(reasons, 0)
    for priority in sorted({priority for by in counts.values() for priority in by}):
        widths = [counts[reason].get(priority, 0) for reason in reasons]
        axes.barh(
            [reason_words(reason) for reason in reasons],
            widths,
            left=[left[reason] for reason in reasons],
            height=0.6,
            color=colour_of(axis.bands, priority),
            label=name_of(axis.bands, priority),
        )
        for reason, width in zip(reasons, widths, strict=True):
            left[reason] += width
    for at, reason in enumerate(reasons):
        axes.annotate(
            f"{left[reason]:,}",
            (left[reason], at),
            (4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8.5,
        )
    axes.grid(visible=False)
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    legend(axes)
    return figure
