"""Measures how many leases of a key there really were at a time, and in which order calls ran.

A lease is a fence of a request: from its grant to the end of its last handler. The fence has the
clock of the server in whole ms, so a lease counts from one ms later, or from its first handler.
"""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from tests.chaos.evidence.journal import Execution

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_MS_NS = 1_000_000
_CLOCKS_NS = 2 * _MS_NS  # between the wall clock of the server and the monotonic one of handlers


class Lease(NamedTuple):
    """The lease of some executions; in ns."""

    request: int
    fence: int
    granted: int
    ended: int


@dataclass
class Limit:
    """The limit of a key, and its changes: when each was sent, when it was answered, the limit."""

    first: int
    changes: list[tuple[int, int, int]] = field(default_factory=list)

    def at(self, moment: int) -> int:
        """Returns the largest limit that may have been in force at a moment."""
        found = [self.first]
        for sent, answered, limit in self.changes:
            if answered < moment - _CLOCKS_NS:
                found = [limit]
            elif sent <= moment + _CLOCKS_NS:
                found.append(limit)
        return max(found)


def leases(number: int, executions: Iterable[Execution]) -> list[Lease]:
    """Returns the leases of a request whose handlers have begun."""
    runs = defaultdict[int, list[Execution]](list)
    for one in executions:
        runs[one.fence].append(one)
    offset = time.time_ns() - time.monotonic_ns()
    return [
        Lease(
            number,
            fence,
            min(fence * 1000 + _MS_NS - offset, *(one.began_ns for one in some)),
            max(one.ended_ns for one in some),
        )
        for fence, some in runs.items()
    ]


def above(found: Sequence[Lease], limit: Limit) -> list[tuple[Lease, int, int]]:
    """Returns the leases that were granted above the limit, each with the number and the limit."""
    edges = sorted([(one.granted, 1, i) for i, one in enumerate(found)] + [
        (one.ended, 0, i) for i, one in enumerate(found)
    ])  # fmt: skip
    live, wrong = 0, list[tuple[Lease, int, int]]()
    for moment, starts, i in edges:
        live += 1 if starts else -1
        if starts and live > limit.at(moment):
            wrong.append((found[i], live, limit.at(moment)))
    return wrong


def most_at_a_time(intervals: Sequence[tuple[int, int]]) -> int:
    """Returns how many intervals there were at most at a time; at one moment ends come first."""
    edges = sorted([(began, 1) for began, _ in intervals] + [(end, -1) for _, end in intervals])
    live = most = 0
    for _, step in edges:
        live += step
        most = max(most, live)
    return most


def gaps(calls: Sequence[tuple[int, int, int]], limit: int) -> list[int]:
    """Returns how long each free place of a key waited for a call that was there already, ns.

    `calls`: submitted, began, ended of each execution.
    """
    edges = [(ended, 0, 0) for _, _, ended in calls]
    edges += [(began, 1, submitted) for submitted, began, _ in calls]
    free, found, live = list[int](), list[int](), 0
    for moment, starts, submitted in sorted(edges):
        live += 1 if starts else -1
        if not starts and live < limit:
            free.append(moment)
        elif starts and free:
            since = free.pop(0)
            if submitted <= since:
                found.append(moment - since)
    return found


def out_of_order(calls: Sequence[tuple[str, Sequence[Execution]]]) -> list[str]:
    """Returns what is wrong in the calls of an order key, in their order: what began too early."""
    wrong = list[str]()
    ran = [(name, runs) for name, runs in calls if runs]
    for (ahead, before), (name, runs) in pairwise(ran):
        began, over = min(one.began_ns for one in runs), max(one.ended_ns for one in before)
        if began < over:
            wrong.append(f"{name} began {(over - began) / 1e6:.3f} ms before {ahead} had ended")
    return wrong
