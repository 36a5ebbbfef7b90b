"""Creates requests with their first chunks: intend [D], enqueue [R], insert_tokens [D].

A group takes three round trips: all requests are announced, then all are enqueued, then all are
followed up. Where one server has all keys, one script does the three steps for a single request.
What does not go smoothly goes on alone: the id exists, Redis is full, or the queue has a bound. The
order of the steps is always the same, so a crash anywhere heals in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from fairlane.errors import (
    FairlaneError,
    InvalidArgument,
    QueueFull,
    RedisFull,
    RedisUnreachable,
    RequestEnded,
    RequestExists,
)
from fairlane.model import ENDED_STATES
from fairlane.operations.lease.follow_up import follow_up
from fairlane.operations.lease.leases import signed
from fairlane.operations.lease.tokens import retire, retire_all
from fairlane.operations.submit.admission import Admission
from fairlane.operations.submit.digest import terms
from fairlane.operations.submit.intents import announce, grace_ms, read_intents, restore, withdraw
from fairlane.protocol import keys
from fairlane.protocol.replies import CANCELLED
from fairlane.protocol.scripts import library
from fairlane.protocol.steps import (
    Batch,
    Call,
    Command,
    LazySteps,
    Operation,
    SingleServer,
    TextCall,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from fairlane.model import Policy
    from fairlane.operations.submit.digest import Chunk, Digest
    from fairlane.operations.submit.intents import Intent
    from fairlane.protocol.replies import Reply, Summary
    from fairlane.protocol.steps import Arg

GROUP = 200  # requests of one create
# In the order of its signature: a producer makes tens of thousands of these calls a second.
_ENQUEUE = ("now", "queue", "policy", "digest", "intent", "open_ms", "parent", "shards", "over")


class Created(NamedTuple):
    """What Redis has of a request after its create: new, or found with the same first chunk."""

    chunks: int
    chain: str  # the digest over these chunks, hex
    is_open: bool


@dataclass(slots=True)
class NewRequest:
    """A request to create. `digest` covers its first chunk, and later chunks as they follow.

    `open_ms` is how long an open request may go without a chunk; 0 = it is sealed. `room` waits for
    room, None = as its group does. `created` and `born` (ms, the life of the id) are set by create.
    With `takes_back` an error of its caller takes an incomplete request back.
    """

    id: str
    policy: Policy
    digest: Digest
    bodies: Chunk
    open_ms: int = 0
    room: Admission | None = None
    takes_back: bool = True
    born: int = 0
    created: Created | None = None

    @property
    def is_complete(self) -> bool:
        """Returns True if Redis has the request sealed, with exactly the chunks of its digest."""
        created = self.created
        return created is not None and not created.is_open and created.chain == self.digest.hex


Pending = tuple[NewRequest, "Intent | None"]  # None: it is not announced, nothing of it is written


def create(
    group: Sequence[NewRequest], max_wait_s: float = 0.0
) -> Operation[list[Created | FairlaneError]]:
    """Creates 1 to 200 requests of one queue; returns what Redis has of each, or its error.

    An abandoned request of an id was never complete, so a new one takes its place. The errors are
    RequestExists, RequestEnded (it was cancelled), RedisFull and QueueFull. A request without room
    is tried again for `max_wait_s` seconds. The error of one request does not stop the others, but
    when Redis or the queue is full, nothing more is begun. Raises RedisUnreachable.
    """
    pending: list[Pending] = [(new, None) for new in group]
    bound = 0
    if len(group) > 1:
        try:
            bound, intents = yield from announce(group[0].policy, [new.id for new in group])
        except RedisFull as error:
            if not max_wait_s:
                return [error] * len(group)
        else:
            announced = list(zip(group, intents, strict=True))
            needs_room = bound and any(new.bodies for new in group)
            pending = [*announced] if needs_room else [*(yield from _create_together(announced))]
    errors = (yield from create_each(pending, max_wait_s, bound)) if pending else {}
    return [new.created or errors[new.id] for new in group]


def create_one(new: NewRequest) -> Operation[Created]:
    """Creates one request, and raises its error: see create."""
    (created,) = yield from create([new])
    if isinstance(created, FairlaneError):
        raise created
    return created


def create_each(
    pending: Sequence[Pending], max_wait_s: float, bound: int = 0
) -> Operation[dict[str, FairlaneError]]:
    """Creates one request after the other; returns the errors by id. `bound` is the queue's."""
    errors: dict[str, FairlaneError] = {}
    stop: FairlaneError | None = None
    for new, intent in pending:
        if stop is not None and not (yield from _was_written(new, intent)):
            errors[new.id] = stop
            continue
        room = new.room or Admission(new.id, new.policy.queue, 0.0 if stop else max_wait_s)
        room.bound = bound
        try:
            yield from _create_alone(new, room, intent)
        except RedisUnreachable:
            raise
        except FairlaneError as error:  # also a key of this request that cannot be read
            errors[new.id] = error
            # Announced requests need an end in any case, whatever the error of this one is.
            if intent is None or isinstance(error, (RedisFull, QueueFull)):
                stop = stop or error
    return errors


