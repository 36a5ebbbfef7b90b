"""How a request comes into being with its first chunk: intend [D], enqueue [R], insert_tokens [D].

Where one server has all keys, one script does all three; no other client sees a state between.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fairlane import settings
from fairlane.errors import InvalidArgument, QueueFull, RedisFull, RequestEnded, RequestExists
from fairlane.model import ENDED_STATES
from fairlane.operations.lease.tokens import insert, retire
from fairlane.operations.submit.digest import terms
from fairlane.operations.submit.intents import announce, grace_ms, read_intents, restore, withdraw
from fairlane.protocol import keys
from fairlane.protocol.scripts import library
from fairlane.protocol.steps import Batch, Command, Operation, SingleServer

if TYPE_CHECKING:
    from fairlane.model import Policy
    from fairlane.operations.submit.admission import Admission
    from fairlane.operations.submit.digest import Chunk, Digest
    from fairlane.operations.submit.intents import Intent


@dataclass(slots=True)
class Submission:
    """One submission on its way: `digest` covers the chunks so far.

    `announced` is an intent that stands in `active` already. Open, it may go without a chunk for
    `open_ms`. `born` identifies the life of the id that it wrote or found.
    """

    id: str
    policy: Policy
    digest: Digest
    room: Admission
    announced: Intent | None = None
    open_ms: int = 0  # 0 = the usual hour
    born: int = 0  # ms; 0 = not known
    takes_back: bool = True  # after an error an incomplete request is taken back


def enqueue(own: Submission, chunk: Chunk, *, is_open: bool) -> Operation[list[Any]]:
    """Brings the request into being, or finds it; returns the script's reply: ok, exists or ended.

    An abandoned request of this id was never complete, so a new one takes its place. Raises
    RequestExists, RequestEnded (it was cancelled), RedisFull and QueueFull.
    """
    while True:
        try:
            return (yield from _enqueue(own, chunk, is_open=is_open))
        except (RedisFull, QueueFull) as error:
            yield from own.room.wait(error)


def _enqueue(own: Submission, chunk: Chunk, *, is_open: bool) -> Operation[list[Any]]:
    intent, given_up, over, reply = own.announced, 0, 0, None
    own.announced = None
    if intent is None:
        intent, reply = yield from _submit_on_one_server(own, chunk, is_open=is_open)
        if intent is None and reply is not None:
            return reply
    while True:
        if intent is None:
            own.room.bound, (intent,) = yield from announce(own.policy, [own.id], given_up)
        if reply is None:
            reply = yield from _enqueue_announced(own, chunk, intent, over, is_open=is_open)
        word = reply[0]
        if word == b"late":  # the auditor gave the intent up: a later one is needed
            given_up = reply[1]
        elif word == b"abandoned":
            over = yield from _log_abandoned(own.id, reply[1])
        else:
            break
        intent, reply = None, None
    own.room.found()
    yield from _note_life(own, reply, intent)
    return reply


def _note_life(own: Submission, reply: list[Any], intent: Intent) -> Operation[None]:
    """Notes which life of the id was begun or found. Raises RequestExists and RequestEnded."""
    word = reply[0]
    if word in {b"exists", b"conflict"}:
        yield from _restore_found(own, reply, intent)
    if word == b"conflict":
        raise already_exists(own.id)
    if word == b"ok":
        own.born = reply[2]
    elif word == b"exists":
        own.born = reply[4][1]
        if is_cancelled(reply[4]):
            raise cancelled_error(own.id, reply[4])


def _log_abandoned(request_id: str, summary: list[Any]) -> Operation[int]:
    """Logs the ending of an abandoned life, so that a new one may follow; returns when it began."""
    home = yield Command(b"HGET", keys.request_hash(request_id), b"queue")
    if home is not None:  # else its retention is over
        yield retire(home.decode(), request_id, summary)
    born: int = summary[1]
    return born


def _submit_on_one_server(
    own: Submission, chunk: Chunk, *, is_open: bool
) -> Operation[tuple[Intent | None, list[Any] | None]]:
    """Does all three steps by one script, where one server has all keys; returns intent and reply.

    Without a reply, the steps after the intent are still to do. A reply without an intent is that
    of an earlier try whose reply was lost. The tokens are in their lane already.
    """
    queue = own.policy.queue
    names = (*keys.request_keys(own.id), keys.active(queue), keys.conf(queue))
    call = library().submit(
        (*names, keys.lanes(queue)[own.policy.priority]),
        id=own.id,
        grace=grace_ms(own.policy),
        **_arguments(own, chunk, is_open=is_open),
    )
    try:
        replied = yield SingleServer(call)
    except RedisFull:
        if born := (yield from is_there(own.id, own.digest.hex)):
            return None, [b"ok", [], born]
        raise
    if replied is None:
        return None, None
    own.room.bound, shards, *rest = replied
    (intent,) = read_intents([own.id], shards, rest[:2])
    return intent, rest[-1] if len(rest) > 2 else None  # noqa: PLR2004  score, score before, reply


def _enqueue_announced(
    own: Submission, chunk: Chunk, intent: Intent, over: int, *, is_open: bool
) -> Operation[list[Any]]:
    try:
        yield from _ask(own, len(chunk), over)
        reply: list[Any] = yield library().enqueue(
            keys.request_keys(own.id),
            intent=intent.score,
            shards=intent.shards,
            over=over,
            **_arguments(own, chunk, is_open=is_open),
        )
    except (InvalidArgument, RedisFull, QueueFull) as error:
        born = (yield from is_there(own.id, own.digest.hex)) if isinstance(error, RedisFull) else 0
        if born:
            return [b"ok", [], born]
        yield withdraw(own.policy.queue, own.id, intent)  # nothing was written: no trace stays
        raise
    return reply


def _arguments(own: Submission, chunk: Chunk, *, is_open: bool) -> dict[str, Any]:
    """Returns the arguments that submit.lua and enqueue.lua share."""
    return terms(own.policy) | {
        "digest": own.digest.hex,
        "open_ms": (own.open_ms or settings.OPEN_MS) if is_open else 0,
        "bodies": chunk,
    }


def is_there(request_id: str, digest: str) -> Operation[int]:
    """Returns `born` of this very submission if it was written and its reply was lost, else 0.

    The intent stays, so the auditor mints the tokens again that the lost reply had.
    """
    found = yield library().confirm(keys.request_keys(request_id))
    if found[0] != b"ok" or found[2].decode() != digest or is_cancelled(found[1:]):
        return 0
    return int(found[3])


def _ask(own: Submission, count: int, over: int) -> Operation[None]:
    """Asks for room for the first chunk; a repeat of what is there needs none.

    With `over` only an abandoned life is there, and the new one needs room.
    """
    try:
        yield from own.room.ask(1, count)
    except QueueFull:
        if over or not (yield Command(b"HEXISTS", keys.request_hash(own.id), b"digest")):
            raise


def _restore_found(own: Submission, reply: list[Any], intent: Intent) -> Operation[None]:
    """Undoes the intent for an id that exists: it must not keep the auditor from the request."""
    queue = own.policy.queue
    summary = reply[1] if reply[0] == b"conflict" else reply[4]
    home = yield Command(b"HGET", keys.request_hash(own.id), b"queue")
    is_ours, is_over = home == queue.encode(), summary[0].decode() in ENDED_STATES
    if is_ours and is_over:
        yield retire(queue, own.id, summary)
    if not is_ours:
        yield withdraw(queue, own.id, intent)
    elif (step := restore(queue, own.id, intent, is_over=is_over)) is not None:
        yield step


def already_exists(request_id: str) -> RequestExists:
    """Returns the error of an id that another producer has."""
    return RequestExists(
        f"request {request_id} exists with other content or options: "
        "choose another id, or submit the same again"
    )


def is_cancelled(summary: list[Any]) -> bool:
    """Returns True if a request of this summary was cancelled, also while slices are held."""
    return summary[0] in {b"cancelling", b"cancelled"}


def cancelled_error(request_id: str, summary: list[Any]) -> RequestEnded:
    """Returns the error of a submission whose request was cancelled: its chunks do not run."""
    state, reason = summary[0].decode(), summary[8].decode()
    why = f" ({reason})" if reason else ""
    if state == "cancelling":
        return RequestEnded(
            f"request {request_id} is being cancelled{why}: wait for its end, or choose another id"
        )
    remedy = "submit it again" if reason == "abandoned" else "choose another id"
    return RequestEnded(f"request {request_id} was cancelled{why}: {remedy}")


def dispatch(own: Submission, tokens: list[Any]) -> Operation[None]:
    """Puts tokens into their lanes."""
    calls = insert(own.policy.queue, own.id, tokens)
    if calls:
        yield Batch(calls)
