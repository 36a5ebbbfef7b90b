"""Draws the plots: PNG files without a background, and SVG that takes the page's colours."""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlane.common.text import reason_words
from fairlane.spark.report.bands import Bands
from fairlane.spark.report.plots.style import (
    GRID,
    TEXT,
    VARIABLES,
    as_share,
    by_priority,
    colour_of,
    in_time_units,
    legend,
    line,
    name_of,
    on_time,
    stacked,
    time,
)
from fairlane.spark.report.plots.style import figure as new_figure
from fairlane.spark.report.summary import weighted_mean
from fairlane.spark.report.time_windows import FAIR_S

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from fairlane.spark.report.time_windows import Rows

    Figure = Any  # see style.py

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
