"""The worker's loop, without I/O: pop -> acquire -> handle -> complete -> dispatch, and again."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from fairlane import settings
from fairlane.common import clock
from fairlane.errors import FairlaneError, NodeAway
from fairlane.operations import rates, tokens
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
    from fairlane.common.rate import Rate
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
        if (rate := unit.queue_rate) is not None:
            most = min(most, rate.burst)
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
        unit.turns.record_pop(popped)
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
    unit.turns.record_pop(popped)
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
        if (rate := unit.queue_rate) is not None:
            acquired = yield from _acquire_within(unit, rate, raw, returned)
        else:
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


def _acquire_within(
    unit: Unit, rate: Rate, raw: list[bytes], returned: FollowUps
) -> Operation[Acquired]:
    """Acquires as much as the rate of the queue allows; the other tokens return to their lane.

    If it allows nothing, waits for the unit's turn at the bucket.
    """
    parsed = [token for word in raw if (token := tokens.parse(word)) is not None]
    sizes = [unit.sizer.entries(token.request_id) for token in parsed]
    want = min(settings.SLICE_MOST, max(len(raw), sum(sizes)))
    try:
        allowed, wait_ms = yield from rates.take(
            [rate], want, waits=rates.Waits.HAS if unit.has_waited else rates.Waits.NOT_YET
        )
    except NodeAway as error:
        note_away(unit, f"put tokens back: the bucket of queue {unit.queue} is away", error)
        allowed, wait_ms = 0, settings.BEAT_MS
    unit.has_waited = not allowed
    if len(raw) > allowed:
        returned.more += tokens.push(returned.lane, [*reversed(raw[allowed:])])
    if not allowed:
        yield from send(unit, [*_outgoing(unit, returned), *unit.measures.due()])
        yield from _wait(unit, rate, wait_ms / 1000)
        return Acquired(returned.lane)
    some = raw[:allowed]
    acquired = yield from acquire(
        unit, some, returned, 1.0, shared=len(some) > 1, most=allowed // len(some)
    )
    used = sum(len(lease.slice.entries) for lease in acquired.leases)
    if used < allowed:
        # An error here must not lose the leases: then that many sub-requests start later.
        with suppress(FairlaneError):
            yield from rates.refund([(rate, allowed - used)])
    return acquired


def _wait(unit: Unit, rate: Rate, seconds: float) -> Operation[None]:
    """Waits; returns earlier if the worker takes no more work, or the queue has another rate."""
    ends = clock.mono_s() + seconds
    while (left := ends - clock.mono_s()) > 0:
        if unit.record.is_draining or unit.record.is_paused or unit.queue_rate != rate:
            return
        yield Pause(min(left, settings.PAUSED_S))


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
