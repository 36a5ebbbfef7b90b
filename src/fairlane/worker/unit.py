"""A unit of a worker: takes tokens, acquires leases, and has its handler called."""

from __future__ import annotations

import logging
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any
from zlib import crc32

from fairlane import settings
from fairlane.common import clock
from fairlane.common.rate import rate_of_queue
from fairlane.errors import FairlaneError, NodeAway
from fairlane.operations import apart_keys, tokens
from fairlane.operations.lease import acquire_call, new_op, slice_of
from fairlane.operations.rates import acquire_rated
from fairlane.operations.tokens import parse
from fairlane.protocol import keys
from fairlane.protocol.steps import Batch, Call, Command, LazySteps
from fairlane.settings import SLICE_MOST

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from fairlane.common.rate import Rate
    from fairlane.model import Slice, Token
    from fairlane.operations.rates import Allowance
    from fairlane.protocol.lua import Reply
    from fairlane.protocol.scripts import AcquireReply
    from fairlane.protocol.steps import Pop, Popped
    from fairlane.worker.board import LeaseRecord
    from fairlane.worker.calls import Outcome
    from fairlane.worker.feeder import Feeder
    from fairlane.worker.measures import Metrics


# ------------------------------------------------------------------ sizing
# How much a unit should take: sized in time, measured by its process.
#
# A slice is sized by the time per sub-request of its request, a pop by the time per token.


_REMEMBERED = 256  # requests
_WEIGHT = 0.3  # of the newest measurement in the moving averages
_GROWTH = 16  # a slice is at most this many times the one before
_TOKEN_GROWTH = 4  # ... and so many tokens the ones before
_OVER = 0.15  # of a call: two of 10.5 ms are nearer to 20 ms than one
_SLOW = 32  # a handler is slow when a slice's time is less than so many of its calls
_MOST_BYTES = 4 << 20  # of the bodies of one pop's leases, about


class Sizer:
    """Moving averages of time per sub-request and per token; all sizes start at 1.

    `slice_ms` is how long the handler should take for a pop's leases. With 0 each slice is one
    sub-request, and pops have the default. A pop takes at most `most` tokens.
    """

    def __init__(self, slice_ms: float = settings.SLICE_MS, most: int = 1) -> None:
        self.slice_s = (slice_ms or settings.SLICE_MS) / 1000
        self.most = most
        self._target = slice_ms / 1000
        self._requests: OrderedDict[str, tuple[float, int]] = OrderedDict()
        self._token_s = -1.0  # not known
        self._token_bytes = 0.0
        self._last = 1
        self._singly = 0

    # Sub-requests of a slice.

    def has_measured(self, request_id: str) -> bool:
        """Returns True if this request was measured."""
        return request_id in self._requests

    def entries(self, request_id: str, share: float = 1.0) -> int:
        """Returns the entries to ask for now, 1..1000, for this share of the slice time."""
        measured = self._requests.get(request_id)
        if measured is None or self._target <= 0:
            return 1
        each, last = measured
        fitting = int(self._target * share / each + _OVER) if each > 0 else SLICE_MOST
        return max(1, min(fitting, last * _GROWTH, SLICE_MOST))

    def sizes(self, share: float = 1.0) -> list[tuple[str, int]]:
        """Returns the requests of which more than one entry should be taken, and how many.

        All of them: the requests of a lane take turns, so the next one is the one measured longest
        ago.
        """
        known = list(self._requests)  # a copy: other threads measure meanwhile
        found = [(request_id, self.entries(request_id, share)) for request_id in known]
        return [(request_id, entries) for request_id, entries in found if entries > 1]

    def forget(self, request_id: str) -> None:
        """Removes a request that has ended."""
        self._requests.pop(request_id, None)

    def observe_slice(self, request_id: str, count: int, seconds: float) -> None:
        """Learns that `count` sub-requests took the handler `seconds`."""
        if count < 1:
            return
        each = seconds / count
        measured = self._requests.pop(request_id, None)
        if measured is not None:
            each = _average(measured[0], each)
        self._requests[request_id] = (each, count)
        if len(self._requests) > _REMEMBERED:
            self._requests.popitem(last=False)

    def potential_seconds(
        self, asked: int, count: int, waiting: int, seconds: float, most_s: float
    ) -> float:
        """Returns how long a token could keep the handler busy whose slice took `seconds`.

        A slice may be short although it got all entries that it had `asked` for, and more were
        `waiting`: other leases shared the time, or the pace was unknown. Then its token could keep
        the handler busy for up to `most_s`. Without this rule, the tokens of one large request
        would get ever shorter slices, the more of them one pop takes.
        """
        if self._target <= 0 or not waiting or not 0 < asked <= count:
            return seconds
        each = seconds / count
        most_s = self._target if each * _SLOW > self._target else min(most_s, self._target)
        return max(each, min(most_s, each * min(count + waiting, SLICE_MOST)))

    # Tokens of a pop.

    def take_singly(self, count: int) -> None:
        """Makes the next `count` pops take one token each."""
        self._singly = max(self._singly, min(count, self.most))

    def tokens(self, room: int, share: float = 1.0) -> int:
        """Returns the tokens to pop now, 1..`room`, for this share of the slice time."""
        if self._singly > 0 or self._token_s < 0:
            self._singly = max(0, self._singly - 1)
            return 1
        return self._fitting(room, share)

    def _fitting(self, room: int, share: float) -> int:
        fitting = self.most
        if self._token_s * self.most > self.slice_s * share:
            fitting = int(self.slice_s * share / self._token_s)
        if self._token_bytes * fitting > _MOST_BYTES:
            fitting = int(_MOST_BYTES / self._token_bytes)
        return max(1, min(fitting, self._last * _TOKEN_GROWTH, self.most, room))

    @property
    def is_quick(self) -> bool:
        """Returns True if the last tokens took the handler less than a slice's time each."""
        return 0 <= self._token_s < self.slice_s

    def observe_tokens(self, count: int, seconds: float, size: int = 0) -> None:
        """Learns that `count` tokens took the handler `seconds`; their bodies had `size` bytes."""
        if count < 1:
            return
        self._token_s = _average(self._token_s, seconds / count)
        self._token_bytes = _average(self._token_bytes, size / count)
        self._last = count


