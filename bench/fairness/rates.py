"""Measures whether a rate is kept, and how much of it is used, by the clock of the handlers.

`python -m bench.fairness.rates [--seconds 600] [--rate 100] [--burst 10] [--workers 8]`: the same
load runs with the rate of one request, of a key that eight requests share, and of the whole queue.
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from bench.fairness import at_work
from bench.harness import support

from fairlane import Queue

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

WINDOWS_S = (0.1, 1.0, 10.0)
START_S = 60.0  # until the first call
KINDS = ("one request", "a key of eight requests", "the queue")


def submit(queue: Queue, kind: str, count: int, rate: str, burst: int) -> None:
    """Submits the load: calls that take no time."""
    if kind == KINDS[2]:
        queue.set_rate(rate, burst)
        queue.submit_request([b"x 0"] * count, limit=100)
    elif kind == KINDS[1]:
        for _ in range(8):
            bodies = [b"x 0"] * (count // 8 + 1)
            queue.submit_request(bodies, limit=100, rate=rate, burst=burst, rate_key="api")
    else:
        queue.submit_request([b"x 0"] * count, limit=100, rate=rate, burst=burst)


def starts(url: str, kind: str, given: argparse.Namespace) -> list[float]:
    """Returns when the calls began, in s."""
    count = int(given.rate * (given.seconds + START_S))
    with Queue.from_url(url) as queue:
        submit(queue, kind, count, f"{given.rate}/s", given.burst)
        with at_work.workers(url, count=given.workers) as log:
            ends = time.monotonic() + START_S
            while not log.calls() and time.monotonic() < ends:
                time.sleep(0.1)
            time.sleep(given.seconds)
            return [call.began for call in log.calls()]


def most_in(times: Sequence[float], window_s: float) -> int:
    """Returns the most starts in any window of this length."""
    most, first = 0, 0
    for last, at in enumerate(times):
        while at - times[first] > window_s:
            first += 1
        most = max(most, last - first + 1)
    return most


def worst_excess(times: Sequence[float], rate: float, burst: int) -> float:
    """Returns by how many the starts of any window exceed burst + rate x window; below 0: none."""
    worst, least = float("-inf"), float("inf")
    for place, at in enumerate(times):
        least = min(least, place - rate * at)
        worst = max(worst, place - rate * at - least + 1 - burst)
    return worst


def used(times: Sequence[float], rate: float) -> float:
    """Returns the share of the rate that was used, from the first start to the last one."""
    return (len(times) - 1) / (times[-1] - times[0]) / rate


def row(kind: str, times: Sequence[float], given: argparse.Namespace) -> str:
    """Returns the row of the table."""
    cells: list[str] = [f"{len(times):,}", f"{used(times, given.rate):.1%}"]
    for window_s in WINDOWS_S:
        allowed = given.burst + given.rate * window_s
        cells.append(f"{most_in(times, window_s):,} of {allowed:,.0f}")
    cells.append(f"{worst_excess(times, given.rate, given.burst):+.1f}")
    return " | ".join([f"| {kind}", *cells]) + " |"


def main(argv: Sequence[str] | None = None, write: Callable[..., None] = support.write) -> None:
    """Measures, and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--rate", type=int, default=100)
    parser.add_argument("--burst", type=int, default=10)
    parser.add_argument("--workers", type=int, default=8)
    given = parser.parse_args(argv)
    rows = []
    for kind in KINDS:
        with support.server() as url:
            rows.append(row(kind, starts(url, kind, given), given))
    windows = " | ".join(f"most in any {window_s:g} s" for window_s in WINDOWS_S)
    lines = [
        f"{given.workers} workers of one process each make calls that take no time, for",
        f"{given.seconds:g} s, at a rate of {given.rate}/s with a burst of {given.burst}. All",
        "times are by the handlers' own clock. *Used* is the share of the rate from the first",
        "start to the last one. *Excess* is the most that any window, of whatever length, has",
        "above burst + rate x window; below 0 the rate was kept in all of them.",
        "",
        f"| rate of | starts | used | {windows} | excess |",
        "|---" + "|---:" * (3 + len(WINDOWS_S)) + "|",
        *rows,
    ]
    write("rates", "Rates are kept, and used", lines)


if __name__ == "__main__":
    main()
