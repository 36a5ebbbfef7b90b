"""Leases of one unit: acquired in one round trip, handled in turn."""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

from fairlane import settings
from fairlane.common import clock
from fairlane.errors import FairlaneError, NodeAway
from fairlane.operations.lease.leases import acquire_call, new_op, parse_acquired
from fairlane.operations.lease.tokens import parse
from fairlane.protocol.steps import Batch, LazySteps, Operation
from fairlane.worker.unit.dispatch import ask_all, keep_unsent, log_refusals, put_off

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fairlane.model import Slice, Token
    from fairlane.protocol.steps import Call, Command
    from fairlane.worker.handler.outcome import Outcome
    from fairlane.worker.lease_board import LeaseRecord
    from fairlane.worker.unit.dispatch import FollowUps
    from fairlane.worker.unit.unit import Unit

_log = logging.getLogger("fairlane.worker")


@dataclass(slots=True, eq=False)
class Lease:
    """A lease of a unit, and how far its slice was handled.

    `position` is that of the first entry that is not settled, after `seconds` of work. `outcome` is
    what the last run came to; None: the handler was not called since the lease was settled last.
    `goes_on`: the handler should go on with this lease after that part is settled.
    """

    slice: Slice
    record: LeaseRecord
    asked: int = 0  # the most entries it was to have; 0 = not known
    position: int = 0
    seconds: float = 0.0
    outcome: Outcome | None = None
    goes_on: bool = False

    def note(self, outcome: Outcome) -> None:
        """Notes what a run of the handler came to."""
        self.outcome = outcome
        self.seconds += outcome.seconds
        is_part = outcome.position < len(self.slice.entries) and not outcome.is_over
        self.goes_on = is_part and self.seconds * 1000 < settings.SLICE_HARD_MS


class LeaseBatch:
    """Leases that are handled one after the other; their unit may take back those not begun.

    Each is taken by one thread, whichever is first: a deque's ends are safe to pull at.
    `is_alone`: it is the only lease of its unit, so a death is charged to it.
    """

    def __init__(self, leases: Sequence[Lease], slice_s: float, *, is_alone: bool) -> None:
        self._todo = deque(leases)
        self.done: deque[Lease] = deque()  # they had their turn, and are not settled
        self.slice_s = slice_s  # after so much time the handled leases should be settled
        self.is_alone = is_alone

    @property
    def waiting(self) -> list[Lease]:
        """The leases that are not begun so far."""
        return list(self._todo)

    def take(self) -> Lease | None:
        """Returns the next lease to be handled."""
        try:
            return self._todo.popleft()
        except IndexError:
            return None

    def leave(self) -> list[Lease]:
        """Removes and returns the leases that are not begun."""
        return _all_of(self._todo)

    def take_done(self) -> list[Lease]:
        """Removes and returns the leases that had their turn, which the caller settles."""
        return _all_of(self.done)


def _all_of(leases: deque[Lease]) -> list[Lease]:
    taken: list[Lease] = []
    try:
        while True:
            taken.append(leases.popleft())
    except IndexError:
        return taken


@dataclass(slots=True)
class Acquired:
    """What tokens came to: leases, and tokens of retries that must be acquired alone."""

    lane: bytes
    leases: list[Lease] = field(default_factory=list)
    alone: list[Token] = field(default_factory=list)


@dataclass(slots=True)
class PendingAcquire:
    """An acquire whose reply is on its way."""

    token: Token
    op: bytes
    record: LeaseRecord
    count: int  # the most entries it is to have


