"""The completion log, or the results of a request, as a stream that can be replayed.

An offset is a place in a Redis stream, so the same two offsets always mean the same entries.
Reading changes nothing: there is no consumer group, no acknowledgement and no removal.

The offset `123-4` means that this entry was read last; `[123-4` means that it is read next. A query
marks its place in the log, and the log keeps all later entries. But the log is capped, so a query
that is far behind, or was away for a day, may lose entries. A failover may take back the log's end.
Every batch checks both, because Spark cannot.
"""

from __future__ import annotations

import json
import secrets
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from fairlane import settings
from fairlane.arrow import stream_ranges
from fairlane.arrow.columns import batch_of, ending_columns
from fairlane.arrow.results import read_results
from fairlane.common import clock
from fairlane.drivers.sync import SyncDriver
from fairlane.errors import DataLost, FairlaneError, InvalidArgument, RequestNotFound
from fairlane.operations import completion
from fairlane.operations.completion import mark
from fairlane.protocol import keys
from fairlane.spark.data_source import SparkOptions
from fairlane.spark.source.columns import arrow_of, check_schema
from fairlane.spark.source.views import (
    KNOWN,
    MOST_PARTS,
    RowReader,
    choice_of,
    view_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

    from fairlane.arrow.stream_ranges import StreamRange

_VIEWS = ("completions", "results")
_BEFORE = "["  # marks an entry that is not read yet


class StreamPart(NamedTuple):
    """Holds what one Spark task reads, and the offset at which its batch starts."""

    piece: StreamRange
    start: str


def reader_of(spark_options: Mapping[str, str], schema: StructType) -> DataSourceStreamReader:
    """Returns the reader of the stream that the options name. Raises InvalidArgument."""
    options = SparkOptions(spark_options, KNOWN)
    view = view_of(options)
    if view not in _VIEWS:
        raise InvalidArgument(
            f"the view {view} is no stream: {' and '.join(_VIEWS)} are; read it with spark.read"
        )
    if "born" in options:
        raise InvalidArgument('option "born" is for spark.read: offsets hold it')
    check_schema(view, schema)
    return StreamReader(view, options, schema)


class Refused(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Raises the error by which its stream was refused, in every method.

    If `streamReader` raises, pyspark also fails on the missing reader (UnboundLocalError), and
    its own traceback follows the sentence.
    """

    def __init__(self, error: FairlaneError) -> None:
        self.error = error

    def _refuse(self, *_: Any) -> Any:
        raise self.error

    initialOffset = getDefaultReadLimit = prepareForTriggerAvailableNow = _refuse  # noqa: N815
    latestOffset = partitions = read = _refuse  # type: ignore[assignment]  # noqa: N815


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads one Redis stream: `{queue}:completed` or `out:{id}`.

    An offset is {name: place, "born": ms, "reader": name}. `born` (0 for the log) distinguishes
    the request from a later one with the same id. `reader` names the query among the readers of
    the log. The checkpoint keeps `reader`, so a query that starts again has the same name.
    """

    def __init__(self, view: str, options: SparkOptions, schema: StructType) -> None:
        self.view, self.schema = view, schema
        self.redis, self.queue = options.redis, keys.check_name("queue", options.queue)
        self.request = _one(options)
        self.name = f"{view}:{self.request or self.queue}"
        self.stream = keys.results(self.request) if self.request else keys.completed(self.queue)
        self.parts = options.number("minPartitions", 1, 1, MOST_PARTS)
        self.most = options.number("maxOffsetsPerTrigger", 0, 1)
        self.most_bytes = options.number("maxBytesPerTrigger", 0, 1)
        self.least = options.number("minOffsetsPerTrigger", 0, 1)
        self.delay_s = _delay_ms(options) / 1000
        if self.most and self.least > self.most:
            raise InvalidArgument(
                f'option "minOffsetsPerTrigger" is {self.least:,}, and more than '
                f"maxOffsetsPerTrigger, {self.most:,}: lower it"
            )
        self.fails = options.flag("failOnDataLoss", default=True)
        self.starting = options.text("startingOffsets", "earliest")
        if self.starting not in {"earliest", "latest"}:
            self.starting = json.dumps(self._given(self.starting))
        self.target: str | None = None  # where a query of availableNow stops
        self.reader = f"spark:{secrets.token_hex(8)}"
        self.marked, self.mark_at = "", 0.0
        self.end, self.ended_at = "", clock.mono_s()  # where the last batch ends, and when

    def _given(self, text: str) -> dict[str, Any]:
        """Returns the offset that a user wrote."""
        try:
            offset = json.loads(text)
            completion.place(offset[self.name].removeprefix(_BEFORE))
        except (ValueError, LookupError, TypeError, AttributeError):
            example = json.dumps({self.name: "1700000000000"})
            raise InvalidArgument(
                f'option "startingOffsets" is {text!r}: earliest, latest or {example} is expected, '
                "a moment in ms or the place of an entry"
            ) from None
        return {self.name: offset[self.name], "born": int(offset.get("born", 0))}

    # ------------------------------------------------------------------ offsets

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  Spark's name
        """Returns where a new query begins."""
        span, born = self._look()
        if self.starting == "earliest":
            return self._offset(_BEFORE + span.first if span else completion.BEGIN, born)
        if self.starting == "latest":
            return self._offset(span.last if span else completion.BEGIN, born)
        offset: dict[str, Any] = json.loads(self.starting)
        at = offset[self.name]
        if "-" not in at:  # an offset names an entry, because only an entry's loss is noticed
            at = self._place_of(at, span)
        return self._offset(at, offset["born"] or born)

    def _place_of(self, moment_ms: str, span: completion.Span | None) -> str:
        """Returns the place before the first entry since a moment. Raises DataLost."""
        with closing(SyncDriver(self.redis)) as driver:
            first = driver.run(stream_ranges.first_from(self.stream, moment_ms))
            if self.fails and not self.request:
                why = driver.run(completion.trimmed_before(self.queue, moment_ms))
                if why:
                    raise self._lost(why)
        return _BEFORE + first if first else span.last if span else completion.BEGIN

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  Spark's name
        """Returns one limit of the options; `latestOffset` applies all of them."""
        if self.most:
            return ReadMaxRows(self.most)
        if self.most_bytes:
            return ReadMaxBytes(self.most_bytes)
        return ReadMinRows(self.least) if self.least else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  Spark's name
        """Fixes where a query of availableNow will stop."""
        span, _ = self._look()
        self.target = span.last if span else completion.BEGIN

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802  Spark's name
        """Returns where the stream ends now, and the lag; for the query's progress only.

        The lag is the number of entries after the last batch: exact up to a page, then estimated.
        """
        span, born = self._look()
        return {**self._offset(span.last, born), "lag": self._lag(span)} if span else None

    def _lag(self, span: completion.Span) -> int:
        at = self.end or _BEFORE + span.first
        if not _has_more(at, span.last):
            return 0
        begin = max(_begin(at), span.first, key=completion.place)
        if begin == span.first:
            return span.length
        piece = stream_ranges.StreamRange(begin, span.last)
        with closing(SyncDriver(self.redis)) as driver:
            if self.request:
                read = stream_ranges.read_heads(self.request, piece, stream_ranges.PAGE)
            else:
                read = stream_ranges.read_page(self.stream, piece, stream_ranges.PAGE)
            entries, unread = driver.run(read)
        if unread is None:
            return len(entries)
        first, middle, last = (
            completion.place(entry)[0] for entry in (span.first, begin, span.last)
        )
        return max(len(entries), span.length * (last - middle) // max(1, last - first))

    def latestOffset(  # noqa: N802  Spark's name
        self, start: dict[str, Any], limit: ReadLimit
    ) -> dict[str, Any]:
        """Returns how far the next batch reads: within the limits, but at least one entry.

        An entry has up to 490 results and is not cut. The offset is never
        before `start`. Raises DataLost.
        """
        self.end = at = self._place(start)
        self.reader = str(start.get("reader") or self.reader)
        self._mark(at)
        self._check(at, start["born"])  # if no batch follows, no other check runs
        span, _ = self._look()
        last = span.last if span else completion.BEGIN
        if self.target is not None:
            last = min(last, self.target, key=completion.place)
        if not _has_more(at, last):
            return start
        piece = stream_ranges.StreamRange(_begin(at), last)
        if not isinstance(limit, ReadAllAvailable):
            is_late = clock.mono_s() - self.ended_at >= self.delay_s
            if self.least and self.target is None and not is_late:
                end, rows = self._within(piece, self.least)
                if rows < self.least and end == last:  # too few rows, and no further entry
                    return start
            most = limit.max_rows if isinstance(limit, ReadMaxRows) else 2**53
            if self.most_bytes:
                most = min(most, self._rows_of(self.most_bytes))
            if most < 2**53:
                last, _ = self._within(piece, most)
        self.end, self.ended_at = last, clock.mono_s()
        return self._offset(last, start["born"])

    def _rows_of(self, size: int) -> int:
        """Returns about how many rows have `size` bytes, by the mean size of the stream's rows."""
        with closing(SyncDriver(self.redis)) as driver:
            (span,) = driver.run(stream_ranges.measured([self.stream]))
            life = driver.run(stream_ranges.result_span(self.request)) if self.request else None
        if span is None:
            return 1
        return max(1, size * (life.rows if life else span.length) // max(1, span.size))

    def _within(self, piece: StreamRange, most: int) -> tuple[str, int]:
        """Returns the last entry of the piece that at most `most` rows reach; and these rows."""
        last, rows = "", 0
        unread: StreamRange | None = piece
        with closing(SyncDriver(self.redis)) as driver:
            while unread is not None:
                if self.request:  # only counted: the executors read the bodies
                    read = stream_ranges.read_heads(self.request, unread, stream_ranges.HEADS_PAGE)
                else:
                    count = max(1, min(stream_ranges.PAGE, most - rows))
                    read = stream_ranges.read_page(self.stream, unread, count)
                entries, unread = driver.run(read)
                for entry_id, fields in entries:
                    more = len(fields) // 2 - 1 if self.request else 1
                    if last and rows + more > most:
                        return last, rows
                    last, rows = entry_id.decode(), rows + more
                if rows >= most:
                    break
        return last or piece.last, rows

    def _look(self) -> tuple[completion.Span | None, int]:
        """Returns the span of the stream now, and when its request was born."""
        with closing(SyncDriver(self.redis)) as driver:
            if not self.request:
                return driver.run(completion.span(self.stream)), 0
            life = driver.run(stream_ranges.result_span(self.request))
            return life.span, life.born

    def _offset(self, entry: str, born: int) -> dict[str, Any]:
        offset = {self.name: entry, "born": born}
        return offset if self.request else {**offset, "reader": self.reader}

    def _mark(self, at: str) -> None:
        """Marks everything before an offset as read, because no later batch starts before it."""
        if self.request or (at == self.marked and clock.mono_s() < self.mark_at):
            return
        self.marked, self.mark_at = at, clock.mono_s() + settings.LOG_MARK_S
        places = {self.reader: at.removeprefix(_BEFORE)}
        with closing(SyncDriver(self.redis)) as driver:
            driver.run(mark(self.queue, places, settings.LOG_READER_MS))

    def _place(self, offset: dict[str, Any]) -> str:
        if self.name not in offset:
            other = next(iter(offset), "")
            raise InvalidArgument(
                f"the checkpoint is of the stream {other}, and not of {self.name}: "
                "a query with other options needs a checkpoint of its own"
            )
        return str(offset[self.name])

    # ------------------------------------------------------------------ rows

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Returns the range after `start`, up to `end`, in at most `minPartitions` parts.

        Raises DataLost.
        """
        at, last = self._place(start), self._place(end)
        if not _has_more(at, last.removeprefix(_BEFORE)):
            return []
        self._check(at, start["born"])
        pieces = stream_ranges.cut(_begin(at), last.removeprefix(_BEFORE), self.parts)
        return [InputPartition((StreamPart(piece, at), start["born"])) for piece in pieces]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yields the rows of one part. Raises DataLost."""
        part, born = partition.value
        wanted = arrow_of(self.schema)
        with closing(SyncDriver(self.redis)) as driver:
            for columns in self._pages(driver, part.piece):
                yield batch_of(columns, wanted)
        self._check(part.start, born)  # entries may have left during the read

    def _pages(self, driver: SyncDriver, piece: StreamRange) -> Iterator[dict[str, Any]]:
        if self.request:
            rows = RowReader(driver, self.schema)
            for results in read_results(driver, self.request, piece):
                yield rows.complete(results, [(self.request, len(results["index"]))])
            return
        unread: StreamRange | None = piece
        while unread is not None:
            page, unread = driver.run(stream_ranges.log_entries(self.queue, unread))
            if page:
                yield ending_columns(page)

    def _check(self, start: str, born: int) -> None:
        """Raises DataLost if entries after `start` are gone, or if new ones may be before it."""
        if not self.fails:
            return
        at = start.removeprefix(_BEFORE)
        with closing(SyncDriver(self.redis)) as driver:
            if self.request:
                why = self._why_lost(driver, at, born)
            else:
                why = driver.run(completion.lost_behind(self.queue, at))
        if why:
            raise self._lost(why)

    def _why_lost(self, driver: SyncDriver, at: str, born: int) -> str:
        """Returns why results after `at` are gone; "" if they are not.

        Results leave Redis together, except those of dead sub-requests that are requeued.
        So the entry `at` itself may be missing.
        """
        try:
            born_now = driver.run(stream_ranges.result_span(self.request)).born
        except RequestNotFound:
            return f"request {self.request} is gone"
        if born_now != born:
            return f"request {self.request} is another one than before"
        last = driver.run(stream_ranges.last_id(self.stream))
        if completion.place(at) <= completion.place(last):
            return ""
        return f"the results end at {last} by now, as a failover or a flush took back what followed"

    def _lost(self, why: str) -> DataLost:
        return DataLost(
            f"the stream {self.name} has lost entries that were not read yet: {why}. To go on with "
            "what is left set the option failOnDataLoss to false; to prevent it read more often"
        )


def _delay_ms(options: SparkOptions) -> int:
    text = options.text("maxTriggerDelay", "15m")
    try:
        return settings.duration_ms(text)
    except InvalidArgument as error:
        raise InvalidArgument(f'option "maxTriggerDelay": {error}') from None


def _one(options: SparkOptions) -> str:
    """Returns the request whose results are the stream, "" for the log. Raises InvalidArgument."""
    if "request" not in options and "txn" not in options:
        return ""
    ids = choice_of(options).ids
    if len(ids) != 1:
        raise InvalidArgument(
            "a stream of results is of one request: name it by its id, or read several with "
            "spark.read"
        )
    return ids[0]


def _begin(at: str) -> str:
    """Returns the first id after an offset."""
    return at[1:] if at.startswith(_BEFORE) else stream_ranges.after(at)


def _has_more(at: str, last: str) -> bool:
    return completion.place(_begin(at)) <= completion.place(last)
