"""Drives units of a worker step by step, without Redis: a test gives every reply by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlane.protocol.steps import (
    Batch,
    Call,
    Command,
    Handle,
    Handled,
    Operation,
    Pop,
    Popped,
    SingleServer,
)
from fairlane.worker.board import LeaseBoard
from fairlane.worker.calls import Outcome, Runner
from fairlane.worker.handlers import shape_of
from fairlane.worker.measures import Metrics
from fairlane.worker.settle import serve
from fairlane.worker.unit import Sizer, Unit
from tests.worker.parts import entries_of, unnoted

if TYPE_CHECKING:
    from fairlane.worker.board import LeaseRecord

LANE = b"{req}:5"
POPPED = Popped(LANE, [b"r1#0.3"])
SUMMARY = [b"done", 1, 3, 3, 0, 0, 9, 5, b"", 3_600_000, b""]
TOKENS = (b"5", b"1.4", 0)
MORE = [b"5", b"2.9", 250]


# ------------------------------------------------------------------ steps


def names_of(step: Any) -> list[str]:
    """Returns what a step is made of: script names, commands, "handle"."""
    match step:
        case Batch():
            return [name for part in step.steps for name in names_of(part)]
        case SingleServer():
            return names_of(step.step)
        case Call():
            return [step.script.name]
        case Pop():
            return ["pop"]
        case Command():
            return [bytes(step.args[0]).decode()]  # type: ignore[arg-type]
        case Handle():
            return ["handle"]
    raise AssertionError(step)


def argument(call: Any, name: str) -> Any:
    """Returns one named argument of a script call."""
    assert isinstance(call, Call)
    found = call.args[call.script.params.index(name)]
    return int(found) if name in {"count", "done"} else found


def rest_of(call: Any) -> list[Any]:
    """Returns the arguments after the named ones."""
    return list(call.args[len(call.script.params) :])


# ------------------------------------------------------------------ units


def quick_unit(spare: int = 7, *, each_s: float = 0.001, **changed: Any) -> Unit:
    """Makes a unit that has measured its handler: so many seconds a token.

    It takes the steps of a cluster, unless `has_one_server` is given.
    """
    board = LeaseBoard(1, spare)
    sizer = Sizer(20, 128)
    sizer.observe_tokens(32, 32 * each_s)
    own, *others = board.records
    given: dict[str, Any] = {"spare": tuple(others), "has_one_server": False} | changed
    return Unit("req", "w:1", "7", own, sizer, Metrics("req"), **given)


def held(unit: Unit) -> list[str]:
    """Returns the requests of which leases are on the board."""
    records = (unit.record, *unit.spare)
    return sorted(lease.request_id for record in records if (lease := record.held()))


def begin(unit: Unit) -> tuple[Any, Any]:
    """Starts a unit's loop: the loop, and its first step."""
    loop: Operation[None] = unnoted(serve(unit))
    return loop, loop.send(None)


def popped(count: int, first: int = 0, lane: bytes = LANE) -> Popped:
    """Returns so many tokens of as many requests, numbered from the first on."""
    return Popped(lane, [b"r%d#0.3" % i for i in range(first, first + count)])


def show(unit: Unit, count: int) -> tuple[Any, Any]:
    """Has a unit pop so many tokens: the loop, and the step that acquires with them."""
    loop, _ = begin(unit)
    step = loop.send([popped(count)])
    assert names_of(step) == ["acquire"] * count
    return loop, step


def take(unit: Unit, *replies: Any) -> tuple[Any, Any]:
    """Has a unit acquire with a token for each reply: the loop, and the step after that.

    A single token is one of the request r1; several are of r0, r1, and so on.
    """
    if len(replies) > 1:
        loop, _ = show(unit, len(replies))
        return loop, loop.send([*replies])
    loop, _ = begin(unit)
    assert names_of(loop.send([POPPED])) == ["acquire"]
    return loop, loop.send(replies[0])


def drain(unit: Unit) -> None:
    """Sets the flag of a draining worker: it takes nothing new."""
    unit.record._worker.is_draining = True


# ------------------------------------------------------------------ what a handler did


def echo(body: bytes) -> bytes:
    """Returns the body."""
    return body


def done(count: int, position: int | None = None, **changed: Any) -> Outcome:
    """Makes an outcome of `count` results."""
    ids = [entry_id for entry_id, _ in entries_of(*[b"x"] * count)]
    results: list[Any] = [b"head", b"body"] * count
    return Outcome(count if position is None else position, 0.001, ids, results, **changed)


def handle(step: Any, handler: Any, own: LeaseRecord) -> Handled:
    """Runs a handler over the leases of a step, as a driver does, and returns the reply."""
    assert isinstance(step, Handle)
    return Handled(Runner(shape_of(handler), own).run(step.leases))


def not_begun(step: Any) -> Handled:
    """Returns the reply of a runner that called its handler for none of the leases."""

    def never(_: bytes) -> None:
        raise AssertionError("the handler is called")

    reply = handle(step, never, step.leases.waiting[0].record)
    assert [lease.outcome for lease in reply.leases] == [None] * len(reply.leases)
    return reply
