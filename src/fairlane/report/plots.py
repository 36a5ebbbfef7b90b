"""Draws the plots: PNG files without a background, and SVG that takes the page's colours."""

from __future__ import annotations

import io
import math
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from fairlane.common.text import reason_words
from fairlane.report.axes import FAIR_S, Bands, duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from fairlane.report.tables import Figures, Rows

    Axes = Any  # matplotlib's own types do not accept a moment for a number
    Figure = Any

# Legible on white and on black; on the page each is a variable with a value for either.
COLOURS = ("#e4572e", "#c08518", "#2a9d6f", "#3f88d8", "#8f6fd0", "#c8588f", "#459490", "#9a8c5c")
TEXT, GRID = "#71777f", "#8b949f"
VARIABLES = {colour: f"--c{at}" for at, colour in enumerate(COLOURS)} | {
    TEXT: "--dim",
    GRID: "--grid",
}
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["Helvetica", "Arial", "DejaVu Sans"],
    "font.size": 9,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.linewidth": 0.5,
    "grid.alpha": 0.45,
    "xtick.major.size": 3,
    "lines.linewidth": 1.6,
    "legend.frameon": False,
    "timezone": "UTC",
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "axes.spines.left"), False),
    **dict.fromkeys(("ytick.major.size", "ytick.minor.size"), 0),
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), TEXT),
    **dict.fromkeys(("axes.edgecolor", "grid.color"), GRID),
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
_NAME = 22  # characters of a request's id
_ID = re.compile(r' id="([^"]+)"')
_USED_ID = re.compile(r'(?:url\(#|href="#)([^")]+)')


def draw_all(figures: Figures, folder: Path) -> dict[str, str]:
    """Draws every plot that has data as a file; returns their SVG by name, in the page's order."""
    from matplotlib import rc_context

    drawn = {}
    for name, draw in PLOTS.items():
        with rc_context(_STYLE | {"svg.hashsalt": f"fairlane-{name}"}):
            plot = draw(figures)
            if plot is None:
                continue
            plot.savefig(folder / f"{name}.png", dpi=160, transparent=True, bbox_inches="tight")
            text = io.StringIO()
            plot.savefig(
                text, format="svg", transparent=True, bbox_inches="tight", metadata={"Date": None}
            )
        drawn[name] = _for_page(text.getvalue())
    return drawn


def _for_page(svg: str) -> str:
    """Returns the SVG element alone, with the page's colour variables and full width."""
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    # Ids must be unique on the page: those that are referred to have the plot's name as salt.
    used = set(_USED_ID.findall(svg))
    svg = _ID.sub(lambda match: match[0] if match[1] in used else "", svg)
    for colour, variable in VARIABLES.items():
        svg = svg.replace(colour, f"var({variable})")
    return svg


# ------------------------------------------------------------------ axes


def new_figure(height: float, panels: int = 1) -> tuple[Figure, list[Axes]]:
    """Returns a figure as wide as the page, `height` inches high, with panels one above another."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDE, height), layout="constrained")
    return figure, list(figure.subplots(panels, 1, squeeze=False, sharex=True, sharey=True)[:, 0])


def time(ms: float) -> datetime:
    """Returns milliseconds as a moment."""
    return datetime.fromtimestamp(ms / 1000, UTC)


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
    low, high = map(round, span_ms)
    all_steps = (range(-(-low // step) * step, high + 1, step) for step in _STEPS_MS)
    fitting = [labels for labels in all_steps if len(labels) >= _FEWEST]
    return min(fitting, key=lambda labels: abs(len(labels) - _BEST))


def _days(moments_ms: Sequence[int]) -> dict[int, str]:
    """Returns the day of each moment that is the first of its day; the first of all names UTC."""
    first: dict[str, int] = {}
    for at in moments_ms:
        first.setdefault(f"{time(at):%Y-%m-%d}", at)
    return {at: f"{day} UTC" if at == moments_ms[0] else day for day, at in first.items()}


def _clock(moment: datetime, step_ms: int) -> str:
    """Returns the time of day, with the digits that differ from step to step."""
    if step_ms >= _MINUTE:
        return f"{moment:%H:%M}"
    digits = next(n for n in range(4) if step_ms * 10**n % _SECOND == 0)
    return f"{moment:%H:%M:%S.%f}"[: 9 + digits] if digits else f"{moment:%H:%M:%S}"


def _in_time_units(axes: Axes) -> None:
    """Makes the left axis a logarithmic one of milliseconds, with labels such as "12 ms"."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(FixedLocator(_TICKS_MS))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: duration(value)))


