"""Stores the figures and writes the Markdown: a page for each workload, one table of all."""

from __future__ import annotations

import importlib
import statistics
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from bench.harness import parts, support
from bench.harness.bench import WORKER_CORES
from bench.harness.registry import ABSENT, PEERS
from bench.pages import figures_file, goals, plots

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from bench.harness.bench import Bench, Row

STARTED = datetime.now(UTC).isoformat(timespec="seconds")
_OURS = "fairlane"


# ------------------------------------------------------------------ figures


def keep(out: Path, name: str, rows: list[Row], bench: Bench, seconds: float) -> None:
    """Stores the figures of one workload in place of its older ones."""
    kept = figures_file.read(out)
    kept[name] = {
        "run": STARTED,
        "machine": support.machine(),
        "worker_cores": len(WORKER_CORES),
        "runs": bench.runs,
        "scale": bench.scale,
        "seconds": round(seconds),
        "versions": {peer: env.version for peer, env in bench.envs.items()},
        "missing": bench.missing,
        "settings": {row.label: row.setting for row in rows if row.setting},
        "rows": [_rounded(row) for row in rows],
    }
    figures_file.write(out, kept)


def _rounded(measured: Row) -> dict[str, Any]:
    row = asdict(measured)
    del row["setting"]
    values = row["values"].items()
    row["values"] = {name: [_short(value) for value in found] for name, found in values}
    return row


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")


