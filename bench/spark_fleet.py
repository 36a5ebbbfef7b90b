"""A fleet on Spark beside plain workers: how many sub-requests a second, two processes each.

`python bench/spark_fleet.py [runs]`
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from fairlane.queue import Queue
from fairlane.spark import run_fleet, session
from fairlane.worker import batch_handler
from support import median, median_of, server, write

if TYPE_CHECKING:
    from collections.abc import Iterator

COUNT = 400_000
BODY = b"x" * 100
WORKERS = 2
LIMIT = 2 * WORKERS
RUNS = 5
HERE = Path(__file__).resolve().parent


@batch_handler
def back(bodies: list[bytes]) -> list[bytes]:
    """What a batch handler gets, it returns."""
    return bodies


def back_table(table: pa.Table) -> pa.Table:
    """The same for a table."""
    return table.rename_columns(["index", "result", "request"])


def upper(table: pa.Table) -> pa.Array:
    """Something is done to each body, in compiled code."""
    return pc.utf8_upper(table.column("body").cast(pa.string()))


def fill(queue: Queue) -> Any:
    """One request that two workers share."""
    return queue.submit_request((BODY for _ in range(COUNT)), limit=LIMIT)


def rate_of(request: Any, began: float) -> float:
    """Sub-requests a second, from the first that was taken to the last that was settled."""
    progress = request.progress()
    if progress.done != COUNT:
        raise SystemExit(f"{progress.done:,} of {COUNT:,} are done")
    return COUNT / (progress.ended_ms / 1000 - began)


def fleet(spark: Any, queue: Queue, handler: Any, given: str, **options: Any) -> float:
    """The workers begin first, so that what Spark takes to start a task is not measured."""
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
    """`fairlane worker` with two processes, the same handler."""
    words = [sys.executable, "-m", "fairlane", "worker", "--handler", "spark_fleet:back"]
    words += ["--processes", str(WORKERS)]
    env = os.environ | {"FAIRLANE_REDIS": queue.driver.url}
    with held_back(queue) as request:
        worker = subprocess.Popen(words, cwd=HERE, env=env, stderr=subprocess.DEVNULL)
        await_workers(queue, 1)
        began = time.time()
        request.resume()
        request.wait(300)
    worker.terminate()
    worker.wait()
    return rate_of(request, began)


@contextlib.contextmanager
def held_back(queue: Queue) -> Iterator[Any]:
    """A request that is there and waits until it is resumed."""
    from redis import Redis

    Redis.from_url(queue.driver.url).flushall()
    request = fill(queue)
    request.pause()
    yield request


def await_workers(queue: Queue, count: int = WORKERS) -> None:
    """So many are registered, and have had a moment to start their processes."""
    until = time.monotonic() + 120
    while len(queue.status()["workers"]) < count:
        if time.monotonic() > until:
            raise SystemExit("the workers do not register")
        time.sleep(0.05)
    time.sleep(1)


def main() -> None:
    # Not above: a plain worker imports this file, too.
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else RUNS
    with server() as url:
        os.sched_setaffinity(0, range(os.cpu_count() or 1))  # two workers: both cores for all
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
        f"{COUNT:,} sub-requests of {len(BODY)} bytes in one request with a limit of {LIMIT} (each "
        f"worker holds one lease and fetches another one ahead), {WORKERS} workers, results "
        "stored. From the moment the request may be worked on to its end; Spark's start and its "
        "tasks' are not in it. Redis, Spark and the workers share two cores. Median of "
        f"{runs} runs, lowest and highest."
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
