"""Writes rows as the sink does, staged, direct or pipelined, and logs how many were added."""

from __future__ import annotations

import logging
import secrets
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from fairlane import settings
from fairlane.errors import FairlaneError, InvalidArgument, RedisError, RequestEnded
from fairlane.spark import commit as direct_append
from fairlane.spark.commit import (
    Area,
    TxnShare,
    add,
    append_partition,
    append_unique,
    begin_live,
    commit,
    joined,
    look,
    note_keyed,
    seal_all,
    stage,
    stage_all,
    unstage,
)
from fairlane.spark.sink.plan import check_terms, run
from fairlane.spark.sink.rows import Reader, RowBatch, RowGroup, pieces

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from fairlane.protocol.scripts import AppendPartitionReply, AppendUniqueReply
    from fairlane.protocol.steps import Call
    from fairlane.spark.commit import Brought
    from fairlane.spark.sink.plan import WritePlan


# ------------------------------------------------------------------ counts
# Logs how many rows a write added, and warns if some of its rows were not added.


_log = logging.getLogger("fairlane.spark")
_NAMED = 3  # requests that one line names
# A write with more parts gets a hint if its requests have at least 2 on average.
_MANY_PARTS = 1_000
_APART = "write new rows with a txn and a request of their own"


def log_brought(txn: str, brought: Sequence[Brought]) -> None:
    """Logs how many rows a commit added; warns unless it added all that it was given."""
    others = [part for part in brought if not part.is_same]
    counted = others or brought
    staged, added = sum(part.given for part in counted), sum(part.added for part in counted)
    where = _named([part.request for part in counted])
    terms = [part.request for part in brought if not part.is_as_begun]
    level = logging.INFO if staged == added and not others and not terms else logging.WARNING
    text = f"txn {txn}: {0 if others else added:,} of {staged:,} rows were added to {where}"
    if others:
        pinned = sum(part.pinned for part in others)
        text += f", because an earlier write with this txn brought {pinned:,} other rows: {_APART}"
        if added:
            text += f". This commit completed the earlier write with {added:,} rows"
    elif added < staged:
        text += "; an earlier write with this txn brought the others"
    if terms:
        text += (
            f". The priority, limit or another option is not the one with which {_named(terms)} "
            "began, and has no effect: change a request with `fairlane set`"
        )
    _log.log(level, "%s", text)


def log_added(txn: str, requests: Sequence[str], rows: int, new: int, *, by_keys: bool) -> None:
    """Logs how many rows joined their requests; warns if some were there before."""
    text = f"txn {txn}: {new:,} of {rows:,} rows were added to {_named(requests)}"
    if new < rows and by_keys:
        text += "; rows with the keys of the others were there before"
    elif new < rows:
        text += (
            "; an earlier write or attempt with this txn had filled the places of the others in "
            f"their partitions, with the same rows or with other ones: {_APART}"
        )
    _log.log(logging.INFO if new == rows else logging.WARNING, "%s", text)


def hint_at_scattered(column: str, requests: int, parts: int) -> None:
    """Warns if the rows of most requests came from several partitions: each part costs calls.

    `parts` is the sum of the requests of each partition.
    """
    if not column or parts <= _MANY_PARTS or parts < 2 * requests:
        return
    _log.warning(
        "the rows of %s requests came in %s parts, because many partitions have rows of one "
        'request, and each part costs several calls: bring them together with repartition(N, "%s") '
        "before the write",
        f"{requests:,}", f"{parts:,}", column,
    )  # fmt: skip


def _named(requests: Sequence[str]) -> str:
    if len(requests) == 1:
        return f"request {requests[0]}"
    names = ", ".join([*requests[:_NAMED], *(["..."] if len(requests) > _NAMED else [])])
    return f"{len(requests):,} requests" + (f" ({names})" if names else "")


# ------------------------------------------------------------------ direct
# writeMode=dedupe and writeMode=pipelined: rows join their request while Spark still writes.


@dataclass(slots=True)
class Added:
    """Counts what one task has brought to one request: its rows, and how many of them were new."""

    request: str
    rows: int = 0
    new: int = 0
    terms: tuple[Any, ...] = ()


@dataclass
class LiveMessage(WriterCommitMessage):
    """Carries a task's counts to Spark's driver."""

    parts: list[Added] = field(default_factory=list)


