"""Takes sub-requests for a program that is not a handler: pop, acquire, extend, settle.

Each sub-request has a lease of its own. So at most `limit` sub-requests of a request are taken, and
each is settled, extended and taken back alone.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlane import settings
from fairlane.common import clock
from fairlane.common.clock import ms_of
from fairlane.common.text import shortened
from fairlane.errors import FairlaneError, InvalidArgument, NotDurable, ReceiptExpired, type_of
from fairlane.model import Verdict, result_head
from fairlane.operations import admission, apart_keys, rates, tokens, workers
from fairlane.operations.audit import Audit
from fairlane.operations.completion import is_place, parse_results, trim
from fairlane.operations.durability import confirm_settled
from fairlane.operations.flow_hand_over import look_after_and_feed
from fairlane.operations.lease import acquire_call, complete, extend, give_back, slice_of
from fairlane.operations.rates import acquire_rated, parse_queue_rate
from fairlane.operations.schedules import fire
from fairlane.operations.shards import served
from fairlane.operations.tokens import (
    Minted,
    follow_up,
    insert_tokens,
    parse,
    pop,
    pop_ahead,
    push,
)
from fairlane.options import check_whole
from fairlane.protocol import keys, request_hash, scripts
from fairlane.protocol.request_hash import as_text, hmget, parse_fields
from fairlane.protocol.steps import Batch, Command, Pause, call_each, run_all, run_each_or_error

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fairlane.common.chunking import Body
    from fairlane.common.rate import Rate
    from fairlane.model import Slice, Token
    from fairlane.operations.rates import Allowance
    from fairlane.protocol.lua import Reply
    from fairlane.protocol.scripts import AcquireReply, StandInReply
    from fairlane.protocol.steps import Call, Operation, Popped


# ------------------------------------------------------------------ receipt
# The receipt of a sub-request that a program took: the proof that it holds the lease, as text.
#
# The text has no character that a URL would have to quote. Its op is random, so no program can
# forge a receipt. The op also has a mark of its queue, so a receipt cannot be changed to name
# another queue, whose log would get the ending.


_NAME = r"[A-Za-z0-9_.:-]{1,128}"
_RECEIPT = re.compile(
    rf"({_NAME})~({_NAME})~([0-9]{{1,5}})\.([0-9]{{1,20}})\.([0-9a-f]{{32}})"
    r"\.([0-9]{1,20}-[0-9]{1,20})\.([0-9]{1,10})\.([0-9]{1,18})\.([0-9]{1,2})"
    r"\.([0-9a-f]{8})"
)
_SEED = 24  # digits of an op that are random: 96 bits; the other 8 are the mark
_SHOWN_MOST = 60  # characters of a refused receipt


@dataclass(frozen=True, slots=True)
class Receipt:
    """One lease of one sub-request. `taken_ms` is when it was taken, by its Redis's clock."""

    queue: str
    request_id: str
    k: str
    fence: bytes
    op: bytes
    entry_id: bytes
    attempt: int
    taken_ms: int
    durable: int

    @property
    def text(self) -> str:
        """Returns what `parse_receipt` reads."""
        permit = f"{self.k}.{self.fence.decode()}.{self.op.decode()}.{self.entry_id.decode()}"
        rest = f"{permit}.{self.attempt}.{self.taken_ms}.{self.durable}"
        whole = f"{self.queue}~{self.request_id}~{rest}"
        return f"{whole}.{_digest(whole)}"

    @property
    def index(self) -> int:
        """Returns the place of the sub-request in its request."""
        return int(self.entry_id.partition(b"-")[2])

    @property
    def waited_ms(self) -> int:
        """Returns how long the sub-request waited until it was taken."""
        return max(0, self.taken_ms - int(self.entry_id.partition(b"-")[0]))

    def head(self, status: bytes, ran_us: int) -> bytes:
        """Returns the header of a result of this lease."""
        index = self.entry_id.partition(b"-")[2]
        return result_head(index, status, self.attempt, self.waited_ms, ran_us)

    def expired(self) -> ReceiptExpired:
        """Returns the error for a receipt whose lease is over."""
        return ReceiptExpired(
            f"the receipt of sub-request {self.index} of request {self.request_id} is too old: its "
            "lease is over, so take the sub-request again if it still waits"
        )