def _was_written(new: NewRequest, intent: Intent | None) -> Operation[bool]:
    """Returns True if the reply of its enqueue was lost; else withdraws its intent."""
    if intent is None:
        return False
    if (yield from _find_born(new)):
        return True
    yield withdraw(new.policy.queue, new.id, intent)
    return False


# ------------------------------------------------------------------ all in one batch


def _create_together(announced: list[tuple[NewRequest, Intent]]) -> Operation[list[Pending]]:
    """Enqueues announced requests in one batch; returns those that did not go smoothly."""
    calls = LazySteps(len(announced), _enqueue_calls(announced))
    replies = yield Batch(calls, lenient=True)
    read, queue = library().enqueue.reply, announced[0][0].policy.queue
    steps, left = list[Command | Call](), list[Pending]()
    done: list[tuple[str, Reply]] = []
    for (new, intent), raw in zip(announced, replies, strict=True):
        reply = None if isinstance(raw, FairlaneError) else read(raw)
        if reply is None or not (reply.is_ok or reply.is_ended or _is_found(reply)):
            left.append((new, intent))
            continue
        if reply.is_exists:
            if is_over := reply.summary.state.decode() in ENDED_STATES:
                steps += retire_all(queue, [(new.id, reply.summary)])
            step = restore(queue, new.id, intent, is_over=is_over)
            steps += [] if step is None else [step]
        _note_created(new, reply)
        done.append((new.id, reply))
    steps += follow_up(queue, *done)
    if steps:
        yield Batch(steps)
    return left


def _is_found(reply: Reply) -> bool:
    return reply.is_exists and not reply.summary.is_cancelled


def _note_created(new: NewRequest, reply: Reply) -> None:
    """Notes what a reply ok, ended or exists brings."""
    if reply.is_exists:
        new.born = reply.summary.born
        new.created = Created(reply.chunks, reply.chain.decode(), bool(reply.open))
        return
    new.born = reply.born if reply.is_ok else reply.summary.born
    new.created = Created(1, new.digest.hex, new.open_ms > 0)


# ------------------------------------------------------------------ one request


def _create_alone(new: NewRequest, room: Admission, intent: Intent | None) -> Operation[None]:
    """Creates or finds one request and follows up its reply; waits for room."""
    while True:
        try:
            reply = yield from _enqueue(new, room, intent)
            break
        except (RedisFull, QueueFull) as error:
            intent = None  # it was withdrawn
            yield from room.wait(error)
    if steps := follow_up(new.policy.queue, (new.id, reply)):
        yield Batch(steps)
    _note_created(new, reply)


def _enqueue(new: NewRequest, room: Admission, intent: Intent | None) -> Operation[Reply]:
    """Enqueues one request; returns the reply ok, exists or ended."""
    given_up, over = 0, 0
    reply: Reply | None = None
    if intent is None:
        intent, reply = yield from _submit_on_one_server(new, room)
        if intent is None and reply is not None:
            room.found()
            return reply
    while True:
        if intent is None:
            room.bound, (intent,) = yield from announce(new.policy, [new.id], given_up)
        if reply is None:
            reply = yield from _enqueue_announced(new, room, intent, over)
        if reply.is_late:  # the auditor gave the intent up: a later one is needed
            given_up = reply.seen
        elif reply.is_abandoned:
            over = yield from _log_abandoned(new.id, reply.summary)
        else:
            break
        intent, reply = None, None
    room.found()
    if reply.is_exists or reply.is_conflict:
        yield from _take_found(new, reply, intent)
    return reply


def _take_found(new: NewRequest, reply: Reply, intent: Intent) -> Operation[None]:
    """Restores the entry in `active` of an id that exists. Raises RequestExists, RequestEnded."""
    yield from _restore_found(new, reply.summary, intent)
    if reply.is_conflict:
        raise already_exists(new.id)
    if reply.summary.is_cancelled:
        raise cancelled_error(new.id, reply.summary)


def _log_abandoned(request_id: str, summary: Summary) -> Operation[int]:
    """Logs the ending of an abandoned life, so that a new one may follow; returns when it began."""
    home = yield Command(b"HGET", keys.request_hash(request_id), b"queue")
    if home is not None:  # else its retention is over
        yield retire(home.decode(), request_id, summary)
    return summary.born


