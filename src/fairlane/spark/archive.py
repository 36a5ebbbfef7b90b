"""Archives endings, results and dead sub-requests as Parquet by date, each exactly once.

The archive reads the completion log as a stream. One batch of it becomes the folders `.../batch=N`
of the tables `requests`, `results` and `dead`. The last write of a batch is its row in the table
`batches`. A batch without that row is not finished and is written again, over its files. So an
archive may be stopped at any moment, and Spark's checkpoint may be one batch behind.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.accumulators import AccumulatorParam
from pyspark.errors import AnalysisException
from pyspark.sql.types import StructField, StructType
from pyspark.sql.utils import is_remote

from fairlane.drivers.sync import SyncDriver
from fairlane.errors import InvalidArgument, RequestNotFound
from fairlane.operations.completion import error_texts_of_many
from fairlane.spark import stream_ranges
from fairlane.spark.data_source import FORMAT, SparkOptions, register
from fairlane.spark.source.columns import (
    INT,
    LONG,
    MOMENT,
    TEXT,
    arrow_of,
    batch_of,
    columns_of,
    dead_row,
    struct_of,
)
from fairlane.spark.source.views import columns, named_errors, read_results, sizes_of
from fairlane.spark.spark_session import ours

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pyspark.accumulators import Accumulator
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader

    from fairlane.operations import completion
    from fairlane.operations.completion import Entries
    from fairlane.spark.stream_ranges import Ended

    Part = dict[str, Any]
    Columns = dict[str, Any]
    Read = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


# ------------------------------------------------------------------ tables
# The archive's tables: their columns, and how a batch of one is written and counted.


SMALL = 64  # results of a request that are read in one call
ROWS = 100_000  # rows of one Spark task, about
_DAY = StructField("date", TEXT)


def _struct(*fields: StructField | tuple[str, Any]) -> StructType:
    return StructType(
        [StructField(*field) if isinstance(field, tuple) else field for field in fields]
    )


SCHEMAS: Mapping[str, StructType] = {
    "results": _struct(("request", TEXT), ("priority", INT), *struct_of("results").fields, _DAY),
    "dead": _struct(*struct_of("dead").fields, ("priority", INT), _DAY),
    "requests": _struct(*struct_of("completions").fields, ("limit", INT), ("results", LONG), _DAY),
    "batches": _struct(
        *(("first", TEXT), ("last", TEXT), ("requests", LONG), ("results", LONG)),
        *(("dead", LONG), ("missing", LONG), ("archived", MOMENT)),
    ),
}
# A part of a request's stream for a reader; `born` in ms, `count` of the whole request.
PARTS = _struct(
    *(("request", TEXT), ("priority", INT), ("born", LONG), ("count", LONG)),
    *(("first", TEXT), ("last", TEXT)),
)
_BATCH = StructField("batch", INT)


def written(table: str) -> StructType:
    """Returns the columns of a table as they are written: with those of its folders."""
    return StructType([*SCHEMAS[table].fields, _BATCH])


def small_parts(endings: pa.Table, count: str) -> pa.Table:
    """Returns one part for each request whose stream of `count` rows is read in one call."""
    rows = endings.filter(pc.less_equal(endings.column(count), SMALL))
    edges = [pa.repeat(edge, rows.num_rows) for edge in ("-", "+")]
    columns = [rows.column(name) for name in ("id", "priority", "born", count)]
    return pa.table([*columns, *edges], schema=arrow_of(PARTS))


def parts_of(
    spans: Sequence[tuple[str, completion.Span]], endings: pa.Table, rows_of: str
) -> pa.Table:
    """Returns streams in parts of about ROWS rows; the column `rows_of` has those of a stream."""
    names = ("id", "priority", "born", rows_of)
    rows = {row["id"]: row for row in endings.select(names).to_pylist()}
    parts = [
        (*(rows[request][name] for name in names), piece.first, piece.last)
        for request, span in spans
        for piece in stream_ranges.cut(span.first, span.last, -(-rows[request][rows_of] // ROWS))
    ]
    names_of_parts = arrow_of(PARTS)
    columns = zip(*parts, strict=True) if parts else [[] for _ in names_of_parts]
    arrays = [
        pa.array(column, kind) for column, kind in zip(columns, names_of_parts.types, strict=True)
    ]
    return pa.table(arrays, schema=names_of_parts)


def collect(endings: DataFrame) -> pa.Table:
    """Returns the rows of a batch of the log, oldest first.

    Adds `born`, when the request was submitted, in ms, and `settled`, the number of its results.
    """
    table = endings.toArrow()
    places = pc.split_pattern(table.column("log_id"), "-")
    keys = pa.table(
        {name: pc.list_element(places, at).cast(pa.uint64()) for at, name in enumerate(("ms", "n"))}
    )
    table = table.take(pc.sort_indices(keys, sort_keys=[("ms", "ascending"), ("n", "ascending")]))
    submitted = table.column("submitted")
    born = pc.divide(submitted.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()), 1000)
    settled = pc.add(table.column("done"), table.column("dead"))
    return table.append_column("born", born.fill_null(0)).append_column("settled", settled)


def with_earlier(
    counts: pa.Table, spark: SparkSession, out: str, table: str, batch: int
) -> pa.Table:
    """Returns the counts of a batch with the rows that only an earlier attempt has written.

    Such rows stay if none of their date are written now, because the results have left Redis.
    """
    frame = read_table(spark, out, table, batch)
    if frame is None:
        return counts
    there = frame.groupBy("request").count().toArrow()
    if total(there.column("count")) == total(counts.column("rows")):
        return counts
    at = pc.index_in(counts.column("request"), value_set=there.column("request").combine_chunks())
    rows = there.column("count").take(at).fill_null(0)
    return counts.set_column(counts.schema.get_field_index("rows"), "rows", rows)


def total(column: Any) -> int:
    """Returns the sum of a column, 0 if it is empty."""
    return pc.sum(column).as_py() or 0


def counts_at(endings: pa.Table, counts: pa.Table) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    """Returns the number of results and the limit of each ending, null where none was counted."""
    at = pc.index_in(_lives(endings, "id"), value_set=_lives(counts, "request").combine_chunks())
    return counts.column("rows").take(at).fill_null(0), counts.column("limit").take(at)


def _lives(rows: pa.Table, id_column: str) -> pa.ChunkedArray:
    """Returns what distinguishes a request from a later one with the same id."""
    born = rows.column("born").cast(pa.string())
    return pc.binary_join_element_wise(rows.column(id_column), born, " ")


def request_rows(endings: pa.Table, results: Any, limits: Any, batch: int) -> pa.Table:
    """Returns the rows of the table `requests`."""
    logged = endings.column("logged").cast(pa.timestamp("us", tz="UTC"))
    added = {
        "limit": limits,
        "results": results,
        "date": pc.strftime(logged, format="%Y-%m-%d"),
        "batch": pa.repeat(batch, endings.num_rows),
    }
    for name, column in added.items():
        endings = endings.append_column(name, column)
    schema = written("requests")
    return endings.select(schema.names).cast(arrow_of(schema))


def write_table(frame: DataFrame, out: str, table: str) -> None:
    """Writes a batch's rows by date, over those of an earlier attempt."""
    (
        frame.write.mode("overwrite")
        .option("partitionOverwriteMode", "dynamic")
        .partitionBy("date", "batch")
        .parquet(f"{out}/{table}")
    )


