"""Computes the few numbers at the head of the page."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fairlane.spark.report.tables import Rows


def summarise(
    tables: Mapping[str, Rows], start_us: int, width_us: int, windows: int
) -> dict[str, Any]:
    """Returns the summary as numbers and texts that JSON can hold; None for unknown values."""
    width_s = width_us / 1e6
    states = tables["states"]
    totals = next((row for row in tables.get("priorities", []) if row["priority"] is None), None)
    summary: dict[str, Any] = {
        "from": _iso(start_us, width_us),
        "to": _iso(start_us + width_us * windows, width_us),
        "window_s": width_s,
        "windows": windows,
        "requests": sum(row["requests"] for row in states),
        "cancelled_requests": sum(r["requests"] for r in states if r["state"] == "cancelled"),
        "lost_requests": sum(row["requests"] for row in states if row["state"] == "lost"),
        "done": sum(row["done"] for row in states),
        "dead": sum(row["dead"] for row in states),
        "cancelled": sum(row["cancelled"] for row in states),
        "results": sum(row["results"] for row in states),
    }
    if totals is None:
        return summary
    return (
        summary
        | rates(tables["windows"], tables["tokens"], width_s)
        | {
            "finished": totals["finished"],
            "retries": totals["retries"],
            **{name: totals[name] for name in totals if name.endswith("_ms") and "_p" in name},
            "longest_wait_ms": totals["waited_max_ms"],
            "attainment": _attainment(tables["priorities"]),
            "jain": weighted_mean(tables["fairness"], "jain", "requests"),
            "jain_worst": min((row["jain"] for row in tables["fairness"]), default=None),
            "token_use": _use(tables["tokens"]),
            "takes": sum(row["takes"] for row in tables["inversions"]),
            "inverted_takes": sum(row["inverted"] for row in tables["inversions"]),
            "workers": len(tables["workers"]),
        }
    )


def rates(windows: Rows, tokens: Rows, width_s: float) -> dict[str, float]:
    """Returns rates per second of the windows in which a handler ran or something was settled.

    Windows without work do not count, because a queue is not slow when it is empty.
    """
    settled: dict[int, int] = {}
    for row in windows:
        settled[row["window"]] = settled.get(row["window"], 0) + row["finished"]
    busy = set(settled) | {row["window"] for row in tokens if row["used"]}
    return {
        "per_s": sum(settled.values()) / (len(busy) * width_s),
        "peak_per_s": max(settled.values()) / width_s,
    }


def _iso(micros: int, width_us: int) -> str:
    digits = "seconds" if width_us >= 1_000_000 else "milliseconds"  # noqa: PLR2004
    return datetime.fromtimestamp(micros / 1e6, UTC).isoformat(timespec=digits)


def weighted_mean(rows: Rows, value: str, weight: str) -> float | None:
    """Returns the mean of the rows' values by weight, or None of no rows."""
    weights = sum(row[weight] for row in rows)
    return sum(row[value] * row[weight] for row in rows) / weights if weights else None


def _use(rows: Rows) -> float | None:
    allowed = sum(row["allowed"] for row in rows)
    return sum(row["used"] for row in rows) / allowed if allowed else None


def _attainment(priorities: Rows) -> float | None:
    """Returns the share of the settled sub-requests with a target that met it."""
    aimed = [row for row in priorities if row["target_ms"] is not None]
    finished = sum(row["finished"] for row in aimed)
    return sum(row["met"] for row in aimed) / finished if finished else None