def _average(before: float, now: float) -> float:
    """Returns the moving average; a longer time counts in full, so no size is too large twice."""
    return now if now >= before else _WEIGHT * now + (1 - _WEIGHT) * before


# ------------------------------------------------------------------ unit
# A unit: one thread or task, and the leases that it holds.


@dataclass(slots=True)
class Unit:
    """One thread or task of a worker, which holds one lease or several.

    `spare` are the records of further leases. `is_alone`: no other unit is in its process, so it
    may prefetch. Several units of a process make exchanges together with their `feeder`.
    `has_one_server`: as far as is known, one server has all keys.
    `on_delay` is called with the ms for which tokens were delayed.
    """

    queue: str
    worker: str
    started: str
    record: LeaseRecord
    sizer: Sizer
    measures: Metrics
    spare: tuple[LeaseRecord, ...] = ()
    is_alone: bool = False
    feeder: Feeder | None = None
    has_one_server: bool = True
    on_delay: Callable[[int], None] | None = None
    has_waited: bool = False  # for the queue's rate, as long as its bucket had named
    unsent: list[Command | Call[Any]] = field(default_factory=list)  # for shards that were away
    quiet_until: float = 0.0  # when it may be logged again that a node is away
    # Tokens that must be acquired alone, and the ops that hold their keys meanwhile.
    kept: dict[Token, bytes] = field(default_factory=dict)
    free: list[LeaseRecord] = field(init=False)  # records of no lease
    turns: LaneRotation = field(init=False)
    _notes: int = 0

    def __post_init__(self) -> None:
        self.free = [*self.spare, self.record]
        self.turns = LaneRotation(self.queue, self.worker, self.record)

    @property
    def share(self) -> float:
        """Returns the part of a slice's time that one pop should take.

        It is half if the unit prefetches.
        """
        return 0.5 if self.is_alone else 1.0

    @property
    def token_s(self) -> float:
        """Returns how long a token of a large request should keep the handler busy.

        It is a slice's time, or a quarter of that if the unit prefetches.
        """
        return self.sizer.slice_s / (4 if self.is_alone else 1)

    def note(self, raw: Iterable[bytes]) -> list[Command]:
        """Returns the commands that note in the dispatch slot which tokens were taken.

        They are sent before the tokens are shown: if the whole worker dies, another worker reads
        there what to take back. There are two notes, because the next leases are fetched while the
        present ones are handled. The key has a TTL from the first note on, and beats renew it.
        """
        taken = keys.taken(self.queue, self.worker)
        place = b"%d.%d" % (self.record.unit, self._notes % 2)
        commands = [Command(b"HSET", taken, place, b" ".join(raw))]
        if not self._notes:
            commands.append(Command(b"PEXPIRE", taken, settings.TAKEN_TTL_MS))
        self._notes += 1
        return commands

    @property
    def queue_rate(self) -> Rate | None:
        """Returns the rate of the queue, which the last beat of the worker reported."""
        found = self.record.queue_rate
        return None if found is None else rate_of_queue(self.queue, *found)

    @property
    def is_holding(self) -> bool:
        """Returns True while the unit holds a lease."""
        return self.record.is_holding or any(record.is_holding for record in self.spare)