def write_mark(spark: SparkSession, out: str, batch: int, mark: Mapping[str, Any]) -> None:
    """Writes the row that marks a batch as finished."""
    schema = SCHEMAS["batches"]
    row = {**mark, "archived": datetime.now(UTC)}
    table = pa.Table.from_pylist([row], schema=arrow_of(schema))
    frame = spark.createDataFrame(table, schema).coalesce(1)
    frame.write.mode("overwrite").parquet(f"{out}/batches/batch={batch}")


def read_mark(
    spark: SparkSession, out: str, batch: int
) -> tuple[str | None, str | None, int] | None:
    """Returns a finished batch's first and last log entry and their number; else None."""
    marks = read_table(spark, out, "batches", batch)
    row = None if marks is None else marks.first()
    return None if row is None else (row["first"], row["last"], row["requests"])


def read_table(
    spark: SparkSession, out: str, table: str, batch: int | None = None
) -> DataFrame | None:
    """Returns a table of the archive, or one batch of it; None if it does not exist.

    It has the columns `batch` and, except for the table `batches`, `date`.
    """
    fields = [field for field in SCHEMAS[table].fields if field.name != "date"]
    days = [] if table == "batches" else [_DAY]
    schema = StructType([*fields, StructField("batch", INT), *days])
    base = f"{out.rstrip('/')}/{table}"
    place = base
    if batch is not None:  # a read of all batches takes longer with each
        place = f"{base}{'/date=*' if days else ''}/batch={batch}"
    try:
        return spark.read.schema(schema).option("basePath", base).parquet(place)
    except AnalysisException as error:
        if error.getCondition() == "PATH_NOT_FOUND":
            return None
        raise


