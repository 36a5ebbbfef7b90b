"""The archive's Spark tasks: they read parts of `out` and `dead` and return rows of its tables."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from fairlane.drivers.sync.driver import SyncDriver
from fairlane.errors import RequestNotFound
from fairlane.operations.control.error_texts import error_texts
from fairlane.spark.archive.tables import SCHEMAS, SMALL
from fairlane.spark.operations import stream_ranges
from fairlane.spark.source.columns import arrow_of, batch_of, columns_of, dead_row
from fairlane.spark.source.results import columns, named_errors, read_results, sizes_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    Part = dict[str, Any]
    Read = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]

_TOGETHER = 256  # results of small requests in one round trip: each may have 1 MiB
_RECORDS = 1_000  # requests whose records are read in one round trip


def results_of(redis_url: str) -> Read:
    """Returns a function for mapInArrow: parts of `out` to rows of the table `results`."""

    def read(parts: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        wanted = arrow_of(SCHEMAS["results"])
        with closing(SyncDriver(redis_url)) as driver:
            for group in _groups(parts):
                is_small = group[0]["count"] <= SMALL
                pages = _whole(driver, group) if is_small else _one(driver, *group)
                for page in pages:
                    yield batch_of(page, wanted)

    return read


def dead_of(redis_url: str) -> Read:
    """Returns a function for mapInArrow: parts of `dead` to rows of the table `dead`."""

    def read(parts: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        wanted = arrow_of(SCHEMAS["dead"])
        with closing(SyncDriver(redis_url)) as driver:
            for part in _rows(parts):
                if _is_there(driver, part):
                    for page in _dead(driver, part["request"], part["first"], part["last"]):
                        yield batch_of(_with(page, part, "died"), wanted)

    return read


def limits_of(redis_url: str) -> Read:
    """Returns a function for mapInArrow: endings to rows of the table `requests`.

    Adds the limit, which is in the request's record; null if the record is gone.
    """

    def read(endings: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        wanted = arrow_of(SCHEMAS["requests"])
        with closing(SyncDriver(redis_url)) as driver:
            for batch in endings:
                for at in range(0, batch.num_rows, _RECORDS):
                    page = batch.slice(at, _RECORDS)
                    lives = _lives(page.column("id"), page.column("born"))
                    records = driver.run(stream_ranges.ended_requests(lives))
                    limits = [None if record is None else record.limit for record in records]
                    found = dict(zip(page.schema.names, page.columns, strict=True))
                    yield batch_of({**found, "limit": limits}, wanted)

    return read


def _lives(ids: pa.Array, born: pa.Array) -> list[tuple[str, int]]:
    return list(zip(ids.to_pylist(), born.to_pylist(), strict=True))


def _rows(parts: Iterable[pa.RecordBatch]) -> Iterator[Part]:
    for batch in parts:
        yield from batch.to_pylist()


def _groups(parts: Iterable[pa.RecordBatch]) -> Iterator[list[Part]]:
    """Yields small requests together, and each part of another request alone."""
    group: list[Part] = []
    count = 0
    for part in _rows(parts):
        if part["count"] > SMALL:
            yield [part]
            continue
        if group and count + part["count"] > _TOGETHER:
            yield group
            group, count = [], 0
        group.append(part)
        count += part["count"]
    if group:
        yield group


def _whole(driver: SyncDriver, group: list[Part]) -> Iterator[dict[str, Any]]:
    """Yields the results of small requests, as one page."""
    lives = [(part["request"], part["born"]) for part in group]
    entries, owners = [], []
    texts: dict[bytes, str] = {}
    for at, found in enumerate(driver.run(stream_ranges.whole_results(lives))):
        entries += found
        owners += [at] * len(found)
        if names := named_errors(found) - texts.keys():
            texts.update(driver.run(error_texts(group[at]["request"], names)))
    if not entries:
        return
    sizes = sizes_of(entries)
    whose = [owner for owner, size in zip(owners, sizes, strict=True) for _ in range(size)]
    taken = pa.array(whose, pa.int32())
    of = {
        name: pa.array([part[name] for part in group]).take(taken)
        for name in ("request", "priority")
    }
    page = columns(entries, texts, owners)
    yield {**page, **of, "date": _days(page["settled"])}


def _one(driver: SyncDriver, part: Part) -> Iterator[dict[str, Any]]:
    if _is_there(driver, part):
        piece = stream_ranges.StreamRange(part["first"], part["last"])
        for page in read_results(driver, part["request"], piece):
            yield _with(page, part, "settled")


def _is_there(driver: SyncDriver, part: Part) -> bool:
    """Returns False if the request is gone, or is a later one of this id."""
    (record,) = driver.run(stream_ranges.ended_requests([(part["request"], part["born"])]))
    return record is not None


def _dead(driver: SyncDriver, request_id: str, first: str, last: str) -> Iterator[dict[str, Any]]:
    unread: stream_ranges.StreamRange | None = stream_ranges.StreamRange(first, last)
    while unread is not None:
        try:
            dead, unread = driver.run(stream_ranges.read_dead(request_id, unread))
        except RequestNotFound:
            return  # it expired; the batch counts it as missing
        if dead:
            yield columns_of("dead", (dead_row(request_id, sub_request) for sub_request in dead))


def _with(page: dict[str, Any], part: Part, moment: str) -> dict[str, Any]:
    """Returns the columns with the request, its priority and the date (UTC) of the moment."""
    when = page[moment]
    if not isinstance(when, pa.Array):
        when = pa.array(when, type=pa.timestamp("us", tz="UTC"))
    rows = len(when)
    return {
        **page,
        "request": pa.repeat(part["request"], rows),
        "priority": pa.repeat(part["priority"], rows),
        "date": _days(when),
    }


def _days(moments: pa.Array) -> pa.Array:
    return pc.strftime(moments, format="%Y-%m-%d")
