"""writeMode=dedupe and writeMode=pipelined: rows join their request while Spark still writes."""

from __future__ import annotations

import logging
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from fairlane.errors import RedisError, RequestEnded
from fairlane.spark.operations import direct_append
from fairlane.spark.operations.commit import seal_all
from fairlane.spark.operations.direct_append import add, begin_live, by_id, by_place
from fairlane.spark.sink.counts import hint_at_scattered, log_added
from fairlane.spark.sink.plan import one_of, run
from fairlane.spark.sink.rows import Group, Reader, RowBatch, pieces
from fairlane.spark.sink.staged import stream_place, stream_txn

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from fairlane.spark.sink.plan import WritePlan

_log = logging.getLogger("fairlane.spark")


@dataclass(slots=True)
class Added:
    """Counts what one task has brought to one request: its rows, and how many of them were new."""

    request: str
    rows: int = 0
    new: int = 0
    priority: int | None = None
    limit: int | None = None


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
        """Adds all rows. Raises as direct_append.add does, and InvalidArgument."""
        for batch in batches:
            for group in self._reader.groups(batch):
                added = self._begun(group)
                for piece in pieces(group, self.plan.batch_size):
                    self._add(added, piece)
        return list(self._added.values())

    def _begun(self, group: Group) -> Added:
        added = self._added.get(group.request)
        if added is None:
            policy = self.plan.policy_of(group.priority, group.limit)
            self.driver.run(
                begin_live(
                    group.request,
                    policy,
                    self.txn,
                    by_ids=by_ids(self.plan),
                    is_noted=self.is_noted,
                )
            )
            added = self._added[group.request] = Added(group.request)
        added.priority = one_of(group.request, "priority", added.priority, group.priority)
        added.limit = one_of(group.request, "limit", added.limit, group.limit)
        return added

    def _add(self, added: Added, piece: RowBatch) -> None:
        plan = self.plan
        if plan.id_column:
            call = by_id(added.request, piece.ids, piece.packed, self.txn, plan.policy.retain_ms)
        else:
            call = by_place(added.request, self.partition, added.rows, piece.packed, self.txn)
        added.new += self.driver.run(
            add(added.request, plan.queue, call, self.txn, plan.max_waiting)
        )
        added.rows += piece.rows


def by_ids(plan: WritePlan) -> bool:
    """Returns True if rows are recognised by id. Then any transaction may add them."""
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
        if plan.request and not plan.priority_column and not plan.limit_column:
            driver.run(
                begin_live(plan.request, plan.policy, txn, by_ids=by_ids(plan), is_noted=is_noted)
            )


def commit_live(plan: WritePlan, messages: Sequence[LiveMessage | None]) -> None:
    """Seals the written requests, if that is wanted. Warns if their rows came in many parts.

    If a request was cancelled, seals all others first, and then raises RequestEnded. Its
    remaining rows do not run.
    """
    requests = _requests(plan, messages)
    parts = sum(len(message.parts) for message in messages if message is not None)
    hint_at_scattered(plan.request_column, len(requests), parts)
    if plan.finalize:
        run(plan, seal_all(requests, plan.queue))


def abort_live(plan: WritePlan) -> None:
    """Cancels the requests that are this write's alone; others keep their rows."""
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
    """Returns the requests that were written to; without any row, the one that is named."""
    requests: dict[str, None] = {}
    if plan.request and not plan.priority_column and not plan.limit_column:
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
            by_ids=bool(self.plan.id_column),
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

        If a request was cancelled, that is logged, and the stream goes on. An error would
        come again at every restart of the stream.
        """
        try:
            commit_live(self.plan, messages)
        except RequestEnded as error:
            _log.warning("micro-batch %d: %s", batchId, error)

    def abort(self, messages: list[Any], batchId: int) -> None:  # noqa: N803  Spark's name
        """Does nothing: Spark repeats the micro-batch, which then finishes what it has begun."""
