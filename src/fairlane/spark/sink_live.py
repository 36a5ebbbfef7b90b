"""mode=dedupe and mode=pipelined: rows join their request while Spark still writes."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from ..operations.control import cancel
from ..operations.live import add, begin_live, by_id, by_place, is_own
from ..operations.roll import seal
from .sink import one_of, run
from .sink_rows import Group, Piece, Reader, pieces
from .sink_staged import query_of, stream_place, stream_txn

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from .sink import Plan


@dataclass(slots=True)
class Added:
    """What one task has brought to one request: its rows, and how many of them were new."""

    request: str
    rows: int = 0
    new: int = 0
    priority: int | None = None
    limit: int | None = None


@dataclass
class LiveMessage(WriterCommitMessage):
    """What a task tells the driver. `query` is the stream's id, "" of a batch."""

    parts: list[Added] = field(default_factory=list)
    query: str = ""


class Adder:
    """Adds the rows of one task to their requests."""

    def __init__(self, plan: Plan, driver: Any, txn: str, partition: int) -> None:
        self.plan, self.driver = plan, driver
        self.txn = plan.transaction(txn)
        self.partition = partition
        self._reader = Reader(plan, partition)
        self._added: dict[str, Added] = {}

    def write(self, batches: Iterable[Any]) -> list[Added]:
        """Adds all rows. Raises as operations.live.add does, and InvalidArgument."""
        for batch in batches:
            for group in self._reader.groups(batch):
                one = self._begun(group)
                for piece in pieces(group, self.plan.batch_size):
                    self._add(one, piece)
        return list(self._added.values())

    def _begun(self, group: Group) -> Added:
        one = self._added.get(group.request)
        if one is None:
            policy = self.plan.policy_of(group.priority, group.limit)
            self.driver.run(begin_live(group.request, policy, self.txn, by_ids=by_ids(self.plan)))
            one = self._added[group.request] = Added(group.request)
        one.priority = one_of(group.request, "priority", one.priority, group.priority)
        one.limit = one_of(group.request, "limit", one.limit, group.limit)
        return one

    def _add(self, one: Added, piece: Piece) -> None:
        plan = self.plan
        if plan.id_column:
            call = by_id(one.request, piece.ids, piece.packed, self.txn, plan.policy.retain_ms)
        else:
            call = by_place(one.request, self.partition, one.rows, piece.packed, self.txn)
        one.new += self.driver.run(add(one.request, plan.queue, call, plan.max_waiting))
        one.rows += piece.rows


def by_ids(plan: Plan) -> bool:
    """True when it is no matter which transaction brings a row."""
    return plan.mode == "dedupe"


def add_rows(plan: Plan, txn: str, batches: Iterator[Any]) -> list[Added]:
    """Adds the rows of the task that runs here."""
    task = TaskContext.get()
    with closing(plan.driver()) as driver:
        return Adder(plan, driver, txn, task.partitionId() if task else 0).write(batches)


def begin_first(plan: Plan) -> None:
    """The request that is named comes into being before the first task, or is refused."""
    if plan.request and not plan.priority_column and not plan.limit_column:
        txn = plan.transaction(plan.txn)
        run(plan, begin_live(plan.request, plan.policy, txn, by_ids=by_ids(plan)))


def commit_live(plan: Plan, messages: Sequence[LiveMessage | None]) -> None:
    """Seals what was written, if that is wanted."""
    if not plan.finalize:
        return
    with closing(plan.driver()) as driver:
        for request in _requests(plan, messages):
            driver.run(seal(request, plan.queue))


def abort_live(plan: Plan, txn: str, messages: Sequence[LiveMessage | None]) -> None:
    """Cancels the requests that were this transaction's alone; others keep what they got."""
    own = plan.transaction(txn)
    if by_ids(plan) or not plan.finalize:
        return
    with closing(plan.driver()) as driver:
        for request, terms in _requests(plan, messages).items():
            if driver.run(is_own(request, plan.policy_of(*terms), own)):
                driver.run(cancel(request, "its write by Spark has failed", queue=plan.queue))


def _requests(
    plan: Plan, messages: Sequence[LiveMessage | None]
) -> dict[str, tuple[int | None, int | None]]:
    """The requests that are known to be written to, with the terms their rows said."""
    found: dict[str, tuple[int | None, int | None]] = {}
    if plan.request and not plan.priority_column and not plan.limit_column:
        found[plan.request] = (None, None)
    for message in messages:
        for one in message.parts if message is not None else ():
            found[one.request] = (one.priority, one.limit)
    return found


class LiveWriter(DataSourceArrowWriter):
    """One batch is one transaction."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def write(self, iterator: Iterator[Any]) -> LiveMessage:
        """Runs in each task."""
        return LiveMessage(add_rows(self.plan, self.plan.txn, iterator))

    def commit(self, messages: list[Any]) -> None:
        """Runs once, when every task has ended well."""
        commit_live(self.plan, messages)

    def abort(self, messages: list[Any]) -> None:
        """Runs when a task or the commit has failed."""
        abort_live(self.plan, self.plan.txn, messages)


class LiveStreamWriter(DataSourceStreamArrowWriter):
    """Each micro-batch is a transaction, named by the stream and its number."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def write(self, iterator: Iterator[Any]) -> LiveMessage:
        """Runs in each task."""
        query, number = stream_place()
        return LiveMessage(add_rows(self.plan, stream_txn(query, number), iterator), query)

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: ARG002, N803  Spark's
        """Runs once for a micro-batch, and again when Spark does not know that it ran."""
        commit_live(self.plan, messages)

    def abort(self, messages: list[Any], batchId: int) -> None:  # noqa: N803  Spark's name
        """Runs when a task or the commit has failed; the micro-batch will come again."""
        abort_live(self.plan, stream_txn(query_of(messages), batchId), messages)