def _submit_on_one_server(
    new: NewRequest, room: Admission
) -> Operation[tuple[Intent | None, Reply | None]]:
    """Does all three steps by one script, where one server has all keys; returns intent and reply.

    Without a reply, the steps after the intent are still to do. A reply without an intent is that
    of an earlier try whose reply was lost. The tokens are in their lane already.
    """
    queue = new.policy.queue
    _, policy, parent = terms(new.policy)
    names = (*keys.request_keys(new.id), keys.active(queue), keys.conf(queue))
    call = library().submit(
        (*names, keys.lanes(queue)[new.policy.priority]),
        id=new.id,
        grace=grace_ms(new.policy),
        digest=new.digest.hex,
        open_ms=new.open_ms,
        bodies=new.bodies,
        queue=queue,
        policy=policy,
        parent=parent,
    )
    try:
        raw = yield SingleServer(call)
    except RedisFull:
        if (found := (yield from _find_lost_reply(new))) is not None:
            return None, found
        raise
    if raw is None:
        return None, None
    reply = call.reply(raw)
    room.bound = reply.max_waiting
    (intent,) = read_intents([new.id], reply.shards, [reply.score, reply.former])
    return intent, None if reply.enqueued is None else library().enqueue.reply(reply.enqueued)


def _enqueue_announced(
    new: NewRequest, room: Admission, intent: Intent, over: int
) -> Operation[Reply]:
    try:
        yield from _ask(new, room, over)
        (call,) = _enqueue_calls([(new, intent)], over)
        return (yield from call.run())
    except (InvalidArgument, RedisFull, QueueFull) as error:
        found = (yield from _find_lost_reply(new)) if isinstance(error, RedisFull) else None
        if found is not None:
            return found
        yield withdraw(new.policy.queue, new.id, intent)  # nothing was written: no trace stays
        raise


def _enqueue_calls(pairs: Iterable[tuple[NewRequest, Intent]], over: int = 0) -> Iterator[Call]:
    """Yields the call of enqueue for each request; most requests of a group share a policy."""
    script, replaced = signed(library(), "enqueue", _ENQUEUE), b"%d" % over
    policy, queue, text, parent = None, b"", b"", b""
    for new, intent in pairs:
        if new.policy is not policy:
            policy = new.policy
            queue, text, parent = terms(policy)
        args: list[Arg] = [
            b"", queue, text, new.digest.hex, b"%d" % intent.score, b"%d" % new.open_ms, parent,
            intent.shards, replaced, *new.bodies,
        ]  # fmt: skip
        yield TextCall(script, keys.request_keys(new.id), args)


def _find_lost_reply(new: NewRequest) -> Operation[Reply | None]:
    """Returns the reply to an enqueue that was written although its reply was lost, or None.

    It has no tokens. The intent stays, so the auditor mints the tokens of the lost reply again.
    """
    born = yield from _find_born(new)
    return library().enqueue.reply([b"ok", [], born]) if born else None


def _find_born(new: NewRequest) -> Operation[int]:
    """Returns `born` of this very submission if it was written and its reply was lost, else 0."""
    reply = yield from library().confirm(keys.request_keys(new.id)).run()
    if reply.is_gone or reply.chain.decode() != new.digest.hex or reply.state in CANCELLED:
        return 0
    return int(reply.born)


def _ask(new: NewRequest, room: Admission, over: int) -> Operation[None]:
    """Asks for room for the first chunk; an empty one or a repeat of what is there needs none.

    With `over` only an abandoned life is there, and the new one needs room.
    """
    if not new.bodies:
        return
    try:
        yield from room.ask(1, len(new.bodies))
    except QueueFull:
        if over or not (yield Command(b"HEXISTS", keys.request_hash(new.id), b"digest")):
            raise


def _restore_found(new: NewRequest, summary: Summary, intent: Intent) -> Operation[None]:
    """Undoes the intent for an id that exists: it must not keep the auditor from the request."""
    queue = new.policy.queue
    home = yield Command(b"HGET", keys.request_hash(new.id), b"queue")
    is_ours, is_over = home == queue.encode(), summary.state.decode() in ENDED_STATES
    if is_ours and is_over:
        yield retire(queue, new.id, summary)
    if not is_ours:
        yield withdraw(queue, new.id, intent)
    elif (step := restore(queue, new.id, intent, is_over=is_over)) is not None:
        yield step


def already_exists(request_id: str) -> RequestExists:
    """Returns the error of an id that another producer has."""
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
