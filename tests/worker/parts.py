"""Builders for tests of a worker's parts: a unit, a slice, replies as Redis sends them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.common import clock
from fairlane.model import Slice
from fairlane.protocol.steps import Batch, Command, Handle, Handled, forward, key_of
from fairlane.worker import Context, batch_handler
from fairlane.worker.board import LeaseBoard, LeaseRecord
from fairlane.worker.calls import Outcome
from fairlane.worker.handlers import shape_of
from fairlane.worker.measures import Metrics
from fairlane.worker.settle import work
from fairlane.worker.unit import Acquired, FollowUps, Lease, Sizer, Unit, note_lease
from tests.support.servers import backends

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlane.model import Entry
    from fairlane.protocol.steps import Operation

OP = b"0123456789abcdef0123456789abcdef"
TAKEN_MS = 1_700_000_000_500
SUBMITTED_MS = 1_700_000_000_000


def entries_of(*bodies: bytes) -> list[Entry]:
    """Returns sub-requests as a reply has them."""
    return [(b"%d-%d" % (SUBMITTED_MS, i), (b"b", body)) for i, body in enumerate(bodies)]


def slice_of(*bodies: bytes, **changed: Any) -> Slice:
    """Returns a slice of request `r1`, first attempt."""
    given: dict[str, Any] = {
        "request_id": "r1",
        "k": "0",
        "fence": b"7",
        "op": OP,
        "attempt": 1,
        "attempts": 5,
        "backoff_ms": (1_000, 300_000),
        "lease_ms": 30_000,
        "priority": 5,
        "taken_ms": TAKEN_MS,
        "entries": entries_of(*bodies),
    }
    return Slice(**(given | changed))


def record_of_its_own() -> LeaseRecord:
    """Returns the record of a board of one unit."""
    return LeaseBoard(1).records[0]


def unit_of_its_own(slice_ms: float = 20.0, *, has_one_server: bool = False) -> Unit:
    """Returns a unit without leases or measures; it takes the steps of a cluster."""
    unit = Unit("req", "w:1", "7", record_of_its_own(), Sizer(slice_ms), Metrics("req"))
    unit.has_one_server = has_one_server
    return unit


def granted(
    *bodies: bytes, tokens: tuple[Any, ...] = (), fence: int = 7, waiting: int = 0
) -> list[Any]:
    """Returns the reply of acquire that grants a slice."""
    policy = [TAKEN_MS, SUBMITTED_MS, 30_000, 5, 1_000, 300_000, 5, 0, 0, waiting, b""]
    return [b"ok", b"%d" % fence, 1, policy, entries_of(*bodies), list(tokens)]


# ------------------------------------------------------------------ steps without their notes


async def unnoted(operation: Operation[Any]) -> Any:
    """Runs an operation without the notes of the tokens it takes: test_notes.py is about these."""
    reply: Any = None
    failure: Exception | None = None
    while True:
        try:
            step = operation.send(reply) if failure is None else operation.throw(failure)
        except StopIteration as end:
            return end.value
        reply = failure = None
        try:
            reply = await _ask_without_note(step)
        except Exception as error:  # noqa: BLE001  the operation decides what it means
            failure = error


async def _ask_without_note(step: Any) -> Any:
    if isinstance(step, Handle):
        meanwhile = None if step.meanwhile is None else unnoted(step.meanwhile)
        reply = await Handle(step.leases, meanwhile)
        return handled(step, reply) if isinstance(reply, Outcome) else reply
    if not isinstance(step, Batch) or not any(map(is_note, step.steps)):
        return await forward(step)
    kept: Any = [one for one in step.steps if not is_note(one)]
    is_single = len(kept) == 1 and kept[0].args[kept[0].script.params.index("shared")] == b""
    replies = (
        [await kept[0]]
        if is_single
        else await Batch(kept, lenient=step.lenient, away_s=step.away_s)
    )
    rest = iter(replies)
    return [1 if is_note(one) else next(rest) for one in step.steps]


def handled(step: Handle, outcome: Outcome) -> Handled:
    """Returns the reply to a step of one lease that had this outcome."""
    lease = step.leases.take()
    assert lease is not None
    lease.note(outcome)
    return Handled([lease])


async def work_off(unit: Unit, taken: Slice, lane: bytes = b"") -> list[Any]:
    """Runs a unit over its one lease; returns what must be dispatched."""
    record, returned = unit.free.pop(), FollowUps(unit.queue, lane)
    note_lease(record, taken, clock.mono_s())
    await unnoted(work(unit, Acquired(lane, [Lease(taken, record)]), returned))
    return returned.calls()


def is_note(step: Any) -> bool:
    """Returns True for a command that notes in the dispatch slot what a worker took."""
    return isinstance(step, Command) and b":taken:" in (key_of(step) or b"")


# ------------------------------------------------------------------ a runner

Run = Any  # the type of the fixture `run`: a function that returns an Outcome


def made_async(handler: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the same handler as an `async def`, with the same shape."""
    shape = shape_of(handler)

    async def alone(body: Any) -> Any:
        await asyncio.sleep(0)
        return handler(body)

    async def informed(body: Any, context: Context) -> Any:
        await asyncio.sleep(0)
        return handler(body, context)

    made = informed if shape.wants_context else alone
    return batch_handler(made) if shape.is_batch else made


def pairs(outcome: Outcome) -> list[tuple[bytes, Any]]:
    """Returns (head without its times, body) of each result."""
    heads, bodies = outcome.results[::2], outcome.results[1::2]
    return [
        (b":".join(bytes(head).split(b":")[:4]), body)  # type: ignore[arg-type]
        for head, body in zip(heads, bodies, strict=True)
    ]


def indexes(ids: list[bytes]) -> list[int]:
    """Returns the indexes of these entries."""
    return [int(entry_id.partition(b"-")[2]) for entry_id in ids]


def failed(outcome: Outcome) -> list[int]:
    """Returns the indexes of the sub-requests that failed."""
    return indexes([verdict.entry_id for verdict in outcome.verdicts])


# Parametrizes `redis_server` with one kind. What such a test is about (processes, signals, order)
# is the same on every kind of server, while the way of the data is tested on all of them.
# For what only a server with all keys has, whatever kinds are named.
ON_ONE_SERVER = pytest.mark.parametrize("redis_server", ["single"], indirect=True)
ON_SINGLE = pytest.mark.parametrize("redis_server", backends.one(), indirect=True)
