"""Measures how long a request that ages waits under a flood of urgent work.

`python -m bench.fairness.ageing [seconds]`: one request of priority 0 keeps all units busy. A
request of priority 90 waits, without ageing and with several times. The worst wait is the longest
time between two of its starts, or from its submission to the first one.
"""

from __future__ import annotations

import sys
import time
from itertools import pairwise
from typing import TYPE_CHECKING

from bench.fairness import at_work
from bench.harness import support

from fairlane import Queue

if TYPE_CHECKING:
    from collections.abc import Sequence

SECONDS = 60.0
UNITS, CALL_MS = 4, 5
AGEING_S = (0.0, 1.0, 2.0, 5.0)  # 0 = it does not age
START_S = 60.0


def run(url: str, ageing_s: float, seconds: float) -> tuple[list[float], int]:
    """Returns the waits of the patient request in s, and how many of its calls were made."""
    count = int((seconds + START_S) * UNITS * 1000 / CALL_MS)
    with Queue.from_url(url) as queue, at_work.workers(url, concurrency=UNITS) as log:
        queue.submit_request([f"urgent {CALL_MS}".encode()] * count, priority=0, limit=2 * UNITS)
        ends = time.monotonic() + START_S
        while not log.calls() and time.monotonic() < ends:
            time.sleep(0.1)
        body = f"patient {CALL_MS}".encode()
        queue.submit_request([body] * count, priority=90, limit=UNITS, ageing=ageing_s)
        submitted = time.monotonic()
        time.sleep(seconds)
        until = time.monotonic()
        starts = [call.began for call in log.calls() if call.name == "patient"]
        return waits([submitted, *starts, until], ageing_s), len(starts)


def waits(times: Sequence[float], ageing_s: float) -> list[float]:
    """Returns the times between the slices; calls of one slice follow each other closely."""
    gaps = [after - before for before, after in pairwise(times)]
    return [gap for gap in gaps if gap > ageing_s / 2]


def row(ageing_s: float, found: Sequence[float], count: int) -> str:
    """Returns the row of the table."""
    if not ageing_s:
        return f"| none | {count:,} | never started | {max(found):.1f} s and on |"
    complete = found[:-1] or found  # the last one was cut short
    mean = sum(complete) / len(complete)
    return f"| {ageing_s:g} s | {count:,} | {mean:.2f} s | {max(complete):.2f} s |"


def main() -> None:
    """Measures, and writes the page."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS
    rows = []
    for ageing_s in AGEING_S:
        with support.server() as url:
            rows.append(row(ageing_s, *run(url, ageing_s, seconds)))
    lines = [
        f"One request of priority 0 keeps all {UNITS} units busy with calls of {CALL_MS} ms. A",
        f"request of priority 90 waits beside it for {seconds:g} s. A wait is the time between two",
        "of its slices, or from its submission to the first one. With ageing, its next slice goes",
        "first when nothing of it has started for so long; the leading worker looks each second.",
        "",
        "| ageing | calls of it | mean wait | worst wait |",
        "|---|---:|---:|---:|",
        *rows,
    ]
    support.write("ageing", "Ageing under a flood of urgent work", lines)


if __name__ == "__main__":
    main()
