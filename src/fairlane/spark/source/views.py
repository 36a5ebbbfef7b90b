"""What a queue holds as tables: results, requests, dead, workers, completions.

Nothing is taken away by reading. What a DataFrame reads is fixed when Spark plans it first: a part
that is read again, because a Spark task failed, is the same. Who wants to know of later results
loads a DataFrame anew. Results that have expired since then are an error, and not no rows.
"""

from __future__ import annotations

import abc
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.datasource import DataSourceReader, InputPartition

from fairlane.drivers.sync.driver import SyncDriver
from fairlane.errors import InvalidArgument, RequestLost, RequestNotFound
from fairlane.operations.control import completion_log, request_state
from fairlane.operations.control.dead_letters import page_size
from fairlane.protocol import keys
from fairlane.spark.operations import stream_ranges
from fairlane.spark.options import NO_CATALOG, Options
from fairlane.spark.source.columns import (
    COLUMNS,
    arrow_of,
    batch_of,
    check_schema,
    columns_of,
    completion_row,
    dead_row,
    ended_row,
    progress_row,
    struct_of,
    worker_row,
)
from fairlane.spark.source.filters import Condition, accept, keep, narrow
from fairlane.spark.source.results import read_results

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType

    from fairlane.spark.operations.stream_ranges import StreamRange

STREAMED = ("startingOffsets", "maxOffsetsPerTrigger", "failOnDataLoss")
KNOWN = ("view", "request", "minPartitions", "born", *STREAMED)
ENTRIES = 20_000  # of the completion log a Spark task, unless minPartitions says otherwise
RESULTS_ENTRIES = 400  # ... of `out`, where an entry holds up to 490 results
IDS = 1_000  # requests looked at at once
MOST_PARTS = 10_000

Columns = dict[str, Any]


def view_of(options: Options) -> str:
    """Which view is meant: `results` when only a request is named, else `completions`.

    Raises InvalidArgument for a view there is not, one that needs a request, or takes none.
    """
    default = "results" if "request" in options else "completions"
    view = options.choice("view", tuple(COLUMNS), default)
    if view == "results":
        keys.check_name("request id", options.required("request", "the id of a request"))
    elif "request" in options and view != "dead":
        raise InvalidArgument(
            f'option "request" goes with the views results and dead, not with {view}'
        )
    if "born" in options and view != "results":
        raise InvalidArgument(f'option "born" goes with the view results, not with {view}')
    return view


def schema_of(given: Mapping[str, str]) -> StructType:
    """The columns of what these options name."""
    return struct_of(view_of(Options(given, KNOWN)))


def reader_of(given: Mapping[str, str], schema: StructType) -> DataSourceReader:
    """The reader of one view. Raises InvalidArgument."""
    options = Options(given, KNOWN)
    for name in STREAMED:
        if name in options:
            raise InvalidArgument(f'option "{name}" is for streams: use readStream')
    try:
        return _READERS[view_of(options)](options, schema)
    except InvalidArgument as error:
        if given:
            raise
        raise InvalidArgument(f"{error} ({NO_CATALOG})") from None


