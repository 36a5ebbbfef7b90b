"""Formats what the demo prints at the end: a table, a timeline, findings. Needs no Redis."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from fairlane.records import Result

Interval = tuple[float, float]
Finding = dict[str, Any]

HEAD = ("request", "priority", "limit", "sub-requests", "dead", "waited", "ran", "total",
        "peak", "per second")  # fmt: skip
COLUMNS = 64


@dataclass(frozen=True)
class Row:
    """Holds one request's numbers; times in seconds, from the handlers' own clock."""

    id: str
    priority: int
    limit: int
    count: int
    dead: int
    submitted: float
    intervals: list[Interval]

    @classmethod
    def of(
        cls, id: str, priority: int, limit: int, submitted: float, results: Sequence[Result]  # noqa: A002
    ) -> Row:  # fmt: skip
        findings = findings_of(results)
        intervals = [(finding["run"]["began"], finding["run"]["ended"]) for finding in findings]
        dead = sum(result.status == "dead" for result in results)
        return cls(id, priority, limit, len(results), dead, submitted, intervals)

    @property
    def first(self) -> float:
        return min((began for began, _ in self.intervals), default=self.submitted)

    @property
    def last(self) -> float:
        return max((ended for _, ended in self.intervals), default=self.submitted)

    @property
    def peak(self) -> int:
        """Returns the most handlers that ran at the same time: never more than the limit."""
        return peak(self.intervals)

    def cells(self) -> tuple[str, ...]:
        ran = self.last - self.first
        rate = f"{self.count / ran:,.0f}" if ran > 0 else "-"
        times = (self.first - self.submitted, ran, self.last - self.submitted)
        return (
            self.id, str(self.priority), str(self.limit), f"{self.count:,}", str(self.dead),
            *(f"{seconds:.2f} s" for seconds in times), str(self.peak), rate,
        )  # fmt: skip


def findings_of(results: Iterable[Result]) -> list[Finding]:
    """Returns the handler's findings in the order of the results; the dead have none."""
    return [json.loads(result.body) for result in results if result.body is not None]


def peak(intervals: Iterable[Interval]) -> int:
    """Returns how many intervals overlap at most; touching ends do not overlap."""
    moments = [(began, 1) for began, _ in intervals] + [(ended, -1) for _, ended in intervals]
    now = most = 0
    for _, step in sorted(moments):
        now += step
        most = max(most, now)
    return most


def table(rows: Sequence[Row]) -> Iterator[str]:
    """Yields the lines of the table."""
    grid = [HEAD, *(row.cells() for row in rows)]
    widths = [max(map(len, column)) for column in zip(*grid, strict=True)]
    for n, (name, *numbers) in enumerate(grid):
        cells = (f"{cell:>{width}}" for cell, width in zip(numbers, widths[1:], strict=True))
        yield "  ".join([f"{name:<{widths[0]}}", *cells])
        if not n:
            yield "-" * (sum(widths) + 2 * len(widths) - 2)


def timeline(rows: Sequence[Row], columns: int = COLUMNS) -> Iterator[str]:
    """Yields a line for each request: its workers, on average, in each column's time."""
    start = min(row.submitted for row in rows)
    step = (max(row.last for row in rows) - start) / columns or 1.0
    width = max(len(row.id) for row in rows)
    yield f"workers over time (a column: {step:.2f} s; a digit: how many worked; a point: none)"
    for row in rows:
        marks = (_mark(row, start + n * step, step) for n in range(columns))
        yield f"{row.id:<{width}}  {''.join(marks).rstrip()}"
    yield f"{'':<{width}}  0 s{f'{step * columns:.1f} s':>{columns - 3}}"


def _mark(row: Row, at: float, step: float) -> str:
    """Returns a blank before and after the request, a point while it waits, else its workers."""
    if at + step <= row.submitted or at >= row.last:
        return " "
    busy = sum(max(0.0, min(ended, at + step) - max(began, at)) for began, ended in row.intervals)
    return str(max(1, round(busy / step))) if busy else "."


def longest(findings: Iterable[Finding], most: int = 1) -> list[str]:
    """Returns the longest functions, as sentences."""
    ranked = sorted(
        ((finding["longest"], finding["path"]) for finding in findings if finding.get("longest")),
        key=lambda pair: (-pair[0]["lines"], pair[1]),
    )
    return [
        f"{function['name']}, {function['lines']:,} lines ({path}:{function['line']})"
        for function, path in ranked[:most]
    ]


def imported(findings: Iterable[Finding], most: int = 5) -> list[str]:
    """Returns the modules that most files import."""
    counts = Counter(module for finding in findings for module in finding.get("imports", ()))
    return [f"{module} ({count:,})" for module, count in counts.most_common(most)]


def total(findings: Iterable[Finding], measure: str) -> int:
    """Returns the sum of one measure."""
    return sum(finding.get(measure, 0) for finding in findings)