# ------------------------------------------------------------------ reader
# The archive's Spark tasks: they read parts of `out` and `dead` and return rows of its tables.


_TOGETHER = 256  # results of small requests in one round trip: each may have 1 MiB
_PAGE = 4_096  # rows of small requests in one record batch, about
_PAGE_BYTES = 16 << 20  # ... and bytes of their bodies
_COUNTS = pa.schema(
    [("request", pa.string()), ("born", pa.int64()), ("rows", pa.int64()), ("limit", pa.int32())]
)
NONE_COUNTED = _COUNTS.empty_table()


class ArchiveCounts(AccumulatorParam[list[bytes]]):
    """Collects what the tasks of one job counted: tables of Arrow, as bytes.

    Spark adds what a task counted when that task's files are committed, and once for each part. So
    the counts are those of the rows in the table, also when a task is repeated.
    """

    def zero(self, value: list[bytes]) -> list[bytes]:  # noqa: ARG002  Spark's signature
        """Returns no counts."""
        return []

    def addInPlace(self, value1: list[bytes], value2: list[bytes]) -> list[bytes]:  # noqa: N802
        """Returns the counts of both."""
        value1 += value2
        return value1


def counts_of(spark: SparkSession) -> Accumulator[list[bytes]]:
    """Returns where the tasks of one job add their counts."""
    return spark.sparkContext.accumulator([], ArchiveCounts())


def counted(counts: list[bytes]) -> pa.Table:
    """Returns what was counted: one row for each request that the tasks have read.

    `limit` is null if the request was gone, or if its results are in several parts.
    """
    tables = [pa.ipc.open_stream(table).read_all() for table in counts]
    rows = pa.concat_tables([NONE_COUNTED, *tables])
    found = rows.group_by(["request", "born"]).aggregate([("rows", "sum"), ("limit", "max")])
    return found.rename_columns(["request", "born", "rows", "limit"])


def results_of(redis_url: str, batch: int, counts: Accumulator[list[bytes]]) -> Read:
    """Returns a function for mapInArrow: parts of `out` to rows of the table `results`."""
    return _read("results", redis_url, batch, counts, _small_results, _one)


def dead_of(redis_url: str, batch: int, counts: Accumulator[list[bytes]]) -> Read:
    """Returns a function for mapInArrow: parts of `dead` to rows of the table `dead`."""
    return _read("dead", redis_url, batch, counts, _small_dead, _dead)


def _read(
    table: str,
    redis_url: str,
    batch: int,
    counts: Accumulator[list[bytes]],
    read_small: Callable[[SyncDriver, Parts], Iterator[Columns]],
    read_piece: Callable[[SyncDriver, Part], Iterator[Columns]],
) -> Read:
    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        wanted = arrow_of(written(table))
        with closing(SyncDriver(redis_url)) as driver:
            for rows in batches:
                is_small = pc.less_equal(rows.column("count"), SMALL)
                parts = Parts(rows.filter(is_small))
                for page in read_small(driver, parts):
                    yield batch_of({**page, "batch": _repeated(batch, page)}, wanted)
                for part in rows.filter(pc.invert(is_small)).to_pylist():
                    count = 0
                    for page in read_piece(driver, part):
                        yield batch_of({**page, "batch": _repeated(batch, page)}, wanted)
                        count += len(page["date"])
                    parts.add(part, count)
                counts.add([parts.packed()])

    return read


def _repeated(batch: int, page: Columns) -> pa.Array:
    # A constant of the query would become a part of the code that Spark compiles for each batch.
    return pa.repeat(pa.scalar(batch, pa.int32()), len(page["date"]))


