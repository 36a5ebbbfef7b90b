"""From what a peer's script saw to figures; the same sums for all of them."""

from __future__ import annotations

import itertools
from typing import Any

STRETCHES = 5
_LEAST = 50  # calls that can be cut into stretches


def steady(seen: list[list[float]]) -> tuple[list[float], float | None]:
    """Rates in five stretches between 10 % and 95 % of the calls, and handlers busy in them.

    `seen` are (seconds, calls until then, handler seconds until then).
    """
    total = seen[-1][1] if seen else 0
    window = [at for at in seen if total * 0.1 <= at[1] <= total * 0.95]
    if len(window) <= STRETCHES or total < _LEAST:
        return [], None
    step = (len(window) - 1) / STRETCHES
    cuts = [window[round(i * step)] for i in range(STRETCHES + 1)]
    rates = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in itertools.pairwise(cuts)]
    if not all(rates):  # too short to be cut
        return [], None
    return rates, (cuts[-1][2] - cuts[0][2]) / (cuts[-1][0] - cuts[0][0])


def waits(answer: dict[str, Any]) -> dict[str, list[float]]:
    """ms from the question to the handler's start, and to the result."""
    asked = [at if isinstance(at, list) else [at, None] for at in answer["asked"]]
    starts = zip(asked, answer["starts"], strict=False)
    return {
        "start": [(start - at[0]) * 1000 for at, start in starts],
        "known": [(at[1] - at[0]) * 1000 for at in asked if at[1] is not None],
    }


def percentile(values: list[float], share: float) -> float | None:
    """The value that `share` of them don't exceed."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]


def jain(records: list[list[float]], sizes: list[int], until: float) -> float | None:
    """Jain's index of worker time until `until` (a share) of one request's calls have ended.

    1 means that all requests had the same worker time, 1/requests that one had all of it.
    """
    done, end = [0] * len(sizes), None
    for tag, _, ended in sorted(records, key=lambda record: record[2]):
        done[int(tag)] += 1
        if done[int(tag)] >= sizes[int(tag)] * until:
            end = ended
            break
    if end is None:
        return None
    shares = [0.0] * len(sizes)
    for tag, started, ended in records:
        shares[int(tag)] += max(0.0, min(ended, end) - started)
    return sum(shares) ** 2 / (len(shares) * sum(share**2 for share in shares))
