"""Settles leases, and returns those that their unit goes on with."""

from __future__ import annotations

import logging
from itertools import chain
from typing import TYPE_CHECKING, Any

from fairlane import settings
from fairlane.common import clock
from fairlane.errors import FairlaneError, NodeAway, RedisUnreachable
from fairlane.operations.durability import confirm_settled
from fairlane.operations.lease import complete
from fairlane.operations.rates import hold
from fairlane.protocol.scripts import library
from fairlane.protocol.steps import Batch, Call, Command, LazySteps, Operation
from fairlane.worker.unit.dispatch import ask_all, dispatch, note_away
from fairlane.worker.unit.leases import Lease, release

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairlane.model import Slice
    from fairlane.operations.lease import Part
    from fairlane.protocol.replies import Reply
    from fairlane.worker.handler.outcome import Outcome
    from fairlane.worker.unit.dispatch import FollowUps
    from fairlane.worker.unit.unit import Unit

    Run = tuple[Slice, Outcome, Reply | None]  # no reply: it may not be settled

_log = logging.getLogger("fairlane.worker")
_NOTHING: Part = ([], [], [])


def settle(
    unit: Unit, done: list[Lease], waiting: list[Lease], returned: FollowUps
) -> Operation[list[Lease]]:
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
        yield from settle_together(unit, together, returned)
    going_on = []
    for lease in singly:
        if not is_only:
            yield from dispatch(unit, returned)
        going_on += yield from _settle_singly(unit, lease, returned)
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


def settle_together(
    unit: Unit, leases: list[Lease], returned: FollowUps, *others: Command | Call
) -> Operation[Sequence[Any]]:
    """Settles leases in one round trip; returns the replies to the `others` that go with them."""
    calls = chain(map(_settlement, leases), others)
    steps = LazySteps(len(leases) + len(others), calls)
    batch = Batch(steps, lenient=True, away_s=settings.BATCH_REST_S)
    replies = yield from ask_all(batch)
    _note_all(unit, leases, replies[: len(leases)], returned)
    return replies[len(leases) :]


def _settlement(lease: Lease) -> Call:
    """Returns the call that settles a lease that was handled, or gives back one not begun."""
    return complete(lease.slice, *part_of(lease), keep=False)


def part_of(lease: Lease) -> Part:
    """Returns what a lease settles in one call; nothing for one that was not begun."""
    outcome = lease.outcome
    return _NOTHING if outcome is None else (outcome.ids, outcome.results, outcome.verdicts)


def _note_all(unit: Unit, leases: list[Lease], replies: Sequence[Any], returned: FollowUps) -> None:
    """Adds what is to be dispatched, and counts what was settled."""
    settled: list[tuple[Lease, Reply | None]] = []
    read = library().complete.reply
    for lease, raw in zip(leases, replies, strict=True):
        request_id, reply = lease.slice.request_id, None
        if isinstance(raw, NodeAway):  # the lease expires
            note_away(unit, f"left a lease of request {request_id} to expire", raw)
        elif isinstance(raw, Exception):
            _log.warning("could not settle a lease of request %s: %s", request_id, raw)
        else:
            reply = read(raw)
            returned.add(request_id, reply)
        settled.append((lease, reply))
    note_settled(unit, settled)


def note_settled(unit: Unit, settled: Sequence[tuple[Lease, Reply | None]]) -> None:
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


def _settle_singly(unit: Unit, lease: Lease, returned: FollowUps) -> Operation[list[Lease]]:
    """Settles a lease; returns it if the unit goes on with it.

    If its node is away, the lease expires.
    """
    taken, outcome = lease.slice, lease.outcome
    keep = lease.goes_on
    *first, last = outcome.parts() if outcome is not None else [_NOTHING]
    try:
        for part in first:
            reply = yield from _complete(unit, lease, part, keep=True)
            returned.add(taken.request_id, reply)
        reply = yield from _complete(unit, lease, last, keep=keep)
    except NodeAway as error:
        yield from dispatch(unit, returned)
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


def _complete(unit: Unit, lease: Lease, part: Part, *, keep: bool) -> Operation[Reply]:
    """Settles one part. For a durable request it waits for replicas, and counts what is missing.

    The call is repeated while the lease is held: a failover may take that long, and the work is
    done. Later the lease is lost anyway, because its node can't extend it.
    """
    taken = lease.slice
    call = complete(taken, *part, keep=keep)
    left_s = lease.record.deadline - clock.mono_s()
    call.away_s = min(settings.PATIENCE_S, max(settings.AWAY_S, left_s))
    if not taken.durable:
        return call.reply((yield call))
    raw, missing = yield from confirm_settled(call, taken.request_id, taken.durable)
    if missing:
        unit.record.count(unconfirmed=1)
        _log.warning("request %s goes on, but %s", taken.request_id, missing)
    return call.reply(raw)


# ------------------------------------------------------------------ measurements


def note_handled(unit: Unit, done: list[Lease]) -> Operation[None]:
    """Measures leases whose turn is over, and holds requests whose handlers have asked for it.

    It must run before the leases are settled, because that mints tokens of requests to be held.
    """
    _observe(unit, done)
    for lease in done:
        if lease.outcome is not None and lease.outcome.hold_ms:
            yield from _hold(unit, lease.slice.request_id, lease.outcome.hold_ms)


def _hold(unit: Unit, request_id: str, ms: int) -> Operation[None]:
    """Holds a request. If that fails, its work must still be settled."""
    try:
        yield from hold(unit.queue, request_id, ms)
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


def _observe_settled(unit: Unit, lease: Lease, reply: Reply) -> None:
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
    rejected = verdicts.count("dead")
    failed = len(verdicts) - verdicts.count("release")
    counts["failed"] += failed
    if is_settled:
        counts["rejected"] += rejected
        retries = failed - rejected if taken.attempt < taken.attempts else 0
        counts["retries"] += retries
        counts["dead"] += failed - retries
    return failed
