"""The archive's Spark tasks: they read parts of `out` and `dead` and return rows of its tables."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from fairlane.drivers.sync.driver import SyncDriver
from fairlane.errors import RequestNotFound
from fairlane.spark.archive.tables import SCHEMAS
from fairlane.spark.operations import stream_ranges
from fairlane.spark.source.columns import arrow_of, batch_of, columns_of, dead_row
from fairlane.spark.source.results import read_results

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    Read = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def results_of(redis_url: str) -> Read:
    """Returns a function for mapInArrow: parts of `out` to rows of the table `results`."""

    def read(parts: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        wanted = arrow_of(SCHEMAS["results"])
        with closing(SyncDriver(redis_url)) as driver:
            for part in _rows(parts):
                piece = stream_ranges.StreamRange(part["first"], part["last"])
                for columns in read_results(driver, part["request"], piece):
                    yield batch_of(_with(columns, part, "settled"), wanted)

    return read


def dead_of(redis_url: str) -> Read:
    """Returns a function for mapInArrow: parts of `dead` to rows of the table `dead`."""

    def read(parts: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        wanted = arrow_of(SCHEMAS["dead"])
        with closing(SyncDriver(redis_url)) as driver:
            for part in _rows(parts):
                for columns in _dead(driver, part["request"], part["first"], part["last"]):
                    yield batch_of(_with(columns, part, "died"), wanted)

    return read


def _rows(parts: Iterable[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    for batch in parts:
        yield from batch.to_pylist()


def _dead(driver: SyncDriver, request_id: str, first: str, last: str) -> Iterator[dict[str, Any]]:
    unread: stream_ranges.StreamRange | None = stream_ranges.StreamRange(first, last)
    while unread is not None:
        try:
            dead, unread = driver.run(stream_ranges.read_dead(request_id, unread))
        except RequestNotFound:
            return  # it expired; the batch counts it as missing
        if dead:
            yield columns_of("dead", (dead_row(request_id, sub_request) for sub_request in dead))


def _with(columns: dict[str, Any], part: dict[str, Any], moment: str) -> dict[str, Any]:
    """Returns the columns with the request, its priority and the date (UTC) of the moment."""
    when = columns[moment]
    if not isinstance(when, pa.Array):
        when = pa.array(when, type=pa.timestamp("us", tz="UTC"))
    rows = len(when)
    return {
        **columns,
        "request": pa.repeat(part["request"], rows),
        "priority": pa.repeat(part["priority"], rows),
        "date": pc.strftime(when, format="%Y-%m-%d"),
    }