class Adder:
    """Adds the rows of one task to their requests.

    `is_noted`: the transaction may be aborted, so the requests that it begins are recorded.
    """

    def __init__(
        self, plan: WritePlan, driver: Any, txn: str, partition: int, *, is_noted: bool
    ) -> None:
        self.plan, self.driver = plan, driver
        self.txn, self.is_noted = plan.transaction(txn), is_noted
        self.partition = partition
        self._reader = Reader(plan, partition)
        self._added: dict[str, Added] = {}

    def write(self, batches: Iterable[Any]) -> list[Added]:
        """Adds all rows. Raises what direct_append.add raises, and InvalidArgument."""
        for batch in batches:
            for group in self._reader.groups(batch):
                added = self._begun(group)
                for piece in pieces(group, self.plan.batch_size):
                    self._add(added, piece)
        return list(self._added.values())

    def _begun(self, group: RowGroup) -> Added:
        added = self._added.get(group.request)
        if added is None:
            policy = self.plan.policy_of(group.request, group.terms)
            self.driver.run(
                begin_live(
                    group.request,
                    policy,
                    self.txn,
                    by_ids=by_ids(self.plan),
                    is_noted=self.is_noted,
                )
            )
            if self.plan.key_column:
                self.driver.run(note_keyed(group.request, self.txn))
            added = self._added[group.request] = Added(group.request, terms=group.terms)
        check_terms(self.plan, group.request, added.terms, group.terms)
        return added

    def _add(self, added: Added, piece: RowBatch) -> None:
        plan = self.plan
        call: Call[AppendUniqueReply] | Call[AppendPartitionReply]
        if plan.key_column:
            call = append_unique(
                added.request, piece.keys, piece.packed, self.txn, plan.policy.retain_ms
            )
        else:
            call = append_partition(
                added.request, self.partition, added.rows, piece.packed, self.txn
            )
        added.new += self.driver.run(
            add(added.request, plan.queue, call, self.txn, plan.max_waiting)
        )
        added.rows += piece.rows


def by_ids(plan: WritePlan) -> bool:
    """Returns True if rows are recognised by key. Then any transaction may add them."""
    return plan.mode == "dedupe"


def is_abortable(plan: WritePlan) -> bool:
    """Returns True if a failed write cancels its requests. No other write adds rows to them."""
    return not by_ids(plan) and plan.finalize


def add_rows(
    plan: WritePlan, txn: str, batches: Iterator[Any], *, is_noted: bool = False
) -> list[Added]:
    """Adds the rows of the task that runs here."""
    task = TaskContext.get()
    partition = task.partitionId() if task else 0
    with closing(plan.driver()) as driver:
        return Adder(plan, driver, txn, partition, is_noted=is_noted).write(batches)


def begin_first(plan: WritePlan) -> None:
    """Creates the named request before the first task. Raises if it is refused."""
    txn, is_noted = plan.transaction(plan.txn), is_abortable(plan)
    with closing(plan.driver()) as driver:
        if is_noted:
            driver.run(direct_append.start_live(txn))
        if plan.request and not plan.terms:
            driver.run(
                begin_live(plan.request, plan.policy, txn, by_ids=by_ids(plan), is_noted=is_noted)
            )


def commit_live(plan: WritePlan, messages: Sequence[LiveMessage | None]) -> None:
    """Seals the written requests if `finalize`. Warns if their rows came in many parts.

    If a request was cancelled, seals all others, and then raises RequestEnded. The remaining
    rows of the cancelled request do not run.
    """
    requests = _requests(plan, messages)
    parts = sum(len(message.parts) for message in messages if message is not None)
    hint_at_scattered(plan.request_column, len(requests), parts)
    if plan.finalize:
        run(plan, seal_all(requests, plan.queue))


def abort_live(plan: WritePlan) -> None:
    """Cancels the requests if no other write adds rows to them; else they keep their rows."""
    if not is_abortable(plan):
        return
    try:
        run(plan, direct_append.abort_live(plan.transaction(plan.txn)))
    except RedisError as error:
        raise type(error)(
            f"{error}; what the write has begun stays open, as it could not be cancelled: repeat "
            f"the write with the same txn, {plan.txn}, to go on with it"
        ) from error


