"""Several leases of one unit: shown in one round trip, handled in turn, settled in one."""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

from fairlane import settings
from fairlane.common import clock
from fairlane.errors import FairlaneError, NodeAway
from fairlane.operations.lease import tokens
from fairlane.operations.lease.leases import acquire_call, complete, new_op, parse_acquired
from fairlane.protocol.steps import Batch, Call, Command, HandleBatch, LazySteps, Operation
from fairlane.worker.unit.dispatch import (
    ask_all,
    keep_unsent,
    log_refusals,
    note_away,
    put_off,
    send,
)
from fairlane.worker.unit.settle import count_up, work_off
from fairlane.worker.unit.single import USED_UP, use
from fairlane.worker.unit.unit import Lease, hold

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fairlane.model import Slice, Token
    from fairlane.protocol.steps import Handled
    from fairlane.worker.handler.outcome import Outcome
    from fairlane.worker.lease_board import LeaseRecord
    from fairlane.worker.unit.unit import Unit

_log = logging.getLogger("fairlane.worker")


class LeaseBatch:
    """Leases that are handled one after the other; who holds them may take back what is left.

    Each is taken by one thread, whichever was first: a deque's ends are safe to pull at.
    """

    def __init__(self, leases: Iterable[Lease], slice_s: float) -> None:
        self._todo = deque(leases)
        self.done: deque[Lease] = deque()  # they had their turn, and nobody has settled them
        self.slice_s = slice_s  # when so much time is used up, what is done should be settled

    @property
    def waiting(self) -> list[Lease]:
        """Those that nobody has begun so far."""
        return list(self._todo)

    def take(self) -> Lease | None:
        """The next one to be handled."""
        try:
            return self._todo.popleft()
        except IndexError:
            return None

    def leave(self) -> list[Lease]:
        """Those that nobody has begun, which nobody will any more."""
        return _all_of(self._todo)

    def take_done(self) -> list[Lease]:
        """Those that had their turn, for whoever settles them."""
        return _all_of(self.done)


def _all_of(some: deque[Lease]) -> list[Lease]:
    found = []
    with contextlib.suppress(IndexError):
        while True:
            found.append(some.popleft())
    return found


@dataclass(slots=True)
class FollowUps:
    """What replies ask to dispatch, of many requests, in few calls."""

    queue: str
    lane: bytes = b""  # the key of the list the tokens came from
    minted: list[tokens.Minted] = field(default_factory=list)
    endings: list[tokens.Ending] = field(default_factory=list)
    more: list[Command | Call] = field(default_factory=list)

    def add(self, request_id: str, word: bytes, rest: list[Any]) -> None:
        """The word of a reply and what came with it."""
        if word == b"ended":
            self.endings.append((request_id, rest))
        elif rest:
            self.minted.append((request_id, rest))

    def calls(self) -> list[Command | Call]:
        """All of it; then there is nothing left."""
        calls, self.more = self.more, []
        if self.minted:
            calls += tokens.insert_all(self.queue, self.minted)
        if self.endings:
            calls += tokens.retire_all(self.queue, self.endings)
        self.minted, self.endings = [], []
        return calls


@dataclass(slots=True)
class Acquired:
    """What tokens came to: leases, and tokens whose retry must be worked on by itself.

    `is_late`: the answer took so long that nothing of it is to be begun.
    """

    lane: bytes
    leases: list[Lease] = field(default_factory=list)
    alone: list[Token] = field(default_factory=list)
    is_late: bool = False


@dataclass(slots=True)
class PendingAcquire:
    """One token of several on its way."""

    token: Token
    op: bytes
    record: LeaseRecord
    count: int  # the most entries it is to have


def want_all(unit: Unit, raw: Iterable[bytes], share: float = 1.0) -> list[PendingAcquire]:
    """What is to be asked for with these tokens; what is no token is passed over.

    `share` of a slice's time is divided among the requests that are known.
    """
    parsed = [token for one in raw if (token := tokens.parse(one)) is not None]
    share /= max(1, sum(unit.sizes.knows(token.request_id) for token in parsed))
    asked = []
    for token in parsed:
        op, record = new_op(), unit.free.pop()
        # Should this process die with the answer on its way, the supervisor asks again.
        record.begin_acquire(token, op)
        asked.append(PendingAcquire(token, op, record, unit.sizes.next(token.request_id, share)))
    return asked


