"""Measures how long after a lower limit a request still runs on more workers than that.

`python -m bench.fairness.limits [runs]`: a request with a limit of 50 uses 50 of 60 units. Its
limit becomes 3. The time counts from the call of `set_limit` until no more than 3 calls run, for
good.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from bench.fairness import at_work
from bench.harness import support

from fairlane import Queue, settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.fairness.at_work import Called

RUNS = 5
UNITS, HIGH, LOW = 60, 50, 3
CALLS_MS = (1, 20, 100)
START_S = 60.0
AFTER_S = 3.0  # that is watched after the change


def last_above(calls: Sequence[Called], limit: int) -> float:
    """Returns when more than `limit` calls ran for the last time."""
    moves = sorted([(call.began, 1) for call in calls] + [(call.ended, -1) for call in calls])
    running, last = 0, 0.0
    for at, move in moves:
        if running > limit:
            last = at
        running += move
    return last


def run(url: str, call_ms: int) -> float:
    """Returns the ms from the change until at most LOW calls run."""
    body = f"x {call_ms}".encode()
    with Queue.from_url(url) as queue, at_work.workers(url, concurrency=UNITS) as log:
        count = int((START_S + AFTER_S) * HIGH * 1000 / max(5, call_ms))
        request = queue.submit_request([body] * count, limit=HIGH)
        ends = time.monotonic() + START_S
        while request.progress().held < HIGH and time.monotonic() < ends:
            time.sleep(0.05)
        time.sleep(1.0)  # its pace is known by then
        changed = time.monotonic()
        request.set_limit(LOW)
        time.sleep(AFTER_S)
        return 1000 * max(0.0, last_above(log.calls(), LOW) - changed)


def main() -> None:
    """Measures, and writes the page."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else RUNS
    rows = []
    for call_ms in CALLS_MS:
        found = []
        for _ in range(runs):
            with support.server() as url:
                found.append(run(url, call_ms))
        slice_ms = max(settings.SLICE_MS, call_ms)
        rows.append(
            f"| {call_ms} ms | {slice_ms:g} ms | {support.median(found):.0f} ms "
            f"| {max(found):.0f} ms |"
        )
    lines = [
        f"A request with a limit of {HIGH} uses {HIGH} of {UNITS} units of one worker process,",
        f"and its limit becomes {LOW}. The time counts from the call until at most {LOW} calls",
        f"run, for good, by the handlers' own clock; {runs} runs each. What runs ends its",
        f"slice first: about {settings.SLICE_MS:g} ms of work, or one call that takes longer.",
        "",
        "| a call takes | a slice takes | until the limit holds: median | worst |",
        "|---|---:|---:|---:|",
        *rows,
    ]
    support.write("limits", "A lower limit under load", lines)


if __name__ == "__main__":
    main()