def _requests(plan: WritePlan, messages: Sequence[LiveMessage | None]) -> list[str]:
    """Returns the requests that were written to, and the named one even without rows."""
    requests: dict[str, None] = {}
    if plan.request and not plan.terms:
        requests[plan.request] = None
    for message in messages:
        requests.update(
            {part.request: None for part in message.parts} if message is not None else {}
        )
    return [*requests]


class LiveWriter(DataSourceArrowWriter):
    """Writes one batch as one transaction."""

    def __init__(self, plan: WritePlan) -> None:
        self.plan = plan

    def write(self, iterator: Iterator[Any]) -> LiveMessage:
        """Runs in each task."""
        is_noted = is_abortable(self.plan)
        return LiveMessage(add_rows(self.plan, self.plan.txn, iterator, is_noted=is_noted))

    def commit(self, messages: list[Any]) -> None:
        """Runs once, after every task has succeeded."""
        commit_live(self.plan, messages)
        parts = [part for message in messages if message is not None for part in message.parts]
        log_added(
            self.plan.txn,
            _requests(self.plan, messages),
            sum(part.rows for part in parts),
            sum(part.new for part in parts),
            by_keys=bool(self.plan.key_column),
        )
        if is_abortable(self.plan):
            run(self.plan, direct_append.end_live(self.plan.transaction(self.plan.txn)))

    def abort(self, messages: list[Any]) -> None:  # noqa: ARG002  requests are recorded
        """Runs when a task or the commit has failed."""
        abort_live(self.plan)


class LiveStreamWriter(DataSourceStreamArrowWriter):
    """Writes each micro-batch as one transaction, named by the stream and its batch number."""

    def __init__(self, plan: WritePlan) -> None:
        self.plan = plan

    def write(self, iterator: Iterator[Any]) -> LiveMessage:
        """Runs in each task."""
        query, number = stream_place()
        return LiveMessage(add_rows(self.plan, stream_txn(query, number), iterator))

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803  Spark's name
        """Runs once for a micro-batch, and again if Spark cannot be sure that it ran.

        If a request was cancelled, that is only logged, because an error would come again at
        every restart of the stream.
        """
        try:
            commit_live(self.plan, messages)
        except RequestEnded as error:
            _log.warning("micro-batch %d: %s", batchId, error)

    def abort(self, messages: list[Any], batchId: int) -> None:  # noqa: N803  Spark's name
        """Does nothing: Spark repeats the micro-batch, which then finishes what it has begun."""


# ------------------------------------------------------------------ staged
# writeMode=staged: tasks write to areas that no worker reads; the driver commits the winners.


_TOGETHER = 8  # chunks of one round trip
_HELD = 32 << 20  # bytes that wait for their chunk to fill, over all requests
_HELD_ROWS = 200_000


@dataclass(slots=True)
class Staged:
    """Counts what one task has staged for one request."""

    request: str
    area: Area
    terms: tuple[Any, ...] = ()


@dataclass
class StagedMessage(WriterCommitMessage):
    """Carries a task's areas to the driver. `query` is the stream's id, "" for a batch."""

    parts: list[Staged] = field(default_factory=list)
    query: str = ""


class _Filling:
    """Holds the area of one request, and the rows that wait for its next chunk."""

    def __init__(self, group: RowGroup, name: str) -> None:
        self.staged = Staged(group.request, Area(name, 0, 0), group.terms)
        self.count = self.size = 0
        # The lengths and the bytes of bodies, then those of keys.
        self.columns: tuple[list[bytes], ...] = ([], [], [], [])

    def take(self, count: int, packed: Sequence[bytes]) -> int:
        """Counts a chunk; returns its number."""
        self.staged.area = self.staged.area.grown(count, *packed)
        return self.staged.area.chunks

    def hold(self, count: int, size: int, *parts: Any) -> None:
        """Keeps a copy of some rows, so that their batch can be freed."""
        for column, part in zip(self.columns, parts, strict=False):
            column.append(bytes(part))
        self.count += count
        self.size += size

    def release(self) -> list[bytes]:
        """Returns the waiting rows as one chunk: packed bodies, and packed keys if any."""
        lengths, bodies, key_lengths, own = map(b"".join, self.columns)
        packed = [joined(self.count, lengths, bodies)]
        if key_lengths:
            packed.append(joined(self.count, key_lengths, own))
        self.columns, self.count, self.size = ([], [], [], []), 0, 0
        return packed