def fetch(
    unit: Unit, raw: list[bytes], returned: FollowUps, share: float = 1.0
) -> Operation[Acquired]:
    """Shows tokens, and dispatches what that brings; before it, what there is to dispatch.

    `share` of a slice's time is what they should take. Raises what Redis does; then none is held.
    """
    sent, before = clock.mono_s(), returned.calls()
    count = len(before)
    asked = want_all(unit, raw, share)
    shown = (
        acquire_call(one.token, unit.worker, unit.started, one.count, one.op, shared=True)
        for one in asked
    )
    found = Acquired(returned.lane)
    try:
        before += unit.note(raw)
        steps = LazySteps(len(before) + len(asked), chain(before, shown))
        replies = yield from ask_all(Batch(steps, lenient=True, away_s=settings.AWAY_S))
        keep_unsent(unit, before, replies[: len(before)])
        log_refusals(replies[:count])  # a full Redis may refuse the notes
        found = note_all(unit, asked, replies[len(before) :], sent, returned)
        yield from dispatch(unit, returned)
    except FairlaneError:
        forget(unit, (one.record for one in asked))
        raise
    return found


def note_all(
    unit: Unit,
    asked: list[PendingAcquire],
    replies: Sequence[Any],
    sent: float,
    returned: FollowUps,
) -> Acquired:
    """The replies to acquires that went out at `sent`: leases go to the board."""
    found = Acquired(returned.lane)
    for one, reply in zip(asked, replies, strict=True):
        token, record = one.token, one.record
        if isinstance(reply, NodeAway):
            word, taken = b"", None
            returned.minted.append(put_off(unit, token, returned.lane, reply))
        elif isinstance(reply, Exception):
            _log.warning("could not show a token of request %s: %s", token.request_id, reply)
            word, taken = b"", None
        else:
            word, taken, rest = parse_acquired(token, one.op, reply)
            returned.add(token.request_id, word, rest)
        if taken is not None:
            hold(record, taken, sent, shared=True)
            found.leases.append(Lease(taken, record, asked=one.count))
        elif word == b"alone":
            found.alone.append(token)
        record.end_acquire(is_abandoned=isinstance(reply, NodeAway) and reply.was_sent)
        if taken is None:
            unit.free.append(record)
    shortest = min((lease.slice.lease_ms for lease in found.leases), default=0)
    found.is_late = clock.mono_s() - sent > shortest / 1000 * USED_UP
    return found


def release(unit: Unit, leases: Iterable[Lease]) -> None:
    """They are settled, or nobody knows."""
    for lease in leases:
        lease.record.release()
        unit.free.append(lease.record)


def forget(unit: Unit, records: Iterable[LeaseRecord]) -> None:
    """Redis is away: what stands there expires, and whoever leads takes it back."""
    for record in records:
        record.release()
        if record not in unit.free:
            unit.free.append(record)


def settlement(lease: Lease) -> Call:
    """The call that settles a lease that was handled, or gives back what was not begun."""
    outcome = lease.outcome
    if outcome is None:
        return complete(lease.slice, [], [], [], keep=False)
    return complete(lease.slice, outcome.ids, outcome.results, outcome.verdicts, keep=False)


def settle_all(leases: Sequence[Lease], *others: Command | Call) -> Batch:
    """One round trip: the settlements of these leases, and whatever else goes with them."""
    calls = chain(map(settlement, leases), others)
    steps = LazySteps(len(leases) + len(others), calls)
    return Batch(steps, lenient=True, away_s=settings.BATCH_REST_S)


def note_settled(
    unit: Unit, leases: list[Lease], replies: Sequence[Any], returned: FollowUps
) -> None:
    """The replies to `settle_all`: counts, and what is to be dispatched."""
    runs: list[tuple[Slice, Outcome, bytes]] = []
    for lease, reply in zip(leases, replies, strict=True):
        taken = lease.slice
        word = b""
        if isinstance(reply, NodeAway):  # then the lease expires
            note_away(unit, f"left a lease of request {taken.request_id} to expire", reply)
        elif isinstance(reply, Exception):
            _log.warning("could not settle a lease of request %s: %s", taken.request_id, reply)
        else:
            word = reply[0]
            if word in {b"ok", b"already", b"ended"}:
                returned.add(taken.request_id, word, reply[-1])
        if lease.outcome is not None:
            runs.append((taken, lease.outcome, word))
            if word == b"ok":
                unit.sizes.observe(taken.request_id, lease.outcome.position, lease.outcome.seconds)
    release(unit, leases)
    if runs:
        count_up(unit, runs, len(runs))


