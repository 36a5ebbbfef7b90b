"""Measures how long nothing was completed, as gaps between completions around faults.

A completion's moment is the id of its entry in `out`: the clock of the server that counted it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def longest_gap(moments: Sequence[int], since: float, until: float) -> float:
    """Returns the longest time between two completions that overlaps [since, until], in ms.

    `moments` are sorted. Before the first and after the last of all nothing is known, so what
    lies outside of [since, until] there does not count.
    """
    first = max(0, bisect_right(moments, since) - 1)
    last = bisect_left(moments, until)
    found = [float(moment) for moment in moments[first : last + 1]]
    if not found or found[0] > since:
        found.insert(0, since)
    if found[-1] < until:
        found.append(until)
    return max(after - before for before, after in pairwise(found))


def percentile(values: Sequence[float], share: float) -> float:
    """Returns the value that so large a share of all does not exceed; 0.0 of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def shown(values: Sequence[float]) -> str:
    """Returns median, 95 % and highest as text."""
    middle, high = percentile(values, 0.5), percentile(values, 0.95)
    return f"{middle:,.0f} / {high:,.0f} / {max(values, default=0.0):,.0f}"