# ------------------------------------------------------------------ lane rotation
# Chooses the lanes that a unit pops next: the queue's own lanes, or those of its shards in turn.
#
# A unit pops from one shard after the other, so a few workers serve all of them. If one shard has
# work of some priority, the unit takes only equally or more urgent work from the others. So a
# token waits for at most one slice of each shard longer than in a queue without shards. After a
# round without a token, the unit waits at one shard for a moment, then at the next one.


_LAST = keys.LANES - 1


class LaneRotation:
    """The order in which one unit pops from the shards."""

    def __init__(self, queue: str, worker: str, record: LeaseRecord) -> None:
        self._queue, self._worker, self._record = queue, worker, record
        self._at = crc32(f"{worker}/{record.unit}".encode())
        self._known = b""
        self._shards: tuple[int, ...] = (0,)
        self._bound = _LAST  # less urgent lanes than this are not popped
        self._misses = 0

    @property
    def is_one(self) -> bool:
        """Returns True if the queue is not spread over shards."""
        self._look()
        return len(self._shards) == 1

    @property
    def is_unsharded(self) -> bool:
        """Returns True if all tokens are in the queue's own lanes."""
        self._look()
        return self._shards == (0,)

    def lanes(self, last: bytes = b"") -> tuple[bytes, ...]:
        """Returns the queue's own lanes, from the most urgent one up to `last`; b"" = all."""
        found = keys.lanes(self._queue)
        return found[: keys.number_of(last) % keys.LANES + 1] if last else found

    def next(self, most: int) -> Pop:
        """Returns the next pop, of up to `most` tokens; pass its reply to `record_pop`."""
        self._look()
        shards = self._shards
        if len(shards) == 1:
            return tokens.pop(self._queue, settings.BLOCK_MS, self._worker, most, shards[0])
        shard = shards[self._at % len(shards)]
        self._at += 1  # also if no reply comes: this node may be unreachable, and others not
        if self._misses < len(shards):
            return tokens.pop_ahead(self._queue, self._bound, most, shard)
        return tokens.pop(self._queue, settings.SHARD_BLOCK_MS, self._worker, most, shard)

    def record_pop(self, popped: Popped | None) -> None:
        """Notes what the last pop returned."""
        if len(self._shards) == 1:
            return
        if popped is not None:
            self._misses = 0
            if not keys.is_wake(popped.lane):
                self._bound = keys.number_of(popped.lane) % keys.LANES
            return
        self._misses += 1
        if self._misses >= len(self._shards) and self._bound < _LAST:  # no shard has so urgent work
            self._misses, self._bound = 0, _LAST

    def ahead(self, lane: bytes, most: int) -> Pop:
        """Returns the pop of tokens as urgent as `lane` or more, which does not wait."""
        self._look()
        priority = keys.number_of(lane) % keys.LANES
        shard = self._shards[self._at % len(self._shards)]
        self._at += 1  # as in next: otherwise the two together might always skip one shard
        return tokens.pop_ahead(self._queue, priority, most, shard)

    def failed(self) -> float:
        """Notes that the last pop had no reply; returns the seconds until the next one.

        The other shards are tried immediately. After a round without a token there is a pause, as
        long as a pop would wait.
        """
        is_vain = self._misses >= len(self._shards)
        self.record_pop(None)
        return settings.SHARD_BLOCK_MS / 1000 if is_vain else 0.0

    def _look(self) -> None:
        """Reads from the board which shards may have tokens now."""
        known = self._record.shards
        if known != self._known:
            self._known, self._shards = known, tuple(known) or (0,)
            self._bound, self._misses = _LAST, 0