class Stager:
    """Writes the rows of one task to areas of their requests, in bounded memory."""

    def __init__(
        self, plan: WritePlan, driver: Any, txn: str, partition: int, attempt: int
    ) -> None:
        self.plan, self.driver, self.txn = plan, driver, txn
        # The name must be new, and a restarted driver repeats the numbers of attempts.
        self.name = f"{partition}:{attempt}:{secrets.token_hex(4)}"
        self._reader = Reader(plan, partition)
        self._filling: dict[str, _Filling] = {}
        self._calls: list[Call[Any]] = []
        self._held = self._held_rows = 0

    def add(self, batch: Any) -> None:
        """Stages a batch, or keeps some of its rows. Raises InvalidArgument, RedisError."""
        for group in self._reader.groups(batch):
            self._add(group)
        while self._held > _HELD or self._held_rows > _HELD_ROWS:
            self._flush(
                max(self._filling.values(), key=lambda filling: (filling.size, filling.count))
            )

    def finish(self) -> list[Staged]:
        """Stages the rows that were kept; returns what was staged. Raises RedisError."""
        for filling in self._filling.values():
            if filling.count:
                self._flush(filling)
        self._send()
        return [filling.staged for filling in self._filling.values()]

    def _add(self, group: RowGroup) -> None:
        filling = self._filling.get(group.request)
        if filling is None:
            filling = self._filling[group.request] = _Filling(group, self.name)
        check_terms(self.plan, group.request, filling.staged.terms, group.terms)
        if self.plan.request:
            for piece in pieces(group, self.plan.batch_size):
                self._stage(filling, piece.rows, [one for one in (piece.packed, piece.keys) if one])
            return
        bodies, own = group.bodies, group.keys
        for start, end in bodies.cuts(group.start, group.end, self.plan.batch_size):
            size = bodies.size(start, end)
            parts = (*bodies.part(start, end), *(own.part(start, end) if own else ()))
            if (
                filling.count + end - start > self.plan.batch_size
                or filling.size + size > settings.CHUNK_BYTES
            ):
                self._flush(filling)
            filling.hold(end - start, size, *parts)
            self._held, self._held_rows = self._held + size, self._held_rows + end - start

    def _flush(self, filling: _Filling) -> None:
        if filling.count:
            count = filling.count
            self._held, self._held_rows = self._held - filling.size, self._held_rows - count
            self._stage(filling, count, filling.release())

    def _stage(self, filling: _Filling, count: int, packed: Sequence[bytes]) -> None:
        number = filling.take(count, packed)
        request, area = filling.staged.request, filling.staged.area.name
        self._calls.append(
            stage(request, self.txn, area, number, b"".join(packed), self.plan.stage_ms)
        )
        if len(self._calls) == _TOGETHER:
            self._send()

    def _send(self) -> None:
        calls, self._calls = self._calls, []
        self.driver.run(stage_all(calls))


def stage_rows(plan: WritePlan, txn: str, batches: Iterator[Any]) -> list[Staged]:
    """Stages the rows of the task that runs here."""
    task = TaskContext.get()
    partition, attempt = (task.partitionId(), task.taskAttemptId()) if task else (0, 0)
    with closing(plan.driver()) as driver:
        stager = Stager(plan, driver, txn, partition, attempt)
        for batch in batches:
            stager.add(batch)
        return stager.finish()


def shares_of(plan: WritePlan, messages: Sequence[StagedMessage | None]) -> list[TxnShare]:
    """Returns what all tasks have staged, by request, in the order of their partitions."""
    by_request: dict[str, list[Staged]] = {plan.request: []} if plan.request else {}
    for message in messages:
        for part in message.parts if message is not None else ():
            by_request.setdefault(part.request, []).append(part)
    shares = []
    for request, parts in by_request.items():
        for part in parts:
            check_terms(plan, request, parts[0].terms, part.terms)
        policy = plan.policy_of(request, parts[0].terms) if parts else plan.policy
        parts.sort(key=lambda part: int(part.area.name.partition(":")[0]))
        areas = [part.area for part in parts if part.area.rows]
        shares.append(TxnShare(request, policy, areas))
    return shares


