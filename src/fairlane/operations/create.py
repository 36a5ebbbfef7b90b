"""Creates requests, each with its first chunk.

Where there are many nodes, an intent comes first, so a crash between two nodes loses no token.
"""

from __future__ import annotations

import contextlib
import hashlib
import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlane.errors import (
    FairlaneError,
    InvalidArgument,
    QueueFull,
    RedisFull,
    RedisUnreachable,
    RequestEnded,
    RequestExists,
    RequestNotFound,
)
from fairlane.model import ENDED_STATES
from fairlane.operations.admission import Admission
from fairlane.operations.after import Life, circle_text, find_circles, lives_text
from fairlane.operations.intents import Intent, grace_ms, intend, read_intents, restore, withdraw
from fairlane.operations.tokens import (
    count_stop,
    follow_up,
    retire,
    retire_all,
)
from fairlane.protocol import keys, scripts
from fairlane.protocol.lua import CANCELLED, library, signed
from fairlane.protocol.request_hash import hmget, parse_fields, read
from fairlane.protocol.steps import (
    Batch,
    Call,
    Command,
    LazySteps,
    Pause,
    SingleServer,
    TextCall,
    run_all,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from fairlane.options import Policy
    from fairlane.protocol.lua import Reply, Summary
    from fairlane.protocol.scripts import EnqueueReply, SubmitReply
    from fairlane.protocol.steps import Arg, Operation

    Guard = Callable[["FormerRequest"], Operation[None]]


# ------------------------------------------------------------------ digest
# The digest of a request and the text of its policy: what makes two submissions the same.


Chunk = list[bytes]
NO_ORDER = (
    "an order key needs a Redis where one server has all keys, which a cluster has not: "
    "leave out `order_key`, or use a single server or Sentinel"
)
_DIGITS = 32  # of a link, hex: 128 bits
VERSION = b"fairlane request 1"  # changes with the format of the digest


def policy_text(policy: Policy) -> str:
    """Returns the ten numbers of a policy in the form of lua/v1/lib/create.lua."""
    low, high = policy.backoff_ms
    return (
        f"{policy.limit}:{policy.priority}:{policy.attempts}:{low}:{high}:{policy.lease_ms}:"
        f"{policy.retain_ms}:{policy.time_limit_ms}:{policy.durable}:{policy.deadline_ms}"
    )


class Terms(NamedTuple):
    """What all requests of one policy have in common, as the scripts and the digest take it."""

    queue: bytes
    policy: bytes
    extras: bytes  # as the scripts take them, with what no digest has: see _sent_extras
    grace: bytes  # ms
    link: str  # the first one of a digest, hex
    begun: bytes  # what the hash of the first chunk begins with
    names: tuple[bytes, ...]  # of the queue, for submit


def terms(policy: Policy) -> Terms:
    """Returns the terms of a policy. A producer submits with the same ones again and again."""
    found: Terms | None = policy.derived
    if found is None:
        found = _terms(policy)
        object.__setattr__(policy, "derived", found)
    return found


def _terms(policy: Policy) -> Terms:
    queue, home = policy.queue.encode(), policy.queue
    text = policy_text(policy).encode()
    link = b"".join(map(_netstring, (VERSION, queue, text, policy.extras.encode())))
    lane = keys.lanes(home)[policy.priority]
    return Terms(
        queue,
        text,
        _sent_extras(policy),
        b"%d" % grace_ms(policy),
        link.hex(),
        _netstring(link),
        (keys.active(home), keys.conf(home), lane, *keys.turns(home)),
    )


@lru_cache(maxsize=128)
def _sent_extras(policy: Policy, lives: str = "", *, is_apart: bool = False) -> bytes:
    """Returns the extras as the scripts take them, with what no digest has.

    That is the caller, the trace, the tasks, the fields that views hide, which lives of the
    requests in `after` are meant, and that the keys are in another slot than the request.
    """
    others = (
        *(("by", policy.by), ("trace", policy.trace), ("task", policy.task)),
        *(("redact", ",".join(policy.redact)), ("apart", "1" if is_apart else "")),
    )
    extras = policy.extras_with(lives) if lives else policy.extras
    lines = (extras, *(f"{name}={value}" for name, value in others if value))
    return "\n".join(filter(None, lines)).encode()


class Digest:
    """Hashes a request's queue, policy, extras and chunks; each chunk makes a new link of a chain.

    Two submissions of one id are the same request exactly if their digests are equal.
    The format is bytes of any language. N(x) is a netstring: the length in decimal digits, ":",
    x, ",". Text is UTF-8.

        link 0 = N("fairlane request 1") N(queue) N(policy) N(extras)
        link n = the first 16 bytes of the SHA-256 of: N(link n-1), the lengths of the bodies of
                 chunk n, these bodies

    `policy` is the text of policy_text, `extras` that of Policy.extras. A length takes four bytes,
    the lowest first. The digest is the last link as hex digits.
    """

    __slots__ = ("_begun", "before", "hex")

    def __init__(self, policy: Policy) -> None:
        own = terms(policy)
        self.hex, self._begun = own.link, own.begun  # up to and with the last chunk added
        self.before = self.hex  # up to the last chunk added, without it

    def copy(self) -> Digest:
        """Returns a digest of the same policy and chunks, to add others to."""
        copied = Digest.__new__(Digest)
        copied.hex, copied.before = self.hex, self.before
        copied._begun = self._begun  # noqa: SLF001  one of its own class
        return copied

    def continue_at(self, link: str) -> None:
        """Continues after the chunks of which this is the last link, hex digits."""
        if link != self.hex:
            self.before = self.hex = link
            self._begun = b""

    def add(self, chunk: Chunk) -> str:
        """Adds a chunk; returns the digest up to and with it, hex."""
        begun = self._begun or _netstring(bytes.fromhex(self.hex))
        lengths = struct.pack(f"<{len(chunk)}I", *map(len, chunk))
        content = b"".join((begun, lengths, *chunk))
        self.before, self.hex = self.hex, hashlib.sha256(content).hexdigest()[:_DIGITS]
        self._begun = b""
        return self.hex


def _netstring(text: bytes) -> bytes:
    return b"%d:%b," % (len(text), text)


# ------------------------------------------------------------------ new request
# A request that is to be created, and how far its creation has come.


class FormerRequest(NamedTuple):
    """A request that has the id of a new one: who submitted it, and the start of its life in ms.

    `is_same`: it is still open, and has the same content so far. So the new one goes on with it.
    """

    id: str
    by: str
    born: int
    is_same: bool


class Created(NamedTuple):
    """What Redis has of a request after its create: new, or found with the same first chunk."""

    chunks: int
    chain: str  # the digest over these chunks, hex
    is_open: bool
    total: int  # of their sub-requests
    left_out: int = 0  # repeats among them, which do not count


@dataclass(slots=True)
class NewRequest:
    """A request to create. `digest` covers its first chunk, and later chunks as they follow.

    `open_ms` is how long an open request may go without a chunk; 0 = it is sealed. `room` waits for
    room, None = as its group does. `created`, `born` (ms, the life of the id) and `lives` (those of
    the requests that it starts after) are set by create. With `takes_back` an error of its caller
    withdraws an incomplete request. `guard` is run before another request of the id is cancelled,
    replaced or added to, and raises to prevent that. `unsure` is the digest with a chunk whose
    reply was lost. `is_apart`: its limits by key are in another slot than the request.
    """

    id: str
    policy: Policy
    digest: Digest
    bodies: Chunk
    open_ms: int = 0
    room: Admission | None = None
    takes_back: bool = True
    guard: Guard | None = None
    born: int = 0
    created: Created | None = None
    unsure: Digest | None = None
    ids: bytes = b""  # of the bodies, if they are to be distinct
    lives: str = ""  # see operations/after.py
    is_apart: bool = False

    def begin(self, bodies: Chunk) -> None:
        """Makes these bodies its first chunk. Raises InvalidArgument for a key that is no text."""
        self.bodies, self.ids = bodies, self.policy.ids_of(bodies)
        self.digest.add(bodies)

    @property
    def names(self) -> tuple[bytes, ...]:
        """Returns the keys of the scripts that create or fill it."""
        own = keys.request_keys(self.id)
        return (*own, keys.unique_ids(self.id)) if self.policy.distinct else own

    @property
    def is_complete(self) -> bool:
        """Returns True if Redis has the request sealed, with exactly the chunks of its digest."""
        created = self.created
        return created is not None and not created.is_open and created.chain == self.digest.hex

    def note_reply(self, reply: EnqueueReply) -> None:
        """Notes what a reply ok, ended or exists of enqueue brings."""
        if reply.is_exists:
            self.born = reply.summary.born
            total, left = reply.summary.total, reply.left_out or 0
            chain = reply.chain.decode()
            self.created = Created(reply.chunks, chain, bool(reply.open), total, left)
            return
        left = (reply.left_out or 0) if reply.is_ok else 0
        self.note_created(reply.born if reply.is_ok else reply.summary.born, left)

    def note_created(self, born: int, left_out: int = 0) -> None:
        """Notes that Redis has the first chunk, without so many repeats."""
        self.born, total = born, len(self.bodies) - left_out
        self.created = Created(1, self.digest.hex, self.open_ms > 0, total, left_out)


class RequestKept(RequestExists):
    """The id has another request, which stays. It has `total` sub-requests so far."""

    def __init__(self, request_id: str, total: int) -> None:
        super().__init__(f"request {request_id} is there already")
        self.total = total


class Begun(NamedTuple):
    """How far the creation of a request of a group has come."""

    new: NewRequest
    intent: Intent | None  # None: it is not announced
    reply: EnqueueReply | None  # None: it is not enqueued


# ------------------------------------------------------------------ duplicates
# Other requests that a new one depends on: one with its id, and those that it starts after.


_OF_OTHER = ("state", "born", "queue")
_PAUSES_S = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 4.0)  # while what was cancelled ends


