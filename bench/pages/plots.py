"""Draws plots as SVG that a light and a dark page show well: no background, colours for each."""

from __future__ import annotations

import re
import statistics
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

_OURS, _LIMIT, _PEER, _TEXT, _GRID = "#0a7d5a", "#8a6d1d", "#5b7fb5", "#57606a", "#c9d1d9"
# The colours on a dark page. A viewer without style sheets keeps those above.
_DARK = {
    _OURS: "#3fce9d",
    _LIMIT: "#d3b04a",
    _PEER: "#7ea4de",
    _TEXT: "#c3cad1",
    _GRID: "#3d444d",
}
_BAR = 0.32  # inches
_APART = 10  # points between two labels


def draw(out: Path, name: str, kept: dict[str, Any]) -> None:
    """Writes `name`.svg if the workload has a plot and matplotlib is installed."""
    if not kept["plot"]:
        return
    try:
        import matplotlib as mpl
    except ImportError:
        print(f"no plot of {name}: install matplotlib by `pip install '.[bench]'` in a clone")
        return
    mpl.use("svg")
    mpl.rcParams.update(
        {
            "svg.fonttype": "none",
            "svg.hashsalt": "fairlane",
            "font.family": "sans-serif",
            "font.sans-serif": ["Helvetica", "Arial", "DejaVu Sans"],
            "text.color": _TEXT,
            "axes.labelcolor": _TEXT,
            "axes.edgecolor": _GRID,
            "xtick.color": _TEXT,
            "ytick.color": _TEXT,
            "grid.color": _GRID,
        }
    )
    figure = _lines(kept) if name == "growth" else _bars(kept)
    if figure is None:
        return
    file = out / f"{name}.svg"
    figure.savefig(file, transparent=True, bbox_inches="tight", metadata={"Date": None})
    file.write_text(_on_one_line(_in_both(file.read_text())) + "\n")


def _in_both(svg: str) -> str:
    """Returns the SVG with a style sheet that replaces its colours on a dark page."""
    rules = "".join(
        f'[style*="fill: {light}"]{{fill:{dark}!important}}'
        f'[style*="stroke: {light}"]{{stroke:{dark}!important}}'
        for light, dark in _DARK.items()
    )
    style = f"<style>@media (prefers-color-scheme: dark){{{rules}}}</style>"
    at = svg.index(">", svg.index("<svg")) + 1
    return svg[:at] + style + svg[at:]


def _on_one_line(svg: str) -> str:
    """Returns the same drawing on one line, so that a run changes one line a plot."""
    return re.sub(r"\s*\n\s*", " ", svg).strip()


def _value(row: dict[str, Any], metric: str) -> float | None:
    values = [value for value in row["values"].get(metric, []) if value is not None]
    return statistics.median(values) if values else None


def _colour(peer: str) -> str:
    return {"fairlane": _OURS, "raw": _LIMIT}.get(peer, _PEER)


def _metric(kept: dict[str, Any]) -> tuple[str, str, str]:
    return next((m, heading, form) for m, heading, form, _ in kept["metrics"] if m == kept["plot"])


def _bars(kept: dict[str, Any]) -> Any:
    """Draws a panel for each point, with a bar for each peer and the best one on top."""
    from matplotlib.figure import Figure

    metric, heading, form = _metric(kept)
    is_low = any(m == metric and side == "low" for m, _, _, side in kept["metrics"])
    panels: dict[str, list[tuple[float, str, str]]] = {}
    for row in kept["rows"]:
        value = _value(row, metric)
        if value is not None and kept["plot_points"] in row["point"]:
            panels.setdefault(_panel(kept, row), []).append((value, _label(kept, row), row["peer"]))
    if not panels:
        return None
    heights = [len(bars) * _BAR + 0.7 for bars in panels.values()]
    figure = Figure(figsize=(7.5, sum(heights)), layout="constrained")
    grid = figure.subplots(len(panels), 1, height_ratios=heights, squeeze=False)[:, 0]
    for axes, (point, bars) in zip(grid, panels.items(), strict=True):
        bars.sort(key=lambda bar: bar[0], reverse=is_low)
        scale = _panel_of_bars(axes, bars, form)
        title = f"{point}: {heading}" if point else heading
        axes.set_title(title + scale, loc="left", fontsize=10)
    return figure


