"""One token, by itself: its lease, worked on and settled; it may go on with the next slice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import clock
from ..errors import FairlaneError
from ..operations import tokens
from ..operations.work import acquire, complete, new_op
from ..steps import Batch, Call, Command, Operation
from .onward import Granted, Onward
from .settle import after, work_off
from .unit import hold

if TYPE_CHECKING:
    from ..model import Token
    from .unit import Unit

USED_UP = 0.9  # of a lease when its grant arrives: too late to begin anything


def use(unit: Unit, token: Token, lane: bytes = b"") -> Operation[list[Command | Call]]:
    """One token: its slice, worked on and settled; returns what is to be dispatched.

    `lane` is the key of the list that it came from; b"" = the lease is not to go on by itself.
    """
    sent, op = clock.mono_s(), new_op()
    # Should this process die with the answer on its way, the supervisor asks again.
    unit.record.want(token, op)
    asked = unit.sizes.next(token.request_id)
    word, taken, rest = yield from acquire(token, unit.worker, unit.started, asked, op=op)
    if taken is not None:
        hold(unit.record, taken, sent)
    unit.record.unwant()
    if word == "ended":
        return [tokens.retire(unit.queue, token.request_id, rest)]
    outgoing: list[Command | Call] = [*tokens.insert(unit.queue, token.request_id, rest)]
    if taken is None:
        return outgoing
    try:
        outgoing = yield from _work(unit, Granted(taken, asked, sent), lane, outgoing)
    except FairlaneError:  # Redis is away: the lease expires, and whoever leads takes it back
        unit.record.release()
        raise
    # Anything else that is raised ends the process, and the supervisor takes back what is held.
    unit.record.release()
    return outgoing


def _work(
    unit: Unit, granted: Granted, lane: bytes, outgoing: list[Command | Call]
) -> Operation[list[Command | Call]]:
    """Slice after slice while it goes on; what is to be dispatched, first and after it."""
    while True:
        if outgoing:  # before anything else, above all before the handler
            yield Batch(outgoing)
        taken = granted.slice
        if clock.mono_s() - granted.sent > taken.lease_ms / 1000 * USED_UP:
            reply = yield complete(taken, [], [], [], keep=False)
            return after(unit, taken, reply)
        onward = Onward(unit, lane)
        outgoing = yield from work_off(unit, taken, asked=granted.asked, onward=onward)
        outgoing += onward.outgoing
        if onward.next is None:
            return outgoing
        granted = onward.next
        outgoing += unit.measures.due()