def commit_staged(
    plan: WritePlan, txn: str, messages: Sequence[StagedMessage | None]
) -> list[Brought]:
    """Commits a transaction; returns and logs what it added. Raises what commit raises."""
    shares = shares_of(plan, messages)
    parts = sum(len(share.areas) for share in shares)
    hint_at_scattered(plan.request_column, len(shares), parts)
    try:
        brought: list[Brought] = run(plan, commit(shares, plan.transaction(txn)))
    except RedisError as error:
        raise type(error)(f"{error}; {_how_to_go_on(plan, txn)}") from error
    log_brought(txn, brought)
    return brought


def _how_to_go_on(plan: WritePlan, txn: str) -> str:
    """Returns the remedy for an interrupted commit, which only the same txn continues."""
    if txn != plan.txn:
        return "some rows may be in: start the stream again, and its commit goes on"
    return f"some rows may be in: repeat the write with the same txn, {txn}, to go on"


def abort_staged(plan: WritePlan, txn: str, messages: Sequence[StagedMessage | None]) -> None:
    """Drops the reported areas that are not pinned. Areas that were not reported expire."""
    areas: dict[str, list[str]] = {}
    for message in messages:
        for part in message.parts if message is not None else ():
            areas.setdefault(part.request, []).append(part.area.name)
    with closing(plan.driver()) as driver:
        for request, names in areas.items():
            driver.run(unstage(request, txn, names))


def look_first(plan: WritePlan) -> None:
    """Raises now if the commit could not write to the named request."""
    if plan.request and not plan.terms:
        run(plan, look(TxnShare(plan.request, plan.policy, []), plan.transaction(plan.txn)))


class StagedWriter(DataSourceArrowWriter):
    """Writes one batch as one transaction."""

    def __init__(self, plan: WritePlan) -> None:
        self.plan = plan

    def write(self, iterator: Iterator[Any]) -> StagedMessage:
        """Runs in each task."""
        return StagedMessage(stage_rows(self.plan, self.plan.txn, iterator))

    def commit(self, messages: list[Any]) -> None:
        """Runs once, when every task has reported what it staged."""
        commit_staged(self.plan, self.plan.txn, messages)

    def abort(self, messages: list[Any]) -> None:
        """Runs when a task or the commit has failed."""
        abort_staged(self.plan, self.plan.txn, messages)


class StagedStreamWriter(DataSourceStreamArrowWriter):
    """Writes each micro-batch as a transaction, named by the stream and its number."""

    def __init__(self, plan: WritePlan) -> None:
        self.plan = plan

    def write(self, iterator: Iterator[Any]) -> StagedMessage:
        """Runs in each task."""
        query, number = stream_place()
        parts = stage_rows(self.plan, stream_txn(query, number), iterator)
        return StagedMessage(parts, query)

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803  Spark's name
        """Runs once for a micro-batch, and again if Spark cannot be sure that it ran."""
        commit_staged(self.plan, stream_txn(query_of(messages), batchId), messages)

    def abort(self, messages: list[Any], batchId: int) -> None:  # noqa: N803  Spark's name
        """Runs when a task or the commit has failed; the micro-batch will come again."""
        abort_staged(self.plan, stream_txn(query_of(messages), batchId), messages)


def stream_place() -> tuple[str, str]:
    """Returns the stream's id and the micro-batch's number of the current task."""
    task = TaskContext.get()
    query = task.getLocalProperty("sql.streaming.queryId") if task else None
    number = task.getLocalProperty("streaming.sql.batchId") if task else None
    if not query or number is None:
        raise FairlaneError("Spark does not say which micro-batch this is: it cannot be written")
    return query, number


def stream_txn(query: str, number: int | str) -> str:
    """Returns the transaction of a micro-batch."""
    return f"{query or '-'}:{number}"


def query_of(messages: Sequence[Any]) -> str:
    """Returns the stream's id, as the tasks reported it; "" without tasks."""
    queries = {message.query for message in messages if message is not None}
    if len(queries) > 1:
        raise InvalidArgument(f"one micro-batch of two streams: {', '.join(sorted(queries))}")
    return queries.pop() if queries else ""