def _panel(kept: dict[str, Any], row: dict[str, Any]) -> str:
    """Returns the title of a row's panel: its point, or "" if all points share a panel."""
    return "" if kept["title"].startswith("Redis memory") else row["point"]


def _label(kept: dict[str, Any], row: dict[str, Any]) -> str:
    if _panel(kept, row) == row["point"]:
        return str(row["label"])
    return f"{row['label']}, {row['point']}"


def _panel_of_bars(axes: Any, bars: list[tuple[float, str, str]], form: str) -> str:
    """Draws the bars; returns " (logarithmic)" if the axis is logarithmic."""
    values = [value for value, _, _ in bars]
    drawn = axes.barh(
        range(len(bars)), values, color=[_colour(peer) for _, _, peer in bars], height=0.7
    )
    axes.bar_label(drawn, [format(value, form) for value in values], padding=3, fontsize=8)
    axes.set_yticks(range(len(bars)), [label for _, label, _ in bars], fontsize=8)
    axes.tick_params(axis="both", length=0)
    axes.margins(x=0.12)
    is_log = min(values) > 0 and max(values) / min(values) > 50
    if is_log:
        axes.set_xscale("log")
        axes.set_xlim(min(values) / 2, max(values) * 3)
    axes.tick_params(axis="x", labelsize=7)
    axes.grid(axis="x", linewidth=0.5)
    axes.set_axisbelow(True)
    axes.spines[:].set_visible(False)
    return " (logarithmic)" if is_log else ""


def _lines(kept: dict[str, Any]) -> Any:
    """Draws a line for each peer, over the number of waiting sub-requests."""
    from matplotlib.figure import Figure

    metric, heading, _ = _metric(kept)
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in kept["rows"]:
        value = _value(row, metric)
        if value is not None:
            waiting = float(row["point"].split()[0].replace(",", ""))
            lines.setdefault(row["label"], []).append((waiting, value))
    if not lines:
        return None
    peers = {row["label"]: row["peer"] for row in kept["rows"]}
    figure = Figure(figsize=(7.5, 4.5), layout="constrained")
    axes = figure.subplots()
    for label, points in lines.items():
        across, up = zip(*points, strict=True)
        axes.plot(across, up, marker="o", markersize=4, color=_colour(peers[label]))
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("waiting", fontsize=9)
    axes.set_title(f"{heading} (logarithmic)", loc="left", fontsize=10)
    axes.set_xlim(right=max(points[-1][0] for points in lines.values()) * 12)
    axes.tick_params(labelsize=8)
    axes.grid(linewidth=0.5)
    axes.spines[:].set_visible(False)
    figure.draw_without_rendering()
    for label, offset in _apart(axes, lines).items():
        axes.annotate(
            label,
            lines[label][-1],
            (8, offset),
            textcoords="offset points",
            fontsize=8,
            va="center",
        )
    return figure


def _apart(axes: Any, lines: dict[str, list[tuple[float, float]]]) -> dict[str, float]:
    """Returns how many points each label moves up so that no label covers another one."""
    inch = axes.figure.dpi / 72
    ends = {
        label: [float(at) / inch for at in axes.transData.transform(points[-1])]
        for label, points in lines.items()
    }
    offsets: dict[str, float] = {}
    last: dict[float, float] = {}  # column -> height of its last label
    for label, (across, up) in sorted(ends.items(), key=lambda end: end[1][1]):
        column = round(across)
        height = max(up, last.get(column, -1e9) + _APART)
        last[column] = height
        offsets[label] = height - up
    return offsets
