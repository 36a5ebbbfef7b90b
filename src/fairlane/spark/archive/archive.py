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

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.utils import is_remote

from fairlane.drivers.sync import SyncDriver
from fairlane.errors import InvalidArgument
from fairlane.spark.archive import tables
from fairlane.spark.archive.reader import NONE_COUNTED, counted, counts_of, dead_of, results_of
from fairlane.spark.data_source import FORMAT, register
from fairlane.spark.operations import stream_ranges
from fairlane.spark.options import Options
from fairlane.spark.source.errors import ours

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader

EVERY_S = 60  # from one batch to the next, with `follow`
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
    most: int | None = None,
    every_s: float = EVERY_S,
    fail_on_data_loss: bool = True,
    on_batch: Callable[[Archived], None] | None = None,
) -> Archived:
    """Writes what ended since the last call to the folder `out` (any file system of Spark's).

    `results`: also the results and the dead sub-requests with their bodies, else only the
    endings. One batch has all that has ended by then, up to `most` endings if that is given: the
    driver holds the endings of a batch, and executors read the results. With `follow` it writes a
    batch every `every_s` seconds until it is interrupted. The checkpoint is in `out`, unless
    named. `on_batch` gets the counts after each batch. Raises InvalidArgument (also if the
    checkpoint is another archive's), DataLost and RedisError. DataLost means that the log was cut
    before it was read. It keeps what an archive has not read for a day, up to settings.LOG_MOST
    endings.
    """
    if is_remote():
        raise InvalidArgument(
            "an archive cannot be written on Spark Connect, because its server would count what is "
            "written: run it under spark-submit, or with --master"
        )
    register(spark, wrap_calls=False)
    if most is not None and most < 1:
        raise InvalidArgument(f"most {most} is not valid: a batch has at least one ending")
    options = Options({"queue": queue} | ({"redis": redis_url} if redis_url else {}), ())
    keeper = ArchiveWriter(options.redis, out, results=results, on_batch=on_batch)
    endings = (
        spark.readStream.format(FORMAT)
        .option("redis", options.redis)
        .option("queue", queue)
        .option("failOnDataLoss", str(fail_on_data_loss).lower())
    )
    if most is not None:
        endings = endings.option("maxOffsetsPerTrigger", str(most))
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
        self._finished: int | None = None  # the last batch that this object has seen as finished

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
        ids = rows.column("log_id")
        mark = {
            "first": ids[0].as_py() if len(ids) else None,
            "last": ids[-1].as_py() if len(ids) else None,
            "requests": len(ids),
        }
        if self._is_there(spark, batch, mark):
            self._finished = batch
            self.done = replace(self.done, skipped=self.done.skipped + 1)
            return
        counts = self._write(spark, batch, rows)
        tables.write_mark(spark, self.out, batch, {**mark, **counts})
        self._finished = batch
        done = self.done
        self.done = replace(
            done,
            batches=done.batches + 1,
            requests=done.requests + len(ids),
            **{name: getattr(done, name) + count for name, count in counts.items()},
        )
        if self.on_batch is not None:
            self.on_batch(self.done)

    def _is_there(self, spark: SparkSession, batch: int, mark: dict[str, Any]) -> bool:
        """Returns True if the batch is finished.

        Raises InvalidArgument if this batch or the one before it belongs to another
        checkpoint.
        """
        is_next = batch - 1 == self._finished
        marks = {
            number: mark_there
            for number in ((batch,) if is_next else (batch - 1, batch))
            if (mark_there := tables.read_mark(spark, self.out, number)) is not None
        }
        if batch in marks:
            if marks[batch] != tuple(mark.values()):
                raise InvalidArgument(
                    f"{self.out} holds other endings as batch {batch} than the checkpoint brings: "
                    f"{_ONE}; name the right one, or a new folder"
                )
            return True
        if batch and not is_next and batch - 1 not in marks:
            raise InvalidArgument(
                f"the checkpoint has come to batch {batch}, but {self.out} does not hold the one "
                f"before: {_ONE}; name the right folder, or a new checkpoint"
            )
        return False

    def _write(self, spark: SparkSession, batch: int, endings: pa.Table) -> dict[str, int]:
        totals = {"results": 0, "dead": 0, "missing": 0}
        if not endings.num_rows:
            return totals
        counts = NONE_COUNTED
        if self.results:
            counts = self._write_parts(spark, batch, "results", self._parts(endings))
            died = self._write_parts(spark, batch, "dead", self._dead_parts(endings))
            totals["results"], totals["dead"] = (
                tables.total(one.column("rows")) for one in (counts, died)
            )
            expected = tables.total(endings.column("settled"))
            totals["missing"] = max(0, expected - totals["results"])
        results, limits = tables.counts_at(endings, counts)
        limits = self._limits(endings, limits.combine_chunks())
        rows = tables.request_rows(endings, results, limits, batch)
        frame = spark.createDataFrame(rows, tables.written("requests"))
        frame = frame.coalesce(-(-rows.num_rows // tables.ROWS))
        tables.write_table(frame, self.out, "requests")
        return totals

    def _limits(self, endings: pa.Table, limits: pa.Array) -> pa.Array:
        """Returns the limits with those that no task has read; null if the record is gone."""
        rows = endings.filter(limits.is_null()).select(["id", "born"]).to_pydict()
        if not rows["id"]:
            return limits
        lives = list(zip(rows["id"], rows["born"], strict=True))
        with closing(SyncDriver(self.redis)) as driver:
            records = driver.run(stream_ranges.ended_requests(lives))
        read = [None if record is None else record.limit for record in records]
        return pc.replace_with_mask(limits, limits.is_null(), pa.array(read, limits.type))

    def _parts(self, endings: pa.Table) -> pa.Table:
        """Returns the parts of `out`: small requests, and pieces of the others."""
        large = endings.filter(pc.greater(endings.column("settled"), tables.SMALL))
        with closing(SyncDriver(self.redis)) as driver:
            spans = driver.run(stream_ranges.spans_of_results(large.column("id").to_pylist()))
        pieces = tables.parts_of(spans, large, "settled")
        return pa.concat_tables([tables.small_parts(endings, "settled"), pieces])

    def _dead_parts(self, endings: pa.Table) -> pa.Table:
        some = endings.filter(pc.greater(endings.column("dead"), 0))
        large = some.filter(pc.greater(some.column("dead"), tables.SMALL))
        with closing(SyncDriver(self.redis)) as driver:
            spans = driver.run(stream_ranges.dead_spans(large.column("id").to_pylist()))
        pieces = tables.parts_of(spans, large, "dead")
        return pa.concat_tables([tables.small_parts(some, "dead"), pieces])

    def _write_parts(
        self, spark: SparkSession, batch: int, table: str, parts: pa.Table
    ) -> pa.Table:
        """Reads parts of streams on the executors into a table; returns what they counted."""
        if not parts.num_rows:
            return NONE_COUNTED
        # A task has about ROWS results, or the parts of one large request.
        rows = pc.max_element_wise(parts.column("count"), pa.scalar(1))
        rows = pc.min_element_wise(rows, pa.scalar(tables.ROWS))
        tasks = min(parts.num_rows, -(-pc.sum(rows).as_py() // tables.ROWS))
        frame = spark.createDataFrame(parts, tables.PARTS)
        are_small = pc.max(parts.column("count")).as_py() <= tables.SMALL
        # Small parts are as many as rows, so Spark has cut them already; it need not move them.
        frame = frame.coalesce(tasks) if are_small else frame.repartition(tasks)
        counts = counts_of(spark)
        read = results_of if table == "results" else dead_of
        rows_of = frame.mapInArrow(read(self.redis, batch, counts), tables.written(table))
        tables.write_table(rows_of, self.out, table)
        found = counted(counts.value)
        if self._finished != batch - 1:  # an attempt that stopped may have written before
            found = tables.with_earlier(found, spark, self.out, table, batch)
        return found
