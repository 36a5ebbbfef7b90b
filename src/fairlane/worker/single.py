"""One token, by itself: its lease, worked on and settled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import clock
from ..errors import FairlaneError
from ..operations import tokens
from ..operations.work import acquire, complete, new_op
from ..steps import Batch, Call, Command, Operation
from .settle import after, work_off

if TYPE_CHECKING:
    from ..model import Slice, Token
    from .board import Record
    from .unit import Unit

USED_UP = 0.9  # of a lease when its grant arrives: too late to begin anything


def use(unit: Unit, token: Token) -> Operation[list[Command | Call]]:
    """One token: its slice, worked on and settled; returns what is to be dispatched."""
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
        if outgoing:  # before anything else, above all before the handler
            yield Batch(outgoing)
        if clock.mono_s() - sent > taken.lease_ms / 1000 * USED_UP:
            reply = yield complete(taken, [], [], [], keep=False)
            outgoing = after(unit, taken, reply)
        else:
            outgoing = yield from work_off(unit, taken, asked=asked)
    except FairlaneError:  # Redis is away: the lease expires, and whoever leads takes it back
        unit.record.release()
        raise
    # Anything else that is raised ends the process, and the supervisor takes back what is held.
    unit.record.release()
    return outgoing


def hold(record: Record, taken: Slice, sent: float, *, shared: bool = False) -> None:
    """Puts a lease on the board."""
    index = int(taken.entries[0][0].partition(b"-")[2]) if len(taken.entries) == 1 else -1
    record.hold(
        taken.request_id, taken.k, int(taken.fence), taken.op, sent, taken.lease_ms / 1000,
        index, shared=shared,
    )  # fmt: skip