class Parts:
    """Small requests to read, and what was counted of each."""

    def __init__(self, rows: pa.RecordBatch) -> None:
        self.requests: list[str] = rows.column("request").to_pylist()
        self.born: list[int] = rows.column("born").to_pylist()
        self.expected: list[int] = rows.column("count").to_pylist()
        self.rows = [0] * len(self.requests)
        self.limits: list[int | None] = [None] * len(self.requests)
        self._priorities = rows.column("priority")
        self._names = rows.column("request")

    def groups(self) -> Iterator[range]:
        """Yields the places of requests to read in one round trip."""
        first, count = 0, 0
        for at, expected in enumerate(self.expected):
            if at > first and count + max(1, expected) > _TOGETHER:
                yield range(first, at)
                first, count = at, 0
            count += max(1, expected)
        if self.expected:
            yield range(first, len(self.expected))

    def lives(self, group: range) -> list[tuple[str, int]]:
        """Returns the requests of a group, each by (id, when it was submitted)."""
        return [(self.requests[at], self.born[at]) for at in group]

    def note(self, at: int, rows: int, record: Ended | None) -> None:
        """Notes how many rows the request at this place has, and its limit."""
        self.rows[at], self.limits[at] = rows, None if record is None else record.limit

    def of(self, owners: list[int]) -> Columns:
        """Returns the columns of the requests at these places."""
        places = pa.array(owners, pa.int32())
        return {"request": self._names.take(places), "priority": self._priorities.take(places)}

    def add(self, part: Part, rows: int) -> None:
        """Adds the count of a piece of a request that is not small."""
        self.requests.append(part["request"])
        self.born.append(part["born"])
        self.rows.append(rows)
        self.limits.append(None)

    def packed(self) -> bytes:
        """Returns the counts as bytes."""
        columns = [self.requests, self.born, self.rows, self.limits]
        arrays = [pa.array(one, kind) for one, kind in zip(columns, _COUNTS.types, strict=True)]
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, _COUNTS) as stream:
            stream.write_batch(pa.RecordBatch.from_arrays(arrays, schema=_COUNTS))
        packed: bytes = sink.getvalue().to_pybytes()
        return packed


def _small_results(driver: SyncDriver, parts: Parts) -> Iterator[Columns]:
    """Yields the results of small requests, many on a page."""
    entries: Entries = []
    owners: list[int] = []
    count = size = 0
    for group in parts.groups():
        read = driver.run(stream_ranges.whole_results(parts.lives(group)))
        for at, (found, record) in zip(group, read, strict=True):
            rows = sum(sizes_of(found))
            parts.note(at, rows, record)
            count += rows
            size += sum(sum(map(len, fields)) for _, fields in found)
            entries += found
            owners += [at] * len(found)
        if count >= _PAGE or size >= _PAGE_BYTES:
            yield _results(driver, parts, entries, owners)
            entries, owners, count, size = [], [], 0, 0
    if entries:
        yield _results(driver, parts, entries, owners)


def _results(driver: SyncDriver, parts: Parts, entries: Entries, owners: list[int]) -> Columns:
    texts = {}
    if named_errors(entries):  # most pages have none
        named = [
            (parts.requests[at], names)
            for at, entry in zip(owners, entries, strict=True)
            if (names := named_errors([entry]))
        ]
        texts = driver.run(error_texts_of_many(named))
    sizes = sizes_of(entries)
    of_rows = [owner for owner, size in zip(owners, sizes, strict=True) for _ in range(size)]
    page = columns(entries, texts, owners)
    return {**page, **parts.of(of_rows), "date": _days(page["settled"])}


def _small_dead(driver: SyncDriver, parts: Parts) -> Iterator[Columns]:
    """Yields the dead of small requests, many on a page."""
    rows: list[tuple[Any, ...]] = []
    owners: list[int] = []
    size = 0
    for group in parts.groups():
        read = driver.run(stream_ranges.whole_dead(parts.lives(group)))
        for at, (found, record) in zip(group, read, strict=True):
            parts.note(at, len(found), record)
            rows += [dead_row(parts.requests[at], one) for one in found]
            owners += [at] * len(found)
            size += sum(len(one.body) + len(one.error) for one in found)
        if len(rows) >= _PAGE or size >= _PAGE_BYTES:
            yield _died(parts, rows, owners)
            rows, owners, size = [], [], 0
    if rows:
        yield _died(parts, rows, owners)


def _died(parts: Parts, rows: list[tuple[Any, ...]], owners: list[int]) -> Columns:
    page = columns_of("dead", rows)
    return {**page, **parts.of(owners), "date": _days(_moments(page["died"]))}


def _one(driver: SyncDriver, part: Part) -> Iterator[Columns]:
    if _is_there(driver, part):
        piece = stream_ranges.StreamRange(part["first"], part["last"])
        for page in read_results(driver, part["request"], piece):
            yield _with(page, part, "settled")