def read(out: Path, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Returns the figures of these workloads, each with the texts of its module."""
    kept = figures_file.read(out)
    return {name: {**_texts(name, kept[name]), **kept[name]} for name in names if name in kept}


def _texts(name: str, kept: dict[str, Any]) -> dict[str, Any]:
    workload = importlib.import_module(parts.MODULES[name])
    return {
        "title": workload.TITLE,
        "story": workload.STORY.format(worker_cores=kept["worker_cores"]),
        "metrics": workload.METRICS,
        "plot": workload.PLOT,
        "plot_points": getattr(workload, "PLOT_POINTS", ""),  # the points with a panel; "" = all
        "base": getattr(workload, "BASE", None),  # Fairlane's point where a peer has another one
    }


def median(row: dict[str, Any], metric: str) -> float | None:
    values = [value for value in row["values"].get(metric, []) if value is not None]
    return statistics.median(values) if values else None


# ------------------------------------------------------------------ a page a workload


def table(kept: dict[str, Any]) -> str:
    """Returns the table of one workload: medians, and the range of the main figure."""
    has_points = any(row["point"] for row in kept["rows"])
    headings = [heading for _, heading, _, _ in kept["metrics"]]
    names = ["", *(["point"] if has_points else []), *headings, "range", "of Fairlane"]
    numbers = "---:|" * (len(names) - (2 if has_points else 1))
    lines = ["| " + " | ".join(names) + " |", "|---|" + ("---|" if has_points else "") + numbers]
    for row in kept["rows"]:
        cells = [row["label"], *([row["point"]] if has_points else []), *_cells(row, kept)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cells(row: dict[str, Any], kept: dict[str, Any]) -> list[str]:
    if row["note"] and not row["values"]:
        return [row["note"], *[""] * (len(kept["metrics"]) + 1)]
    cells = []
    for metric, _, form, _ in kept["metrics"]:
        value = median(row, metric)
        cells.append("" if value is None else format(value, form))
    metric, form = next((m, form) for m, _, form, _ in kept["metrics"] if m == _chief(kept))
    values = row["values"].get(metric, [])
    spread = f"{min(values):{form}} .. {max(values):{form}}" if len(values) > 1 else ""
    return [*cells, spread, _ratio(row, kept, metric)]


def _chief(kept: dict[str, Any]) -> str:
    """Returns the name of the main figure."""
    return str(kept["plot"] or kept["metrics"][0][0])


def _ratio(row: dict[str, Any], kept: dict[str, Any], metric: str) -> str:
    """Returns this figure as a multiple of Fairlane's at the same point."""
    ours = [
        one
        for one in kept["rows"]
        if one["peer"] == _OURS and one["point"] in {row["point"], kept.get("base")}
    ]
    exact = [one for one in ours if one["point"] == row["point"]] or ours
    base = median(exact[0], metric) if exact else None
    value = median(row, metric)
    if not base or value is None or row is exact[0]:
        return ""
    return f"{value / base:,.2f}"


def _page(out: Path, name: str, kept: dict[str, Any]) -> str:
    lines = [f"# {kept['title']}", "", kept["story"], "", kept["machine"], ""]
    lines += [f"{_how(kept)} {_last(kept)}", ""]
    if (out / f"{name}.svg").exists():
        lines += [f"![{kept['title']}]({name}.svg)", ""]
    lines += [table(kept), "", "## Settings", ""]
    for label, setting in kept["settings"].items():
        peer = next(row["peer"] for row in kept["rows"] if row["label"] == label)
        version = kept["versions"].get(peer, "")
        lines.append(f"- **{label}** {version}: {setting}.")
    notes = {f"{row['label']} {row['point']}".strip(): row["note"] for row in kept["rows"]}
    failures = [f"- {where}: {note}." for where, note in notes.items() if note]
    if failures:
        lines += ["", "## What did not work", "", *failures]
    return "\n".join([*lines, ""])


def _last(kept: dict[str, Any]) -> str:
    heading = next(heading for m, heading, _, _ in kept["metrics"] if m == _chief(kept))
    return f"The last two columns show the range of “{heading}” and its multiple of Fairlane's."


def _how(kept: dict[str, Any]) -> str:
    small = (
        ""
        if kept["scale"] == 1
        else f" This is a trial at scale {kept['scale']}, so its figures mean nothing."
    )
    return f"The figures are medians of {kept['runs']} runs where a workload repeats.{small}"


# ------------------------------------------------------------------ one table of all


_COLUMNS = (
    ("submit", "in bulk", "rate", "bulk submit/s", ",.0f"),
    ("submit", "one by one", "rate", "one by one/s", ",.0f"),
    ("drain", "results stored", "rate", "drain/s, results", ",.0f"),
    ("drain", "no results", "rate", "no results", ",.0f"),
    ("footprint", "", "bytes", "B each", ",.0f"),
    ("latency", "", "start_p50", "start ms", ".2f"),
    ("latency", "", "known_p50", "known ms", ".2f"),
    ("overtaking", "", "p50", "urgent ms", ".1f"),
    ("fairness", "", "end", "Jain", ".2f"),
)


def _summary(all_kept: dict[str, dict[str, Any]]) -> list[str]:
    columns = [column for column in _COLUMNS if column[0] in all_kept]
    lines = [
        "| | " + " | ".join(heading for *_, heading, _ in columns) + " | a killed worker |",
        "|---|" + "---:|" * len(columns) + "---|",
    ]
    for peer, label in _labels(all_kept):
        cells = [_cell(all_kept, peer, label, column) for column in columns]
        keeps = "" if PEERS[peer].is_limit else "loses" if not PEERS[peer].acknowledges else "keeps"
        lines.append(f"| {label} | " + " | ".join(cells) + f" | {keeps} |")
    return lines


def _labels(all_kept: dict[str, dict[str, Any]]) -> list[tuple[str, str]]:
    """Returns the peer and the label of every line, in the order of the registry."""
    found: dict[str, str] = {}
    for kept in all_kept.values():
        for row in kept["rows"]:
            found.setdefault(row["label"], row["peer"])
    order = list(PEERS)
    return sorted(((peer, label) for label, peer in found.items()), key=lambda x: order.index(x[0]))


def _cell(
    all_kept: dict[str, dict[str, Any]], peer: str, label: str, column: tuple[str, ...]
) -> str:
    name, point, metric, _, form = column
    if name == "footprint" and peer == _OURS:
        point, label = {
            "Fairlane": ("requests of 100,000", label),
            "Fairlane, requests of one": ("requests of 1", "Fairlane"),
        }.get(label, ("", label))
    for row in all_kept[name]["rows"]:
        if row["label"] == label and row["point"] == point:
            value = median(row, metric)
            return "-" if value is None else format(value, form)
    return ""


def write(out: Path, names: Iterable[str], alone: Iterable[str]) -> str:
    """Writes every plot and page; returns the text of the overview."""
    for name, kept in read(out, names).items():
        plots.draw(out, name, kept)
    texts = pages(out, names, alone)
    for file, text in texts.items():
        (out / file).write_text(text)
    return texts.get("README.md", "")


def pages(out: Path, names: Iterable[str], alone: Iterable[str]) -> dict[str, str]:
    """Returns the text of every page by the name of its file."""
    all_kept = read(out, names)
    if not all_kept:
        return {}
    texts = {f"{name}.md": _page(out, name, kept) for name, kept in all_kept.items()}
    return {**texts, "README.md": _overview(out, all_kept, alone)}


def _overview(out: Path, all_kept: dict[str, dict[str, Any]], alone: Iterable[str]) -> str:
    """Returns the page that sums up all workloads."""
    first = next(iter(all_kept.values()))
    runs = {kept["run"] for kept in all_kept.values()}
    versions = {peer: v for kept in all_kept.values() for peer, v in kept["versions"].items()}
    lines = ["# Fairlane beside its peers", "", first["machine"] + ".", ""]
    lines += [f"{_how(first)} {_of_one_run(runs)}", ""]
    lines += _summary(all_kept) if any(c[0] in all_kept for c in _COLUMNS) else []
    linked = [(name, kept["title"]) for name, kept in all_kept.items()]
    linked += [
        (name, f"{name} of Fairlane alone") for name in alone if (out / f"{name}.md").exists()
    ]
    lines += ["", "Pages: " + ", ".join(f"[{title}]({name}.md)" for name, title in linked) + "."]
    lines += ["", "## Goals", "", *goals.lines(all_kept), "", "## Versions and settings", ""]
    for name, peer in PEERS.items():
        if name in versions:
            proof = f" [Its source]({peer.proof})." if peer.proof else ""
            lines.append(f"- **{peer.title}** {versions[name]}: {peer.setting}.{proof}")
    missing = {peer: why for kept in all_kept.values() for peer, why in kept["missing"].items()}
    lines += [f"- {PEERS[peer].title} is missing: {why}." for peer, why in missing.items()]
    lines += [
        f"- {one.title} is missing: {one.reason}. It {one.promise} ([its source]({one.proof}))."
        for one in ABSENT
    ]
    return "\n".join([*lines, ""])


def _of_one_run(runs: set[str]) -> str:
    if len(runs) == 1:
        return "All figures are from one run."
    return f"The pages are from {len(runs)} runs, so compare figures only within a page."