# ------------------------------------------------------------------ dispatch
# Dispatches the tokens in replies, and postpones the tokens of an unreachable node.
#
# A node that does not answer must delay only its own requests. So a token of such a request waits
# in `delayed` for about as long as its node has been unreachable so far, and then returns to its
# lane. It is neither lost nor popped again and again. An unreachable shard takes no tokens: the
# calls for it are kept, and are sent with a later batch.


_log = logging.getLogger("fairlane.worker")
_KEPT = 200  # calls for unreachable shards; the auditor finds the tokens of further ones
_QUIET_S = 10.0  # between two such lines of the log
_LEAST_MS, _MOST_MS = 1_000, 15_000


@dataclass(slots=True)
class FollowUps:
    """What the replies of many requests ask to dispatch, in few calls."""

    queue: str
    lane: bytes = b""  # the key of the list the tokens came from
    minted: list[tokens.Minted] = field(default_factory=list)
    endings: list[tokens.Ending] = field(default_factory=list)
    more: list[Command | Call[Any]] = field(default_factory=list)
    on_delay: Callable[[int], None] | None = None  # called with the ms of the shortest delay

    def add(self, request_id: str, reply: Reply) -> None:
        """Adds what a reply contains: tokens, or the end of its request."""
        if reply.is_ended:
            self.endings.append((request_id, reply.summary))
            self.minted += tokens.given_up(request_id, reply.summary)
        elif reply.has_tokens and (minted := reply.tokens):
            self.minted.append((request_id, minted))

    def put_back(self, rest: Iterable[Token]) -> None:
        """Adds tokens that are still valid: they become the next ones of their lane again."""
        if names := [token.text for token in rest]:
            self.more += tokens.push(self.lane, names)

    def calls(self) -> list[Command | Call[Any]]:
        """Removes and returns all calls."""
        calls, self.more = self.more, []
        if self.minted:
            if self.on_delay is not None and (delay := shortest_delay(self.minted)):
                self.on_delay(delay)
            calls += tokens.insert_tokens(self.queue, self.minted)
            self.minted = []
        if self.endings:
            calls += tokens.retire_all(self.queue, self.endings)
            self.endings = []
        return calls


def shortest_delay(minted: Iterable[tokens.Minted]) -> int:
    """Returns the ms of the shortest delay among these tokens; 0 = none is delayed."""
    return min((delay for _, flat in minted for delay in flat[2::3] if delay), default=0)


async def dispatch(unit: Unit, returned: FollowUps) -> None:
    """Sends the calls of `returned`, if there are any."""
    if calls := returned.calls():
        await send(unit, calls)


async def send(unit: Unit, calls: Sequence[Command | Call[Any]]) -> None:
    """Sends calls. Those for an unreachable shard are kept, and do not delay the others."""
    if unit.turns.is_one:
        await Batch(calls)
        return
    replies = await ask_all(Batch(calls, lenient=True, away_s=settings.SHARD_AWAY_S))
    keep_unsent(unit, calls, replies)
    if refused := refusals(replies):
        raise refused[0]


async def ask_all(batch: Batch) -> Sequence[Any]:
    """Returns the replies to a lenient batch, also if none of its nodes answers."""
    try:
        replies: Sequence[Any] = await batch
    except NodeAway as error:
        return [error] * len(batch.steps)
    return replies


def keep_unsent(unit: Unit, calls: Iterable[Command | Call[Any]], replies: Iterable[Any]) -> None:
    """Keeps, for a later batch, the calls whose node is unreachable."""
    pairs = zip(calls, replies, strict=True)
    unit.unsent += [call for call, reply in pairs if isinstance(reply, NodeAway)]
    del unit.unsent[:-_KEPT]


def refusals(replies: Iterable[Any]) -> list[FairlaneError]:
    """Returns the errors of calls that a later batch need not repeat."""
    errors = (reply for reply in replies if isinstance(reply, FairlaneError))
    return [error for error in errors if not isinstance(error, NodeAway)]


def log_refusals(replies: Iterable[Any]) -> None:
    """Logs dispatches that failed beside a pop or an acquire, whose own tokens must not be lost."""
    for error in refusals(replies):
        _log.warning("could not dispatch what a reply asked for: %s", error)


