"""writeMode=staged: tasks write to areas that no worker reads; the driver commits the winners."""

from __future__ import annotations

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
from fairlane.errors import FairlaneError, InvalidArgument, RedisError
from fairlane.spark.operations.commit import commit, look
from fairlane.spark.operations.manifest import Share
from fairlane.spark.operations.staging import Area, joined, stage, stage_all, unstage
from fairlane.spark.sink.counts import hint_at_scattered, log_brought
from fairlane.spark.sink.plan import one_of, run
from fairlane.spark.sink.rows import Group, Reader, pieces

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from fairlane.protocol.steps import Call
    from fairlane.spark.sink.plan import WritePlan

_TOGETHER = 8  # chunks of one round trip
_HELD = 32 << 20  # bytes that wait for their chunk to fill, over all requests
_HELD_ROWS = 200_000


@dataclass(slots=True)
class Staged:
    """Counts what one task has staged for one request."""

    request: str
    area: Area
    priority: int | None = None
    limit: int | None = None


@dataclass
class StagedMessage(WriterCommitMessage):
    """Carries a task's areas to the driver. `query` is the stream's id, "" of a batch."""

    parts: list[Staged] = field(default_factory=list)
    query: str = ""


class _Filling:
    """Holds the area of one request, and the rows that wait for its next chunk."""

    def __init__(self, request: str, name: str) -> None:
        self.staged = Staged(request, Area(name, 0, 0))
        self.count = self.size = 0
        self.lengths: list[Any] = []
        self.bodies: list[Any] = []

    def take(self, count: int, packed: bytes) -> int:
        """Counts a chunk; returns its number."""
        self.staged.area = self.staged.area.grown(count, packed)
        return self.staged.area.chunks

    def hold(self, lengths: Any, bodies: Any) -> None:
        """Keeps a copy of some rows, so that their batch can go."""
        self.lengths.append(bytes(lengths))
        self.bodies.append(bytes(bodies))
        self.count += len(lengths) // 4
        self.size += len(bodies)

    def release(self) -> bytes:
        """Returns the waiting rows as one chunk."""
        packed = joined(self.count, b"".join(self.lengths), b"".join(self.bodies))
        self.lengths, self.bodies, self.count, self.size = [], [], 0, 0
        return packed


class Stager:
    """Writes the rows of one task to areas of their requests, in bounded memory."""

    def __init__(
        self, plan: WritePlan, driver: Any, txn: str, partition: int, attempt: int
    ) -> None:
        self.plan, self.driver, self.txn = plan, driver, txn
        # A restarted driver repeats the numbers of attempts, and an area must not be repeated.
        self.name = f"{partition}:{attempt}:{secrets.token_hex(4)}"
        self._reader = Reader(plan, partition)
        self._filling: dict[str, _Filling] = {}
        self._calls: list[Call] = []
        self._held = self._held_rows = 0

    def write(self, batches: Iterable[Any]) -> list[Staged]:
        """Stages all rows; returns what was staged. Raises InvalidArgument, RedisError."""
        for batch in batches:
            for group in self._reader.groups(batch):
                self._add(group)
            while self._held > _HELD or self._held_rows > _HELD_ROWS:
                self._flush(
                    max(self._filling.values(), key=lambda filling: (filling.size, filling.count))
                )
        for filling in self._filling.values():
            if filling.count:
                self._flush(filling)
        self._send()
        return [filling.staged for filling in self._filling.values()]

    def _add(self, group: Group) -> None:
        filling = self._filling.get(group.request)
        if filling is None:
            filling = self._filling[group.request] = _Filling(group.request, self.name)
        staged = filling.staged
        staged.priority = one_of(group.request, "priority", staged.priority, group.priority)
        staged.limit = one_of(group.request, "limit", staged.limit, group.limit)
        if self.plan.request:
            for piece in pieces(group, self.plan.batch_size):
                self._stage(filling, piece.rows, piece.packed)
            return
        bodies = group.bodies
        for start, end in bodies.cuts(group.start, group.end, self.plan.batch_size):
            size = bodies.size(start, end)
            if (
                filling.count + end - start > self.plan.batch_size
                or filling.size + size > settings.CHUNK_BYTES
            ):
                self._flush(filling)
            filling.hold(*bodies.part(start, end))
            self._held, self._held_rows = self._held + size, self._held_rows + end - start

    def _flush(self, filling: _Filling) -> None:
        if filling.count:
            count = filling.count
            self._held, self._held_rows = self._held - filling.size, self._held_rows - count
            self._stage(filling, count, filling.release())

    def _stage(self, filling: _Filling, count: int, packed: bytes) -> None:
        number = filling.take(count, packed)
        request, area = filling.staged.request, filling.staged.area.name
        self._calls.append(stage(request, self.txn, area, number, packed, self.plan.stage_ms))
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
        return Stager(plan, driver, txn, partition, attempt).write(batches)


def shares_of(plan: WritePlan, messages: Sequence[StagedMessage | None]) -> list[Share]:
    """Returns what all tasks have staged, by request, in the order of their partitions."""
    by_request: dict[str, list[Staged]] = {plan.request: []} if plan.request else {}
    for message in messages:
        for part in message.parts if message is not None else ():
            by_request.setdefault(part.request, []).append(part)
    shares = []
    for request, parts in by_request.items():
        priority = limit = None
        for part in parts:
            priority = one_of(request, "priority", priority, part.priority)
            limit = one_of(request, "limit", limit, part.limit)
        parts.sort(key=lambda part: int(part.area.name.partition(":")[0]))
        areas = [part.area for part in parts if part.area.rows]
        shares.append(Share(request, plan.policy_of(priority, limit), areas))
    return shares


def commit_staged(plan: WritePlan, txn: str, messages: Sequence[StagedMessage | None]) -> None:
    """Commits a transaction, and logs what came in. Raises as operations.commit.commit does."""
    shares = shares_of(plan, messages)
    parts = sum(len(share.areas) for share in shares)
    hint_at_scattered(plan.request_column, len(shares), parts)
    try:
        brought = run(plan, commit(shares, plan.transaction(txn)))
    except RedisError as error:
        raise type(error)(f"{error}; {_how_to_go_on(plan, txn)}") from error
    log_brought(txn, brought)


def _how_to_go_on(plan: WritePlan, txn: str) -> str:
    """Returns the remedy for a commit that was interrupted: only its own name continues it."""
    if txn != plan.txn:
        return "some rows may be in: start the stream again, and its commit goes on"
    return f"some rows may be in: repeat the write with the same txn, {txn}, to go on"


def abort_staged(plan: WritePlan, txn: str, messages: Sequence[StagedMessage | None]) -> None:
    """Drops the areas that were reported, unless they are pinned; the others expire."""
    areas: dict[str, list[str]] = {}
    for message in messages:
        for part in message.parts if message is not None else ():
            areas.setdefault(part.request, []).append(part.area.name)
    with closing(plan.driver()) as driver:
        for request, names in areas.items():
            driver.run(unstage(request, txn, names))


def look_first(plan: WritePlan) -> None:
    """Raises now what would keep the commit from writing to the named request."""
    if plan.request and not plan.priority_column and not plan.limit_column:
        run(plan, look(Share(plan.request, plan.policy, []), plan.transaction(plan.txn)))


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
