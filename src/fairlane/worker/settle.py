"""The loop of a unit: settles leases, goes on with those that it keeps, and prefetches."""

from __future__ import annotations

import logging
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Any

from fairlane import settings
from fairlane.common import clock
from fairlane.errors import FairlaneError, NodeAway, RedisUnfit, RedisUnreachable
from fairlane.operations import rates, tokens
from fairlane.operations.durability import confirm_settled
from fairlane.operations.lease import complete, exchange_unit, slice_of
from fairlane.operations.rates import hold
from fairlane.operations.tokens import parse
from fairlane.protocol import keys, scripts
from fairlane.protocol.steps import Batch, Call, Command, Handle, LazySteps, Pause, UntilHandled
from fairlane.worker.feeder import MOST_RESULTS, Portion, send_exchange
from fairlane.worker.unit import (
    Acquired,
    FollowUps,
    Lease,
    LeaseBatch,
    acquire,
    ask_all,
    dispatch,
    forget,
    keep_unsent,
    log_refusals,
    note_away,
    note_lease,
    put_back,
    release,
    send,
    take_all,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairlane.common.rate import Rate
    from fairlane.model import Slice, Token
    from fairlane.operations.lease import Part
    from fairlane.protocol.scripts import CompleteReply, ExchangeReply
    from fairlane.protocol.steps import Popped
    from fairlane.worker.calls import Outcome
    from fairlane.worker.unit import Unit

    Run = tuple[Slice, Outcome, CompleteReply | None]  # no reply: it may not be settled


# ------------------------------------------------------------------ settle
# Settles leases, and returns those that their unit goes on with.


_log = logging.getLogger("fairlane.worker")
_NOTHING: Part = ([], [], [])


async def settle(
    unit: Unit, done: list[Lease], waiting: list[Lease], returned: FollowUps
) -> list[Lease]:
    """Settles leases that were handled, and gives back those that would wait for too long.

    Returns the others: one that goes on, and those that still wait. The only lease of a unit is
    settled alone, and so is a lease that needs several calls. The others share a round trip; the
    error of one lease does not affect the rest.
    """
    is_only = len(done) + len(waiting) == 1
    singly = done if is_only else [lease for lease in done if is_apart(lease)]
    fits = 0 if singly or not waiting else fitting(unit, done, len(waiting))
    together = [lease for lease in done if lease not in singly] if singly else done
    together = together + waiting[fits:]
    if together:  # before the leases that may wait for a confirmation
        await settle_together(unit, together, returned)
    going_on = []
    for lease in singly:
        if not is_only:
            await dispatch(unit, returned)
        going_on += await _settle_singly(unit, lease, returned)
    return going_on + waiting[:fits]


def is_apart(lease: Lease) -> bool:
    """Returns True if a handled lease needs several calls: it goes on, or must be confirmed."""
    outcome = lease.outcome
    if outcome is None:
        return False
    return bool(lease.slice.durable or lease.goes_on or outcome.size > settings.FLUSH_BYTES)


def fitting(unit: Unit, done: list[Lease], count: int) -> int:
    """Returns how many more leases may wait for their turn: as many as fit a slice's time."""
    if unit.record.is_draining:
        return 0
    if not done:
        return count
    seconds = sum([lease.seconds for lease in done])
    if seconds * count <= unit.sizer.slice_s * len(done):
        return count
    return int(unit.sizer.slice_s * len(done) / seconds)


# ------------------------------------------------------------------ several


async def settle_together(
    unit: Unit, leases: list[Lease], returned: FollowUps, *others: Command | Call[Any]
) -> Sequence[Any]:
    """Settles leases in one round trip; returns the replies to the `others` that go with them."""
    calls = chain(map(_settlement, leases), others)
    steps = LazySteps(len(leases) + len(others), calls)
    batch = Batch(steps, lenient=True, away_s=settings.BATCH_REST_S)
    replies = await ask_all(batch)
    _note_all(unit, leases, replies[: len(leases)], returned)
    return replies[len(leases) :]


def _settlement(lease: Lease) -> Call[CompleteReply]:
    """Returns the call that settles a lease that was handled, or gives back one not begun."""
    return complete(lease.slice, *part_of(lease), keep=False)


def part_of(lease: Lease) -> Part:
    """Returns what a lease settles in one call; nothing for one that was not begun."""
    outcome = lease.outcome
    return _NOTHING if outcome is None else (outcome.ids, outcome.results, outcome.verdicts)


def _note_all(unit: Unit, leases: list[Lease], replies: Sequence[Any], returned: FollowUps) -> None:
    """Adds what is to be dispatched, and counts what was settled."""
    settled: list[tuple[Lease, CompleteReply | None]] = []
    for lease, found in zip(leases, replies, strict=True):
        request_id, reply = lease.slice.request_id, None
        if isinstance(found, NodeAway):  # the lease expires
            note_away(unit, f"left a lease of request {request_id} to expire", found)
        elif isinstance(found, Exception):
            _log.warning("could not settle a lease of request %s: %s", request_id, found)
        else:
            reply = found
            returned.add(request_id, reply)
        settled.append((lease, reply))
    note_settled(unit, settled)


def note_settled(unit: Unit, settled: Sequence[tuple[Lease, CompleteReply | None]]) -> None:
    """Counts what was settled, and removes these leases from the board."""
    runs: list[Run] = []
    for lease, reply in settled:
        if reply is not None:
            _observe_settled(unit, lease, reply)
        if lease.outcome is not None:
            runs.append((lease.slice, lease.outcome, reply))
    release(unit, [lease for lease, _ in settled])
    if runs:
        count_up(unit, runs, len(runs))


# ------------------------------------------------------------------ one


async def _settle_singly(unit: Unit, lease: Lease, returned: FollowUps) -> list[Lease]:
    """Settles a lease; returns it if the unit goes on with it.

    If its node is away, the lease expires.
    """
    taken, outcome = lease.slice, lease.outcome
    keep = lease.goes_on
    *first, last = outcome.parts() if outcome is not None else [_NOTHING]
    try:
        for part in first:
            reply = await _complete(unit, lease, part, keep=True)
            returned.add(taken.request_id, reply)
        reply = await _complete(unit, lease, last, keep=keep)
    except NodeAway as error:
        await dispatch(unit, returned)
        note_away(unit, f"left a lease of request {taken.request_id} to expire", error)
        release(unit, [lease])
        return []
    returned.add(taken.request_id, reply)
    if outcome is not None:
        count_up(unit, [(taken, outcome, reply)], 0 if keep else 1)
    if not keep:
        _observe_settled(unit, lease, reply)
    elif reply.is_ok and outcome is not None:
        lease.position, lease.outcome, lease.goes_on = outcome.position, None, False
        return [lease]
    release(unit, [lease])
    return []


async def _complete(unit: Unit, lease: Lease, part: Part, *, keep: bool) -> CompleteReply:
    """Settles one part. For a durable request it waits for replicas, and counts what is missing.

    The call is repeated while the lease is held: a failover may take that long, and the work is
    done. Later the lease is lost anyway, because its node can't extend it.
    """
    taken = lease.slice
    call = complete(taken, *part, keep=keep)
    left_s = lease.record.deadline - clock.mono_s()
    call.away_s = min(settings.PATIENCE_S, max(settings.AWAY_S, left_s))
    if not taken.durable:
        return await call
    reply, missing = await confirm_settled(call, taken.request_id, taken.durable)
    if missing:
        unit.record.count(unconfirmed=1)
        _log.warning("request %s goes on, but %s", taken.request_id, missing)
    return reply


# ------------------------------------------------------------------ measurements


async def note_handled(unit: Unit, done: list[Lease]) -> None:
    """Measures leases whose turn is over, and holds requests whose handlers have asked for it.

    It must run before the leases are settled, because that mints tokens of requests to be held.
    """
    _observe(unit, done)
    for lease in done:
        if lease.outcome is not None and lease.outcome.hold_ms:
            await _hold(unit, lease.slice.request_id, lease.outcome.hold_ms)


async def _hold(unit: Unit, request_id: str, ms: int) -> None:
    """Holds a request. If that fails, its work must still be settled."""
    try:
        await hold(unit.queue, request_id, ms)
    except NodeAway as error:
        note_away(unit, f"did not hold request {request_id}", error)
    except RedisUnreachable:
        raise
    except FairlaneError as error:
        _log.warning("request %s is not held: %s", request_id, error)


def _observe(unit: Unit, done: list[Lease]) -> None:
    """Measures leases whose turn is over, before they are settled, to size the next slices.

    A lease that goes on is not over yet, and a lease that was not begun has no measurement.
    """
    count = size = 0
    seconds = 0.0
    for lease in done:
        taken, outcome = lease.slice, lease.outcome
        if outcome is None or lease.goes_on:
            continue
        entries, total_s = taken.entries, lease.seconds
        if taken.waiting:
            unit.sizer.observe_slice(taken.request_id, outcome.position, total_s)
        asked = lease.asked if outcome.position == len(entries) else 0  # 0: the handler was stopped
        seconds += unit.sizer.potential_seconds(
            asked, outcome.position, taken.waiting, total_s, unit.token_s
        )
        size += len(entries) * len(entries[0][1][1]) if entries else 0  # none: after an XDEL
        count += 1
    unit.sizer.observe_tokens(count, seconds, size)


def _observe_settled(unit: Unit, lease: Lease, reply: CompleteReply) -> None:
    """Learns the size of a slice behind which nothing waited, unless its request has ended.

    Sizes are kept for a limited number of requests, so ended ones must not fill the table.
    """
    outcome = lease.outcome
    if reply.is_ended:
        unit.sizer.forget(lease.slice.request_id)
    elif outcome is not None and reply.is_ok and not lease.slice.waiting:
        unit.sizer.observe_slice(lease.slice.request_id, outcome.position, lease.seconds)


def count_up(unit: Unit, runs: list[Run], slices: int) -> None:
    """Counts the outcomes of runs, for the board and the queue."""
    counts = dict.fromkeys(("done", "failed", "retries", "rejected", "timeouts", "lost", "dead"), 0)
    seconds = 0.0
    measured: dict[int, list[Any]] = {}
    for taken, outcome, reply in runs:
        # "already": the supervisor has settled it, or an earlier call whose reply was lost.
        is_settled = reply is not None and (reply.is_ok or reply.is_already or reply.is_ended)
        failed = _count_failures(counts, taken, outcome, is_settled=is_settled)
        seconds += outcome.seconds
        counts["timeouts"] += outcome.timeouts
        if not is_settled:
            counts["lost"] += reply is not None and reply.is_lost
            continue
        counts["done"] += len(outcome.ids)
        unit.measures.add_tasks(taken, outcome)
        if taken.turn and unit.turns.is_unsharded:
            unit.measures.add_cost(taken, bool(slices), outcome.seconds)
        row = measured.get(taken.priority)
        if row is None:
            row = measured[taken.priority] = [[], [], 0, 0]
        row[0] += outcome.waited_ms
        row[1] += outcome.ran_us
        row[2] += failed
        row[3] += outcome.timeouts
    unit.record.count(slices=slices, busy_us=int(seconds * 1e6), **counts)
    for priority, row in measured.items():
        unit.measures.add(priority, *row)


def _count_failures(
    counts: dict[str, int], taken: Slice, outcome: Outcome, *, is_settled: bool
) -> int:
    """Adds up the verdicts of a run; returns how many failed."""
    if not outcome.verdicts:
        return 0
    verdicts = [verdict.verdict for verdict in outcome.verdicts]
    rejected, killed = verdicts.count("dead"), verdicts.count("killed")
    failed = len(verdicts) - verdicts.count("release")
    counts["failed"] += failed
    if is_settled:
        counts["rejected"] += rejected
        retries = failed - rejected - killed if taken.attempt < taken.attempts else 0
        counts["retries"] += retries
        counts["dead"] += failed - retries
    return failed


# ------------------------------------------------------------------ exchange
# Settles leases and acquires the next ones in one round trip, where one server has all keys.
#
# On a cluster, in a queue that is spread over shards, and for durable requests the unit takes the
# same steps one by one.


def may_exchange(unit: Unit, done: list[Lease]) -> bool:
    """Returns True if one short call can settle these leases, and one server may have all keys."""
    if not unit.has_one_server or not unit.turns.is_unsharded or any(map(is_apart, done)):
        return False
    if len(done) == 1 and (only := done[0].outcome) is not None:  # most often, with a slow handler
        return len(only.ids) <= MOST_RESULTS and only.size <= settings.FLUSH_BYTES
    outcomes = [lease.outcome for lease in done if lease.outcome is not None]
    results = sum([len(outcome.ids) for outcome in outcomes])
    size = sum([outcome.size for outcome in outcomes])
    return results <= MOST_RESULTS and size <= settings.FLUSH_BYTES


async def settle_and_acquire(
    unit: Unit, done: list[Lease], waiting: list[Lease], returned: FollowUps, *, is_last: bool
) -> Acquired:
    """Settles leases that were handled, and gives back those that would wait for too long.

    Returns the leases that the unit goes on with. If none waits any more, these are the next ones,
    unless nothing is due, or each step needs a call of its own. With `is_last` none is acquired.
    """
    if may_exchange(unit, done):
        fits = fitting(unit, done, len(waiting)) if waiting else 0
        most = 0
        if unit.record.takes_ahead and not (fits or is_last):
            most = unit.sizer.tokens(len(unit.free) + len(done) + len(waiting), unit.share)
        # A request with more behind it mints a token for its lane: no later lane has its turn.
        is_going_on = any(lease.slice.waiting for lease in done)
        lanes = unit.turns.lanes(returned.lane if is_going_on else b"")
        settled = done + waiting[fits:]
        acquired = await acquire_next(unit, settled, returned, lanes, most, shared=fits > 0)
        if acquired is not None:
            acquired.leases = waiting[:fits] + acquired.leases
            returned.more += unit.measures.due()  # the unit may not come back to its pop for long
            return acquired
    leases = await settle(unit, done, waiting, returned)
    return Acquired(returned.lane, leases)


async def acquire_next(
    unit: Unit,
    done: list[Lease],
    returned: FollowUps,
    lanes: Sequence[bytes],
    most: int,
    *,
    shared: bool = False,
) -> Acquired | None:
    """Settles leases, and acquires leases for up to `most` tokens of these lanes, in one call.

    `shared`: the unit has other leases, too, so a death is charged to none. If it has none and
    takes one token at most, it makes the exchange with the other units of its process.
    None: nothing was done, because the server is a cluster, or refused to run the script. If one
    step is refused, it is repeated alone, so that its error does not affect the others.
    """
    settled = [(lease.slice, part_of(lease)) for lease in done]
    size = sum([lease.outcome.size for lease in done if lease.outcome is not None])
    portion = Portion(unit.record, settled, size, lanes, wants=most > 0)
    try:
        if unit.feeder is not None and most <= 1 and not shared:
            reply = await unit.feeder.exchange(portion)
        else:
            sender = exchange_unit(unit.queue, unit.worker, unit.started, unit.record.unit)
            sizes = unit.sizer.sizes(unit.share) if most else []
            reply = await send_exchange(sender, [portion], most, sizes, shared=shared)
    except RedisUnfit:  # the user may not read the lanes, or one is no list
        reply = None
    if reply is None:
        unit.has_one_server = False
        unit.record.end_acquire()
        return None
    add_rest(returned, reply)
    await _note_settled(unit, done, reply.settled, returned)
    acquired = await _note_acquired(unit, reply, portion, returned, shared=shared)
    acquired.is_full = 1 < most == len(reply.tokens)
    return acquired


def add_rest(returned: FollowUps, reply: ExchangeReply) -> None:
    """Adds what the script did not dispatch itself: what is due later, or was refused."""
    left, unlogged = reply.left, reply.unlogged
    for at in range(0, len(left), 4):
        returned.minted.append((left[at].decode(), left[at + 1 : at + 4]))
    for request_id, summary in zip(unlogged[::2], unlogged[1::2], strict=True):
        returned.endings.append((request_id.decode(), summary))


async def _note_settled(
    unit: Unit, done: list[Lease], replies: list[list[bytes]], returned: FollowUps
) -> None:
    read = scripts.CompleteReply.of
    settled = [(lease, read(raw)) for lease, raw in zip(done, replies, strict=True) if raw]
    note_settled(unit, settled)
    if len(settled) < len(done):
        refused = [lease for lease, raw in zip(done, replies, strict=True) if not raw]
        await settle_together(unit, refused, returned)


async def _note_acquired(
    unit: Unit, reply: ExchangeReply, asked: Portion, returned: FollowUps, *, shared: bool
) -> Acquired:
    """Puts what was acquired on the board."""
    if not reply.tokens:
        unit.record.end_acquire()
        return Acquired(returned.lane)
    op, sizes = asked.op, dict(asked.sizes)
    tokens, share = [parse(raw) for raw in reply.tokens], 1
    if len(tokens) > 1:
        shared = True
        share = max(1, sum([token.request_id in sizes for token in tokens if token]))
    read = scripts.AcquireReply.of
    leases, alone = list[Lease](), 0
    for token, raw in zip(tokens, reply.acquired, strict=True):
        if token is None or not raw:
            continue
        acquired = read(raw)
        taken = slice_of(token, op, acquired)
        if taken is not None:
            record = unit.free.pop()
            note_lease(record, taken, asked.sent, shared=shared)
            leases.append(Lease(taken, record, sizes.get(token.request_id, 1) // share or 1))
        else:
            alone += acquired.is_alone
    unit.record.end_acquire()
    if unit.record.is_revoked(op):  # the supervisor gives them back, as a call was slow meanwhile
        await settle_together(unit, leases, returned)
        leases = []
    if alone:  # the script returned these tokens to their lanes
        unit.sizer.take_singly(alone)
    if b"" in reply.acquired:
        leases += await _acquire_refused(unit, reply, returned, shared=shared)
    if not leases:
        return Acquired(returned.lane)
    last = max([lease.slice.priority for lease in leases])
    return Acquired(keys.lanes(unit.queue)[last], leases)


async def _acquire_refused(
    unit: Unit, reply: ExchangeReply, returned: FollowUps, *, shared: bool
) -> list[Lease]:
    """Acquires one by one with the tokens that the script could not acquire with."""
    leases = list[Lease]()
    for word, raw in zip(reply.tokens, reply.acquired, strict=True):
        if not raw and parse(word) is not None:
            acquired = await acquire(unit, [word], returned, unit.share, shared=shared)
            leases += acquired.leases
    return leases


# ------------------------------------------------------------------ pipeline
# While the handler works on some leases, settles the ones before and acquires the next ones.
#
# So neither Redis nor the handler waits for the other. Only for quick handlers, because a token
# must not wait in a worker for longer than about a slice.


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


async def prefetch(unit: Unit, batch: LeaseBatch, done: list[Lease], lane: bytes) -> Acquired:
    """Settles what was handled before, and acquires the next from this lane or a more urgent one.

    It acquires from no later lane: the tokens of this lane may be in our hands, and return soon.
    """
    returned, acquired = FollowUps(unit.queue, lane, on_delay=unit.on_delay), Acquired(lane)
    left: list[Lease] = []
    try:
        acquired = await _settle_and_acquire(unit, done, returned)
        await dispatch(unit, returned)
        if await UntilHandled(2 * unit.sizer.slice_s):
            return acquired
        # The handler takes long now. No other lease may wait for it, not even to be settled.
        handled = batch.take_done()
        await note_handled(unit, handled)
        left = [*handled, *acquired.leases, *take_all(batch.waiting)]
        if left:
            await settle_together(unit, left, returned)
        await put_back(unit, acquired.alone, returned)
        await dispatch(unit, returned)
    except FairlaneError:
        forget(unit, (lease.record for lease in (*done, *acquired.leases, *left)))
        raise
    return Acquired(lane)


async def _settle_and_acquire(unit: Unit, done: list[Lease], returned: FollowUps) -> Acquired:
    """Settles leases, and acquires as many as there is room for."""
    room = len(unit.free) + len(done)
    most = unit.sizer.tokens(room, unit.share) if room else 0
    if may_exchange(unit, done):
        returned.more += unit.measures.due()
        if not done and not most:
            return Acquired(returned.lane)
        lanes = unit.turns.lanes(returned.lane)
        acquired = await acquire_next(unit, done, returned, lanes, most, shared=True)
        if acquired is not None:
            return acquired
    popped = await _settle_and_pop(unit, done, returned, most)
    if popped is None:
        return Acquired(returned.lane)
    returned.lane = popped.lane
    return await acquire(unit, popped.tokens, returned, unit.share, shared=True)


async def _settle_and_pop(
    unit: Unit, done: list[Lease], returned: FollowUps, most: int
) -> Popped | None:
    """Settles leases, and pops up to `most` tokens, where each step needs its own call."""
    others: list[Command | Call[Any]] = [*unit.measures.due()]
    if most:
        others.append(unit.turns.ahead(returned.lane, most))
    if not done and not others:
        return None
    replies = await settle_together(unit, done, returned, *others)
    popped: Any = replies[-1] if most else None
    if isinstance(popped, NodeAway):  # the next pop waits for this node, or tries another shard
        return None
    if isinstance(popped, Exception):
        await dispatch(unit, returned)
        raise popped
    came: Popped | None = popped
    return came


# ------------------------------------------------------------------ loop
# The worker's loop, without I/O: pop -> acquire -> handle -> complete -> dispatch, and again.


async def serve(unit: Unit) -> None:
    """Works until the worker drains."""
    returned = FollowUps(unit.queue, on_delay=unit.on_delay)
    while not unit.record.is_draining:
        if unit.record.is_paused:
            await _rest(unit, returned)
            continue
        # What the last leases returned goes out in the same round trip as the next pop.
        most = unit.sizer.tokens(len(unit.free), unit.share)
        if (rate := unit.queue_rate) is not None:
            most = min(most, rate.burst)
        popped = await _pop(unit, [*_outgoing(unit, returned), *unit.measures.due()], most)
        if popped is not None:
            await take(unit, popped, most, returned)
    if outgoing := [*_outgoing(unit, returned), *unit.measures.rest()]:
        await Batch(outgoing)


async def _rest(unit: Unit, returned: FollowUps) -> None:
    """Dispatches what the last leases returned, and waits a moment, because the queue is paused."""
    if outgoing := [*_outgoing(unit, returned), *unit.measures.due()]:
        await send(unit, outgoing)
    await Pause(settings.PAUSED_S)


def _outgoing(unit: Unit, returned: FollowUps) -> list[Command | Call[Any]]:
    """Returns the calls to dispatch; those that were kept for unreachable shards come first."""
    unsent, unit.unsent = unit.unsent, []
    return [*unsent, *returned.calls()]


async def _pop(unit: Unit, outgoing: list[Command | Call[Any]], most: int) -> Popped | None:
    """Dispatches these steps, and pops up to `most` tokens in the same round trip.

    The pop waits at the queue's own lanes. If one of several shards is unreachable, the next one
    has its turn.
    """
    steps = [*outgoing, unit.turns.next(most)]
    popped: Popped | None
    if unit.turns.is_one:
        *_, popped = await Batch(steps)
        unit.turns.record_pop(popped)
        return popped
    replies = await ask_all(Batch(steps, lenient=True, away_s=settings.SHARD_AWAY_S))
    keep_unsent(unit, outgoing, replies[:-1])
    log_refusals(replies[:-1])
    reply = replies[-1]
    if isinstance(reply, NodeAway):
        note_away(unit, f"a shard of queue {unit.queue} is away", reply)
        await Pause(unit.turns.failed())
        return None
    if isinstance(reply, FairlaneError):
        raise reply
    popped = reply
    unit.turns.record_pop(popped)
    return popped


_KEPT_S = settings.KEY_LOOK_MS / 2000  # tokens wait no longer with their keys held


async def take(unit: Unit, popped: Popped, most: int, returned: FollowUps) -> None:
    """Works on the tokens of a pop of up to `most`."""
    raw, returned.lane = popped.tokens, popped.lane
    if b"#" not in raw[0] and keys.is_wake(popped.lane):  # no word there is like a token
        _wake_others(popped, returned)
        return
    # If the pop brought as many as were wanted, there may be more, so prefetch is worth it.
    prefetches = unit.is_alone and unit.sizer.is_quick and len(raw) == most > 1
    share = unit.share if prefetches else 1.0
    waiting: list[Token] = []
    latest = clock.mono_s() + _KEPT_S
    while raw:
        if (rate := unit.queue_rate) is not None:
            acquired = await _acquire_within(unit, rate, raw, returned)
        else:
            acquired = await acquire(unit, raw, returned, share, shared=prefetches)
        alone = await work(unit, acquired, returned, prefetches=prefetches, is_last=bool(waiting))
        if alone:
            # The others wait in their lane, or here if their keys are held for them. Acquiring them
            # together would fail again, so for a while tokens are taken one by one.
            unit.sizer.take_singly(len(alone))
            held = [one for one in alone[1:] if one in unit.kept]
            await put_back(unit, [one for one in alone[1:] if one not in held], returned)
            waiting = [alone[0], *held, *waiting]
        is_over = clock.mono_s() > latest or not unit.record.takes_ahead
        if not waiting or (is_over and not alone):
            break
        await dispatch(unit, returned)
        raw, prefetches, share = [waiting.pop(0).text.encode()], False, 1.0
    await put_back(unit, list(unit.kept), returned)


async def _acquire_within(
    unit: Unit, rate: Rate, raw: list[bytes], returned: FollowUps
) -> Acquired:
    """Acquires as much as the rate of the queue allows; the other tokens return to their lane.

    If it allows nothing, waits for the unit's turn at the bucket.
    """
    parsed = [token for word in raw if (token := tokens.parse(word)) is not None]
    sizes = [unit.sizer.entries(token.request_id) for token in parsed]
    want = min(settings.SLICE_MOST, max(len(raw), sum(sizes)))
    try:
        allowed, wait_ms = await rates.take(
            [rate], want, waits=rates.Waits.HAS if unit.has_waited else rates.Waits.NOT_YET
        )
    except NodeAway as error:
        note_away(unit, f"put tokens back: the bucket of queue {unit.queue} is away", error)
        allowed, wait_ms = 0, settings.BEAT_MS
    unit.has_waited = not allowed
    if len(raw) > allowed:
        returned.more += tokens.push(returned.lane, [*reversed(raw[allowed:])])
    if not allowed:
        await send(unit, [*_outgoing(unit, returned), *unit.measures.due()])
        await _wait(unit, rate, wait_ms / 1000)
        return Acquired(returned.lane)
    some = raw[:allowed]
    acquired = await acquire(unit, some, returned, 1.0, shared=False, most=allowed // len(some))
    used = sum(len(lease.slice.entries) for lease in acquired.leases)
    if used < allowed:
        # An error here must not lose the leases: then that many sub-requests start later.
        with suppress(FairlaneError):
            await rates.refund([(rate, allowed - used)])
    return acquired


async def _wait(unit: Unit, rate: Rate, seconds: float) -> None:
    """Waits; returns earlier if the worker takes no more work, or the queue has another rate."""
    ends = clock.mono_s() + seconds
    while (left := ends - clock.mono_s()) > 0:
        if unit.record.is_draining or unit.record.is_paused or unit.queue_rate != rate:
            return
        await Pause(min(left, settings.PAUSED_S))


async def work(
    unit: Unit,
    acquired: Acquired,
    returned: FollowUps,
    *,
    prefetches: bool = False,
    is_last: bool = False,
) -> list[Token]:
    """Handles leases in turn and settles them, until none is left.

    With `prefetches`, further leases are acquired meanwhile; with `is_last` none are. Returns
    tokens that must be acquired alone. Errors of Redis are raised after handled work is settled,
    if that is possible.
    """
    leases, acquired.leases = acquired.leases, []
    alone = acquired.alone
    done: list[Lease] = []
    failure: Exception | None = None
    prefetches = prefetches and not alone and may_prefetch(unit, leases, done)
    try:
        while leases:
            await dispatch(unit, returned)  # before anything else, above all the handler
            is_alone = len(leases) == 1 and not prefetches
            batch = LeaseBatch(leases, unit.sizer.slice_s, is_alone=is_alone)
            beside = prefetch(unit, batch, done, returned.lane) if prefetches else None
            done, acquired, error = await Handle(batch, beside)
            leases = take_all(batch.waiting) if batch.waiting else []
            await note_handled(unit, done)
            if error is not None:  # leases that were not begun are given back
                done, leases, prefetches, failure = done + leases, [], False, error
            elif prefetches:
                returned.lane, prefetches, alone = acquired.lane, not leases, acquired.alone
                leases, acquired.leases = leases + acquired.leases, []
                prefetches = prefetches and not alone and may_prefetch(unit, leases, done)
            if not prefetches:
                last = bool(is_last or alone or failure)
                settled = await settle_and_acquire(unit, done, leases, returned, is_last=last)
                returned.lane, leases, done = settled.lane, settled.leases, []
                prefetches = settled.is_full and may_prefetch(unit, leases, done)
    except FairlaneError:  # Redis is away: leases expire, and the leader reaps them
        forget(unit, [lease.record for lease in (*done, *leases)])
        raise
    if failure is not None:
        await dispatch(unit, returned)
        raise failure
    return alone


def _wake_others(popped: Popped, returned: FollowUps) -> None:
    """Puts back the words for other units of a draining worker; one word is for this unit."""
    returned.more += tokens.push(popped.lane, popped.tokens[1:], 2 * settings.BLOCK_MS)
