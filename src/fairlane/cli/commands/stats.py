"""`fairlane stats`: how long sub-requests waited and ran, by priority."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fairlane.cli.options import json_option, open_queue, queue_option, redis_option
from fairlane.cli.output import note, note_unknown, short, write_json, write_line

if TYPE_CHECKING:
    from fairlane.common.histogram import Distribution
    from fairlane.operations.stats import Measured

QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
_TIMES = ("p90", "p99", "max")
_HEAD = ("LANE", "DONE", "FAILED", "TIMEOUTS", "WAITED p50", *_TIMES, "RAN p50", *_TIMES)
_TASK_HEAD = ("TASK", "DONE", "FAILED", "RAN p50", *_TIMES)
_ROWS, _NAME = 20, 40  # tasks of the table, and characters of a name
_LONG_S = 1000
_UNITS = ((1e-6, "us", 1e6), (1e-3, "ms", 1e3))


@click.command("stats", short_help="Show how long sub-requests waited and ran.")
@click.option("--reset", is_flag=True, help="Delete the measurements after printing them.")
@queue_option
@json_option
@redis_option
def command(redis: str | None, queue: str, as_json: bool, reset: bool) -> int:
    """Show how long sub-requests waited and ran, since the first one or since the last --reset.

    The second table is by task, the busiest first: 200 tasks have numbers of their own, and the
    others count as `other`.

    Quantiles are exact to within a fifth. A sub-request waits from its submission to its handler.
    """
    from fairlane.operations.stats import all_of, by_task, forget_stats, read_task_stats

    with open_queue(redis, queue) as opened:
        found = opened.stats()
        tasks = by_task(opened.driver.run(read_task_stats(opened.name)))
        if reset:
            opened.driver.run(forget_stats(opened.name))
        if not found:
            note_unknown(opened)
    rows = {str(priority): measured for priority, measured in found.items()}
    rows["all"] = all_of(found)
    if as_json:
        lanes = {name: _facts(one) for name, one in rows.items()}
        facts = {name: _task_facts(one) for name, one in tasks.items()}
        write_json({"queue": queue, "lanes": lanes, "tasks": facts})
        return 0
    if not found:
        note(f"nothing was measured in queue {queue} yet; --queue NAME shows another queue")
        return 0
    _emit_table([_HEAD, *(_row(name, one) for name, one in rows.items())])
    if tasks:
        write_line("")
        shown = [(name, one) for name, one in tasks.items()][:_ROWS]
        _emit_table([_TASK_HEAD, *(_task_row(name, one) for name, one in shown)])
        if len(tasks) > len(shown):
            write_line(f"... and {len(tasks) - len(shown):,} more (--json shows them)")
    return 0


def _task_facts(measured: Measured) -> dict[str, Any]:
    facts = _facts(measured)
    return {name: facts[name] for name in ("done", "failed", "ran_ms")}


def _task_row(name: str, measured: Measured) -> tuple[str, ...]:
    counts = (measured.ran.count, measured.counts["failed"])
    return (
        short(name, _NAME),
        *(f"{count:,}" for count in counts),
        *_times(measured.ran, 1e-6),
    )


def _facts(measured: Measured) -> dict[str, Any]:
    facts: dict[str, Any] = {"done": measured.ran.count, **measured.counts}
    for name, unit, one in (
        ("waited_ms", 1, measured.waited),
        ("ran_ms", 1000, measured.ran),
    ):
        facts[name] = {
            "count": one.count,
            "sum": one.sum / unit,
            "max": one.max / unit,
            **{label: one.quantile(share) / unit for label, share in QUANTILES.items()},
        }
    return facts


def _row(name: str, measured: Measured) -> tuple[str, ...]:
    counts = (measured.ran.count, *measured.counts.values())
    return (
        name,
        *(f"{count:,}" for count in counts),
        *_times(measured.waited, 1e-3),
        *_times(measured.ran, 1e-6),
    )


def _times(found: Distribution, unit_s: float) -> list[str]:
    values = [*(found.quantile(share) for share in QUANTILES.values()), found.max]
    return [_shown(value * unit_s) for value in values]


def _shown(seconds: float) -> str:
    """Returns a duration in three digits and its unit."""
    from fairlane.common.text import figure

    if seconds == 0:
        return "0"
    for unit, name, per_second in _UNITS:
        if seconds < unit * 1000:
            return f"{figure(seconds * per_second)} {name}"
    return f"{figure(seconds)} s" if seconds < _LONG_S else f"{seconds:,.0f} s"


def _emit_table(rows: list[tuple[str, ...]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        write_line("  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)))
