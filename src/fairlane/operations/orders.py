"""Orders to one worker: to show the calls that it runs, with their stacks, and to end one of them.

An order is a field of a hash of its worker, and a count in the queue's `conf` grows with it. The
supervisor of a worker reads that count with the count of cancels and with its heartbeats, and looks
for orders only if the count has changed. So no worker polls. The answer is the entry of a stream
on which the asker waits. An order and its answer are kept for a minute.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlane import settings
from fairlane.common.task_names import task_of
from fairlane.common.text import format_duration, of_queue, plural, split_names
from fairlane.errors import (
    CallNotFound,
    CallShared,
    FairlaneError,
    InvalidArgument,
    WorkerNotFound,
)
from fairlane.operations.call_words import call_words, few_body
from fairlane.operations.lease import new_op
from fairlane.operations.request_state import progress, read_holders
from fairlane.protocol import keys, scripts
from fairlane.protocol.request_hash import hmget, parse_fields
from fairlane.protocol.server_info import time_ms
from fairlane.protocol.steps import Batch, Command, run_each_or_error
from fairlane.records import KilledCall, RunningCall, WorkerCalls

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fairlane.protocol.steps import Call

KEPT_MS = 60_000  # an order that was not carried out, and an answer that was not read
ORDERS_MOST = 100  # of one worker
WORKERS_MOST = 50  # that are asked for the calls of one request
CALLS_MOST = 100  # of one answer
LINES_MOST, LINE_MOST = 30, 200  # of the stack of one call, and characters of a line
BYTES_MOST = 64 << 10  # of one answer
_WAIT_MS = 3_000  # until the worker's beat is looked at again
_WAITS = 4
VERDICTS = ("charge", "free", "dead")


@dataclass(frozen=True, slots=True)
class WorkerOrder:
    """What a worker is asked to do: `calls` or `stacks`, of all its calls or of one request's.

    `kill` names the call by its request, index, permit, fence and attempt; `verdict` is one of
    VERDICTS, and `by` names the person who asked for it.
    """

    id: str
    kind: str
    request_id: str = ""
    index: int = -1
    k: str = ""
    fence: str = ""
    attempt: int = 0
    verdict: str = ""
    by: str = ""

    @property
    def text(self) -> str:
        """Returns what `parse_order` reads."""
        return json.dumps(asdict(self), separators=(",", ":"))


def parse_order(text: bytes) -> WorkerOrder | None:
    """Returns an order; None for a text that no release of ours wrote."""
    try:
        found = json.loads(text)
        order = WorkerOrder(**{one.name: found[one.name] for one in fields(WorkerOrder)})
    except (ValueError, TypeError, KeyError):
        return None
    is_valid = all(
        type(getattr(order, one.name)).__name__ == one.type for one in fields(WorkerOrder)
    )
    return order if is_valid else None


# ------------------------------------------------------------------ the worker's side


class QueueCounts(NamedTuple):
    """What grows when workers of a queue must look at something; see read_counts."""

    cancels: bytes | None
    orders: int
    time_limits: int


async def read_counts(queue: str) -> QueueCounts:
    """Returns the counts of requests that were stopped while they ran, of orders, and of changes.

    Those changes are other time limits of requests.
    """
    step = Command(b"HMGET", keys.conf(queue), b"cancels", b"orders", b"time_limits")
    step.away_s = settings.BEAT_MS / 1000  # leases at other nodes must not wait for this node
    cancels, orders, time_limits = await step
    return QueueCounts(cancels, int(orders or 0), int(time_limits or 0))


async def read_time_limits(ids: Sequence[str]) -> dict[str, int]:
    """Returns the time limits of these requests in ms, 0 = none; not of one that cannot be read."""
    rows = await run_each_or_error([hmget(one, "time_limit_ms") for one in ids])
    found = {}
    for one, row in zip(ids, rows, strict=True):
        if not isinstance(row, FairlaneError):
            (text,) = parse_fields(("time_limit_ms",), row)
            found[one] = int(text or 0)
    return found


async def read_orders(queue: str, worker: str) -> dict[str, WorkerOrder | None]:
    """Returns the orders that wait for this worker; None for one that cannot be read."""
    row = await Command(b"HGETALL", keys.orders(queue, worker))
    pairs = zip(row[::2], row[1::2], strict=True)
    return {name.decode("ascii", "replace"): parse_order(text) for name, text in pairs}


async def read_call(request_id: str, entry_id: bytes) -> tuple[str, str]:
    """Returns the task that an unsettled sub-request calls, and the call in its short form.

    Both are "" if its body is gone, or calls no task.
    """
    text, entries, row = await Batch(
        [
            Command(b"GET", keys.few(request_id)),
            Command(b"XRANGE", keys.bodies(request_id), entry_id, entry_id, b"COUNT", 1),
            hmget(request_id, "redact"),
        ]
    )
    body = entries[0][1][1] if entries else few_body(text, int(entry_id.partition(b"-")[2]))
    (redact,) = parse_fields(("redact",), row)
    if body is None:
        return "", ""
    return task_of(body), call_words(body, split_names(redact))


def answer_call(queue: str, worker: str, order: str, text: str) -> Call[Any]:
    """Returns the call that answers an order."""
    names = (keys.orders(queue, worker), keys.answer(queue, order))
    return scripts.answer(names, order=order, text=text, ttl=KEPT_MS)


def shown_calls(calls: Iterable[RunningCall]) -> str:
    """Returns an answer with these calls, of bounded size: the longest-running ones come first."""
    rows: list[dict[str, Any]] = []
    more = size = 0
    for call in sorted(calls, key=lambda one: -one.ran_ms):
        lines = [line[:LINE_MOST] for line in call.lines[:LINES_MOST]]
        row = {name: getattr(call, name) for name in _FIELDS} | {"lines": lines}
        size += len(json.dumps(row))
        if len(rows) >= CALLS_MOST or size > BYTES_MOST:
            more += 1
        else:
            rows.append(row)
    return json.dumps({"calls": rows, "more": more})


_FIELDS = tuple(name for name in RunningCall.__dataclass_fields__ if name != "worker")


# ------------------------------------------------------------------ the asker's side


async def _ask(queue: str, worker: str, order: WorkerOrder) -> dict[str, Any]:
    """Leaves an order, and returns the worker's answer. Raises WorkerNotFound."""
    await _check_alive(queue, worker)
    names = (keys.orders(queue, worker), keys.conf(queue), keys.answer(queue, order.id))
    reply = await scripts.order(
        names, order=order.id, text=order.text, ttl=KEPT_MS, most=ORDERS_MOST
    )
    if reply.is_full:
        raise WorkerNotFound(
            f"worker {worker} has {ORDERS_MOST} orders that it has not answered: is it stopped?"
        )
    for _ in range(_WAITS):
        # A stream, because a role that pops lists could also take tokens from the lanes.
        read = await Command(b"XREAD", b"BLOCK", _WAIT_MS, b"STREAMS", names[2], b"0")
        if read:
            ((_, ((_, row), *_)),) = read
            found: dict[str, Any] = json.loads(row[1])
            return found
        await _check_alive(queue, worker)
    raise WorkerNotFound(
        f"worker {worker} beats, but has not answered for {_WAITS * _WAIT_MS // 1000} s: it may be "
        "of an earlier release"
    )


