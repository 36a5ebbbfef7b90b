"""One token, by itself: its lease, worked on and settled; it may go on with the next slice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlane import settings
from fairlane.common import clock
from fairlane.errors import FairlaneError, NodeAway
from fairlane.operations.lease import tokens
from fairlane.operations.lease.leases import acquire_call, complete, new_op, parse_acquired
from fairlane.protocol.steps import Batch
from fairlane.worker.unit.continuation import AcquiredSlice, Continuation
from fairlane.worker.unit.dispatch import ask_all, note_away, put_off, send
from fairlane.worker.unit.settle import after, while_held, work_off
from fairlane.worker.unit.unit import hold

if TYPE_CHECKING:
    from fairlane.model import Slice, Token
    from fairlane.protocol.steps import Call, Command, Operation
    from fairlane.worker.unit.unit import Unit

USED_UP = 0.9  # of a lease when its grant arrives: too late to begin anything


def use(
    unit: Unit, token: Token, lane: bytes, *, goes_on: bool = True
) -> Operation[list[Command | Call]]:
    """One token: its slice, worked on and settled; returns what is to be dispatched.

    `lane` is the key of the list that it came from. With `goes_on` the lease may go on with the
    next slice. If the request's node does not answer, its token comes back later, and a lease that
    cannot be settled expires.
    """
    sent, op = clock.mono_s(), new_op()
    # Should this process die with the answer on its way, the supervisor asks again.
    unit.record.begin_acquire(token, op)
    asked = unit.sizes.next(token.request_id)
    try:
        word, taken, rest = yield from _show(unit, token, asked, op)
    except NodeAway as error:
        unit.record.end_acquire(is_abandoned=error.was_sent)
        return [*tokens.insert_all(unit.queue, [put_off(unit, token, lane, error)])]
    if taken is not None:
        hold(unit.record, taken, sent)
    unit.record.end_acquire()
    if word == b"ended":
        return [tokens.retire(unit.queue, token.request_id, rest)]
    outgoing: list[Command | Call] = [*tokens.insert(unit.queue, token.request_id, rest)]
    if taken is None:
        return outgoing
    try:
        from_lane = lane if goes_on else b""
        outgoing = yield from _work(unit, AcquiredSlice(taken, asked, sent), from_lane, outgoing)
    except NodeAway as error:
        note_away(unit, f"left a lease of request {token.request_id} to expire", error)
        outgoing = []
    except FairlaneError:  # Redis is away: the lease expires, and the leader takes it back
        unit.record.release()
        raise
    # Anything else that is raised ends the process, and the supervisor takes back what is held.
    unit.record.release()
    return outgoing


def _show(
    unit: Unit, token: Token, asked: int, op: bytes
) -> Operation[tuple[bytes, Slice | None, list[Any]]]:
    """Notes the token and shows it; returns what `shown` returns."""
    steps: list[Command | Call] = [
        *unit.note([token.text.encode()]),
        acquire_call(token, unit.worker, unit.started, asked, op),
    ]
    # The note may fail: a full Redis refuses it.
    *_, reply = yield from ask_all(Batch(steps, lenient=True, away_s=settings.AWAY_S))
    if isinstance(reply, FairlaneError):
        raise reply
    return parse_acquired(token, op, reply)


def _work(
    unit: Unit, granted: AcquiredSlice, lane: bytes, outgoing: list[Command | Call]
) -> Operation[list[Command | Call]]:
    """Slice after slice while it goes on; what is to be dispatched, first and after it."""
    while True:
        yield from send(unit, outgoing)  # before anything else, above all before the handler
        taken = granted.slice
        if clock.mono_s() - granted.sent > taken.lease_ms / 1000 * USED_UP:
            reply = yield while_held(complete(taken, [], [], [], keep=False), unit.record)
            return after(unit, taken, reply)
        onward = Continuation(unit, lane)
        outgoing = yield from work_off(unit, taken, asked=granted.asked, onward=onward)
        outgoing += onward.outgoing
        if onward.next is None:
            return outgoing
        granted = onward.next
        outgoing += unit.measures.due()