async def make_way(new: NewRequest, other: Summary) -> None:
    """Returns when the new request may be tried again, because the other one was cancelled.

    Raises RequestKept if the other one stays, and RequestExists if it does not end soon.
    """
    if other.state.decode() in ENDED_STATES:  # it began less than the window ago
        raise RequestKept(new.id, other.total)
    if other.state != b"cancelling":  # it counts no more; what workers hold of it ends first
        how = new.policy.on_duplicate
        if how == "keep" or (how == "debounce" and await _has_started(new.id)):
            raise RequestKept(new.id, other.total)
    await ask_guard(new, other)
    await _cancel(new)


async def ask_guard(new: NewRequest, other: Summary, *, is_same: bool = False) -> None:
    """Lets the guard of a new request judge the other request of its id; raises what it raises."""
    if new.guard is None:
        return
    (by,) = await read(new.id, "by")
    await new.guard(FormerRequest(new.id, by, other.born, is_same))


async def _has_started(request_id: str) -> bool:
    """Returns True if a worker had a part of the request, or it was submitted without a delay.

    `seq` is at least the time of the last lease in us (lua/v1/lib/lease.lua). So it shows
    an attempt that failed, too.
    """
    opens, seq, born = await read(request_id, "opens", "seq", "born")
    return not int(opens or 0) or int(seq or 0) >= 1_000 * int(born or 0)


