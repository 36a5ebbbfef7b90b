"""Measures rows from Spark into a queue, beside plain Parquet and raw XADD in the same session.

`python -m bench.spark.spark_sink [runs] [rows]`

Server, JVM and Python workers share all cores of this machine. Every way writes the same cached
rows by two Spark tasks. "staged, not committed" is the part of the executors.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import redis
from bench.harness import support

from fairlane.spark import FairlaneSource, session
from fairlane.spark.sink.writers import StagedWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

RUNS = int(sys.argv[1]) if len(sys.argv) > 1 else 5
ROWS = int(sys.argv[2]) if len(sys.argv) > 2 else 1_000_000
BODY_BYTES = 100
TASKS = 2
PIPELINED = 1000
URL = f"redis://127.0.0.1:{support.PORT}"


class Uncommitted(StagedWriter):
    """Stages rows, and drops them instead of a commit."""

    def commit(self, messages: list[Any]) -> None:
        """Drops the staged rows."""
        self.abort(messages)


class StagedOnly(FairlaneSource):
    """Provides the format "staged_only"."""

    @classmethod
    def name(cls) -> str:
        """Returns the name of the format."""
        return "staged_only"

    def writer(self, schema: Any, overwrite: bool) -> Any:
        """Returns a writer that never commits."""
        return Uncommitted(super().writer(schema, overwrite).plan)


def raw_xadd(batches: Iterator[Any]) -> Iterator[Any]:
    """Writes each row by a pipelined XADD of its own, which is not idempotent."""
    client = redis.Redis.from_url(URL)
    key = f"raw:{os.getpid()}"
    for batch in batches:
        bodies = batch.column(0).to_pylist()
        for at in range(0, len(bodies), PIPELINED):
            pipe = client.pipeline(transaction=False)
            for body in bodies[at : at + PIPELINED]:
                pipe.xadd(key, {"b": body})
            pipe.execute()
        yield batch.slice(0, 0)
    client.close()


class Bench:
    """Holds a cached frame, and the ways to write it."""

    def __init__(self, spark: Any, folder: Path) -> None:
        self.folder = folder
        self.client = redis.Redis.from_url(URL)
        spark.dataSource.register(StagedOnly)
        body = f"lpad(id, {BODY_BYTES}, 'x') AS body"
        self.frame = spark.range(0, ROWS, 1, TASKS).selectExpr(body, "id").cache()
        self.frame.count()

    def ways(self) -> dict[str, Callable[[], float]]:
        """Returns the ways; each of them returns its rows per second."""
        return {
            "Parquet": self._timed(self._parquet),
            "raw XADD": self._timed(self._raw),
            "staged, not committed": self._timed(self._to("staged_only")),
            "staged": self._timed(self._to("fairlane")),
            "pipelined": self._timed(self._to("fairlane", writeMode="pipelined")),
            "dedupe": self._timed(self._to("fairlane", writeMode="dedupe", keyColumn="id")),
        }

    def _timed(self, way: Callable[[], None]) -> Callable[[], float]:
        def run() -> float:
            self.client.flushall()
            begun = time.perf_counter()
            way()
            return ROWS / (time.perf_counter() - begun)

        return run

    def _parquet(self) -> None:
        self.frame.select("body").write.mode("overwrite").parquet(str(self.folder / "rows"))

    def _raw(self) -> None:
        frame = self.frame.select("body")
        frame.mapInArrow(raw_xadd, frame.schema).count()

    def _to(self, form: str, **options: str) -> Callable[[], None]:
        def run() -> None:
            writer = self.frame.write.format(form).mode("append")
            writer.options(redis=URL, request="r1", **options).save()

        return run


def lines(found: dict[str, list[float]]) -> list[str]:
    """Returns the lines of the page."""
    parquet = support.median(found["Parquet"])
    raw = support.median(found["raw XADD"])
    rows = [
        f"{TASKS} Spark tasks write {ROWS:,} cached rows of {BODY_BYTES} bytes.",
        f"The figures are medians of {RUNS} runs after one run as a warm-up.",
        "",
        "| way | rows/s | of Parquet | of raw XADD |",
        "|---|---:|---:|---:|",
    ]
    for name, values in found.items():
        middle = support.median(values)
        rows.append(f"| {name} | {middle:,.0f} | {middle / parquet:.2f} | {middle / raw:.2f} |")
    return [*rows, "", *NOTES]


NOTES = [
    "- *raw XADD* is a loop over redis-py's pipeline: a Spark task that fails writes rows twice.",
    "- *staged* is the default. Executors stage packed chunks, which *staged, not committed*",
    "  measures alone. The commit appends each chunk to the request once, in 2 µs of the server a",
    "  row.",
    "- *pipelined* and *dedupe* add to the live request while Spark still writes.",
]


def _let_go(pid: int) -> None:
    """Allows a process to run on every core again."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(pid, set(support.CORES))


def main() -> None:
    """Measures all ways and writes docs/benchmarks/spark_sink.md."""
    with support.server():
        client = redis.Redis.from_url(URL)
        _let_go(int(client.info("server")["process_id"]))
        _let_go(0)
        folder = Path(tempfile.mkdtemp(dir=os.environ.get("TMPDIR")))
        conf = {"spark.driver.memory": "2g", "spark.log.level": "OFF"}
        spark = session(f"local[{TASKS}]", conf=conf)
        try:
            ways = Bench(spark, folder).ways()
            support.median_of(1, ways)
            found = support.median_of(RUNS, ways)
        finally:
            spark.stop()
            shutil.rmtree(folder, ignore_errors=True)
    title = "Rows from Spark into a queue"
    support.write("spark_sink", title, lines(found), "server, JVM and Python share them")


if __name__ == "__main__":
    main()
