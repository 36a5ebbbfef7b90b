"""Settles leases and acquires the next ones in one round trip, where one server has all keys.

On a cluster, in a queue that is spread over shards, and for durable requests the unit takes the
same steps one by one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlane import settings
from fairlane.common import clock
from fairlane.errors import RedisUnfit
from fairlane.operations.lease import exchange, exchange_unit, new_op, slice_of
from fairlane.operations.tokens import parse
from fairlane.protocol import keys
from fairlane.protocol.scripts import library
from fairlane.worker.unit.leases import Acquired, Lease, acquire, hold
from fairlane.worker.unit.settle import (
    fitting,
    is_apart,
    note_settled,
    part_of,
    settle,
    settle_together,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairlane.protocol.replies import Reply
    from fairlane.protocol.steps import Operation
    from fairlane.worker.unit.dispatch import FollowUps
    from fairlane.worker.unit.unit import Unit


_MOST_RESULTS = 2_000  # of one call, which must not keep Redis busy for long


def may_exchange(unit: Unit, done: list[Lease]) -> bool:
    """Returns True if one short call can settle these leases, and one server may have all keys."""
    if not unit.has_one_server or not unit.turns.is_unsharded or any(map(is_apart, done)):
        return False
    if len(done) == 1 and (only := done[0].outcome) is not None:  # most often, with a slow handler
        return len(only.ids) <= _MOST_RESULTS and only.size <= settings.FLUSH_BYTES
    outcomes = [lease.outcome for lease in done if lease.outcome is not None]
    results = sum([len(outcome.ids) for outcome in outcomes])
    size = sum([outcome.size for outcome in outcomes])
    return results <= _MOST_RESULTS and size <= settings.FLUSH_BYTES


def settle_and_acquire(
    unit: Unit, done: list[Lease], waiting: list[Lease], returned: FollowUps, *, is_last: bool
) -> Operation[Acquired]:
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
        acquired = yield from acquire_next(unit, settled, returned, lanes, most)
        if acquired is not None:
            acquired.leases = waiting[:fits] + acquired.leases
            returned.more += unit.measures.due()  # the unit may not come back to its pop for long
            return acquired
    leases = yield from settle(unit, done, waiting, returned)
    return Acquired(returned.lane, leases)


def acquire_next(
    unit: Unit,
    done: list[Lease],
    returned: FollowUps,
    lanes: Sequence[bytes],
    most: int,
    *,
    shared: bool = False,
) -> Operation[Acquired | None]:
    """Settles leases, and acquires leases for up to `most` tokens of these lanes, in one call.

    `shared`: the unit has other leases, too, so a death is charged to none.
    None: nothing was done, because the server is a cluster, or refused to run the script. If one
    step is refused, it is repeated alone, so that its error does not affect the others.
    """
    sent, op = clock.mono_s(), new_op()
    sizes = unit.sizer.sizes(unit.share) if most else []
    step = exchange(
        exchange_unit(unit.queue, unit.worker, unit.started, unit.record.unit), op,
        ((lease.slice, part_of(lease)) for lease in done),
        lanes=lanes, want=most, shared=shared, sizes=sizes,
    )  # fmt: skip
    # If this process dies before the reply, the supervisor sends the exchange again.
    unit.record.begin_exchange(op)
    try:
        raw = yield step
    except RedisUnfit:  # the user may not read the lanes, or one is no list
        raw = None
    if raw is None:
        unit.has_one_server = False
        unit.record.end_acquire()
        return None
    reply = library().exchange.reply(raw)
    add_rest(returned, reply)
    yield from _note_settled(unit, done, reply.settled, returned)
    acquired = yield from _note_acquired(
        unit, reply, op, sent, dict(sizes), returned, shared=shared
    )
    acquired.is_full = 1 < most == len(reply.tokens)
    return acquired


def add_rest(returned: FollowUps, reply: Reply) -> None:
    """Adds what the script did not dispatch itself: what is due later, or was refused."""
    left, unlogged = reply.left, reply.unlogged
    for at in range(0, len(left), 4):
        returned.minted.append((left[at].decode(), left[at + 1 : at + 4]))
    for request_id, summary in zip(unlogged[::2], unlogged[1::2], strict=True):
        returned.endings.append((request_id.decode(), summary))


def _note_settled(
    unit: Unit, done: list[Lease], replies: list[list[bytes]], returned: FollowUps
) -> Operation[None]:
    read = library().complete.reply
    settled = [(lease, read(raw)) for lease, raw in zip(done, replies, strict=True) if raw]
    note_settled(unit, settled)
    if len(settled) < len(done):
        refused = [lease for lease, raw in zip(done, replies, strict=True) if not raw]
        yield from settle_together(unit, refused, returned)


def _note_acquired(
    unit: Unit,
    reply: Reply,
    op: bytes,
    sent: float,
    sizes: dict[str, int],
    returned: FollowUps,
    *,
    shared: bool,
) -> Operation[Acquired]:
    """Puts what was acquired at `sent` on the board."""
    if not reply.tokens:
        unit.record.end_acquire()
        return Acquired(returned.lane)
    tokens, share = [parse(raw) for raw in reply.tokens], 1
    if len(tokens) > 1:
        shared = True
        share = max(1, sum([token.request_id in sizes for token in tokens if token]))
    read = library().acquire.reply
    leases, alone = list[Lease](), 0
    for token, raw in zip(tokens, reply.acquired, strict=True):
        if token is None or not raw:
            continue
        acquired = read(raw)
        taken = slice_of(token, op, acquired)
        if taken is not None:
            record = unit.free.pop()
            hold(record, taken, sent, shared=shared)
            leases.append(Lease(taken, record, sizes.get(token.request_id, 1) // share or 1))
        else:
            alone += acquired.is_alone
    unit.record.end_acquire()
    if unit.record.is_revoked(op):  # the supervisor gives them back, as a call was slow meanwhile
        yield from settle_together(unit, leases, returned)
        leases = []
    if alone:  # the script returned these tokens to their lanes
        unit.sizer.take_singly(alone)
    if b"" in reply.acquired:
        leases += yield from _acquire_refused(unit, reply, returned, shared=shared)
    if not leases:
        return Acquired(returned.lane)
    last = max([lease.slice.priority for lease in leases])
    return Acquired(keys.lanes(unit.queue)[last], leases)


def _acquire_refused(
    unit: Unit, reply: Reply, returned: FollowUps, *, shared: bool
) -> Operation[list[Lease]]:
    """Acquires one by one with the tokens that the script could not acquire with."""
    leases = list[Lease]()
    for word, raw in zip(reply.tokens, reply.acquired, strict=True):
        if not raw and parse(word) is not None:
            acquired = yield from acquire(unit, [word], returned, unit.share, shared=shared)
            leases += acquired.leases
    return leases