def put_off(unit: Unit, token: Token, lane: bytes, error: NodeAway) -> tokens.Minted:
    """Returns the entry that dispatches a token later, because its request's node is unreachable.

    `lane` is the key of the list that the token came from.
    """
    note_away(unit, f"put off a token of request {token.request_id}", error)
    delay = min(_MOST_MS, max(_LEAST_MS, int(error.away_s * 1000)))
    return token.request_id, [b"%d" % keys.number_of(lane), token.permit.encode(), delay]


def note_away(unit: Unit, what: str, error: NodeAway) -> None:
    """Logs what happens because a node is unreachable; not each time, as that may be very often."""
    now = clock.mono_s()
    if now >= unit.quiet_until:
        unit.quiet_until = now + _QUIET_S
        _log.warning("%s: %s", what, error)


# ------------------------------------------------------------------ leases
# The leases of one unit: acquired in one round trip, handled in turn.


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


async def acquire(
    unit: Unit, raw: list[bytes], returned: FollowUps, share: float,
    *, shared: bool, most: int = settings.SLICE_MOST,
) -> Acquired:  # fmt: skip
    """Acquires leases with these tokens; `returned` is dispatched before.

    `share` of a slice's time is what the tokens should take; each slice has at most `most`.
    `shared`: the unit will hold several leases, also if only one of these tokens gets one. Words
    that are no tokens are skipped. Raises errors of Redis.
    """
    if tokens.PLACEHOLDER in raw:
        await dispatch(unit, returned)  # before anything can fail
        raw = await tokens.take_turns(unit.queue, returned.lane, raw)
    sent, pending = clock.mono_s(), _begin_all(unit, raw, share, most)
    if not pending:
        return Acquired(returned.lane)
    before = returned.calls()
    steps: Sequence[Command | Call[Any]] = [*before, *unit.note(raw)]
    if any(one.token.is_apart for one in pending):
        pending = await _take_keys(unit, pending, steps, before, returned.lane)
        if not pending:
            return Acquired(returned.lane)
        before = steps = []
    shared = shared or len(pending) > 1
    count, first = len(before), len(steps)
    calls = (
        acquire_call(one.token, unit.worker, unit.started, one.count, one.op, shared=shared)
        for one in pending
    )
    if len(pending) == 1:
        steps = [*steps, next(calls)]
    else:
        steps = LazySteps(first + len(pending), chain(steps, calls))
    try:
        replies = await ask_all(Batch(steps, lenient=True, away_s=settings.AWAY_S))
        if count:  # a full Redis may refuse to note the tokens
            keep_unsent(unit, before, replies[:count])
            log_refusals(replies[:count])
        answers = replies[first:]
        if any(map(_is_rated, answers)):
            answers = await _ask_again(unit, pending, answers, shared=shared)
        acquired = _note_all(unit, pending, answers, sent, returned, shared=shared)
    except FairlaneError:
        forget(unit, [one.record for one in pending])
        raise
    _sort_unused(unit, pending, answers, returned)
    return acquired


async def _take_keys(
    unit: Unit,
    pending: list[PendingAcquire],
    steps: Sequence[Command | Call[Any]],
    before: Sequence[Command | Call[Any]],
    lane: bytes,
) -> list[PendingAcquire]:
    """Sends `steps`, and takes the keys that are in another slot than their requests.

    Returns the acquires that may go on. The tokens of the others wait for a key. `before` are the
    first of the steps. Raises errors of Redis; a look at the keys finds what was taken.
    """
    apart = [one for one in pending if one.token.is_apart]
    calls = apart_keys.take(unit.queue, lane, [(one.token, one.op) for one in apart])
    count = len(before)
    try:
        batch = Batch([*steps, *calls], lenient=True, away_s=settings.AWAY_S)
        replies = await ask_all(batch)
        keep_unsent(unit, before, replies[:count])
        log_refusals(replies[:count])
        taken = list[int]()
        for reply in replies[len(steps) :]:
            if isinstance(reply, FairlaneError):
                raise reply
            taken += reply
    except FairlaneError:
        forget(unit, [one.record for one in pending])
        raise
    full = [one.record for one, is_taken in zip(apart, taken, strict=True) if not is_taken]
    for record in full:
        record.end_acquire()
        unit.free.append(record)
    return [one for one in pending if one.record not in full]


