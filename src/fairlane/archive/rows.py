"""Reads what has ended in a queue as rows of an archive's tables."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from fairlane.arrow import stream_ranges
from fairlane.arrow.columns import (
    COLUMNS,
    INT,
    LONG,
    MOMENT,
    TEXT,
    batch_of,
    columns_of,
    dead_row,
    ending_columns,
)
from fairlane.arrow.results import columns, named_errors, read_results, sizes_of
from fairlane.errors import RequestNotFound
from fairlane.operations.call_words import hide
from fairlane.operations.completion import Entries, error_texts_of_many

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fairlane.arrow.stream_ranges import Ended, EndedOpening, StreamRange
    from fairlane.drivers.sync import SyncDriver
    from fairlane.records import DeadSubRequest

# `submitted` distinguishes a request from others of its id, and `reopened` its openings: each has
# rows of what was settled in it. The last row of an index counts.
_OF_REQUEST = (("request", TEXT), ("priority", INT), ("submitted", MOMENT), ("reopened", INT))
SCHEMAS = {
    "requests": pa.schema([*COLUMNS["completions"], ("limit", INT), ("results", LONG)]),
    "results": pa.schema([*_OF_REQUEST, ("key", TEXT), *COLUMNS["results"]]),
    "dead": pa.schema([*_OF_REQUEST, *COLUMNS["dead"][1:]]),
}
MOMENTS = {"requests": "logged", "results": "settled", "dead": "died"}  # the date of a row
_SMALL = 64  # rows of a request that are read in one call
_TOGETHER = 256  # rows of small requests in one round trip: each may have 1 MiB
_PAGE = 4_096  # rows of small requests in one table, about
_PAGE_BYTES = 16 << 20  # ... and bytes of their bodies


class _Request:
    """A request that has ended, and what was read of this opening of it."""

    def __init__(
        self, opening: EndedOpening, priority: int, submitted: int | None, **counts: int
    ) -> None:
        self.id, self.priority, self.submitted = opening.id, priority, submitted
        self.life = opening
        self.counts = counts
        self.rows = 0
        self.record: Ended | None = None


class PageReader:
    """Reads a page of the completion log, and what its requests have.

    Unless it `reveals` them, results and bodies have no values of the fields that views hide.
    """

    def __init__(self, driver: SyncDriver, entries: Entries, *, reveals: bool = False) -> None:
        self.driver, self._reveals = driver, reveals
        schema = pa.schema(COLUMNS["completions"])
        self.table = table = pa.Table.from_batches([batch_of(ending_columns(entries), schema)])
        micros = table.column("submitted").cast(pa.int64()).to_pylist()
        done, dead = (table.column(name).to_pylist() for name in ("done", "dead"))
        priorities = table.column("priority").to_pylist()
        openings = map(stream_ranges.opening_of, entries)
        self.requests = [
            _Request(opening, priority, born, results=good + bad, dead=bad)
            for opening, priority, born, good, bad in zip(
                openings, priorities, micros, done, dead, strict=True
            )
        ]

    def ended(self) -> pa.Table:
        """Returns the rows of the table `requests`; the results must have been read before."""
        unread = [one for one in self.requests if one.record is None and not one.rows]
        lives = [one.life for one in unread]
        records = self.driver.run(stream_ranges.ended_requests(lives)) if lives else []
        for one, record in zip(unread, records, strict=True):
            one.record = record
        limits = [one.record and one.record.limit for one in self.requests]
        table = self.table.append_column("limit", pa.array(limits, INT))
        return table.append_column("results", pa.array([one.rows for one in self.requests], LONG))

    def results(self) -> Iterator[pa.Table]:
        """Yields the rows of the table `results`."""
        entries: Entries = []
        owners: list[_Request] = []
        size = 0
        for group in _groups(self.requests, "results"):
            read = self.driver.run(stream_ranges.whole_results([one.life for one in group]))
            for one, (found, record) in zip(group, read, strict=True):
                one.record = record
                one.rows = sum(sizes_of(found))
                size += sum(sum(map(len, fields)) for _, fields in found)
                entries += found
                owners += [one] * len(found)
            if len(entries) >= _PAGE or size >= _PAGE_BYTES:
                yield self._results(entries, owners)
                entries, owners, size = [], [], 0
        if entries:
            yield self._results(entries, owners)
        for one in self.requests:
            if one.counts["results"] <= _SMALL:
                continue
            (one.record,) = self.driver.run(stream_ranges.ended_requests([one.life]))
            if one.record is not None:
                keys = stream_ranges.RowKeys()
                for page in read_results(self.driver, one.id, one.life.results(one.record)):
                    count = len(page["index"])
                    page["result"] = self._shown(page["result"], [one] * count)
                    rows = self._rows("results", page, [one] * count, keys)
                    # If the record is right after the reads, the rows are of this request.
                    if not self.driver.run(stream_ranges.ended_requests([one.life]))[0]:
                        break
                    one.rows += count
                    yield rows

    def _results(self, entries: Entries, owners: list[_Request]) -> pa.Table:
        texts = {}
        if named_errors(entries):  # most pages have none
            pairs = zip(owners, entries, strict=True)
            named = [(one.id, names) for one, entry in pairs if (names := named_errors([entry]))]
            texts = self.driver.run(error_texts_of_many(named))
        sizes = sizes_of(entries)
        of_rows = [one for one, size in zip(owners, sizes, strict=True) for _ in range(size)]
        page = columns(entries, texts, owners)
        page["result"] = self._shown(page["result"], of_rows)
        rows = self._rows("results", page, of_rows, stream_ranges.RowKeys())
        keyed = [one for one in dict.fromkeys(owners) if one.record and one.record.is_keyed]
        records = self.driver.run(stream_ranges.ended_requests([one.life for one in keyed]))
        # If a record is gone after the read of the keys, they may be of a later request.
        gone = {one for one, record in zip(keyed, records, strict=True) if record is None}
        for one in gone:
            one.rows = 0
        return rows.filter(pa.array([one not in gone for one in of_rows])) if gone else rows

    def dead(self) -> Iterator[pa.Table]:
        """Yields the rows of the table `dead`."""
        having = [one for one in self.requests if one.counts["dead"]]
        rows: list[tuple[Any, ...]] = []
        owners: list[_Request] = []
        for group in _groups(having, "dead"):
            read = self.driver.run(stream_ranges.whole_dead([one.life for one in group]))
            for one, (found, record) in zip(group, read, strict=True):
                rows += self._dead_rows(one, found, record)
                owners += [one] * len(found)
            if sum(len(row[3]) + len(row[7]) for row in rows) >= _PAGE_BYTES:
                yield self._rows("dead", columns_of("dead", rows), owners)
                rows, owners = [], []
        if rows:
            yield self._rows("dead", columns_of("dead", rows), owners)
        for one in having:
            if one.counts["dead"] > _SMALL:
                yield from self._many_dead(one)

    def _many_dead(self, one: _Request) -> Iterator[pa.Table]:
        unread: StreamRange | None = one.life.deaths()
        while unread is not None:
            try:
                dead, unread = self.driver.run(stream_ranges.read_dead(one.id, unread))
            except RequestNotFound:
                return  # it expired
            (record,) = self.driver.run(stream_ranges.ended_requests([one.life]))
            if record is None:
                return  # it is another one by now
            page = columns_of("dead", self._dead_rows(one, dead, record))
            yield self._rows("dead", page, [one] * len(dead))

    def _dead_rows(
        self, one: _Request, dead: Sequence[DeadSubRequest], record: Ended | None
    ) -> list[tuple[Any, ...]]:
        if record is not None and record.redact and not self._reveals:
            dead = [replace(died, body=hide(died.body, record.redact)) for died in dead]
        return [dead_row(one.id, died) for died in dead]

    def _shown(self, results: pa.Array, owners: Sequence[_Request]) -> pa.Array:
        """Returns results without hidden values; `owners` has the request of each."""
        names = {one: one.record.redact for one in owners if one.record and one.record.redact}
        if self._reveals or not names:
            return results
        pairs = zip(owners, results.to_pylist(), strict=True)
        return pa.array(
            [body and hide(body, names.get(one, ())) for one, body in pairs], type=pa.binary()
        )

    def _rows(
        self,
        table: str,
        page: dict[str, Any],
        owners: Sequence[_Request],
        keys: stream_ranges.RowKeys | None = None,
    ) -> pa.Table:
        """Returns a page as rows of a table; `owners` has the request of each row."""
        if keys is not None:
            page["key"] = self._keys(page["index"], owners, keys)
        page["request"] = [one.id for one in owners]
        page["priority"] = [one.priority for one in owners]
        page["submitted"] = [one.submitted for one in owners]
        page["reopened"] = [one.life.reopened for one in owners]
        return pa.Table.from_batches([batch_of(page, SCHEMAS[table])])

    def _keys(
        self, indexes: pa.Array, owners: Sequence[_Request], keys: stream_ranges.RowKeys
    ) -> pa.Array:
        """Returns the keys of rows. It reads only those of requests that have any."""
        is_keyed = [one.record is not None and one.record.is_keyed for one in owners]
        if not any(is_keyed):
            return pa.nulls(len(indexes), TEXT)
        asked: dict[str, list[int]] = {}
        rows = zip(owners, indexes.to_pylist(), is_keyed, strict=True)
        for one, index, wanted in rows:
            if wanted:
                asked.setdefault(one.id, []).append(index)
        found = self.driver.run(keys.read([*asked.items()]))
        names = iter(found)
        return pa.array([next(names) if wanted else None for wanted in is_keyed], TEXT)


def _groups(requests: Sequence[_Request], rows: str) -> Iterator[list[_Request]]:
    """Yields the small requests, those of one round trip together."""
    group: list[_Request] = []
    count = 0
    for one in requests:
        expected = max(1, one.counts[rows])
        if expected > _SMALL:
            continue
        if group and count + expected > _TOGETHER:
            yield group
            group, count = [], 0
        group.append(one)
        count += expected
    if group:
        yield group