def _as_share(axes: Axes) -> None:
    from matplotlib.ticker import PercentFormatter

    axes.set_ylim(0, 1.04)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def _finished(figure: Figure, axes: Axes, figures: Figures | None = None) -> Figure:
    """Names the colours above the plot, and gives it the report's axis of time."""
    handles, labels = axes.get_legend_handles_labels()
    if labels:
        axes.legend(
            *(handles, labels),
            loc="lower left",
            bbox_to_anchor=(0, 1),
            ncols=8,
            borderaxespad=0.2,
            handlelength=1.2,
            columnspacing=1.2,
            fontsize=8.5,
        )
    if figures is not None:
        span = figures.axis.start_us / 1000, figures.axis.end_us / 1000
        on_time(figure.axes[-1], span)
    return figure


# ------------------------------------------------------------------ series


def colour_of(bands: Bands, priority: int) -> str:
    """Returns the colour of a priority's band, in all plots; the most urgent is warmest."""
    return COLOURS[bands.place(priority)]


def _series(bands: Bands, rows: Rows) -> Iterable[tuple[dict[str, Any], Rows]]:
    """Yields the colour and label of each band, and its rows in the order of moments."""
    for at, key in enumerate(bands.keys):
        series = [row for row in rows if row["priority"] == key]
        if series:
            style = {"color": COLOURS[at], "label": f"priority {bands.name(key)}"}
            yield style, sorted(series, key=lambda row: row.get("at", 0))


def _stacked(axes: Axes, figures: Figures, rows: Rows, value: Callable[[Any], float]) -> None:
    """Draws steps of each window, one priority on the other, the most urgent at the bottom."""
    below: dict[int, float] = {}
    width = figures.axis.width_us / 86_400e6 * 0.9
    for style, series in _series(figures.bands, rows):
        heights = [value(row) for row in series]
        bottoms = [below.get(row["window"], 0.0) for row in series]
        times = [time(row["at"]) for row in series]
        axes.bar(times, heights, width, bottoms, align="edge", linewidth=0, **style)
        for row, height, bottom in zip(series, heights, bottoms, strict=True):
            below[row["window"]] = bottom + height


def _line(
    axes: Axes, rows: Rows, value: Callable[[Any], float], step_s: float, **style: Any
) -> None:
    """Draws a line through the middles of the windows, and a dot for a window alone."""
    times: list[datetime] = []
    values: list[float] = []
    alone: list[tuple[datetime, float]] = []
    windows = {row["window"] for row in rows}
    for row in rows:
        at, here = time(row["at"] + step_s * 500), row["window"]
        if values and here - 1 not in windows:  # no value in between
            times.append(at)
            values.append(math.nan)
        times.append(at)
        values.append(value(row))
        if not {here - 1, here + 1} & windows:
            alone.append((at, value(row)))
    axes.plot(times, values, **style)
    if alone:
        size = 1.8 if "linestyle" in style else 2.8
        dots = {"color": style["color"], "linestyle": "none", "marker": "o", "markersize": size}
        axes.plot(*zip(*alone, strict=True), **dots)


def _lines(
    figures: Figures, rows: Rows, value: Callable[[Any], float], height: float,
    shape: Callable[[Axes], object], step_s: float = 0,
) -> Figure | None:  # fmt: skip
    """Draws a line for each band."""
    if not rows:
        return None
    figure, (axes,) = new_figure(height)
    for style, series in _series(figures.bands, rows):
        _line(axes, series, value, max(figures.axis.width_us / 1e6, step_s), **style)
    shape(axes)
    return _finished(figure, axes, figures)


# ------------------------------------------------------------------ the plots


def _throughput(figures: Figures) -> Figure | None:
    if not figures.plots["windows"]:
        return None
    figure, (axes,) = new_figure(2.6)
    width_s = figures.axis.width_us / 1e6
    _stacked(axes, figures, figures.plots["windows"], lambda row: row["finished"] / width_s)
    axes.set_ylabel("sub-requests per second")
    return _finished(figure, axes, figures)


def _latency(figures: Figures) -> Figure | None:
    if not figures.plots["windows"]:
        return None
    figure, panels = new_figure(5.4, 3)
    titles = {"waited": "waited", "ran": "ran in the handler", "total": "in total"}
    ranks: dict[str, dict[str, Any]] = {
        "p95": {},
        "p50": {"linestyle": (0, (2, 2)), "linewidth": 1, "label": None},
    }
    for axes, (name, title) in zip(panels, titles.items(), strict=True):
        rows = [row for row in figures.plots["windows"] if row[f"{name}_p50_ms"] is not None]
        for style, series in _series(figures.bands, rows):
            for rank, more in ranks.items():
                floor = [{**row, "ms": max(row[f"{name}_{rank}_ms"], 0.1)} for row in series]
                step_s = figures.axis.width_us / 1e6
                _line(axes, floor, lambda row: row["ms"], step_s, **style | more)
        axes.set_ylabel(title)
    _in_time_units(panels[0])
    return _finished(figure, panels[0], figures)


