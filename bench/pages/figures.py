"""Computes figures from the answers of a peer's script, in the same way for all peers."""

from __future__ import annotations

import itertools
from typing import Any

STRETCHES = 5
_LEAST = 50  # fewer calls are not cut into stretches


def steady(seen: list[list[float]]) -> tuple[list[float], float | None]:
    """Returns the rates in five stretches of the calls, and how many handlers were busy in them.

    The stretches lie between 10 % and 95 % of the calls. `seen` holds samples of the seconds, the
    calls until then, and the handler seconds until then.
    """
    total = seen[-1][1] if seen else 0
    window = [at for at in seen if total * 0.1 <= at[1] <= total * 0.95]
    if len(window) <= STRETCHES or total < _LEAST:
        return [], None
    step = (len(window) - 1) / STRETCHES
    cuts = [window[round(i * step)] for i in range(STRETCHES + 1)]
    rates = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in itertools.pairwise(cuts)]
    if not all(rates):  # a stretch without a call has no rate
        return [], None
    return rates, (cuts[-1][2] - cuts[0][2]) / (cuts[-1][0] - cuts[0][0])


def waits(answer: dict[str, Any]) -> dict[str, list[float]]:
    """Returns the ms from each question to the handler's start, and to the result."""
    asked = [at if isinstance(at, list) else [at, None] for at in answer["asked"]]
    starts = zip(asked, answer["starts"], strict=False)
    return {
        "start": [(start - at[0]) * 1000 for at, start in starts],
        "known": [(at[1] - at[0]) * 1000 for at in asked if at[1] is not None],
    }


def percentile(values: list[float], share: float) -> float | None:
    """Returns the value that this share of the values does not exceed."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]


def jain(records: list[list[float]], sizes: list[int], until: float) -> float | None:
    """Returns Jain's index of worker time until this share of one request's calls has ended.

    1 means that all requests had the same worker time. 1/requests means that one request had all
    of the worker time.
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