async def _cancel(new: NewRequest) -> None:
    names, queue = keys.request_keys(new.id), new.policy.queue
    for pause_s in (0.0, *_PAUSES_S):
        if pause_s:
            await Pause(pause_s)
        reply = await scripts.cancel(names, reason="replaced")
        if calls := follow_up(queue, (new.id, reply)):
            await Batch(calls)
        if not reply.is_ok:  # ended, or gone
            return
        await count_stop(queue)
    raise RequestExists(
        f"request {new.id} is being cancelled, and workers or programs still hold a part of it: "
        "submit it again when it has ended"
    )


async def check_others(group: Sequence[NewRequest]) -> None:
    """Notes which lives of other requests each new one starts after.

    Raises RequestNotFound for a request that does not exist, InvalidArgument for a circle. A repeat
    of a submission that is there already is not refused: the others may have expired.
    """
    for new in group:
        if new.id in new.policy.after:
            raise InvalidArgument(f"request {new.id} cannot start after itself")
    others = list(dict.fromkeys(name for new in group for name in new.policy.after))
    asked = [new for new in group if new.policy.after]
    rows = await run_all([hmget(name, *_OF_OTHER) for name in others])
    known = {
        name: Life(name, int(born or 0), queue)
        for name, row in zip(others, rows, strict=True)
        for state, born, queue in [parse_fields(_OF_OTHER, row)]
        if state and state != "abandoned"
    }
    states = await run_all([Command(b"HGET", keys.request_hash(new.id), b"state") for new in asked])
    for new, state in zip(asked, states, strict=True):
        missing = [name for name in new.policy.after if name not in known]
        may_be_repeat = state is not None and not new.policy.on_duplicate
        if missing and not may_be_repeat:
            raise RequestNotFound(
                f"there is no request {missing[0]}, after which request {new.id} is to start: "
                "submit that one first"
            )
        lives = [known.get(name, Life(name)) for name in new.policy.after]
        if state is not None:  # others may wait for the id
            await _check_no_circle(new.id, lives)
        new.lives = lives_text(lives)