def work_bunch(unit: Unit, fetched: Acquired, done: list[Lease]) -> Operation[list[Command | Call]]:
    """Handles leases in turn and settles them together; what is to be dispatched.

    `done` were handled before and are not settled yet.
    """
    returned, waiting = FollowUps(unit.queue, fetched.lane), fetched.leases
    records = [lease.record for lease in (*done, *waiting)]
    try:
        while True:
            waiting = yield from _settle_all(unit, done, waiting, returned, fetched)
            if not waiting:
                break
            # Before anything else, above all before the handler.
            yield from dispatch(unit, returned)
            bunch = LeaseBatch(waiting, unit.bunches.slice_s)
            handled: Handled = yield HandleBatch(bunch)
            done, waiting = handled.outcomes, bunch.leave()
            observe(unit, done)
    except FairlaneError:  # Redis is away: leases expire, and whoever leads takes them back
        forget(unit, records)
        raise
    return (yield from _work_alone(unit, fetched.alone, returned))


def _settle_all(
    unit: Unit, done: list[Lease], waiting: list[Lease], returned: FollowUps, fetched: Acquired
) -> Operation[list[Lease]]:
    """Settles what was handled and gives back what would wait for too long; returns the others."""
    apart = [lease for lease in done if is_apart(lease)]
    fits = 0 if fetched.is_late or apart else _fitting(unit, done, len(waiting))
    together = [lease for lease in done if lease not in apart] + waiting[fits:]
    if together:
        replies = yield from ask_all(settle_all(together))
        note_settled(unit, together, replies, returned)
    for lease in apart:
        yield from dispatch(unit, returned)
        record = lease.record
        try:
            returned.more += yield from work_off(unit, lease.slice, record, lease.outcome)
        except NodeAway as error:
            note_away(unit, f"left a lease of request {lease.slice.request_id} to expire", error)
        release(unit, [lease])
    return waiting[:fits]


def is_apart(lease: Lease) -> bool:
    """True when a lease that was handled is settled by itself: in parts, or to be confirmed."""
    outcome, taken = lease.outcome, lease.slice
    if outcome is None:
        return False
    goes_on = outcome.position < len(taken.entries) and not outcome.is_over
    return bool(taken.durable or goes_on or outcome.size > settings.FLUSH_BYTES)


def _fitting(unit: Unit, done: list[Lease], count: int) -> int:
    """How many more leases may wait for their turn: as many as fit a slice's time."""
    if unit.record.is_draining:
        return 0
    seconds = seconds_of(done)
    if seconds * count <= unit.bunches.slice_s * len(done):
        return count
    return int(unit.bunches.slice_s * len(done) / seconds) if done else count


def seconds_of(done: list[Lease]) -> float:
    """How long the handler took for these."""
    return sum(lease.outcome.seconds for lease in done if lease.outcome is not None)


def observe(unit: Unit, done: list[Lease]) -> None:
    """The next bunch is as long as this one taught."""
    # An empty slice is what somebody's XDEL leaves.
    slices = [one.slice.entries for one in done]
    size = sum(len(entries) * len(entries[0][1][1]) for entries in slices if entries)
    seconds = sum(_whole_s(unit, lease) for lease in done)
    unit.bunches.observe(len(done), seconds, size)


def _whole_s(unit: Unit, lease: Lease) -> float:
    """Seconds that this lease's token could fill."""
    if lease.outcome is None:
        return 0.0
    count, waiting = len(lease.slice.entries), lease.slice.waiting
    asked = lease.asked if lease.outcome.position == count else 0  # else it was stopped
    return unit.sizes.potential_seconds(asked, count, waiting, lease.outcome.seconds, unit.token_s)


def _work_alone(
    unit: Unit, alone: list[Token], returned: FollowUps
) -> Operation[list[Command | Call]]:
    """Works on the first token whose retry must be by itself; the others wait in their lanes.

    They would be shown in vain again and again, so for a while tokens are taken one by one.
    """
    if not alone:
        return returned.calls()
    unit.bunches.take_singly(len(alone))
    put_back(returned, alone[1:])
    yield from dispatch(unit, returned)
    return (yield from use(unit, alone[0], returned.lane, goes_on=False))


def put_back(returned: FollowUps, alone: Iterable[Token]) -> None:
    """Tokens that were shown and are as good as before are the next of their lane again."""
    names = [token.text for token in alone]
    if names:
        returned.more += tokens.push(returned.lane, names)


def dispatch(unit: Unit, returned: FollowUps) -> Operation[None]:
    """Sends what is to be dispatched, if there is anything."""
    yield from send(unit, returned.calls())