def receipt_of(queue: str, taken: Slice) -> Receipt:
    """Returns the receipt of a slice of one sub-request."""
    return Receipt(
        queue,
        taken.request_id,
        taken.k,
        bytes(taken.fence),
        bytes(taken.op),
        taken.entries[0][0],
        taken.attempt,
        taken.taken_ms,
        taken.durable,
    )


def new_proof(queue: str) -> bytes:
    """Returns a new op for a lease in this queue."""
    seed = secrets.token_hex(_SEED // 2)
    return f"{seed}{_mark(queue, seed)}".encode()


def _mark(queue: str, seed: str) -> str:
    return _digest(f"{queue}~{seed}")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def parse_receipt(queue: str, text: str) -> Receipt:
    """Reads a receipt of this queue. Raises InvalidArgument."""
    match = _RECEIPT.fullmatch(text) if isinstance(text, str) else None
    if match is None or not is_place(match[6]):
        shown = repr(text)
        if isinstance(text, str) and len(text) > _SHOWN_MOST:
            shown = f"{text[:_SHOWN_MOST]!r}... ({len(text):,} characters)"
        raise InvalidArgument(
            f"receipt {shown} is not valid: pass the `receipt` of a sub-request that was taken"
        )
    home, request_id, k, fence, op, entry_id, attempt, taken_ms, durable, digest = match.groups()
    if home != queue:
        raise InvalidArgument(
            f"receipt {text[:_SHOWN_MOST]!r}... is of queue {home}, not of {queue}: "
            "use a Queue of that name"
        )
    is_whole = digest == _digest(text.rpartition(".")[0])
    if not is_whole or op[_SEED:] != _mark(queue, op[:_SEED]):
        raise InvalidArgument(
            f"receipt {text[:_SHOWN_MOST]!r}... was changed: pass it as it was when it was taken"
        )
    return Receipt(
        queue, request_id, k, fence.encode(), op.encode(), entry_id.encode(),
        int(attempt), int(taken_ms), int(durable),
    )  # fmt: skip


def check_visible(visible_for: float) -> int:
    """Returns how long a lease lasts, in ms. Raises InvalidArgument."""
    is_number = isinstance(visible_for, (int, float)) and not isinstance(visible_for, bool)
    if not is_number or not 0.001 <= visible_for <= settings.LONGEST_TERM_MS / 1000:  # noqa: PLR2004
        raise InvalidArgument(
            f"visible_for {visible_for!r} is not valid: more than 0 seconds and at most a day are "
            "expected"
        )
    return int(visible_for * 1000)


# ------------------------------------------------------------------ settle
# Settles what a program took, by its receipt: done, dead, released, or more time.
#
# If a call is repeated, its lease is over, because the first call ended it. Then the first call's
# result is looked for among the results since the sub-request was taken. So a repeat succeeds, and
# a receipt whose lease another program ended is refused.


_PAGE = 500  # entries of `out` that are read in one call


async def done(receipt: Receipt, result: Body | None, ran_us: int) -> None:
    """Stores the result of a sub-request and counts it as done.

    Raises ReceiptExpired, InvalidArgument. Raises NotDurable if the sub-request is done, but too
    few replicas have confirmed that.
    """
    status, body = stored(result)
    head = receipt.head(status, ran_us)
    call = complete(receipt, [receipt.entry_id], [head, body], [], keep=False)
    await _settle(receipt, call, is_dead=False)


async def dead(receipt: Receipt, reason: str, ran_us: int) -> None:
    """Makes a sub-request dead: it is kept with its body. Raises as `done` does."""
    text = _check_reason(reason)
    verdict = Verdict(receipt.entry_id, "dead", 0, receipt.head(b"x", ran_us), text)
    await _settle(receipt, complete(receipt, [], [], [verdict], keep=False), is_dead=True)


async def release(receipt: Receipt, delay_s: float) -> None:
    """Gives a sub-request back, uncharged; it may be taken again after `delay_s` seconds.

    Changes nothing if the sub-request was settled by this receipt before, or if its request has
    ended. Raises ReceiptExpired, InvalidArgument.
    """
    delay_ms = ms_of("delay_s", delay_s)
    if not 0 <= delay_ms <= settings.LONGEST_TERM_MS:
        raise InvalidArgument(f"delay_s {delay_s!r} is not valid: 0 seconds to a day are expected")
    verdict = Verdict(receipt.entry_id, "release", delay_ms, receipt.head(b"g", 0), "")
    proof = (receipt.k, receipt.fence.decode(), receipt.op.decode())
    call = give_back(receipt.request_id, *proof, [verdict])
    reply = await call
    if reply.is_lost or reply.is_gone:
        raise receipt.expired()
    await _dispatch(receipt, reply)


async def extend_term(receipt: Receipt, visible_for: float) -> bool:
    """Holds a sub-request for `visible_for` seconds from now.

    Returns False if its result is not wanted, because the request was cancelled or its deadline
    has passed. Raises ReceiptExpired, InvalidArgument.
    """
    term = check_visible(visible_for)
    proof = (receipt.k, receipt.fence.decode(), receipt.op.decode())
    call = extend(receipt.request_id, *proof, term)
    reply = await call
    if not reply.is_ok and not reply.is_cancelled:
        raise receipt.expired()
    return bool(reply.is_ok)


def stored(result: Body | None) -> tuple[bytes, bytes]:
    """Returns the status and the bytes of a result as `out` has them. Raises InvalidArgument."""
    if result is None:
        return b"n", b""
    if isinstance(result, str):
        try:
            body = result.encode()
        except UnicodeEncodeError as error:
            raise InvalidArgument(f"the result is not text: {error}") from None
    elif isinstance(result, (bytes, bytearray, memoryview)):
        body = bytes(result)
    else:
        raise InvalidArgument(f"the result is {type_of(result)}: bytes, str or None is expected")
    if len(body) > settings.MAX_BODY:
        raise InvalidArgument(
            f"the result has {len(body):,} bytes: the most is {settings.MAX_BODY:,}"
        )
    return b"d", body


def _check_reason(reason: str) -> str:
    if not isinstance(reason, str) or not reason.strip():
        raise InvalidArgument(
            f"reason {reason!r} is not valid: say why the sub-request is given up"
        )
    return shortened(reason, settings.MAX_ERROR)


async def _settle(receipt: Receipt, call: Call[Any], *, is_dead: bool) -> None:
    if receipt.durable:
        reply, missing = await confirm_settled(call, receipt.request_id, receipt.durable)
    else:
        reply, missing = await call, ""
    if reply.is_lost or reply.is_gone:
        raise receipt.expired()
    await _dispatch(receipt, reply)
    is_repeat = reply.is_already or (reply.is_ended and reply.late)
    if is_repeat and not await _is_settled(receipt, reply, is_dead=is_dead):
        raise receipt.expired()
    if missing:
        raise NotDurable(
            f"sub-request {receipt.index} of request {receipt.request_id} is settled, but {missing}"
        )


async def _dispatch(receipt: Receipt, reply: Reply) -> None:
    if calls := follow_up(receipt.queue, (receipt.request_id, reply)):
        await Batch(calls)


async def _is_settled(receipt: Receipt, reply: Reply, *, is_dead: bool) -> bool:
    """Returns True if this receipt has settled its sub-request, and in the same way.

    If the ended request keeps no results, the call counts as a repeat.
    """
    if reply.is_ended:
        if reply.summary.born > receipt.taken_ms:  # a later request has the id
            return False
        if not reply.summary.retain_ms:
            return True
    status = "dead" if is_dead else "done"
    wanted = (receipt.index, receipt.attempt, receipt.waited_ms, status)
    after = b"%d" % receipt.taken_ms
    while True:
        page = await Command(
            b"XRANGE", keys.results(receipt.request_id), after, b"+", b"COUNT", _PAGE
        )
        for _, fields in page:
            for one in parse_results(fields):
                if (one.index, one.attempt, one.waited_ms, one.status) == wanted:
                    return True
        if len(page) < _PAGE:
            return False
        after = b"(" + page[-1][0]


# ------------------------------------------------------------------ holder
# Finds the lease of a sub-request that a program took, by the name of the sub-request.
#
# This is for callers that keep no receipt. A user who may read the request's keys may find it.


TAKER = "taker:"  # how the names of programs that take begin
_FIELDS = ("queue", "durable")


async def find_receipt(queue: str, request_id: str, index: int) -> Receipt | None:
    """Returns the receipt of the program that holds this sub-request now.

    None if a worker or no program holds it, or if the request is not in this queue. Raises
    RedisError.
    """
    stream = keys.request_keys(request_id)[0]
    row, fields, is_stream = await Batch(
        [
            hmget(request_id, *_FIELDS),
            Command(b"HGETALL", keys.permits(request_id)),
            Command(b"EXISTS", stream),
        ]
    )
    home, durable = parse_fields(_FIELDS, row)
    if home != queue:
        return None
    for one in request_hash.held(as_text(fields)):
        if one.worker.startswith(TAKER) and one.first.endswith(f"-{index}"):
            attempt = await _attempt(stream, one.first) if is_stream else 1
            return Receipt(
                queue, request_id, one.k, one.fence.encode(), one.op.encode(), one.first.encode(),
                attempt, int(one.fence) // 1000, int(durable or 0),
            )  # fmt: skip
    return None


async def _attempt(stream: bytes, entry_id: str) -> int:
    """Returns which attempt at a leased entry of the stream this is."""
    rows = await Command(b"XPENDING", stream, stream, entry_id, entry_id, 1)
    return int(rows[0][3]) if rows else 1


# ------------------------------------------------------------------ stand in
# Does the maintenance of a queue that no worker serves, when a program takes sub-requests.
#
# A worker's heartbeat gives one worker the maintenance lock and names what is due. `stand_in` does
# the same for a program without a heartbeat, but only while no worker beats. The program then runs
# the operations of a leading worker.


_REST_MS = int(settings.AUDIT_S * 1000)
_REST_MOST_MS = int(settings.AUDIT_REST_MOST_S * 1000)


class Upkeep:
    """The maintenance of one queue by programs that take from it; any thread may use it."""

    def __init__(self, queue: str) -> None:
        self._queue = queue
        # One thread at a time takes the audit, because a list's pop and append are atomic.
        self._audits = [Audit(queue)]
        self._rest_ms = _REST_MS

    async def do_due(self, taker: str) -> tuple[StandInReply, FairlaneError | None]:
        """Does what is due if no worker lives; returns the queue's state and the first error.

        An error of a duty does not stop the other duties or the caller. Raises RedisError if the
        queue can't be read.
        """
        reply = await self._stand_in(taker)
        failure: FairlaneError | None = None
        for duty in self._due(reply) if reply.leads else ():
            try:
                await duty()
            except FairlaneError as error:
                failure = failure or error
        return reply, failure

    async def _stand_in(self, taker: str) -> StandInReply:
        names = (
            *(keys.workers(self._queue), keys.active(self._queue), keys.delayed(self._queue)),
            *(keys.conf(self._queue), keys.schedules(self._queue)[1], keys.firing(self._queue)),
        )
        call = scripts.stand_in(names, id=taker, lock_ms=settings.LOCK_MS, rest_ms=self._rest_ms)
        return await call

    def _due(self, reply: StandInReply) -> list[Callable[[], Operation[object]]]:
        """Returns the duties of a leader that are due."""
        shards = served(reply.shards, reply.left)
        duties: list[Callable[[], Operation[object]]] = []
        if shards != (0,) or 0 < reply.delayed_due <= reply.now:  # the reply lacks shards' slots
            duties.append(partial(workers.promote, self._queue, shards))
        if 0 < reply.active_due <= reply.now:
            duties.append(partial(look_after_and_feed, self._queue))
            duties.append(partial(admission.report_backlog, self._queue))
        if 0 < reply.tick_due <= reply.now:
            duties.append(partial(fire, self._queue))
        if reply.audits:
            duties += [self._audit, partial(trim, self._queue)]
        return duties

    async def _audit(self) -> None:
        try:
            audit = self._audits.pop()
        except IndexError:  # another thread audits
            return
        began = clock.mono_s()
        try:
            await audit.run(settings.TOKEN_GRACE_MS)
        finally:
            self._audits.append(audit)
            took_ms = int(settings.AUDIT_REST_FACTOR * 1000 * (clock.mono_s() - began))
            self._rest_ms = max(_REST_MS, min(_REST_MOST_MS, took_ms))


_LAST = keys.LANES - 1
_WAIT_MS = 1_000  # one blocking pop; between two of them, what is due is done
_REST_S = settings.SHARD_BLOCK_MS / 1000  # between two looks at a paused queue, or at shards


class Delivery(NamedTuple):
    """One sub-request that was taken; `trace` as in Slice."""

    receipt: Receipt
    body: bytes
    trace: str = ""


class TakeRound(NamedTuple):
    """What one round over the lanes has brought, and its first error.

    `wait_s`: after so long the rate of the queue allows more; 0 = it allows more now.
    """

    found: list[Delivery]
    failure: FairlaneError | None = None
    wait_s: float = 0.0


@dataclass
class Taker:
    """A program that takes from one queue; any thread may use it.

    `name_of` returns the program's name, which results and dead letters show.
    """

    queue: str
    name_of: Callable[[], str]
    upkeep: Upkeep = field(init=False)
    turn: int = 0  # counts pops, so that shards take turns

    def __post_init__(self) -> None:
        self.upkeep = Upkeep(self.queue)


def check_wait(wait_s: float) -> float:
    """Returns how long a take may wait, in seconds. Raises InvalidArgument."""
    is_number = isinstance(wait_s, (int, float)) and not isinstance(wait_s, bool)
    if not is_number or not 0 <= wait_s <= settings.LONGEST_TERM_MS / 1000:
        raise InvalidArgument(
            f"wait_s {wait_s!r} is not valid: seconds are expected, at most a day; 0 = do not wait"
        )
    return float(wait_s)


async def take(taker: Taker, count: int, visible_for: float, wait_s: float = 0.0) -> list[Delivery]:
    """Takes up to `count` sub-requests, the most urgent ones first; [] = there is none to take.

    Each is held for `visible_for` seconds. If there is none, it waits up to `wait_s` seconds for
    the first one. Does the queue's maintenance that is due, if no worker lives. Raises
    InvalidArgument, and RedisError if nothing was taken.
    """
    check_whole("count", count, 1, settings.TAKE_MOST)
    visible_ms, ends = check_visible(visible_for), clock.mono_s() + check_wait(wait_s)
    while True:
        standing, failure = await taker.upkeep.do_due(taker.name_of())
        shards = served(standing.shards, standing.left)
        rate, rest_s = parse_queue_rate(taker.queue, standing.rate), 0.0
        if not standing.paused_until:
            found, error, rest_s = await _take_now(taker, shards, count, visible_ms, rate)
            if found:
                return found
            failure = failure or error
        left_ms = int((ends - clock.mono_s()) * 1000)
        if left_ms <= 0:
            if failure is not None:
                raise failure
            return []
        if standing.paused_until or shards != (0,) or rest_s:
            await Pause(min(rest_s or _REST_S, _REST_S, left_ms / 1000))
        else:
            popped: Popped | None = await pop(taker.queue, min(_WAIT_MS, left_ms))
            if popped is not None:
                found, _, rest_s = await exchange_tokens(taker, popped, visible_ms, rate)
                if found:
                    return found
                await Pause(min(rest_s, _REST_S))


async def _take_now(
    taker: Taker, shards: Sequence[int], count: int, visible_ms: int, rate: Rate | None
) -> TakeRound:
    """Takes what is there now."""
    found: list[Delivery] = []
    failure: FairlaneError | None = None
    bound = _LAST  # a less urgent lane is popped when no shard has more urgent tokens
    misses = 0
    while len(found) < count and misses < len(shards):
        taker.turn += 1
        shard = shards[taker.turn % len(shards)]
        try:
            popped: Popped | None = await pop_ahead(taker.queue, bound, count - len(found), shard)
        except FairlaneError as error:  # another shard's node may answer
            failure, popped = error, None
        if popped is None:
            misses += 1
            if misses == len(shards) and bound < _LAST:
                misses, bound = 0, _LAST
            continue
        misses, bound = 0, keys.number_of(popped.lane) % keys.LANES
        more, refused, wait_s = await exchange_tokens(taker, popped, visible_ms, rate)
        found, failure = found + more, failure or refused
        if wait_s:
            return TakeRound(found, failure, wait_s)
    return TakeRound(found, failure)


async def exchange_tokens(
    taker: Taker, popped: Popped, visible_ms: int, rate: Rate | None = None
) -> TakeRound:
    """Exchanges popped tokens for leases of one sub-request each, as far as the rate allows.

    A token whose exchange fails is lost, until an audit finds that its permit is queued.
    """
    words, wait_s = popped.tokens, 0.0
    try:
        if rate is not None:
            words, wait_s = await _allowed(popped, rate)
        raw = await tokens.take_turns(taker.queue, popped.lane, words)
    except FairlaneError as error:  # the audit adds the placeholders that are missing
        return TakeRound([], error)
    try:
        wanted = await _with_keys(taker.queue, popped.lane, raw)
    except FairlaneError as error:  # a look at the keys finds what was taken
        return TakeRound([], error)
    found, failure, used = await _exchange(taker, wanted, visible_ms)
    if rate is not None and used < len(words):
        with suppress(FairlaneError):  # then that many sub-requests start later
            await rates.refund([(rate, len(words) - used)])
    return TakeRound(found, failure, wait_s)


async def _allowed(popped: Popped, rate: Rate) -> tuple[list[bytes], float]:
    """Returns the tokens that may be used now, and how long the others wait in their lane.

    A program may try again after any time, so it takes no place in the bucket's line.
    """
    allowed, wait_ms = await rates.take([rate], len(popped.tokens), waits=rates.Waits.NEVER)
    words, rest = popped.tokens[:allowed], popped.tokens[allowed:]
    if rest:
        await Batch(push(popped.lane, [*reversed(rest)]))
    return words, max(wait_ms, 1) / 1000 if rest else 0.0


async def _with_keys(queue: str, lane: bytes, raw: Sequence[bytes]) -> list[tuple[Token, bytes]]:
    """Returns the tokens with new ops, without those whose keys are full in another slot."""
    wanted = [(token, new_proof(queue)) for word in raw if (token := parse(word)) is not None]
    apart = [one for one in wanted if one[0].is_apart]
    if not apart:
        return wanted
    replies = await run_all(apart_keys.take(queue, lane, apart))
    taken = [is_taken for reply in replies for is_taken in reply]
    full = [one for one, is_taken in zip(apart, taken, strict=True) if not is_taken]
    return [one for one in wanted if one not in full]


async def _exchange(
    taker: Taker, wanted: Sequence[tuple[Token, bytes]], visible_ms: int
) -> tuple[list[Delivery], FairlaneError | None, int]:
    """Returns what these tokens brought, the first error, and how many leases were granted."""
    tokens, ops = [token for token, _ in wanted], [op for _, op in wanted]
    name = taker.name_of()
    asked = [_acquire(name, token, op) for token, op in zip(tokens, ops, strict=True)]
    replies = await call_each([ask(None) for ask in asked])
    failure: FairlaneError | None = None
    granted: list[Slice] = []
    settled: list[tuple[str, Reply]] = []
    unused = list[Minted]()
    for token, op, ask, reply in zip(tokens, ops, asked, replies, strict=True):
        try:
            if isinstance(reply, FairlaneError):
                raise reply
            if reply.is_rated:
                reply = await acquire_rated(token.request_id, reply, ask)  # noqa: PLW2901
        except FairlaneError as error:
            failure = failure or error
            continue
        settled.append((token.request_id, reply))
        if token.is_apart and not reply.is_ok:
            unused.append(apart_keys.given_back(token, op))
        if (taken := slice_of(token, op, reply)) is not None and taken.entries:
            granted.append(taken)
    after = [*follow_up(taker.queue, *settled), *insert_tokens(taker.queue, unused)]
    found, refused = await _hold(taker.queue, granted, after, visible_ms)
    return found, failure or refused, len(granted)


def _acquire(
    name: str, token: Token, op: bytes
) -> Callable[[Allowance | None], Call[AcquireReply]]:
    def ask(allowance: Allowance | None) -> Call[AcquireReply]:
        call = acquire_call(token, name, "", 1, op, allowance=allowance)
        call.away_s = settings.AWAY_S
        return call

    return ask


async def _hold(
    queue: str, granted: list[Slice], after: Sequence[Call[Any]], visible_ms: int
) -> tuple[list[Delivery], FairlaneError | None]:
    """Sets the length of new leases, and makes the calls that follow the acquires, in one batch.

    Until then a lease lasts as long as its request says. So a program that dies before loses
    nothing.
    """
    terms = [
        extend(taken.request_id, taken.k, taken.fence.decode(), taken.op.decode(), visible_ms)
        for taken in granted
    ]
    replies = await run_each_or_error([*terms, *after])
    errors = [reply for reply in replies if isinstance(reply, FairlaneError)]
    found: list[Delivery] = []
    for taken, reply in zip(granted, replies, strict=False):
        if isinstance(reply, FairlaneError):
            continue
        if reply.is_ok or reply.is_cancelled:
            body = taken.entries[0][1][1]
            found.append(Delivery(receipt_of(queue, taken), body, taken.trace))
    return found, errors[0] if errors else None