def _is_there(driver: SyncDriver, part: Part) -> bool:
    """Returns False if the request is gone, or is a later one of this id."""
    (record,) = driver.run(stream_ranges.ended_requests([(part["request"], part["born"])]))
    return record is not None


def _dead(driver: SyncDriver, part: Part) -> Iterator[Columns]:
    if not _is_there(driver, part):
        return
    unread: stream_ranges.StreamRange | None
    unread = stream_ranges.StreamRange(part["first"], part["last"])
    request_id = part["request"]
    while unread is not None:
        try:
            dead, unread = driver.run(stream_ranges.read_dead(request_id, unread))
        except RequestNotFound:
            return  # it expired; the batch counts it as missing
        if dead:
            page = columns_of("dead", (dead_row(request_id, one) for one in dead))
            yield _with(page, part, "died")


def _with(page: Columns, part: Part, moment: str) -> Columns:
    """Returns the columns with the request, its priority and the date (UTC) of the moment."""
    when = _moments(page[moment])
    rows = len(when)
    return {
        **page,
        "request": pa.repeat(part["request"], rows),
        "priority": pa.repeat(part["priority"], rows),
        "date": _days(when),
    }


def _moments(values: Any) -> pa.Array:
    if isinstance(values, pa.Array):
        return values
    return pa.array(values, type=pa.timestamp("us", tz="UTC"))


def _days(moments: pa.Array) -> pa.Array:
    return pc.strftime(moments, format="%Y-%m-%d")


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
    options = SparkOptions({"queue": queue} | ({"redis": redis_url} if redis_url else {}), ())
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
        rows = collect(endings)
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
        write_mark(spark, self.out, batch, {**mark, **counts})
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
            if (mark_there := read_mark(spark, self.out, number)) is not None
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
                total(one.column("rows")) for one in (counts, died)
            )
            expected = total(endings.column("settled"))
            totals["missing"] = max(0, expected - totals["results"])
        results, limits = counts_at(endings, counts)
        limits = self._limits(endings, limits.combine_chunks())
        rows = request_rows(endings, results, limits, batch)
        frame = spark.createDataFrame(rows, written("requests"))
        frame = frame.coalesce(-(-rows.num_rows // ROWS))
        write_table(frame, self.out, "requests")
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
        large = endings.filter(pc.greater(endings.column("settled"), SMALL))
        with closing(SyncDriver(self.redis)) as driver:
            spans = driver.run(stream_ranges.spans_of_results(large.column("id").to_pylist()))
        pieces = parts_of(spans, large, "settled")
        return pa.concat_tables([small_parts(endings, "settled"), pieces])

    def _dead_parts(self, endings: pa.Table) -> pa.Table:
        some = endings.filter(pc.greater(endings.column("dead"), 0))
        large = some.filter(pc.greater(some.column("dead"), SMALL))
        with closing(SyncDriver(self.redis)) as driver:
            spans = driver.run(stream_ranges.dead_spans(large.column("id").to_pylist()))
        pieces = parts_of(spans, large, "dead")
        return pa.concat_tables([small_parts(some, "dead"), pieces])

    def _write_parts(
        self, spark: SparkSession, batch: int, table: str, parts: pa.Table
    ) -> pa.Table:
        """Reads parts of streams on the executors into a table; returns what they counted."""
        if not parts.num_rows:
            return NONE_COUNTED
        # A task has about ROWS results, or the parts of one large request.
        rows = pc.max_element_wise(parts.column("count"), pa.scalar(1))
        rows = pc.min_element_wise(rows, pa.scalar(ROWS))
        tasks = min(parts.num_rows, -(-pc.sum(rows).as_py() // ROWS))
        frame = spark.createDataFrame(parts, PARTS)
        are_small = pc.max(parts.column("count")).as_py() <= SMALL
        # Small parts are as many as rows, so Spark has cut them already; it need not move them.
        frame = frame.coalesce(tasks) if are_small else frame.repartition(tasks)
        counts = counts_of(spark)
        read = results_of if table == "results" else dead_of
        rows_of = frame.mapInArrow(read(self.redis, batch, counts), written(table))
        write_table(rows_of, self.out, table)
        found = counted(counts.value)
        if self._finished != batch - 1:  # an attempt that stopped may have written before
            found = with_earlier(found, spark, self.out, table, batch)
        return found
