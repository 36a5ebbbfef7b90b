"""While a unit handles one bunch, the one before is settled and the next one is fetched.

So neither Redis nor the handler waits for the other. Only for handlers that are quick: a token must
not wait in a worker for longer than about a slice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlane.errors import FairlaneError, NodeAway
from fairlane.protocol.steps import Batch, Call, Command, HandleBatch, Operation, UntilHandled
from fairlane.worker.unit.dispatch import ask_all
from fairlane.worker.unit.lease_batch import (
    Acquired,
    FollowUps,
    LeaseBatch,
    dispatch,
    fetch,
    forget,
    is_apart,
    note_settled,
    observe,
    put_back,
    settle_all,
    work_bunch,
)

if TYPE_CHECKING:
    from fairlane.protocol.steps import Handled, Popped
    from fairlane.worker.unit.unit import Lease, Unit

SHARE = 0.5  # of a slice's time: one bunch is handled while another one waits


def stream(unit: Unit, fetched: Acquired) -> Operation[list[Command | Call]]:
    """Handles bunch after bunch, until there is nothing to fetch; what is to be dispatched.

    Raises what Redis does, after what was handled is settled, if it can be.
    """
    done: list[Lease] = []
    while may_stream(unit, fetched) and not any(map(is_apart, done)):
        bunch = LeaseBatch(fetched.leases, unit.bunches.slice_s)
        handled: Handled = yield HandleBatch(bunch, _beside(unit, bunch, done, fetched.lane))
        done, left = handled.outcomes, bunch.leave()
        observe(unit, done)
        if handled.error is not None:
            late = Acquired(fetched.lane, left, is_late=True)
            if calls := (yield from work_bunch(unit, late, done)):
                yield Batch(calls)
            raise handled.error
        fetched = handled.result
        if left:
            fetched.leases = left + fetched.leases
            break
    return (yield from work_bunch(unit, fetched, done))


def may_stream(unit: Unit, fetched: Acquired) -> bool:
    """True when these leases are such that more may be fetched while they are handled."""
    is_plain = bool(fetched.leases) and not fetched.alone and not fetched.is_late
    return (
        is_plain
        and unit.is_alone
        and unit.bunches.is_quick
        and not unit.record.is_draining
        and not any(lease.slice.durable for lease in fetched.leases)
    )


def _beside(unit: Unit, bunch: LeaseBatch, done: list[Lease], lane: bytes) -> Operation[Acquired]:
    """Settles what was handled before and fetches the next: from this lane or a more urgent one.

    From no later lane: the earlier one's requests may be in our own hands, and be back in a moment.
    """
    returned, found = FollowUps(unit.queue, lane), Acquired(lane)
    left: list[Lease] = []
    try:
        popped = yield from _settle_and_pop(unit, done, returned)
        if popped is not None:
            returned.lane = popped.lane
            found = yield from fetch(unit, popped.tokens, returned, SHARE)
        else:
            yield from dispatch(unit, returned)
        if (yield UntilHandled(2 * unit.bunches.slice_s)):
            return found
        left = [*bunch.take_done(), *found.leases, *bunch.leave()]
        yield from _give_back(unit, left, found, returned)
    except FairlaneError:
        forget(unit, (lease.record for lease in (*done, *found.leases, *left)))
        raise
    return Acquired(lane)


def _settle_and_pop(unit: Unit, done: list[Lease], returned: FollowUps) -> Operation[Popped | None]:
    """Settles, and pops as many tokens as there is room for."""
    others: list[Command | Call] = [*unit.measures.due()]
    room = len(unit.free) + len(done)
    if room:
        most = unit.bunches.next(room, SHARE)
        others.append(unit.turns.ahead(returned.lane, most))
    asked = settle_all(done, *others)
    replies = (yield from ask_all(asked)) if done or others else []
    note_settled(unit, done, replies[: len(done)], returned)
    popped: Any = replies[-1] if room else None
    if isinstance(popped, NodeAway):  # the next pop waits for it, or asks another shard
        return None
    if isinstance(popped, Exception):
        yield from dispatch(unit, returned)
        raise popped
    came: Popped | None = popped
    return came


def _give_back(
    unit: Unit, left: list[Lease], found: Acquired, returned: FollowUps
) -> Operation[None]:
    """The handler takes long all of a sudden: nothing else waits for it, not even to be settled."""
    if left:
        replies = yield from ask_all(settle_all(left))
        note_settled(unit, left, replies, returned)
    put_back(returned, found.alone)
    yield from dispatch(unit, returned)