def acquire(
    unit: Unit, raw: list[bytes], returned: FollowUps, share: float, *, shared: bool
) -> Operation[Acquired]:
    """Acquires leases with these tokens; before them it sends what there is to dispatch.

    `share` of a slice's time is what the tokens should take. `shared`: the unit will hold several
    leases. Words that are no tokens are passed over. Raises what Redis does; then none is held.
    """
    sent, pending = clock.mono_s(), _begin_all(unit, raw, share)
    if not pending:
        return Acquired(returned.lane)
    before = returned.calls()
    count = len(before)
    steps: Sequence[Command | Call] = [*before, *unit.note(raw)]
    first = len(steps)
    if len(pending) == 1:
        steps = [*steps, _call(unit, pending[0], shared=shared)]
    else:
        calls = (_call(unit, one, shared=shared) for one in pending)
        steps = LazySteps(first + len(pending), chain(steps, calls))
    try:
        replies = yield from ask_all(Batch(steps, lenient=True, away_s=settings.AWAY_S))
        if count:  # a full Redis may refuse the notes
            keep_unsent(unit, before, replies[:count])
            log_refusals(replies[:count])
        return _note_all(unit, pending, replies[first:], sent, returned, shared=shared)
    except FairlaneError:
        forget(unit, [one.record for one in pending])
        raise


def _call(unit: Unit, one: PendingAcquire, *, shared: bool) -> Call:
    return acquire_call(one.token, unit.worker, unit.started, one.count, one.op, shared=shared)


def _begin_all(unit: Unit, raw: list[bytes], share: float) -> list[PendingAcquire]:
    """Puts acquires on the board; the requests that are known share the time."""
    tokens = [token for word in raw if (token := parse(word)) is not None]
    if len(tokens) > 1:
        share /= max(1, sum([unit.sizer.knows(token.request_id) for token in tokens]))
    pending = []
    for token in tokens:
        op, record = new_op(), unit.free.pop()
        # If this process dies before the answer, the supervisor asks again.
        record.begin_acquire(token, op)
        count = unit.sizer.entries(token.request_id, share)
        pending.append(PendingAcquire(token, op, record, count))
    return pending


def _note_all(
    unit: Unit,
    pending: list[PendingAcquire],
    replies: Sequence[Any],
    sent: float,
    returned: FollowUps,
    *,
    shared: bool,
) -> Acquired:
    """Reads the replies to acquires that went out at `sent`: leases go to the board."""
    acquired = Acquired(returned.lane)
    for one, reply in zip(pending, replies, strict=True):
        token, record = one.token, one.record
        word, taken = b"", None
        if isinstance(reply, NodeAway):
            returned.minted.append(put_off(unit, token, returned.lane, reply))
        elif isinstance(reply, Exception):
            if len(pending) == 1:
                raise reply
            _log.warning("could not show a token of request %s: %s", token.request_id, reply)
        else:
            word, taken, rest = parse_acquired(token, one.op, reply)
            returned.add(token.request_id, word, rest)
        if taken is not None:
            hold(record, taken, sent, shared=shared)
            acquired.leases.append(Lease(taken, record, one.count))
        elif word == b"alone":
            acquired.alone.append(token)
        record.end_acquire(is_abandoned=isinstance(reply, NodeAway) and reply.was_sent)
        if taken is None:
            unit.free.append(record)
    return acquired


def hold(record: LeaseRecord, taken: Slice, sent: float, *, shared: bool = False) -> None:
    """Puts a lease on the board; `sent` is when it was asked for, in seconds of clock.mono_s."""
    only = (-len(taken.entries), 0, 0)
    if len(taken.entries) == 1:
        only = (int(taken.entries[0][0].partition(b"-")[2]), taken.attempt, taken.attempts)
    record.hold(
        taken.request_id, taken.k, int(taken.fence), taken.op, sent, taken.lease_ms / 1000,
        *only, shared=shared,
    )  # fmt: skip


def release(unit: Unit, leases: Iterable[Lease]) -> None:
    """Removes leases that are settled, or whose node is away, from the board."""
    for lease in leases:
        lease.record.release()
        unit.free.append(lease.record)


def forget(unit: Unit, records: Iterable[LeaseRecord]) -> None:
    """Removes leases from the board because Redis is away: they expire, and the leader reaps."""
    for record in records:
        record.release()
        if record not in unit.free:
            unit.free.append(record)
