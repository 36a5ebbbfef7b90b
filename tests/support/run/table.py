"""The table of back ends at the end of a run: what ran on each, and what is missing and why."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.support.servers import backends

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import pytest

PROPERTY = "backend"
HEAD = ("back end", "version", "passed", "skipped", "failed", "why skipped or not run")
MOST_REASONS = 3
_COUNTED_AS = {"passed": "passed", "skipped": "skipped", "failed": "failed", "error": "failed"}


@dataclass
class Row:
    counts: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)


def kind_of(item: pytest.Item) -> str | None:
    """Returns the back end that a test runs on; None if it needs none, or brings its own."""
    callspec = getattr(item, "callspec", None)
    kind = callspec.params.get("redis_server") if callspec else None
    return str(kind) if kind is not None else None


def lines(stats: Mapping[str, Iterable[Any]]) -> list[str]:
    """Returns the table's lines, from what the terminal's reporter has collected."""
    rows: dict[str, Row] = defaultdict(Row)
    for outcome, counted in _COUNTED_AS.items():
        for report in stats.get(outcome, ()):
            kind = dict(getattr(report, "user_properties", ())).get(PROPERTY)
            if kind:
                rows[kind].counts[counted] += 1
                if counted == "skipped":
                    rows[kind].reasons[_reason(report)] += 1
    return drawn([_cells(kind, rows[kind]) for kind in backends.chosen()])


def _cells(kind: str, row: Row) -> tuple[str, ...]:
    reason = backends.why_not(kind)
    why = [f"not run: {reason}"] if reason else _shortest(row.reasons)
    name = "-" if reason else backends.name_of(kind)
    counts = [str(row.counts[counted]) for counted in ("passed", "skipped", "failed")]
    return (kind, name, *counts, "; ".join(why) or "-")


def _shortest(reasons: Counter[str]) -> list[str]:
    found = [f"{count} x {reason}" for reason, count in reasons.most_common(MOST_REASONS)]
    left = sum(reasons.values()) - sum(n for _, n in reasons.most_common(MOST_REASONS))
    return [*found, f"{left} for other reasons"] if left else found


def _reason(report: Any) -> str:
    where = report.longrepr
    text = str(where[2] if isinstance(where, tuple) else where)
    return re.sub(r"^Skipped: ", "", text).strip()


def drawn(rows: list[tuple[str, ...]]) -> list[str]:
    """Returns aligned columns; the last one is as long as its text."""
    every = [HEAD, *rows]
    widths = [max(len(row[i]) for row in every) for i in range(len(HEAD) - 1)]
    found = []
    for row in every:
        first = (cell.ljust(width) for cell, width in zip(row, widths, strict=False))
        found.append(" | ".join([*first, row[-1]]))
    found.insert(1, "-+-".join("-" * width for width in [*widths, len(HEAD[-1])]))
    return ["", *found]
