"""The worker's loop, without I/O: pop -> acquire -> handle -> complete -> dispatch, and again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlane import settings
from fairlane.errors import FairlaneError, NodeAway
from fairlane.operations.lease import tokens
from fairlane.protocol import keys
from fairlane.protocol.steps import Batch, Call, Command, Handle, Operation, Pause
from fairlane.worker.unit.dispatch import (
    FollowUps,
    ask_all,
    dispatch,
    keep_unsent,
    log_refusals,
    note_away,
    send,
)
from fairlane.worker.unit.exchange import settle_and_acquire
from fairlane.worker.unit.leases import Acquired, Lease, LeaseBatch, acquire, forget, take_all
from fairlane.worker.unit.pipeline import may_prefetch, prefetch
from fairlane.worker.unit.settle import note_handled

if TYPE_CHECKING:
    from fairlane.model import Token
    from fairlane.protocol.steps import Popped
    from fairlane.worker.unit.unit import Unit


def serve(unit: Unit) -> Operation[None]:
    """Works until the worker drains."""
    returned = FollowUps(unit.queue, on_delay=unit.on_delay)
    while not unit.record.is_draining:
        if unit.record.is_paused:
            yield from _rest(unit, returned)
            continue
        # What the last leases returned goes out in the same round trip as the next pop.
        most = unit.sizer.tokens(len(unit.free), unit.share)
        popped = yield from _pop(unit, [*_outgoing(unit, returned), *unit.measures.due()], most)
        if popped is not None:
            yield from take(unit, popped, most, returned)
    if outgoing := [*_outgoing(unit, returned), *unit.measures.rest()]:
        yield Batch(outgoing)


def _rest(unit: Unit, returned: FollowUps) -> Operation[None]:
    """Dispatches what the last leases returned, and waits a moment, because the queue is paused."""
    if outgoing := [*_outgoing(unit, returned), *unit.measures.due()]:
        yield from send(unit, outgoing)
    yield Pause(settings.PAUSED_S)


def _outgoing(unit: Unit, returned: FollowUps) -> list[Command | Call]:
    """Returns the calls to dispatch; those that were kept for unreachable shards come first."""
    unsent, unit.unsent = unit.unsent, []
    return [*unsent, *returned.calls()]


def _pop(unit: Unit, outgoing: list[Command | Call], most: int) -> Operation[Popped | None]:
    """Dispatches these steps, and pops up to `most` tokens in the same round trip.

    The pop waits at the queue's own lanes. If one of several shards is unreachable, the next one
    has its turn.
    """
    steps = [*outgoing, unit.turns.next(most)]
    popped: Popped | None
    if unit.turns.is_one:
        *_, popped = yield Batch(steps)
        unit.turns.came(popped)
        return popped
    replies = yield from ask_all(Batch(steps, lenient=True, away_s=settings.SHARD_AWAY_S))
    keep_unsent(unit, outgoing, replies[:-1])
    log_refusals(replies[:-1])
    reply = replies[-1]
    if isinstance(reply, NodeAway):
        note_away(unit, f"a shard of queue {unit.queue} is away", reply)
        yield Pause(unit.turns.failed())
        return None
    if isinstance(reply, FairlaneError):
        raise reply
    popped = reply
    unit.turns.came(popped)
    return popped


def take(unit: Unit, popped: Popped, most: int, returned: FollowUps) -> Operation[None]:
    """Works on the tokens of a pop of up to `most`."""
    raw, returned.lane = popped.tokens, popped.lane
    if b"#" not in raw[0] and keys.is_wake(popped.lane):  # no word there is like a token
        _wake_others(popped, returned)
        return
    # If the pop brought as many as were wanted, there may be more, so prefetch is worth it.
    prefetches = unit.is_alone and unit.sizer.is_quick and len(raw) == most > 1
    share = unit.share if prefetches else 1.0
    while raw:
        acquired = yield from acquire(unit, raw, returned, share, shared=len(raw) > 1)
        alone = yield from work(unit, acquired, returned, prefetches=prefetches)
        if not alone:
            return
        # The others wait in their lane. Acquiring them together would fail again, so for a while
        # tokens are taken one by one.
        unit.sizer.take_singly(len(alone))
        returned.put_back(alone[1:])
        yield from dispatch(unit, returned)
        raw, prefetches, share = [alone[0].text.encode()], False, 1.0


def work(
    unit: Unit, acquired: Acquired, returned: FollowUps, *, prefetches: bool = False
) -> Operation[list[Token]]:
    """Handles leases in turn and settles them, until none is left.

    With `prefetches`, further leases are acquired meanwhile. Returns tokens that must be acquired
    alone. Errors of Redis are raised after handled work is settled, if that is possible.
    """
    leases, acquired.leases = acquired.leases, []
    alone = acquired.alone
    done: list[Lease] = []
    failure: Exception | None = None
    prefetches = prefetches and not alone and may_prefetch(unit, leases, done)
    try:
        while leases:
            yield from dispatch(unit, returned)  # before anything else, above all the handler
            is_alone = len(leases) == 1 and not prefetches
            batch = LeaseBatch(leases, unit.sizer.slice_s, is_alone=is_alone)
            beside = prefetch(unit, batch, done, returned.lane) if prefetches else None
            done, acquired, error = yield Handle(batch, beside)
            leases = take_all(batch.waiting) if batch.waiting else []
            yield from note_handled(unit, done)
            if error is not None:  # leases that were not begun are given back
                done, leases, prefetches, failure = done + leases, [], False, error
            elif prefetches:
                returned.lane, prefetches, alone = acquired.lane, not leases, acquired.alone
                leases, acquired.leases = leases + acquired.leases, []
                prefetches = prefetches and not alone and may_prefetch(unit, leases, done)
            if not prefetches:
                last = bool(alone or failure)
                settled = yield from settle_and_acquire(unit, done, leases, returned, is_last=last)
                returned.lane, leases, done = settled.lane, settled.leases, []
                prefetches = settled.is_full and may_prefetch(unit, leases, done)
    except FairlaneError:  # Redis is away: leases expire, and the leader reaps them
        forget(unit, [lease.record for lease in (*done, *leases)])
        raise
    if failure is not None:
        yield from dispatch(unit, returned)
        raise failure
    return alone


def _wake_others(popped: Popped, returned: FollowUps) -> None:
    """Puts back the words for other units of a draining worker; one word is for this unit."""
    returned.more += tokens.push(popped.lane, popped.tokens[1:], 2 * settings.BLOCK_MS)