async def _check_alive(queue: str, worker: str) -> None:
    """Raises WorkerNotFound unless the worker beats; the error says what becomes of its leases."""
    beat, time = await Batch([Command(b"ZSCORE", keys.workers(queue), worker), Command(b"TIME")])
    if beat is None:
        raise WorkerNotFound(
            f"queue {queue} has no worker {worker}: fairlane workers{of_queue(queue)} lists them"
        )
    age_ms = max(0, time_ms(time) - int(float(beat)))
    if age_ms > settings.LATE_MS:
        raise WorkerNotFound(
            f"worker {worker} has not beaten for {format_duration(age_ms)}: it is stopped, cut off "
            "or dead, and its leases come back when they expire"
        )


async def is_worker(queue: str, name: str) -> bool:
    """Returns True if the queue has a worker of this id in its registry."""
    return await Command(b"ZSCORE", keys.workers(queue), name) is not None


async def worker_calls(queue: str, worker: str, *, request_id: str = "") -> WorkerCalls:
    """Returns the calls that a worker runs now, with their stacks. Raises WorkerNotFound.

    `request_id`: only those of this request.
    """
    return await _calls(queue, worker, WorkerOrder(new_op().decode(), "stacks", request_id))


async def _calls(queue: str, worker: str, order: WorkerOrder) -> WorkerCalls:
    found = await _ask(queue, keys.check_name("worker id", worker), order)
    calls = [
        RunningCall(worker=worker, **{**row, "lines": tuple(row["lines"])})
        for row in found.get("calls", ())
    ]
    return WorkerCalls(worker=worker, calls=tuple(calls), more=found.get("more", 0))


