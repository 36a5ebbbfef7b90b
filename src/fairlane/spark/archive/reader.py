"""The archive's Spark tasks: they read parts of `out` and `dead` and return rows of its tables."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.accumulators import AccumulatorParam

from fairlane.drivers.sync import SyncDriver
from fairlane.errors import RequestNotFound
from fairlane.operations.dead_letters import error_texts_of_many
from fairlane.spark.archive.tables import SMALL, written
from fairlane.spark.operations import stream_ranges
from fairlane.spark.source.columns import arrow_of, batch_of, columns_of, dead_row
from fairlane.spark.source.results import columns, named_errors, read_results, sizes_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pyspark.accumulators import Accumulator
    from pyspark.sql import SparkSession

    from fairlane.operations.completion import Entries
    from fairlane.spark.operations.stream_ranges import Ended

    Part = dict[str, Any]
    Columns = dict[str, Any]
    Read = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]

_TOGETHER = 256  # results of small requests in one round trip: each may have 1 MiB
_PAGE = 4_096  # rows of small requests in one record batch, about
_PAGE_BYTES = 16 << 20  # ... and bytes of their bodies
_COUNTS = pa.schema(
    [("request", pa.string()), ("born", pa.int64()), ("rows", pa.int64()), ("limit", pa.int32())]
)
NONE_COUNTED = _COUNTS.empty_table()


class Counts(AccumulatorParam[list[bytes]]):
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
    return spark.sparkContext.accumulator([], Counts())


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
