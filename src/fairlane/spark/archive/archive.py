"""Archives endings, results and dead sub-requests as Parquet by date, each exactly once.

The archive reads the completion log as a stream. One batch of it becomes the folders `.../batch=N`
of the tables `requests`, `results` and `dead`. The last write of a batch is its row in the table
`batches`. A batch without that row is not finished and is written again, over its files. So an
archive may be stopped at any moment, and Spark's checkpoint may be one batch behind.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fairlane.drivers.sync.driver import SyncDriver
from fairlane.errors import InvalidArgument
from fairlane.spark.archive import tables
from fairlane.spark.archive.reader import dead_of, results_of
from fairlane.spark.data_source import FORMAT, register
from fairlane.spark.operations import stream_ranges
from fairlane.spark.options import Options
from fairlane.spark.source.errors import ours

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader

    Rows = list[dict[str, Any]]

MOST_REQUESTS = 1_000  # of one batch
EVERY_S = 60  # from one batch to the next, with `follow`
ROWS = 100_000  # results of one Spark task, about
_ONE = "an archive is of one queue and has one checkpoint"


@dataclass(frozen=True, slots=True)
class Archived:
    """Counts what one call of `archive` wrote; `missing` results had left Redis before.

    `batches` counts those that were written, `skipped` those that existed already.
    """

    batches: int = 0
    requests: int = 0
    results: int = 0
    dead: int = 0
    missing: int = 0
    skipped: int = 0


def archive(
    spark: SparkSession,
    redis_url: str | None,
    out: str,
    *,
    queue: str = "req",
    checkpoint: str | None = None,
    follow: bool = False,
    results: bool = True,
    most: int = MOST_REQUESTS,
    every_s: float = EVERY_S,
    fail_on_data_loss: bool = True,
    on_batch: Callable[[Archived], None] | None = None,
) -> Archived:
    """Writes what ended since the last call to the folder `out` (any file system of Spark's).

    `results`: also the results and the dead sub-requests with their bodies, else only the
    endings. With `follow` it writes a batch every `every_s` seconds until it is interrupted.
    `most` endings are one batch. The checkpoint is in `out`, unless named. `on_batch` gets the
    counts after each batch. Raises InvalidArgument (also if the checkpoint is another
    archive's), DataLost and RedisError. DataLost means that the log was cut before it was read:
    archive more often.
    """
    register(spark, wrap_calls=False)
    options = Options({"queue": queue} | ({"redis": redis_url} if redis_url else {}), ())
    keeper = ArchiveWriter(options.redis, out, results=results, on_batch=on_batch)
    endings = (
        spark.readStream.format(FORMAT)
        .option("redis", options.redis)
        .option("queue", queue)
        .option("maxOffsetsPerTrigger", str(most))
        .option("failOnDataLoss", str(fail_on_data_loss).lower())
    )
    place = checkpoint or f"{keeper.out}/_checkpoint"
    _run(keeper, endings, place, every_s if follow else None)
    return keeper.done


def _run(
    keeper: ArchiveWriter, endings: DataStreamReader, place: str, every_s: float | None
) -> None:
    """Runs the stream until everything is written; with `every_s`, until an interrupt."""
    query = None
    try:
        writer = endings.load().writeStream.foreachBatch(keeper.keep)
        writer = writer.option("checkpointLocation", place)
        if every_s is None:
            query = writer.trigger(availableNow=True).start()
        else:
            query = writer.trigger(processingTime=f"{every_s} seconds").start()
        query.awaitTermination()
    except KeyboardInterrupt:
        if every_s is None:
            raise
    except Exception as error:
        carried = keeper.error or ours(error)
        if carried is None:
            raise
        raise carried from None
    finally:
        if query is not None:
            query.stop()


class ArchiveWriter:
    """Writes the batches of one archive and counts what it wrote."""

    def __init__(
        self,
        redis_url: str,
        out: str,
        *,
        results: bool,
        on_batch: Callable[[Archived], None] | None = None,
    ) -> None:
        self.redis, self.out = redis_url, out.rstrip("/")
        self.results, self.on_batch = results, on_batch
        self.done = Archived()
        self.error: Exception | None = None

    def keep(self, endings: DataFrame, batch: int) -> None:
        """Writes one batch of the log, unless it exists."""
        try:
            self._keep(endings, batch)
        except Exception as error:
            self.error = ours(error)  # the object; Spark passes on its text only
            raise

    def _keep(self, endings: DataFrame, batch: int) -> None:
        spark = endings.sparkSession
        rows = tables.collect(endings)
        mark = {
            "first": rows[0]["log_id"] if rows else None,
            "last": rows[-1]["log_id"] if rows else None,
            "requests": len(rows),
        }
        if self._is_there(spark, batch, mark):
            self.done = replace(self.done, skipped=self.done.skipped + 1)
            return
        counts = self._write(spark, batch, rows)
        tables.write_mark(spark, self.out, batch, {**mark, **counts})
        done = self.done
        self.done = replace(
            done,
            batches=done.batches + 1,
            requests=done.requests + len(rows),
            **{name: getattr(done, name) + count for name, count in counts.items()},
        )
        if self.on_batch is not None:
            self.on_batch(self.done)

    def _is_there(self, spark: SparkSession, batch: int, mark: dict[str, Any]) -> bool:
        """Returns True if the batch is finished.

        Raises InvalidArgument if this batch or the one before it belongs to another
        checkpoint.
        """
        marks = {
            number: mark_there
            for number in (batch - 1, batch)
            if (mark_there := tables.read_mark(spark, self.out, number)) is not None
        }
        if batch in marks:
            if marks[batch] != tuple(mark.values()):
                raise InvalidArgument(
                    f"{self.out} holds other endings as batch {batch} than the checkpoint brings: "
                    f"{_ONE}; name the right one, or a new folder"
                )
            return True
        if batch and batch - 1 not in marks:
            raise InvalidArgument(
                f"the checkpoint has come to batch {batch}, but {self.out} does not hold the one "
                f"before: {_ONE}; name the right folder, or a new checkpoint"
            )
        return False

    def _write(self, spark: SparkSession, batch: int, rows: Rows) -> dict[str, int]:
        lives = [(row["id"], row["submitted"] or 0) for row in rows]
        counts = {"results": 0, "dead": 0, "missing": 0}
        with closing(SyncDriver(self.redis)) as driver:
            ended_requests = driver.run(stream_ranges.ended_requests(lives))
            there = [
                row for row, ended in zip(rows, ended_requests, strict=True) if ended is not None
            ]
            outs = driver.run(stream_ranges.spans_of_results([row["id"] for row in there]))
            died = driver.run(stream_ranges.dead_spans([row["id"] for row in there if row["dead"]]))
        result_counts: dict[str, int] = {}
        if self.results:
            by_id = {row["id"]: row for row in there}
            parts = tables.parts_of(outs, by_id, ranges_of=400)
            result_counts = self._write_parts(spark, batch, "results", parts, rows)
            parts = tables.parts_of(died, by_id, ranges_of=10_000)
            counts["dead"] = sum(self._write_parts(spark, batch, "dead", parts, rows).values())
            counts["results"] = sum(result_counts.values())
            expected = sum(row["done"] + row["dead"] for row in rows)
            counts["missing"] = max(0, expected - counts["results"])
        tables.write_requests(spark, self.out, batch, rows, ended_requests, result_counts)
        return counts

    def _write_parts(
        self,
        spark: SparkSession,
        batch: int,
        table: str,
        parts: list[tuple[Any, ...]],
        rows: Rows,
    ) -> dict[str, int]:
        """Reads parts of streams on the executors into a table; returns id -> rows written."""
        if not parts:
            return {}
        expected = sum(row["done"] + row["dead"] for row in rows)
        tasks = min(len(parts), max(1, -(-expected // ROWS)))
        read = results_of(self.redis) if table == "results" else dead_of(self.redis)
        frame = (
            spark.createDataFrame(parts, tables.PARTS)
            .repartition(tasks)
            .mapInArrow(read, tables.SCHEMAS[table])
        )
        return tables.write_counted(spark, self.out, table, batch, frame)
