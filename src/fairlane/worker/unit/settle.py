"""What becomes of a lease that was worked on: settled, in parts when it takes long."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from fairlane import settings
from fairlane.common import clock
from fairlane.errors import NodeAway
from fairlane.operations.lease import tokens
from fairlane.operations.lease.leases import complete
from fairlane.operations.submit.durability import confirm_settled
from fairlane.protocol.steps import Call, Command, Handle, Operation
from fairlane.worker.unit.dispatch import send

if TYPE_CHECKING:
    from fairlane.model import Slice
    from fairlane.worker.handler.outcome import Outcome
    from fairlane.worker.lease_board import LeaseRecord
    from fairlane.worker.unit.continuation import Continuation
    from fairlane.worker.unit.unit import Unit

_log = logging.getLogger("fairlane.worker")


def work_off(
    unit: Unit,
    taken: Slice,
    record: LeaseRecord | None = None,
    first: Outcome | None = None,
    asked: int = 0,
    onward: Continuation | None = None,
) -> Operation[list[Command | Call]]:
    """Handles a slice and settles it, in parts when it takes long; what is to be dispatched.

    `first` is what a first run of the handler over it came to. `record` is where the lease stands,
    None for the unit's own; `asked`, as of a Lease; with `onward` it may go on by itself.
    """
    position, seconds, count = 0, 0.0, len(taken.entries)
    while True:
        outcome: Outcome = first or (yield Handle(taken, position, record))
        first = None
        seconds += outcome.seconds
        position = outcome.position
        keep = position < count and not outcome.is_over and seconds * 1000 < settings.SLICE_HARD_MS
        outgoing: list[Command | Call] = []
        if not keep:
            _observe(unit, taken, position, seconds, asked)
        is_last = not keep and not outcome.is_over
        reply = yield from _settle_parts(
            unit, taken, outcome, outgoing, record or unit.record, onward if is_last else None,
            keep=keep,
        )  # fmt: skip
        count_up(unit, [(taken, outcome, reply[0])], 0 if keep else 1)
        outgoing += after(unit, taken, reply)
        if not keep and reply[0] == b"ok" and not taken.waiting:
            unit.sizes.observe(taken.request_id, position, seconds)
        if not keep or reply[0] != b"ok":
            return outgoing
        yield from send(unit, outgoing)


def _settle_parts(
    unit: Unit,
    taken: Slice,
    outcome: Outcome,
    outgoing: list[Command | Call],
    record: LeaseRecord,
    onward: Continuation | None,
    *,
    keep: bool,
) -> Operation[list[Any]]:
    """Returns the reply to the last part; what the others ask to dispatch joins `outgoing`."""
    *first, last = outcome.parts()
    try:
        for part in first:
            reply = yield from _settle(unit, taken, complete(taken, *part, keep=True), record)
            outgoing += after(unit, taken, reply)
        if onward is not None and onward.is_likely(taken):
            return (yield from onward.settle(taken, last))
        return (yield from _settle(unit, taken, complete(taken, *last, keep=keep), record))
    except NodeAway:
        yield from send(unit, outgoing)
        raise


def while_held(call: Call, record: LeaseRecord) -> Call:
    """Lets the call that settles a lease be repeated while the lease is held; returns the call.

    A failover may take that long, and the work is done. Later the lease is lost anyway, because it
    can't be extended while its node is away; and the unit has other work to do.
    """
    left_s = record.deadline - clock.mono_s()
    call.away_s = min(settings.PATIENCE_S, max(settings.AWAY_S, left_s))
    return call


def _observe(unit: Unit, taken: Slice, position: int, seconds: float, asked: int) -> None:
    """What a slice teaches about the next one, before it is settled: that may take the next one.

    Sizes are remembered of so many requests only, so not of one that ends now.
    """
    if taken.waiting:
        unit.sizes.observe(taken.request_id, position, seconds)
    asked = asked if position == len(taken.entries) else 0  # what was stopped says nothing
    potential_seconds = unit.sizes.potential_seconds(
        asked, position, taken.waiting, seconds, unit.token_s
    )
    unit.bunches.observe(1, potential_seconds)


def count_up(unit: Unit, runs: list[tuple[Slice, Outcome, bytes]], slices: int) -> None:
    """What runs came to, for the board and the queue; what was refused was not settled by us."""
    found = dict.fromkeys(("done", "failed", "retries", "rejected", "timeouts", "lost", "dead"), 0)
    seconds = 0.0
    measured: dict[int, list[Any]] = {}
    for taken, outcome, word in runs:
        is_settled = word in {b"ok", b"ended"}
        failed = _count_failures(found, taken, outcome, is_settled=is_settled)
        seconds += outcome.seconds
        found["timeouts"] += outcome.timeouts
        if not is_settled:
            found["lost"] += word == b"lost"
            continue
        found["done"] += len(outcome.ids)
        row = measured.get(taken.priority)
        if row is None:
            row = measured[taken.priority] = [[], [], 0, 0]
        row[0] += outcome.waited_ms
        row[1] += outcome.ran_us
        row[2] += failed
        row[3] += outcome.timeouts
    unit.record.count(slices=slices, busy_us=int(seconds * 1e6), **found)
    for priority, row in measured.items():
        unit.measures.add(priority, *row)


def _count_failures(
    found: dict[str, int], taken: Slice, outcome: Outcome, *, is_settled: bool
) -> int:
    """Adds up the verdicts of a run; how many failed."""
    if not outcome.verdicts:
        return 0
    verdicts = [verdict.verdict for verdict in outcome.verdicts]
    rejected = verdicts.count("dead")
    failed = len(verdicts) - verdicts.count("release")
    found["failed"] += failed
    if is_settled:
        found["rejected"] += rejected
        retries = failed - rejected if taken.attempt < taken.attempts else 0
        found["retries"] += retries
        found["dead"] += failed - retries
    return failed


def _settle(unit: Unit, taken: Slice, call: Call, record: LeaseRecord) -> Operation[list[Any]]:
    """Settles, and for a durable request has it confirmed; what is not is said and counted."""
    call = while_held(call, record)
    if not taken.durable:
        settled: list[Any] = yield call
        return settled
    reply, missing = yield from confirm_settled(call, taken.request_id, taken.durable)
    if missing:
        unit.record.count(unconfirmed=1)
        _log.warning("request %s goes on, but %s", taken.request_id, missing)
    return reply


def after(unit: Unit, taken: Slice, reply: list[Any]) -> list[Command | Call]:
    """What the reply to a complete asks to dispatch."""
    word = reply[0]
    if word == b"ended":
        return [tokens.retire(unit.queue, taken.request_id, reply[1])]
    if word in {b"ok", b"already"}:
        return [*tokens.insert(unit.queue, taken.request_id, reply[-1])]
    return []  # lost or gone: somebody else's now, and the result is discarded