async def request_calls(request_id: str, *, kind: str = "stacks") -> list[WorkerCalls]:
    """Returns the calls of a request that run now, by worker. Raises RequestNotFound.

    A worker that does not answer has its `problem`. The answer of each is awaited in turn; at most
    50 workers are asked.
    """
    queue = (await progress(request_id)).queue
    held = await read_holders(request_id)
    workers = [*dict.fromkeys(one.worker for one in held)]
    found = []
    for worker in workers[:WORKERS_MOST]:
        try:
            order = WorkerOrder(new_op().decode(), kind, request_id)
            found.append(await _calls(queue, worker, order))
        except (WorkerNotFound, InvalidArgument) as error:
            is_known = await is_worker(queue, worker)
            text = str(error) if is_known else f"a program on {worker} holds it, and is no worker"
            found.append(WorkerCalls(worker=worker, problem=text))
    if len(workers) > WORKERS_MOST:
        text = f"{len(workers) - WORKERS_MOST} more workers hold it and were not asked"
        found.append(WorkerCalls(worker="", problem=text))
    return found


async def kill(
    request_id: str, index: int, verdict: str = "charge", *, others: bool = False, by: str = ""
) -> KilledCall:
    """Ends one call, and its process if it must. Returns what became of it.

    `verdict`: charge an attempt, which has its backoff and is dead if it was the last one; free:
    it runs again uncharged; dead: it is given up now. `others`: other calls of the process may be
    ended, too; they run again uncharged. Raises InvalidArgument, RequestNotFound, WorkerNotFound,
    CallNotFound if the call does not run any more, and CallShared.
    """
    if verdict not in VERDICTS:
        raise InvalidArgument(f"verdict {verdict!r} is not valid: choose one of {VERDICTS}")
    if isinstance(index, bool) or not isinstance(index, int) or index < 0:
        raise InvalidArgument(f"index {index!r} is not valid: a whole number from 0 is expected")
    now = await progress(request_id)
    if index >= now.total and not now.is_open:
        raise InvalidArgument(
            f"request {request_id} has {plural(now.total, 'sub-request')}, from 0: there is no "
            f"index {index}"
        )
    workers = await request_calls(request_id, kind="calls")
    calls = [call for one in workers for call in one.calls if call.index == index]
    if not calls:
        raise CallNotFound(_why_none(request_id, index, now.ended, workers))
    call = calls[0]
    if call.beside and not others:
        raise CallShared(
            f"{plural(call.beside, 'other call')} in process {call.process} of worker "
            f"{call.worker} may be ended, too, and then run again: confirm that with --yes"
        )
    order = WorkerOrder(
        new_op().decode(), "kill", request_id, index, str(call.permit), str(call.fence),
        call.attempt, verdict, by,
    )  # fmt: skip
    found = await _ask(now.queue, call.worker, order)
    if found.get("problem"):
        raise CallNotFound(str(found["problem"]))
    return KilledCall(
        id=request_id, index=index, worker=call.worker, process=call.process,
        attempt=call.attempt, attempts=call.attempts, verdict=verdict,
        ran_ms=int(found["ran_ms"]), ended_process=bool(found["ended_process"]),
        others=int(found["others"]),
    )  # fmt: skip


def _why_none(request_id: str, index: int, ended: bool, workers: Sequence[WorkerCalls]) -> str:
    what = f"no worker runs sub-request {index} of request {request_id} now"
    if ended:
        return f"{what}: the request has ended, see fairlane status {request_id}"
    problems = [one.problem for one in workers if one.problem]
    if problems:
        return f"{what}, or does not say so: {problems[0]}"
    batches = [call for one in workers for call in one.calls if call.index is None]
    if batches:
        return f"{what} alone: a call of a batch handler runs, whose sub-requests are not named"
    return f"{what}: it waits, or has just ended; fairlane status {request_id} counts them"