def _targets(figures: Figures) -> Figure | None:
    rows = [row for row in figures.plots["windows"] if row["aimed"]]
    return _lines(figures, rows, lambda row: row["met"] / row["aimed"], 2.0, _as_share)


def _requests(figures: Figures) -> Figure | None:
    rows = sorted(figures.plots["requests"], key=lambda row: (row["submitted"], row["ended"]))[::-1]
    if not rows:
        return None
    figure, (axes,) = new_figure(0.7 + 0.17 * len(rows))
    size = figures.bands.size
    for style, _ in _series(
        figures.bands, [{"priority": row["priority"] // size * size} for row in rows]
    ):
        axes.barh(0, 0, **style)
    for at, row in enumerate(rows):
        colour = colour_of(figures.bands, row["priority"])
        began = min(max(row["first_started"] or row["ended"], row["submitted"]), row["ended"])
        for low, high, alpha in ((row["submitted"], began, 0.3), (began, row["ended"], 1.0)):
            days = (high - low) / _DAY
            axes.barh(at, days, left=time(low), height=0.62, color=colour, alpha=alpha)
    names = [row["id"] if len(row["id"]) <= _NAME else f"{row['id'][: _NAME - 2]}…" for row in rows]
    axes.set_yticks(range(len(rows)), names, fontsize=7.5)
    axes.set_ylim(-0.7, len(rows) - 0.3)
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x")
    return _finished(figure, axes, figures)


def _tokens(figures: Figures) -> Figure | None:
    rows = figures.plots["tokens"]
    if not rows:
        return None
    figure, (axes,) = new_figure(2.4)
    _stacked(axes, figures, rows, lambda row: row["used"])
    allowed: dict[int, float] = {}
    for row in sorted(rows, key=lambda row: row["at"]):
        allowed[row["at"]] = allowed.get(row["at"], 0.0) + row["allowed"]
    times = [time(at) for at in (*allowed, max(allowed) + figures.axis.width_us / 1000)]
    heights = [*allowed.values(), allowed[max(allowed)]]
    axes.step(times, heights, where="post", color=TEXT, linewidth=1, label="allowed")
    axes.set_ylabel("tokens")
    return _finished(figure, axes, figures)


def _fairness(figures: Figures) -> Figure | None:
    def shape(axes: Axes) -> None:
        axes.set_ylim(0, 1.04)
        axes.set_ylabel("Jain's index")

    return _lines(figures, figures.plots["fairness"], lambda row: row["jain"], 1.9, shape, FAIR_S)


def _waits(figures: Figures) -> Figure | None:
    rows = figures.plots["windows"]
    return _lines(figures, rows, lambda row: max(row["waited_max_ms"], 0.5), 2.2, _in_time_units)


def _dead(figures: Figures) -> Figure | None:
    counts: dict[str, int] = {}
    for row in figures.plots["dead"]:
        counts[row["reason"]] = counts.get(row["reason"], 0) + row["count"]
    if not counts:
        return None
    reasons = sorted(counts, key=lambda reason: (counts[reason], reason))
    figure, (axes,) = new_figure(0.7 + 0.32 * len(reasons))
    left = dict.fromkeys(reasons, 0)
    for style, series in _series(figures.bands, figures.plots["dead"]):
        widths = dict.fromkeys(reasons, 0) | {row["reason"]: row["count"] for row in series}
        names = [reason_words(reason) for reason in reasons]
        axes.barh(names, list(widths.values()), 0.6, list(left.values()), **style)
        left = {reason: left[reason] + widths[reason] for reason in reasons}
    offset = {"xytext": (4, 0), "textcoords": "offset points", "va": "center", "fontsize": 8.5}
    for at, reason in enumerate(reasons):
        axes.annotate(f"{left[reason]:,}", (left[reason], at), **offset)
    axes.grid(visible=False)
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    return _finished(figure, axes)


PLOTS: dict[str, Callable[[Figures], Figure | None]] = {
    "throughput": _throughput,
    "latency": _latency,
    "targets": _targets,
    "requests": _requests,
    "tokens": _tokens,
    "fairness": _fairness,
    "waits": _waits,
    "dead": _dead,
}
