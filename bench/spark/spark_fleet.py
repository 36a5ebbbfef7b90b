"""Compares a fleet on Spark with plain workers: sub-requests a second of two processes each.

`python -m bench.spark.spark_fleet [runs]`
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from bench.harness.support import importing, median, median_of, server, write

from fairlane.queue import Queue
from fairlane.spark import run_fleet, session
from fairlane.worker import batch_handler

if TYPE_CHECKING:
    from collections.abc import Iterator

COUNT = 400_000
BODY = b"x" * 100
WORKERS = 2
LIMIT = 2 * WORKERS
RUNS = 5


@batch_handler
def back(bodies: list[bytes]) -> list[bytes]:
    """Returns the bodies."""
    return bodies


def back_table(table: pa.Table) -> pa.Table:
    """Returns the bodies of a table."""
    return table.rename_columns(["index", "result", "request"])


def upper(table: pa.Table) -> pa.Array:
    """Returns each body in upper case, by compiled code."""
    return pc.utf8_upper(table.column("body").cast(pa.string()))


def fill(queue: Queue) -> Any:
    """Submits one request that two workers share."""
    return queue.submit_request((BODY for _ in range(COUNT)), limit=LIMIT)


def rate_of(request: Any, began: float) -> float:
    """Returns the sub-requests a second, from `began` to the end of the request."""
    progress = request.progress()
    if progress.done != COUNT:
        raise SystemExit(f"{progress.done:,} of {COUNT:,} sub-requests are done")
    return COUNT / (progress.ended_ms / 1000 - began)


def fleet(spark: Any, queue: Queue, handler: Any, given: str, **options: Any) -> float:
    """Returns the rate of a fleet; its workers start first, so Spark's start does not count."""
    made = threading.Thread(
        target=lambda: run_fleet(
            spark, handler, input=given, redis=queue.driver.url, workers=WORKERS, max_idle_s=2,
            **options,
        )
    )  # fmt: skip
    with held_back(queue) as request:
        made.start()
        await_workers(queue)
        began = time.time()
        request.resume()
        request.wait(300)
    made.join()
    return rate_of(request, began)


def plain(queue: Queue) -> float:
    """Returns the rate of `fairlane worker` with two processes and the same handler."""
    words = [sys.executable, "-m", "fairlane", "worker", "--processes", str(WORKERS)]
    words += ["--handler", "bench.spark.spark_fleet:back"]
    env = importing() | {"FAIRLANE_REDIS": queue.driver.url}
    with held_back(queue) as request:
        worker = subprocess.Popen(words, env=env, stderr=subprocess.DEVNULL)
        await_workers(queue, 1)
        began = time.time()
        request.resume()
        request.wait(300)
    worker.terminate()
    worker.wait()
    return rate_of(request, began)


@contextlib.contextmanager
def held_back(queue: Queue) -> Iterator[Any]:
    """Submits a request that waits for a call of its `resume`."""
    from redis import Redis

    Redis.from_url(queue.driver.url).flushall()
    request = fill(queue)
    request.pause()
    yield request


def await_workers(queue: Queue, count: int = WORKERS) -> None:
    """Waits until these workers are registered, and a second more for their processes."""
    until = time.monotonic() + 120
    while len(queue.status().workers) < count:
        if time.monotonic() > until:
            raise SystemExit("the workers do not register")
        time.sleep(0.05)
    time.sleep(1)


def main() -> None:
    # Arguments are read here, because a plain worker also imports this file.
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else RUNS
    with server() as url:
        os.sched_setaffinity(0, range(os.cpu_count() or 1))  # because two workers need both cores
        spark = session(f"local[{WORKERS}]", "bench")
        with Queue.from_url(url) as queue:
            measures = {
                "plain workers, batch handler": lambda: plain(queue),
                "fleet, batch handler": lambda: fleet(spark, queue, back, "bytes"),
                "fleet, Arrow table through": lambda: fleet(spark, queue, back_table, "table"),
                "fleet, Arrow upper case": lambda: fleet(spark, queue, upper, "table"),
            }
            found = median_of(runs, measures)
        spark.stop()
    base = median(found["plain workers, batch handler"])
    story = (
        f"{WORKERS} workers drain {COUNT:,} sub-requests of {len(BODY)} bytes and store the "
        f"results. All belong to one request with a limit of {LIMIT}, because each worker holds "
        "one lease and prefetches another one. The time counts from the resumption of the request "
        "to its end, without the start of Spark and of its tasks. Redis, Spark and the workers "
        f"share two cores. The table shows median, lowest and highest of {runs} runs."
    )
    lines = [
        story,
        "",
        "| | per second | lowest | highest | of plain |",
        "|---|--:|--:|--:|--:|",
    ]
    for name, rates in found.items():
        middle = median(rates)
        lines.append(
            f"| {name} | {middle:,.0f} | {min(rates):,.0f} | {max(rates):,.0f} "
            f"| {middle / base:.0%} |"
        )
    write("spark_fleet", "A fleet on Spark", lines)


if __name__ == "__main__":
    main()
