"""While the handler works on some leases, settles the ones before and acquires the next ones.

So neither Redis nor the handler waits for the other. Only for quick handlers, because a token must
not wait in a worker for longer than about a slice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlane.errors import FairlaneError, NodeAway
from fairlane.protocol.steps import Call, Command, Operation, UntilHandled
from fairlane.worker.unit.dispatch import FollowUps, dispatch
from fairlane.worker.unit.exchange import acquire_next, may_exchange
from fairlane.worker.unit.leases import Acquired, acquire, forget, take_all
from fairlane.worker.unit.settle import is_apart, note_handled, settle_together

if TYPE_CHECKING:
    from fairlane.protocol.steps import Popped
    from fairlane.worker.unit.leases import Lease, LeaseBatch
    from fairlane.worker.unit.unit import Unit


def may_prefetch(unit: Unit, leases: list[Lease], done: list[Lease]) -> bool:
    """Returns True if more leases may be acquired, while these are handled and `done` settled."""
    return (
        bool(leases)
        and unit.is_alone
        and unit.sizer.is_quick
        and unit.record.takes_ahead
        and not any(lease.slice.durable for lease in leases)
        and not any(map(is_apart, done))
    )


def prefetch(unit: Unit, batch: LeaseBatch, done: list[Lease], lane: bytes) -> Operation[Acquired]:
    """Settles what was handled before, and acquires the next from this lane or a more urgent one.

    It acquires from no later lane: the tokens of this lane may be in our hands, and return soon.
    """
    returned, acquired = FollowUps(unit.queue, lane, on_delay=unit.on_delay), Acquired(lane)
    left: list[Lease] = []
    try:
        acquired = yield from _settle_and_acquire(unit, done, returned)
        yield from dispatch(unit, returned)
        if (yield UntilHandled(2 * unit.sizer.slice_s)):
            return acquired
        # The handler takes long now. No other lease may wait for it, not even to be settled.
        handled = batch.take_done()
        yield from note_handled(unit, handled)
        left = [*handled, *acquired.leases, *take_all(batch.waiting)]
        if left:
            yield from settle_together(unit, left, returned)
        returned.put_back(acquired.alone)
        yield from dispatch(unit, returned)
    except FairlaneError:
        forget(unit, (lease.record for lease in (*done, *acquired.leases, *left)))
        raise
    return Acquired(lane)


def _settle_and_acquire(unit: Unit, done: list[Lease], returned: FollowUps) -> Operation[Acquired]:
    """Settles leases, and acquires as many as there is room for."""
    room = len(unit.free) + len(done)
    most = unit.sizer.tokens(room, unit.share) if room else 0
    if may_exchange(unit, done):
        returned.more += unit.measures.due()
        if not done and not most:
            return Acquired(returned.lane)
        lanes = unit.turns.lanes(returned.lane)
        acquired = yield from acquire_next(unit, done, returned, lanes, most, shared=True)
        if acquired is not None:
            return acquired
    popped = yield from _settle_and_pop(unit, done, returned, most)
    if popped is None:
        return Acquired(returned.lane)
    returned.lane = popped.lane
    return (yield from acquire(unit, popped.tokens, returned, unit.share, shared=True))


def _settle_and_pop(
    unit: Unit, done: list[Lease], returned: FollowUps, most: int
) -> Operation[Popped | None]:
    """Settles leases, and pops up to `most` tokens, where each step needs its own call."""
    others: list[Command | Call] = [*unit.measures.due()]
    if most:
        others.append(unit.turns.ahead(returned.lane, most))
    if not done and not others:
        return None
    replies = yield from settle_together(unit, done, returned, *others)
    popped: Any = replies[-1] if most else None
    if isinstance(popped, NodeAway):  # the next pop waits for this node, or tries another shard
        return None
    if isinstance(popped, Exception):
        yield from dispatch(unit, returned)
        raise popped
    came: Popped | None = popped
    return came