async def _check_no_circle(request_id: str, lives: Sequence[Life]) -> None:
    circles = await find_circles({request_id: lives})
    if circles:
        raise InvalidArgument(
            f"request {request_id} would wait in a circle: {circle_text(circles[0])}; cancel one "
            "of them, or leave out `after`"
        )


# ------------------------------------------------------------------ calls
# The calls of the scripts that create requests; nothing else calls these scripts.
#
# A producer makes tens of thousands of these calls a second, so their arguments are given in
# order.


_PER_CALL = 50  # of submit: the server works on one call while the next is made
_SUBMIT = ("now", "queue", "policy", "extras", "grace", "open_ms")
_ENQUEUE = ("now", "queue", "policy", "digest", "intent", "open_ms", "extras", "shards", "over")


def parts_of(group: Sequence[NewRequest]) -> list[list[NewRequest]]:
    """Returns the group in parts for one call each: requests of the same policy, in their order."""
    parts = [[group[0]]]
    for new in group[1:]:
        first = parts[-1][0]
        is_same = new.policy is first.policy or new.policy == first.policy
        is_same = is_same and new.lives == first.lives
        if is_same and new.open_ms == first.open_ms and len(parts[-1]) < _PER_CALL:
            parts[-1].append(new)
        else:
            parts.append([new])
    return parts


def submit_call(part: Sequence[NewRequest]) -> Call[SubmitReply]:
    """Returns the call of submit for requests of the same policy."""
    first = part[0]
    policy, own = first.policy, terms(first.policy)
    extras = _sent_extras(policy, first.lives) if first.lives else own.extras
    args: list[Arg] = [b"", own.queue, own.policy, extras, own.grace, b"%d" % first.open_ms]
    for new in part:
        texts = (*new.bodies, new.ids) if policy.distinct else new.bodies
        args += (new.digest.hex, b"%d" % len(texts), *texts)
    names = (*own.names, *[keys.request_hash(new.id) for new in part])
    return TextCall(signed(library(), "submit", _SUBMIT), names, args, scripts.SubmitReply.of)


def enqueue_calls(
    pairs: Iterable[tuple[NewRequest, Intent]], over: str = ""
) -> Iterator[Call[EnqueueReply]]:
    """Yields the call of enqueue for each request; most requests of a group share a policy."""
    script = signed(library(), "enqueue", _ENQUEUE)
    for new, intent in pairs:
        own = terms(new.policy)
        extras = own.extras
        if new.lives or new.is_apart:
            extras = _sent_extras(new.policy, new.lives, is_apart=new.is_apart)
        args: list[Arg] = [
            b"", own.queue, own.policy, new.digest.hex, b"%d" % intent.score, b"%d" % new.open_ms,
            extras, intent.shards, over, *new.bodies,
        ]  # fmt: skip
        if new.policy.distinct:
            args.append(new.ids)
        yield TextCall(script, new.names, args, scripts.EnqueueReply.of)


# ------------------------------------------------------------------ one server
# Creates requests by one script, where one server has all keys.


async def submit_on_one_server(
    group: Sequence[NewRequest],
) -> tuple[int, list[Begun]] | None:
    """Does all three steps by one script; returns the queue's bound, and what is left to do.

    A request that is not in the list is created. None = no server has all keys, and nothing was
    done. The error of a single call is raised.
    """
    parts = parts_of(group)
    if len(parts) == 1:
        reply = await SingleServer(submit_call(group))
        if reply is None:
            _note_apart(group)
            return None
        return reply.max_waiting, _note_submitted(group, reply)
    calls = LazySteps(len(parts), map(submit_call, parts))
    replies = await SingleServer(Batch(calls, lenient=True))
    if replies is None:
        _note_apart(group)
        return None
    bound, left = 0, list[Begun]()
    for part, reply in zip(parts, replies, strict=True):
        if isinstance(reply, FairlaneError):
            left += [Begun(new, None, None) for new in part]
            continue
        bound = reply.max_waiting
        left += _note_submitted(part, reply)
    return bound, left


