"""A queue's content as tables: results, requests, dead, workers, completions.

Reading removes nothing. Spark fixes what a DataFrame reads when it plans it first. So a part that
is read again, because a Spark task failed, is the same. Load a new DataFrame to read later results.
Results that have expired since then are an error, and not no rows.
"""

from __future__ import annotations

import abc
import json
from contextlib import closing
from itertools import groupby
from math import ceil
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from fairlane.arrow import stream_ranges
from fairlane.arrow.columns import batch_of, columns_of, dead_row, ending_columns
from fairlane.arrow.results import Wants, columns, named_errors, read_results, sizes_of
from fairlane.arrow.stream_ranges import EndedOpening
from fairlane.drivers.sync import SyncDriver
from fairlane.errors import InvalidArgument, RequestLost, RequestNotFound, not_found
from fairlane.operations import completion as completion_log
from fairlane.operations.completion import error_texts_of_many
from fairlane.operations.dead_letters import page_size
from fairlane.operations.find import earlier_endings
from fairlane.protocol import keys
from fairlane.protocol.steps import TOGETHER
from fairlane.spark.data_source import NO_CATALOG, SparkOptions
from fairlane.spark.source.columns import (
    COLUMNS,
    Condition,
    accept,
    arrow_of,
    check_schema,
    ended_row,
    keep,
    met,
    narrow,
    progress_row,
    struct_of,
    table_of,
    worker_row,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql.datasource import Filter

    from fairlane.arrow.stream_ranges import StreamRange
    from fairlane.operations.completion import Entries


IN_BODY = frozenset({"result", "error"})  # the columns that need a body


class RowReader:
    """Adds the columns of results that their entries do not have, if the schema names them."""

    def __init__(self, driver: SyncDriver, schema: StructType) -> None:
        self.driver, self.keys = driver, stream_ranges.RowKeys()
        self.wanted = {field.name.lower() for field in schema.fields}

    @property
    def reads_more(self) -> bool:
        """Returns True if keys or bodies are read from beside the results."""
        return bool(self.wanted & {"key", "body"})

    def complete(self, page: Columns, of: Sequence[tuple[str, int]]) -> Columns:
        """Returns a page of results with these columns; `of` has its requests and their rows."""
        if "request" in self.wanted:
            page["request"] = pa.concat_arrays(
                [pa.repeat(pa.scalar(name, pa.string()), rows) for name, rows in of]
            )
        if self.reads_more:
            indexes = page["index"].to_pylist()
            asked, at = [], 0
            for name, rows in of:
                asked.append((name, indexes[at : at + rows]))
                at += rows
            if "key" in self.wanted:
                page["key"] = self.driver.run(self.keys.read(asked))
            if "body" in self.wanted:
                page["body"] = self.driver.run(stream_ranges.kept_bodies(asked))
        return page


# ------------------------------------------------------------------ views
# The tables: what each reads, and how Spark divides it.


STREAMED = (
    *("startingOffsets", "maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger"),
    *("maxTriggerDelay", "failOnDataLoss"),
)
KNOWN = ("view", "request", "txn", "minPartitions", "born", *STREAMED)
# A Spark task reads about so many rows, and so many bytes, without minPartitions. A task costs
# about 50 ms, however little it reads.
ROWS = 100_000
BYTES = 64 << 20
OF_REQUEST = 4 << 10  # bytes that a request counts besides its results: to ask for it takes time
SMALL, SMALL_BYTES = 64, 1 << 20  # of a request that is read together with others
IDS = 1_000  # requests of one look
MOST_PARTS = 10_000

Columns = dict[str, Any]


def view_of(options: SparkOptions) -> str:
    """Returns the view: the option's, else `results` of a named request, else `completions`.

    Raises InvalidArgument for an unknown view, and for a request that is missing or not
    allowed.
    """
    named = [name for name in ("request", "txn") if name in options]
    view = options.choice("view", tuple(COLUMNS), "results" if named else "completions")
    if view == "results" and not named:
        options.required("request", "the id of a request")
    if named and view not in {"results", "dead"}:
        raise InvalidArgument(
            f'option "{named[0]}" goes with the views results and dead, not with {view}'
        )
    if len(named) > 1:
        raise InvalidArgument('options "request" and "txn" exclude each other: leave one out')
    if named:
        choice_of(options)
    if "born" in options and view != "results":
        raise InvalidArgument(f'option "born" goes with the view results, not with {view}')
    return view


class RequestChoices(NamedTuple):
    """Chooses the requests to read: these ids, those of a pattern, or those of a transaction."""

    ids: tuple[str, ...]
    pattern: str = ""
    txn: str = ""

    def find(self, driver: SyncDriver) -> Sequence[str]:
        """Returns the ids, also those of other queues. Raises InvalidArgument for too many."""
        if self.ids:
            return self.ids
        return driver.run(stream_ranges.named_like(self.pattern, self.txn))

    def takes(self, home: str, queue: str) -> bool:
        """Returns True for a request of the queue `home`: a pattern names those of one queue."""
        return bool(self.ids or self.txn) or home == queue

    def nothing(self, queue: str) -> RequestNotFound:
        """Returns the error for a choice of no request."""
        what = f"that transaction {self.txn} wrote" if self.txn else f"named {self.pattern}"
        return RequestNotFound(
            f"queue {queue} has no request {what} (an ended one is kept only for its retention): "
            'correct the option, or list what there is with option("view", "requests")'
        )


def choice_of(options: SparkOptions) -> RequestChoices:
    """Returns the choice that `request` or `txn` makes. Raises InvalidArgument."""
    if "txn" in options:
        txn = options.text("txn")
        keys.check_name("txn", txn.replace("*", ".") or "")
        return RequestChoices((), "*", txn)
    text = options.text("request")
    names: list[Any] = text.split(",")
    if text.startswith('["'):
        try:
            names = json.loads(text)
        except ValueError:
            raise InvalidArgument(f'option "request" is {text!r}: the list is no JSON') from None
    elif set(text) & {"*", "?"}:
        keys.check_name("pattern of request ids", text.replace("*", ".").replace("?", "."))
        return RequestChoices((), text)
    ids = (keys.check_name("request id", str(name).strip()) for name in names)
    return RequestChoices(tuple(dict.fromkeys(ids)))


def schema_of(spark_options: Mapping[str, str]) -> StructType:
    """Returns the columns of the view that these options name."""
    return table_of(view_of(SparkOptions(spark_options, KNOWN)))


def reader_of(spark_options: Mapping[str, str], schema: StructType) -> DataSourceReader:
    """Returns the reader of one view. Raises InvalidArgument."""
    options = SparkOptions(spark_options, KNOWN)
    for name in STREAMED:
        if name in options:
            raise InvalidArgument(f'option "{name}" is for streams: use readStream')
    try:
        return _READERS[view_of(options)](options, schema)
    except InvalidArgument as error:
        if spark_options:
            raise
        raise InvalidArgument(f"{error} ({NO_CATALOG})") from None


class _Push:
    """A reader's pushFilters: keeps the conditions that are checked here, and returns the others.

    Spark refuses a reader with a pushFilters of its own while spark.sql.python.filterPushdown
    is off, which is the default. It checks the function behind the method. So this object
    claims to be the inherited one, and is called if pushdown is on.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, view: str, conditions: list[Condition]) -> None:
        self.view, self.conditions = view, conditions

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        return list(accept(self.view, filters, self.conditions))


class ViewReader(DataSourceReader):
    """Reads one view: `plan` returns its parts, and `pages` reads each of them."""

    view = ""

    def __init__(self, options: SparkOptions, schema: StructType) -> None:
        check_schema(self.view, schema)
        self.redis, self.queue = options.redis, keys.check_name("queue", options.queue)
        self.choice = choice_of(options) if "request" in options or "txn" in options else None
        self.parts = options.number("minPartitions", 0, 0, MOST_PARTS)
        self.schema = schema
        self.conditions: list[Condition] = []
        self.pushFilters = _Push(self.view, self.conditions)  # type: ignore[method-assign]

    def partitions(self) -> Sequence[InputPartition]:
        """Returns the parts as they are now. Raises RequestNotFound, RedisError."""
        with closing(SyncDriver(self.redis)) as driver:
            # Spark makes one part of an empty list, so that part must exist and read as no rows.
            return [InputPartition(part) for part in self.plan(driver) or [None]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yields the rows of one part."""
        if partition.value is None:
            return
        wanted = arrow_of(self.schema)
        checked = struct_of(self.view)
        others = [field for field in self.schema.fields if field.name.lower() not in checked.names]
        known = arrow_of(StructType([*checked, *others])) if self.conditions else wanted
        with closing(SyncDriver(self.redis)) as driver:
            for columns in self.pages(driver, partition.value):
                batch = keep(batch_of(columns, known), self.conditions)
                if batch.num_rows:
                    kept = {
                        name.lower(): column
                        for name, column in zip(known.names, batch.columns, strict=True)
                    }
                    yield batch_of(kept, wanted) if self.conditions else batch

    @abc.abstractmethod
    def plan(self, driver: SyncDriver) -> list[Any]:
        """Returns what there is to read, in parts."""

    @abc.abstractmethod
    def pages(self, driver: SyncDriver, part: Any) -> Iterator[Columns]:
        """Yields one part's rows as columns, some at a time."""

    def cut(
        self, span: completion_log.Span | None, share: float | None = None
    ) -> list[StreamRange]:
        """Returns a stream in `minPartitions` pieces, or in one for each task's `share` of it.

        Without a share it has a row for each entry.
        """
        if span is None:
            return []
        narrowed = narrow(
            self.view, stream_ranges.StreamRange(span.first, span.last), self.conditions
        )
        if narrowed is None:
            return []
        parts = self.parts or ceil(share_of(span.length, span.size))
        if share is not None:
            parts = round(share)
        return stream_ranges.cut(narrowed.first, narrowed.last, min(MOST_PARTS, max(1, parts)))

    def divide(self, spans: Sequence[tuple[int, completion_log.Span]]) -> list[list[Piece]]:
        """Returns streams, each with its rows, in parts for tasks that read about equally much.

        A large stream is cut, and small ones are together.
        """
        shares = [share_of(rows, span.size + OF_REQUEST) for rows, span in spans]
        unit = sum(shares) / self.parts if self.parts else 1.0
        parts: list[list[Piece]] = []
        small: list[Piece] = []
        held = 0.0
        for at, ((_, span), share) in enumerate(zip(spans, shares, strict=True)):
            pieces = [Piece(at, piece) for piece in self.cut(span, share / unit)]
            if share >= unit:
                parts += [[piece] for piece in pieces]
                continue
            if small and held + share > unit:
                parts.append(small)
                small, held = [], 0.0
            small += pieces
            held += share
        return [*parts, small] if small else parts


class Piece(NamedTuple):
    """A piece of one of several streams."""

    stream: int
    range: StreamRange


def share_of(rows: int, size: int) -> float:
    """Returns how many Spark tasks should read so many rows and bytes."""
    return max(rows / ROWS, size / BYTES)


class Results(NamedTuple):
    """A piece of `out`, and the marks that show a change after it was read."""

    request: str
    piece: StreamRange
    born: int
    reopened: int
    is_ended: bool
    span: completion_log.Span  # of all that is in `out`, which changes only while the request runs

    def still_is_ended(self, life: stream_ranges.ResultSpan) -> bool:
        """Returns True if the request had ended before the read, and was not reopened since."""
        return self.is_ended and life.reopened == self.reopened

    @property
    def is_small(self) -> bool:
        """Returns True if it is all of a request that is read together with others."""
        is_short = self.span.length <= SMALL and self.span.size <= SMALL_BYTES
        return is_short and tuple(self.piece) == self.span[:2]


class ResultsReader(ViewReader):
    """Reads the results of requests that exist now; all results of those that have ended.

    Results leave Redis together, some time after the end. A part that is empty then would look
    like a request without results. So each part checks again after its read.
    """

    view = "results"
    choice: RequestChoices

    def __init__(self, options: SparkOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self.born = options.number("born", 0)
        if self.born and len(self.choice.ids) != 1:
            raise InvalidArgument('option "born" is for one request: name it, or leave "born" out')

    def plan(self, driver: SyncDriver) -> list[Any]:
        """Returns pieces of `out`. Raises RequestNotFound, with `born` RequestLost."""
        ids = self.choice.find(driver)
        is_any = False
        found: list[tuple[stream_ranges.ResultSpan, completion_log.Span]] = []
        for request_id, life in zip(ids, driver.run(stream_ranges.result_spans(ids)), strict=True):
            if life is None:
                if self.born:
                    raise _lost(request_id, "the request is gone")
                if self.choice.ids:
                    raise not_found(request_id)
                continue
            if not self.choice.takes(life.queue, self.queue):
                continue
            is_any = True
            if self.born and life.born != self.born:
                raise _lost(request_id, "another request has its id by now")
            if life.span is not None:
                found.append((life, life.span))
            elif life.is_ended and life.rows:  # it expires just now
                raise _lost(request_id, "they have left Redis")
        if not is_any:
            raise self.choice.nothing(self.queue)
        parts = self.divide([(life.rows, span) for life, span in found])
        return [
            [
                Results(life.id, piece.range, life.born, life.reopened, life.is_ended, span)
                for piece in part
                for life, span in (found[piece.stream],)
            ]
            for part in parts
        ]

    def pages(self, driver: SyncDriver, part: list[Results]) -> Iterator[Columns]:
        """Yields the results in some pieces. Raises RequestLost."""
        rows = RowReader(driver, self.schema)
        for is_small, some in groupby(part, key=lambda piece: piece.is_small and len(part) > 1):
            pieces = [*some]
            for at in range(0, len(pieces) if is_small else 0, TOGETHER):
                yield self._small(driver, rows, pieces[at : at + TOGETHER])
            for piece in () if is_small else pieces:
                read = read_results(driver, piece.request, piece.piece, wants=self._wants())
                for page in read:
                    yield rows.complete(page, [(piece.request, len(page["index"]))])
                _check(piece, driver.run(stream_ranges.result_spans([piece.request]))[0])

    def _small(self, driver: SyncDriver, rows: RowReader, pieces: Sequence[Results]) -> Columns:
        """Returns the results of small requests, which are read in one round trip."""
        names = [piece.request for piece in pieces]
        spans = [piece.span for piece in pieces]
        wants = self._wants()
        is_whole = wants is None or wants.bodies
        read = driver.run(stream_ranges.small_results(names, spans, with_bodies=is_whole))
        entries: Entries = []
        owners: list[int] = []
        of, named = [], []
        for at, (piece, (found, life)) in enumerate(zip(pieces, read, strict=True)):
            if life is None or life.born != piece.born:
                _check(piece, life)  # raises
            elif piece.still_is_ended(life) and len(found) != piece.span.length:
                raise _lost(piece.request, "some have left Redis")
            entries += found
            owners += [at] * len(found)
            of.append((piece.request, sum(sizes_of(found))))
            named.append((piece.request, named_errors(found)))
        texts = driver.run(error_texts_of_many(named)) if is_whole else {}
        page = rows.complete(columns(entries, texts, owners), of)
        if rows.reads_more:  # what is beside the results may have expired before it was read
            for piece, born in zip(pieces, driver.run(stream_ranges.begins(names)), strict=True):
                if born != piece.born:
                    raise _lost(piece.request, "they have left Redis")
        return page

    def _wants(self) -> Wants | None:
        """Returns what need not be read; None if all bodies are."""
        checked = {condition.column for condition in self.conditions}
        if checked & IN_BODY:
            return None
        wanted = {field.name.lower() for field in self.schema.fields}
        bodies = bool(wanted & {*IN_BODY, "body"})  # inputs are large, too: so pages are small
        return None if bodies and not checked else Wants(bodies, self._meets)

    def _meets(self, columns: Columns) -> pa.Array:
        batch = batch_of(columns, arrow_of(struct_of(self.view)))
        meets: pa.Array = pa.repeat(True, batch.num_rows)
        for condition in self.conditions:
            meets = pc.and_kleene(meets, met(batch.column(condition.column), condition))
        return meets


def _check(piece: Results, life: stream_ranges.ResultSpan | None) -> None:
    """Raises RequestLost if what was read of a request may not be all of it."""
    if life is None:
        raise _lost(piece.request, "they have left Redis")
    if life.born != piece.born:
        raise _lost(piece.request, "another request has its id by now")
    # While a request runs, a requeue of dead sub-requests removes their results.
    is_whole = life.span == piece.span
    is_there = is_whole if piece.still_is_ended(life) else life.span or not life.is_ended
    if not is_there:
        raise _lost(piece.request, "some have left Redis")


def _lost(request_id: str, why: str) -> RequestLost:
    return RequestLost(
        f"the results of request {request_id} are not there any more: {why}. They are kept "
        "as long as its retention says; what is needed longer is saved when it has been read"
    )


class CompletionsReader(ViewReader):
    """Reads the completion log."""

    view = "completions"

    def plan(self, driver: SyncDriver) -> list[Any]:
        """Returns pieces of the log."""
        return self.cut(driver.run(completion_log.span(keys.completed(self.queue))))

    def pages(self, driver: SyncDriver, part: StreamRange) -> Iterator[Columns]:
        """Yields the endings in one piece."""
        unread: StreamRange | None = part
        while unread is not None:
            page, unread = driver.run(stream_ranges.log_entries(self.queue, unread))
            yield ending_columns(page)


class RequestsReader(ViewReader):
    """Reads the requests in the completion log, and those that are not in it yet."""

    view = "requests"

    def plan(self, driver: SyncDriver) -> list[Any]:
        """Returns pieces of the log, and lists of ids."""
        ids, logged = driver.run(stream_ranges.unfinished(self.queue))
        lists: list[Any] = [ids[at : at + IDS] for at in range(0, len(ids), IDS)]
        return [*self.cut(logged), *lists]

    def pages(self, driver: SyncDriver, part: Any) -> Iterator[Columns]:
        """Yields one part: a piece of the log, or a list of ids."""
        if isinstance(part, list):
            yield columns_of(
                self.view, map(progress_row, driver.run(stream_ranges.progresses(part)))
            )
            return
        unread: StreamRange | None = part
        while unread is not None:
            ended, unread = driver.run(stream_ranges.endings(self.queue, unread))
            earlier = driver.run(earlier_endings(self.queue, ended))
            last = [one for one in ended if one.log_id not in earlier]
            openings = [EndedOpening(one.id, one.submitted_ms, one.reopened) for one in last]
            records = driver.run(stream_ranges.ended_requests(openings)) if openings else []
            yield columns_of(self.view, map(ended_row, last, records))


class DeadReader(ViewReader):
    """Reads the dead sub-requests of one request, or of all that have any, with their bodies."""

    view = "dead"

    def plan(self, driver: SyncDriver) -> list[Any]:
        """Returns lists of (request, piece of its dead). Raises RequestNotFound for a named one."""
        if self.choice is not None:
            ids = [*self.choice.find(driver)]
            homes = driver.run(stream_ranges.queues_of(ids))
            pairs = zip(ids, homes, strict=True)
            ids = [one for one, home in pairs if self.choice.takes(home, self.queue)]
            if not ids:
                raise self.choice.nothing(self.queue)
            if len(ids) == 1:
                driver.run(page_size(ids[0]))
        else:
            ids, logged = driver.run(stream_ranges.unfinished(self.queue))
            unread = logged and stream_ranges.StreamRange(logged.first, logged.last)
            while unread is not None:
                ended, unread = driver.run(stream_ranges.endings(self.queue, unread))
                ids += [completion.id for completion in ended if completion.dead]
        having = driver.run(stream_ranges.dead_spans(list(dict.fromkeys(ids))))
        parts = self.divide([(span.length, span) for _, span in having])
        return [[(having[piece.stream][0], piece.range) for piece in part] for part in parts]

    def pages(self, driver: SyncDriver, part: list[tuple[str, StreamRange]]) -> Iterator[Columns]:
        """Yields the dead in some pieces. Those of requests that are gone meanwhile are skipped."""
        for request_id, piece in part:
            unread: StreamRange | None = piece
            while unread is not None:
                try:
                    page, unread = driver.run(stream_ranges.read_dead(request_id, unread))
                except RequestNotFound:
                    if self.choice is not None and self.choice.ids == (request_id,):
                        raise
                    break
                yield columns_of(self.view, (dead_row(request_id, dead) for dead in page))


class WorkersReader(ViewReader):
    """Reads the living workers."""

    view = "workers"

    def plan(self, driver: SyncDriver) -> list[Any]:  # noqa: ARG002
        """Returns one part."""
        return [self.queue]

    def pages(self, driver: SyncDriver, part: str) -> Iterator[Columns]:
        """Yields all living workers."""
        yield columns_of(self.view, map(worker_row, driver.run(stream_ranges.workers(part))))


_READERS: dict[str, type[ViewReader]] = {
    one.view: one
    for one in (ResultsReader, CompletionsReader, RequestsReader, DeadReader, WorkersReader)
}