class _Push:
    """A reader's pushFilters: keeps the conditions that we can check, the others stay Spark's.

    Spark refuses a reader with a pushFilters of its own while spark.sql.python.filterPushdown is
    off, as it is unless somebody turns it on. It looks at the function behind the method: so this
    one claims to be the inherited one, and is called where pushdown is on.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, view: str, conditions: list[Condition]) -> None:
        self.view, self.conditions = view, conditions

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        return list(accept(self.view, filters, self.conditions))


class ViewReader(DataSourceReader):
    """One view: planned by `plan`, each of its parts read by `pages`."""

    view = ""

    def __init__(self, options: Options, schema: StructType) -> None:
        check_schema(self.view, schema)
        self.redis, self.queue = options.redis, keys.check_name("queue", options.queue)
        self.request = options.text("request")
        self.parts = options.number("minPartitions", 0, 0, MOST_PARTS)
        self.schema = schema
        self.conditions: list[Condition] = []
        self.pushFilters = _Push(self.view, self.conditions)  # type: ignore[method-assign]

    def partitions(self) -> Sequence[InputPartition]:
        """The parts as they are now. Raises RequestNotFound, RedisError."""
        with closing(SyncDriver(self.redis)) as driver:
            # Spark makes one part of none, so that one must be there to be read as nothing.
            return [InputPartition(part) for part in self.plan(driver) or [None]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one part."""
        if partition.value is None:
            return
        wanted = arrow_of(self.schema)
        every = arrow_of(struct_of(self.view)) if self.conditions else wanted
        with closing(SyncDriver(self.redis)) as driver:
            for columns in self.pages(driver, partition.value):
                batch = keep(batch_of(columns, every), self.conditions)
                if batch.num_rows:
                    found = dict(zip(every.names, batch.columns, strict=True))
                    yield batch_of(found, wanted) if self.conditions else batch

    @abc.abstractmethod
    def plan(self, driver: SyncDriver) -> list[Any]:
        """What there is to read, in parts."""

    @abc.abstractmethod
    def pages(self, driver: SyncDriver, part: Any) -> Iterator[Columns]:
        """One part's rows as columns, some at a time."""

    def cut(self, found: completion_log.Span | None, each_part: int) -> list[StreamRange]:
        """A stream in as many pieces as were asked for, or of about `each_part` entries each."""
        if found is None:
            return []
        whole = narrow(
            self.view, stream_ranges.StreamRange(found.first, found.last), self.conditions
        )
        if whole is None:
            return []
        parts = self.parts or min(MOST_PARTS, -(-found.length // each_part))
        return stream_ranges.cut(whole.first, whole.last, parts)


class Results(NamedTuple):
    """A piece of `out`, and what tells that it is still the same when it has been read.

    `whole`: all that is in `out`, which does not change any more; None while the request runs.
    """

    piece: StreamRange
    born: int
    whole: completion_log.Span | None


class ResultsReader(ViewReader):
    """The results of one request that are there now; all of them once it has ended.

    Results leave Redis all at once, some time after the end. A part that finds none would look as
    if there had been none: so each looks again when it has read.
    """

    view = "results"

    def __init__(self, options: Options, schema: StructType) -> None:
        super().__init__(options, schema)
        self.born = options.number("born", 0)

    def plan(self, driver: SyncDriver) -> list[Any]:
        """Pieces of `out`. Raises RequestNotFound, with `born` RequestLost."""
        try:
            found, born, ended = driver.run(stream_ranges.result_span(self.request))
        except RequestNotFound:
            if not self.born:
                raise
            raise self._lost("the request is gone") from None
        if self.born and born != self.born:
            raise self._lost("another request has its id by now")
        if found is None and ended:  # a request without sub-requests, or it expires just now
            counts = driver.run(request_state.progress(self.request))
            if counts.done + counts.dead:
                raise self._lost("they have left Redis")
        whole = found if ended else None
        return [Results(piece, born, whole) for piece in self.cut(found, RESULTS_ENTRIES)]

    def pages(self, driver: SyncDriver, part: Results) -> Iterator[Columns]:
        """The results in one piece. Raises RequestLost."""
        yield from read_results(driver, self.request, part.piece)
        try:
            found, born, ended = driver.run(stream_ranges.result_span(self.request))
        except RequestNotFound:
            raise self._lost("they have left Redis") from None
        if born != part.born:
            raise self._lost("another request has its id by now")
        # Dead ones of a request that runs may be requeued, which takes their results away.
        is_there = found == part.whole if part.whole else found is not None or not ended
        if not is_there:
            raise self._lost("some have left Redis")

    def _lost(self, why: str) -> RequestLost:
        return RequestLost(
            f"the results of request {self.request} are not there any more: {why}. They are kept "
            "as long as its retention says; what is needed longer is saved when it has been read"
        )


class CompletionsReader(ViewReader):
    """The completion log."""

    view = "completions"

    def plan(self, driver: SyncDriver) -> list[Any]:
        """Pieces of the log."""
        return self.cut(driver.run(completion_log.span(keys.completed(self.queue))), ENTRIES)

    def pages(self, driver: SyncDriver, part: StreamRange) -> Iterator[Columns]:
        """The endings in one piece."""
        rest: StreamRange | None = part
        while rest is not None:
            found, rest = driver.run(stream_ranges.endings(self.queue, rest))
            yield columns_of(self.view, map(completion_row, found))


class RequestsReader(ViewReader):
    """The requests in the completion log, and those that are not in it yet."""

    view = "requests"

    def plan(self, driver: SyncDriver) -> list[Any]:
        """Pieces of the log, and lists of ids."""
        ids, logged = driver.run(stream_ranges.unfinished(self.queue))
        lists: list[Any] = [ids[at : at + IDS] for at in range(0, len(ids), IDS)]
        return [*self.cut(logged, ENTRIES), *lists]

    def pages(self, driver: SyncDriver, part: Any) -> Iterator[Columns]:
        """One part: a piece of the log, or a list of ids."""
        if isinstance(part, list):
            yield columns_of(
                self.view, map(progress_row, driver.run(stream_ranges.progresses(part)))
            )
            return
        rest: StreamRange | None = part
        while rest is not None:
            ended, rest = driver.run(stream_ranges.endings(self.queue, rest))
            lives = [(one.id, one.submitted_ms) for one in ended]
            known = driver.run(stream_ranges.ended_requests(lives)) if lives else []
            yield columns_of(self.view, map(ended_row, ended, known))


class DeadReader(ViewReader):
    """The dead sub-requests of one request, or of all that have any, with their bodies."""

    view = "dead"

    def plan(self, driver: SyncDriver) -> list[Any]:
        """(request, piece of its dead). Raises RequestNotFound for one that was named."""
        if self.request:
            driver.run(page_size(keys.check_name("request id", self.request)))
            found = driver.run(completion_log.span(keys.dead(self.request)))
            return [(self.request, piece) for piece in self.cut(found, ENTRIES)]
        ids, logged = driver.run(stream_ranges.unfinished(self.queue))
        rest = None if logged is None else stream_ranges.StreamRange(logged.first, logged.last)
        while rest is not None:
            ended, rest = driver.run(stream_ranges.endings(self.queue, rest))
            ids += [one.id for one in ended if one.dead]
        having = driver.run(stream_ranges.dead_spans(list(dict.fromkeys(ids))))
        return [(one, piece) for one, found in having for piece in self.cut(found, ENTRIES)]

    def pages(self, driver: SyncDriver, part: tuple[str, StreamRange]) -> Iterator[Columns]:
        """The dead in one piece. Of all requests, one that has gone meanwhile is passed over."""
        request_id, piece = part
        rest: StreamRange | None = piece
        while rest is not None:
            try:
                found, rest = driver.run(stream_ranges.read_dead(request_id, rest))
            except RequestNotFound:
                if self.request:
                    raise
                return
            yield columns_of(self.view, (dead_row(request_id, one) for one in found))


class WorkersReader(ViewReader):
    """The workers that live."""

    view = "workers"

    def plan(self, driver: SyncDriver) -> list[Any]:  # noqa: ARG002
        """One part."""
        return [self.queue]

    def pages(self, driver: SyncDriver, part: str) -> Iterator[Columns]:
        """All of them."""
        yield columns_of(self.view, map(worker_row, driver.run(stream_ranges.workers(part))))


_READERS: dict[str, type[ViewReader]] = {
    one.view: one
    for one in (ResultsReader, CompletionsReader, RequestsReader, DeadReader, WorkersReader)
}
