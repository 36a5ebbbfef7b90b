"""Measures how many handlers of one request really ran concurrently, against its limit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.chaos.evidence.journal import Execution


@dataclass
class Overlap:
    """Time above the limit: when each began, ns in all and at a time, and the most above it."""

    times: int = 0
    ns: int = 0
    longest: int = 0
    most: int = 0

    def add(self, other: Overlap) -> None:
        self.times += other.times
        self.ns += other.ns
        self.longest = max(self.longest, other.longest)
        self.most = max(self.most, other.most)


def over_limit(executions: Iterable[Execution], limit: int) -> Overlap:
    """Returns how far the executions of one request exceeded its limit."""
    edges = [(one.began_ns, 1) for one in executions]
    edges += [(one.ended_ns, -1) for one in executions]
    edges.sort()  # at the same moment an end comes first
    found, running, since = Overlap(), 0, 0
    for moment, step in edges:
        running += step
        if step == 1 and running == limit + 1:
            found.times, since = found.times + 1, moment
        elif step == -1 and running == limit:
            found.ns += moment - since
            found.longest = max(found.longest, moment - since)
        found.most = max(found.most, running - limit)
    return found