def _note_apart(group: Sequence[NewRequest]) -> None:
    """Notes whose limits by key are in another slot. Raises InvalidArgument for an order key."""
    if any(new.policy.order_key for new in group):
        raise InvalidArgument(NO_ORDER)
    for new in group:
        new.is_apart = bool(new.policy.limits)


def _note_submitted(part: Sequence[NewRequest], reply: SubmitReply) -> list[Begun]:
    """Notes which requests are created; returns how far each of the others came."""
    left = list[Begun]()
    for new, row in zip(part, reply.submitted, strict=True):
        if type(row) is int:
            new.note_created(row)
            continue
        score, before, enqueued = row
        (intent,) = read_intents([new.id], reply.shards, (score, before))
        left.append(Begun(new, intent, scripts.EnqueueReply.of(enqueued) if enqueued else None))
    return left


# ------------------------------------------------------------------ alone
# Creates or finds one request, and waits for room.


async def create_alone(new: NewRequest, room: Admission, intent: Intent | None) -> None:
    """Creates or finds one request and follows up its reply; waits for room."""
    while True:
        try:
            reply = await _enqueue(new, room, intent)
            break
        except (RedisFull, QueueFull) as error:
            intent = None  # it was withdrawn
            await room.wait(error)
    if reply is None:
        return
    if steps := follow_up(new.policy.queue, (new.id, reply)):
        await Batch(steps)
    new.note_reply(reply)


async def _enqueue(new: NewRequest, room: Admission, intent: Intent | None) -> EnqueueReply | None:
    """Enqueues one request; returns the reply ok, exists or ended. None = nothing is left to do."""
    given_up, over = 0, ""
    reply: EnqueueReply | None = None
    if intent is None:
        intent, reply = await _submit_alone(new, room)
        if new.created is not None or (intent is None and reply is not None):
            room.found()
            return reply
    while True:
        if intent is None:
            room.bound, (intent,) = await intend([new], given_up)
        if reply is None:
            reply = await _enqueue_announced(new, room, intent, over)
        if reply.is_late:  # the auditor gave the intent up: a later one is needed
            given_up = reply.seen
        elif reply.is_abandoned:
            over = await _log_abandoned(new, reply.summary, intent)
        elif reply.is_kept:
            await _restore_found(new, reply.summary, intent)
            await make_way(new, reply.summary)
        else:
            break
        intent, reply = None, None
    room.found()
    if reply.is_exists or reply.is_conflict:
        await _take_found(new, reply, intent)
    return reply


async def _take_found(new: NewRequest, reply: EnqueueReply, intent: Intent) -> None:
    """Restores the entry in `active` of an id that exists. Raises RequestExists, RequestEnded."""
    home = await _restore_found(new, reply.summary, intent)
    if reply.is_conflict:
        raise already_exists(new.id, "" if home == new.policy.queue else home)
    if reply.open:
        await ask_guard(new, reply.summary, is_same=True)
    if reply.summary.is_cancelled:
        raise cancelled_error(new.id, reply.summary)


async def _log_abandoned(new: NewRequest, summary: Summary, intent: Intent) -> str:
    """Logs the ending of an abandoned life, so that a new one may follow; returns its name.

    Raises what the guard of the new request raises.
    """
    if new.guard is not None:
        await _restore_found(new, summary, intent)
        await ask_guard(new, summary)
    home = await Command(b"HGET", keys.request_hash(new.id), b"queue")
    if home is not None:  # else its retention is over
        await retire(home.decode(), new.id, summary)
    return summary.ending


async def _submit_alone(
    new: NewRequest, room: Admission
) -> tuple[Intent | None, EnqueueReply | None]:
    """Creates a request by submit, where one server has all keys; returns intent and reply.

    Unless the request is created, and without a reply, the steps after the intent are still to do.
    A reply without an intent is that of an earlier try whose reply was lost.
    """
    try:
        submitted = await submit_on_one_server([new])
    except RedisFull:
        if (found := await _find_lost_reply(new)) is not None:
            return None, found
        raise
    if submitted is None:
        return None, None
    room.bound, left = submitted
    return left[0][1:] if left else (None, None)


