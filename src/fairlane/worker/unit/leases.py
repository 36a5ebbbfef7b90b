"""The leases of one unit: acquired in one round trip, handled in turn."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

from fairlane import settings
from fairlane.common import clock
from fairlane.errors import FairlaneError, NodeAway
from fairlane.operations import tokens as turns
from fairlane.operations.lease import acquire_call, new_op, slice_of
from fairlane.operations.rates import acquire_rated
from fairlane.operations.tokens import parse
from fairlane.protocol.scripts import library
from fairlane.protocol.steps import Batch, LazySteps, Operation
from fairlane.worker.unit.dispatch import ask_all, dispatch, keep_unsent, log_refusals, put_off

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fairlane.model import Slice, Token
    from fairlane.operations.rates import Allowance
    from fairlane.protocol.replies import Reply
    from fairlane.protocol.steps import Call, Command
    from fairlane.worker.handler.outcome import Outcome
    from fairlane.worker.lease_board import LeaseRecord
    from fairlane.worker.unit.dispatch import FollowUps
    from fairlane.worker.unit.unit import Unit

_log = logging.getLogger("fairlane.worker")


@dataclass(slots=True, eq=False)
class Lease:
    """A lease of a unit, and how much of its slice was handled.

    `position` is that of the first entry that is not settled, after `seconds` of work. `outcome` is
    that of the last run; None: the handler was not called since the lease was last settled.
    `goes_on`: the handler should go on with this lease after that part is settled.
    """

    slice: Slice
    record: LeaseRecord
    asked: int = 0  # the most entries that the acquire asked for; 0 = unknown
    position: int = 0
    seconds: float = 0.0
    outcome: Outcome | None = None
    goes_on: bool = False

    @property
    def left(self) -> int:
        """Returns how many entries are not settled."""
        return len(self.slice.entries) - self.position

    def note(self, outcome: Outcome) -> None:
        """Notes the outcome of a run of the handler."""
        self.outcome = outcome
        self.seconds += outcome.seconds
        is_part = outcome.position < len(self.slice.entries) and not outcome.is_over
        self.goes_on = is_part and self.seconds * 1000 < settings.SLICE_HARD_MS


class LeaseBatch:
    """Leases that are handled one after the other; their unit may take back those not begun.

    Only one thread gets each lease: a list's pop and append are atomic.
    `is_alone`: it is the only lease of its unit, so a death is charged to it.
    """

    __slots__ = ("done", "is_alone", "slice_s", "waiting")

    def __init__(self, leases: Sequence[Lease], slice_s: float, *, is_alone: bool) -> None:
        self.waiting = list(leases)  # not begun yet
        self.done: list[Lease] = []  # handled, and not settled
        self.slice_s = slice_s  # after so much time, handled leases should be settled
        self.is_alone = is_alone

    def take(self) -> Lease | None:
        """Returns the next lease to be handled."""
        try:
            return self.waiting.pop(0)
        except IndexError:
            return None

    def take_done(self) -> list[Lease]:
        """Removes and returns the leases that were handled; the caller settles them."""
        return take_all(self.done)


def take_all(leases: list[Lease]) -> list[Lease]:
    """Removes and returns all of these leases, even if another thread takes some meanwhile."""
    taken: list[Lease] = []
    try:
        while leases:
            taken.append(leases.pop(0))
    except IndexError:  # another thread took the last one
        pass
    return taken


@dataclass(slots=True)
class Acquired:
    """What tokens were exchanged for: leases; and tokens of retries that must be acquired alone.

    `is_full`: as many tokens came as were wanted, so there may be more.
    """

    lane: bytes
    leases: list[Lease] = field(default_factory=list)
    alone: list[Token] = field(default_factory=list)
    is_full: bool = False


@dataclass(slots=True)
class PendingAcquire:
    """An acquire whose reply has not come yet."""

    token: Token
    op: bytes
    record: LeaseRecord
    count: int  # the most entries that it asks for


def acquire(
    unit: Unit, raw: list[bytes], returned: FollowUps, share: float,
    *, shared: bool, most: int = settings.SLICE_MOST,
) -> Operation[Acquired]:  # fmt: skip
    """Acquires leases with these tokens; `returned` is dispatched before.

    `share` of a slice's time is what the tokens should take; each slice has at most `most`.
    `shared`: the unit will hold several leases. Words that are no tokens are skipped. Raises errors
    of Redis.
    """
    if turns.PLACEHOLDER in raw:
        yield from dispatch(unit, returned)  # before anything can fail
        raw = yield from turns.resolve(unit.queue, returned.lane, raw)
    sent, pending = clock.mono_s(), _begin_all(unit, raw, share, most)
    if not pending:
        return Acquired(returned.lane)
    before = returned.calls()
    count = len(before)
    steps: Sequence[Command | Call] = [*before, *unit.note(raw)]
    first = len(steps)
    calls = (
        acquire_call(one.token, unit.worker, unit.started, one.count, one.op, shared=shared)
        for one in pending
    )
    if len(pending) == 1:
        steps = [*steps, next(calls)]
    else:
        steps = LazySteps(first + len(pending), chain(steps, calls))
    try:
        replies = yield from ask_all(Batch(steps, lenient=True, away_s=settings.AWAY_S))
        if count:  # a full Redis may refuse to note the tokens
            keep_unsent(unit, before, replies[:count])
            log_refusals(replies[:count])
        answers = replies[first:]
        if any(map(_is_rated, answers)):
            answers = yield from _ask_again(unit, pending, answers, shared=shared)
        return _note_all(unit, pending, answers, sent, returned, shared=shared)
    except FairlaneError:
        forget(unit, [one.record for one in pending])
        raise


def _begin_all(unit: Unit, raw: list[bytes], share: float, most: int) -> list[PendingAcquire]:
    """Puts acquires on the board; requests with a known pace share the time."""
    tokens = [token for word in raw if (token := parse(word)) is not None]
    if len(tokens) > 1:
        share /= max(1, sum([unit.sizer.has_measured(token.request_id) for token in tokens]))
    pending = []
    for token in tokens:
        op, record = new_op(), unit.free.pop()
        # If this process dies before the reply, the supervisor sends the acquire again.
        record.begin_acquire(token, op)
        count = min(most, unit.sizer.entries(token.request_id, share))
        pending.append(PendingAcquire(token, op, record, count))
    return pending


def _is_rated(raw: Any) -> bool:
    return not isinstance(raw, Exception) and library().acquire.reply(raw).is_rated


def _ask_again(
    unit: Unit, pending: list[PendingAcquire], replies: Sequence[Any], *, shared: bool
) -> Operation[list[Any]]:
    """Repeats the acquires of requests with rates, one by one, with what their rates allow."""
    read = library().acquire.reply
    found = list[Any]()
    for one, raw in zip(pending, replies, strict=True):
        if not _is_rated(raw):
            found.append(raw)
            continue
        try:
            found.append((yield from _ask_with_allowance(unit, one, read(raw), shared=shared)))
        except FairlaneError as error:  # the others were granted: their leases must be noted
            found.append(error)
    return found


def _ask_with_allowance(
    unit: Unit, one: PendingAcquire, rated: Reply, *, shared: bool
) -> Operation[Reply]:
    def ask(allowance: Allowance) -> Call:
        return acquire_call(
            one.token, unit.worker, unit.started, one.count, one.op, shared=shared,
            allowance=allowance,
        )  # fmt: skip

    return (yield from acquire_rated(one.token.request_id, rated, ask))


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
    leases: list[Lease] = []
    alone: list[Token] = []
    read = library().acquire.reply
    for one, raw in zip(pending, replies, strict=True):
        token, record = one.token, one.record
        taken = None
        if isinstance(raw, NodeAway):
            returned.minted.append(put_off(unit, token, returned.lane, raw))
        elif isinstance(raw, Exception):
            if len(pending) == 1:
                raise raw
            _log.warning("could not show a token of request %s: %s", token.request_id, raw)
        else:
            reply = read(raw)
            returned.add(token.request_id, reply)
            taken = slice_of(token, one.op, reply)
            if taken is not None:
                hold(record, taken, sent, shared=shared)
                leases.append(Lease(taken, record, one.count))
            elif reply.is_alone:
                alone.append(token)
        record.end_acquire(is_abandoned=isinstance(raw, NodeAway) and raw.was_sent)
        if taken is None:
            unit.free.append(record)
    return Acquired(returned.lane, leases, alone)


def hold(record: LeaseRecord, taken: Slice, sent: float, *, shared: bool = False) -> None:
    """Puts a lease on the board; `sent` is when the acquire was sent, by clock.mono_s."""
    only = (-len(taken.entries), 0, 0)
    if len(taken.entries) == 1:
        only = (int(taken.entries[0][0].partition(b"-")[2]), taken.attempt, taken.attempts)
    record.hold(
        taken.request_id, taken.k, int(taken.fence), taken.op, sent, taken.lease_ms / 1000,
        *only, shared=shared,
    )  # fmt: skip


def release(unit: Unit, leases: Iterable[Lease]) -> None:
    """Removes leases from the board that are settled, or whose node is unreachable."""
    for lease in leases:
        lease.record.release()
        unit.free.append(lease.record)


def forget(unit: Unit, records: Iterable[LeaseRecord]) -> None:
    """Removes leases from the board without Redis: they expire, and the leader takes them back."""
    for record in records:
        record.release()
        if record not in unit.free:
            unit.free.append(record)