def _sort_unused(
    unit: Unit, pending: list[PendingAcquire], replies: Sequence[Any], returned: FollowUps
) -> None:
    """Gives back keys that were taken for acquires which were not granted, and never will be.

    The keys of a token that must be acquired alone are kept for that. A look at the keys finds
    those of an acquire that may still be granted.
    """
    for one, reply in zip(pending, replies, strict=True):
        if not one.token.is_apart:
            continue
        if isinstance(reply, NodeAway) and not reply.was_sent:
            returned.minted.append(apart_keys.given_back(one.token, one.op))
        elif isinstance(reply, FairlaneError) or reply.is_ok:
            continue
        elif reply.is_alone:
            unit.kept[one.token] = one.op
        else:
            returned.minted.append(apart_keys.given_back(one.token, one.op))


async def put_back(unit: Unit, alone: Iterable[Token], returned: FollowUps) -> None:
    """Puts back tokens that must be acquired alone: they become the next ones of their lane.

    Where their keys are held for an acquire, a late copy of it could be granted. So such a token
    is made stale, and its successor waits at the end of the lane.
    """
    tokens = list(alone)
    held = [one for one in tokens if unit.kept.pop(one, None)]
    returned.put_back(one for one in tokens if one not in held)
    if held:
        with suppress(FairlaneError):  # the audit looks later
            await apart_keys.look_at_tokens(unit.queue, held)


def _begin_all(unit: Unit, raw: list[bytes], share: float, most: int) -> list[PendingAcquire]:
    """Puts acquires on the board; requests with a known pace share the time."""
    tokens = [token for word in raw if (token := parse(word)) is not None]
    if len(tokens) > 1:
        share /= max(1, sum([unit.sizer.has_measured(token.request_id) for token in tokens]))
    pending = []
    for token in tokens:
        op, record = unit.kept.pop(token, None) or new_op(), unit.free.pop()
        # If this process dies before the reply, the supervisor sends the acquire again.
        record.begin_acquire(token, op)
        count = min(most, unit.sizer.entries(token.request_id, share))
        pending.append(PendingAcquire(token, op, record, count))
    return pending


def _is_rated(reply: AcquireReply | FairlaneError) -> bool:
    return not isinstance(reply, FairlaneError) and reply.is_rated


async def _ask_again(
    unit: Unit, pending: list[PendingAcquire], replies: Sequence[Any], *, shared: bool
) -> list[Any]:
    """Repeats the acquires of requests with rates, one by one, with what their rates allow."""
    found = list[Any]()
    for one, raw in zip(pending, replies, strict=True):
        if not _is_rated(raw):
            found.append(raw)
            continue
        try:
            found.append(await _ask_with_allowance(unit, one, raw, shared=shared))
        except FairlaneError as error:  # the others were granted: their leases must be noted
            found.append(error)
    return found


async def _ask_with_allowance(
    unit: Unit, one: PendingAcquire, rated: AcquireReply, *, shared: bool
) -> AcquireReply:
    def ask(allowance: Allowance) -> Call[AcquireReply]:
        return acquire_call(
            one.token, unit.worker, unit.started, one.count, one.op, shared=shared,
            allowance=allowance,
        )  # fmt: skip

    return await acquire_rated(one.token.request_id, rated, ask)


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
            reply = raw
            returned.add(token.request_id, reply)
            taken = slice_of(token, one.op, reply)
            if taken is not None:
                note_lease(record, taken, sent, shared=shared)
                leases.append(Lease(taken, record, one.count))
            elif reply.is_alone:
                alone.append(token)
        record.end_acquire(is_abandoned=isinstance(raw, NodeAway) and raw.was_sent)
        if taken is None:
            unit.free.append(record)
    return Acquired(returned.lane, leases, alone)


def note_lease(record: LeaseRecord, taken: Slice, sent: float, *, shared: bool = False) -> None:
    """Puts a lease on the board; `sent` is when the acquire was sent, by clock.mono_s."""
    entries = taken.entries
    index = int(entries[0][0].partition(b"-")[2]) if len(entries) == 1 else -len(entries)
    record.hold(
        taken.request_id, taken.k, int(taken.fence), taken.op, sent, taken.lease_ms / 1000,
        index, taken.attempt, taken.attempts, shared=shared,
        taken_ms=taken.taken_ms, limit_ms=taken.time_limit_ms, backoff_ms=taken.backoff_ms,
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