async def _enqueue_announced(
    new: NewRequest, room: Admission, intent: Intent, over: str
) -> EnqueueReply:
    try:
        await _ask(new, room, over)
        (call,) = enqueue_calls([(new, intent)], over)
        return await call
    except (InvalidArgument, RedisFull, QueueFull) as error:
        found = await _find_lost_reply(new) if isinstance(error, RedisFull) else None
        if found is not None:
            return found
        await withdraw(new.policy.queue, new.id, intent)  # nothing was written: no trace stays
        raise


async def _find_lost_reply(new: NewRequest) -> EnqueueReply | None:
    """Returns the reply to an enqueue that was written although its reply was lost, or None.

    It has no tokens. The intent stays, so the auditor mints the tokens of the lost reply again.
    """
    born = await find_born(new)
    if not born:
        return None
    (left,) = await read(new.id, "left_out") if new.policy.distinct else ("",)
    return scripts.EnqueueReply.of([b"ok", [], born, int(left or 0)])


async def find_born(new: NewRequest) -> int:
    """Returns `born` of this very submission if it was written and its reply was lost, else 0."""
    reply = await scripts.confirm(keys.request_keys(new.id))
    if reply.is_gone or reply.chain.decode() != new.digest.hex or reply.state in CANCELLED:
        return 0
    return int(reply.born)


async def _ask(new: NewRequest, room: Admission, over: str) -> None:
    """Gets room for the first chunk; an empty chunk, or a repeat of an existing one, needs none.

    With `over` only an abandoned life exists, and the new one needs room.
    """
    if not new.bodies:
        return
    try:
        await room.ask(1, len(new.bodies))
    except QueueFull:
        if over or not await Command(b"HEXISTS", keys.request_hash(new.id), b"digest"):
            raise


async def _restore_found(new: NewRequest, summary: Summary, intent: Intent) -> str:
    """Undoes the intent for an id that exists: it must not keep the auditor from the request.

    Returns the queue of the request.
    """
    queue = new.policy.queue
    home = await Command(b"HGET", keys.request_hash(new.id), b"queue")
    is_ours, is_over = home == queue.encode(), summary.state.decode() in ENDED_STATES
    if is_ours and is_over:
        await retire(queue, new.id, summary)
    if not is_ours:
        await withdraw(queue, new.id, intent)
    elif (step := restore(queue, new.id, intent, is_over=is_over)) is not None:
        await step
    return (home or b"").decode()


def already_exists(request_id: str, home: str = "") -> RequestExists:
    """Returns the error of an id that another producer has; `home`: in this other queue."""
    if home:
        return RequestExists(f"request {request_id} is in queue {home}: choose another id")
    return RequestExists(
        f"request {request_id} exists with other content or options: "
        "choose another id, or submit the same again"
    )


def cancelled_error(request_id: str, summary: Summary) -> RequestEnded:
    """Returns the error of a submission whose request was cancelled: its chunks do not run."""
    state, reason = summary.state.decode(), summary.reason.decode()
    why = f" ({reason})" if reason else ""
    if state == "cancelling":
        return RequestEnded(
            f"request {request_id} is being cancelled{why}: wait for its end, or choose another id"
        )
    remedy = "submit it again" if reason == "abandoned" else "choose another id"
    return RequestEnded(f"request {request_id} was cancelled{why}: {remedy}")


# ------------------------------------------------------------------ group
# Creates requests with their first chunks: intend [D], enqueue [R], insert_tokens [D].
#
# Where one server has all keys, one script does the three steps for many requests. Elsewhere a
# group takes three round trips: all requests are announced, then all are enqueued, then all are
# followed up. A request continues alone if its id exists, Redis is full, or the queue has a bound.
# The order of the steps is always the same, so a crash at any step heals in the same way.


GROUP = 400  # requests of one create
Pending = tuple["NewRequest", "Intent | None"]  # None: it is not announced


