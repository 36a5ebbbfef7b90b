"""Creates or finds one request, and waits for room."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlane.errors import (
    InvalidArgument,
    QueueFull,
    RedisFull,
    RequestEnded,
    RequestExists,
)
from fairlane.model import ENDED_STATES
from fairlane.operations.create.calls import enqueue_calls, read_enqueued
from fairlane.operations.create.intents import announce, restore, withdraw
from fairlane.operations.create.one_server import submit_on_one_server
from fairlane.operations.create.others import ask_guard, make_way
from fairlane.operations.lease.follow_up import follow_up
from fairlane.operations.lease.tokens import retire
from fairlane.protocol import keys
from fairlane.protocol.replies import CANCELLED
from fairlane.protocol.request_hash import read
from fairlane.protocol.scripts import library
from fairlane.protocol.steps import Batch, Command

if TYPE_CHECKING:
    from fairlane.operations.create.admission import Admission
    from fairlane.operations.create.intents import Intent
    from fairlane.operations.create.new_request import NewRequest
    from fairlane.protocol.replies import Reply, Summary
    from fairlane.protocol.steps import Operation


def create_alone(new: NewRequest, room: Admission, intent: Intent | None) -> Operation[None]:
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
    new.note_reply(reply)


def _enqueue(new: NewRequest, room: Admission, intent: Intent | None) -> Operation[Reply]:
    """Enqueues one request; returns the reply ok, exists or ended."""
    given_up, over = 0, 0
    reply: Reply | None = None
    if intent is None:
        intent, reply = yield from _submit_alone(new, room)
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
            over = yield from _log_abandoned(new, reply.summary, intent)
        elif reply.is_kept:
            yield from _restore_found(new, reply.summary, intent)
            yield from make_way(new, reply.summary)
        else:
            break
        intent, reply = None, None
    room.found()
    if reply.is_exists or reply.is_conflict:
        yield from _take_found(new, reply, intent)
    return reply


def _take_found(new: NewRequest, reply: Reply, intent: Intent) -> Operation[None]:
    """Restores the entry in `active` of an id that exists. Raises RequestExists, RequestEnded."""
    home = yield from _restore_found(new, reply.summary, intent)
    if reply.is_conflict:
        raise already_exists(new.id, "" if home == new.policy.queue else home)
    if reply.open:
        yield from ask_guard(new, reply.summary, is_same=True)
    if reply.summary.is_cancelled:
        raise cancelled_error(new.id, reply.summary)


def _log_abandoned(new: NewRequest, summary: Summary, intent: Intent) -> Operation[int]:
    """Logs the ending of an abandoned life, so that a new one may follow; returns when it began.

    Raises what the guard of the new request raises.
    """
    if new.guard is not None:
        yield from _restore_found(new, summary, intent)
        yield from ask_guard(new, summary)
    home = yield Command(b"HGET", keys.request_hash(new.id), b"queue")
    if home is not None:  # else its retention is over
        yield retire(home.decode(), new.id, summary)
    return summary.born


def _submit_alone(
    new: NewRequest, room: Admission
) -> Operation[tuple[Intent | None, Reply | None]]:
    """Creates a request by submit, where one server has all keys; returns intent and reply.

    Without a reply, the steps after the intent are still to do. A reply without an intent is that
    of an earlier try whose reply was lost. The tokens are in their lane already.
    """
    try:
        submitted = yield from submit_on_one_server([new])
    except RedisFull:
        if (found := (yield from _find_lost_reply(new))) is not None:
            return None, found
        raise
    if submitted is None:
        return None, None
    room.bound, ((_, intent, reply),) = submitted
    return intent, reply


def _enqueue_announced(
    new: NewRequest, room: Admission, intent: Intent, over: int
) -> Operation[Reply]:
    try:
        yield from _ask(new, room, over)
        (call,) = enqueue_calls([(new, intent)], over)
        return (yield from call.run())
    except (InvalidArgument, RedisFull, QueueFull) as error:
        found = (yield from _find_lost_reply(new)) if isinstance(error, RedisFull) else None
        if found is not None:
            return found
        yield withdraw(new.policy.queue, new.id, intent)  # nothing was written: no trace stays
        raise


def _find_lost_reply(new: NewRequest) -> Operation[Reply | None]:
    """Returns the reply to an enqueue that was written although its reply was lost, or None.

    It has no tokens. The intent stays, so the auditor mints the tokens of the lost reply again.
    """
    born = yield from find_born(new)
    if not born:
        return None
    (left,) = (yield from read(new.id, "left_out")) if new.policy.distinct else ("",)
    return read_enqueued([b"ok", [], born, int(left or 0)])


def find_born(new: NewRequest) -> Operation[int]:
    """Returns `born` of this very submission if it was written and its reply was lost, else 0."""
    reply = yield from library().confirm(keys.request_keys(new.id)).run()
    if reply.is_gone or reply.chain.decode() != new.digest.hex or reply.state in CANCELLED:
        return 0
    return int(reply.born)


def _ask(new: NewRequest, room: Admission, over: int) -> Operation[None]:
    """Gets room for the first chunk; an empty chunk, or a repeat of an existing one, needs none.

    With `over` only an abandoned life exists, and the new one needs room.
    """
    if not new.bodies:
        return
    try:
        yield from room.ask(1, len(new.bodies))
    except QueueFull:
        if over or not (yield Command(b"HEXISTS", keys.request_hash(new.id), b"digest")):
            raise


def _restore_found(new: NewRequest, summary: Summary, intent: Intent) -> Operation[str]:
    """Undoes the intent for an id that exists: it must not keep the auditor from the request.

    Returns the queue of the request.
    """
    queue = new.policy.queue
    home = yield Command(b"HGET", keys.request_hash(new.id), b"queue")
    is_ours, is_over = home == queue.encode(), summary.state.decode() in ENDED_STATES
    if is_ours and is_over:
        yield retire(queue, new.id, summary)
    if not is_ours:
        yield withdraw(queue, new.id, intent)
    elif (step := restore(queue, new.id, intent, is_over=is_over)) is not None:
        yield step
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