async def create(
    group: Sequence[NewRequest], max_wait_s: float = 0.0
) -> list[Created | FairlaneError]:
    """Creates 1 to 400 requests of one queue; returns what Redis has of each, or its error.

    An abandoned request of an id was never complete, so a new one takes its place. The errors are
    RequestExists, RequestEnded (it was cancelled), RedisFull and QueueFull. A request without room
    is tried again for `max_wait` seconds. The error of one request does not stop the others, but
    when Redis or the queue is full, nothing more is begun. Raises RedisUnreachable.
    """
    pending: list[Pending] = [(new, None) for new in group]
    bound = 0
    if any(new.policy.after for new in group):
        await check_others(group)
    if len(group) > 1:
        with contextlib.suppress(RedisFull):  # then each is tried alone, and its room waited for
            bound, pending = await _create_group(group)
    errors = await create_each(pending, max_wait_s, bound) if pending else {}
    return [new.created or errors[new.id] for new in group]


async def _create_group(group: Sequence[NewRequest]) -> tuple[int, list[Pending]]:
    """Creates what goes smoothly; returns the queue's bound, and what is to be created alone."""
    found = await submit_on_one_server(group)
    if found is None:
        try:
            bound, intents = await intend(group)
        except InvalidArgument:  # each has its own answer
            return 0, [(new, None) for new in group]
        begun = [Begun(new, intent, None) for new, intent in zip(group, intents, strict=True)]
    else:
        bound, begun = found
    if not bound or not any(new.bodies for new in group):
        begun = await _enqueue_together(begun)
    return bound, await _follow_up_submitted(begun)


async def create_one(new: NewRequest) -> Created:
    """Creates one request, and raises its error: see create."""
    if new.policy.after:
        await check_others([new])
    await create_alone(new, new.room or Admission(new.id, new.policy.queue, 0.0), None)
    return new.created  # type: ignore[return-value]  # create_alone has set it


async def create_each(
    pending: Sequence[Pending], max_wait_s: float, bound: int = 0
) -> dict[str, FairlaneError]:
    """Creates one request after the other; returns the errors by id. `bound` is the queue's."""
    errors: dict[str, FairlaneError] = {}
    stop: FairlaneError | None = None
    for new, intent in pending:
        if stop is not None and not await _was_written(new, intent):
            errors[new.id] = stop
            continue
        room = new.room or Admission(new.id, new.policy.queue, 0.0 if stop else max_wait_s)
        room.bound = bound
        try:
            await create_alone(new, room, intent)
        except RedisUnreachable:
            raise
        except FairlaneError as error:  # also a key of this request that cannot be read
            errors[new.id] = error
            if isinstance(error, (RedisFull, QueueFull)):  # else the others are not concerned
                stop = stop or error
    return errors


async def _was_written(new: NewRequest, intent: Intent | None) -> bool:
    """Returns True if the reply of its creation was lost; else withdraws its intent."""
    if await find_born(new):
        return True
    if intent is not None:
        await withdraw(new.policy.queue, new.id, intent)
    return False


# ------------------------------------------------------------------ many together


async def _enqueue_together(begun: Sequence[Begun]) -> list[Begun]:
    """Enqueues in one batch what is announced only."""
    announced = [(new, intent) for new, intent, reply in begun if intent and not reply]
    if not announced:
        return [*begun]
    calls = LazySteps(len(announced), enqueue_calls(announced))
    replies = iter(await Batch(calls, lenient=True))
    return [
        one._replace(reply=_reply_of(next(replies))) if one.intent and not one.reply else one
        for one in begun
    ]


def _reply_of(reply: EnqueueReply | FairlaneError) -> EnqueueReply | None:
    return None if isinstance(reply, FairlaneError) else reply


async def _follow_up_submitted(begun: Sequence[Begun]) -> list[Pending]:
    """Follows up the replies of enqueue; returns the requests that did not go smoothly."""
    if not begun:
        return []
    queue = begun[0].new.policy.queue
    steps, left = list[Command | Call[Any]](), list[Pending]()
    done: list[tuple[str, Reply]] = []
    for new, intent, reply in begun:
        if not (intent and reply and (reply.is_ok or reply.is_ended or _is_found(reply))):
            left.append((new, intent))
            continue
        if reply.is_exists:
            if is_over := reply.summary.state.decode() in ENDED_STATES:
                steps += retire_all(queue, [(new.id, reply.summary)])
            step = restore(queue, new.id, intent, is_over=is_over)
            steps += [] if step is None else [step]
        new.note_reply(reply)
        done.append((new.id, reply))
    steps += follow_up(queue, *done)
    if steps:
        await Batch(steps)
    return left


def _is_found(reply: EnqueueReply) -> bool:
    return reply.is_exists and not reply.summary.is_cancelled
