"""Submission: intent [D] -> enqueue, append ..., seal [R] -> insert_tokens [D]."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from fairlane import settings
from fairlane.errors import FairlaneError, QueueFull, RedisFull, RequestEnded, RequestLost
from fairlane.operations.lease.tokens import retire
from fairlane.operations.submit.admission import Admission, check_max_wait
from fairlane.operations.submit.create import (
    Submission,
    already_exists,
    cancelled_error,
    dispatch,
    enqueue,
    is_cancelled,
)
from fairlane.operations.submit.digest import Digest
from fairlane.operations.submit.discard import discard
from fairlane.operations.submit.durability import check_replicas, confirm_submission
from fairlane.protocol import keys
from fairlane.protocol.scripts import library
from fairlane.protocol.steps import Hurry, NextChunk, Operation

if TYPE_CHECKING:
    from fairlane.model import Policy
    from fairlane.operations.submit.digest import Chunk
    from fairlane.operations.submit.intents import Intent


def submit(
    request_id: str, policy: Policy, max_wait_s: float = 0.0, *, takes_back: bool = True
) -> Operation[int]:
    """Submits the caller's chunks as one request; returns how many sub-requests it has.

    Repeatable: with the same id and content it resumes or finds the request as it is, and an
    abandoned request is submitted anew. A chunk for which Redis or the queue has no room is tried
    again for `max_wait_s` seconds. Raises RequestExists, RequestEnded (it was cancelled, before or
    meanwhile), RequestLost, RedisFull and QueueFull (nothing is left of it); with policy.durable
    also RedisUnfit (not so many replicas: nothing was written) and NotDurable (it goes on). Without
    `takes_back` an incomplete request stays open for a repeat.
    """
    room = Admission(request_id, policy.queue, check_max_wait(max_wait_s))
    own = Submission(request_id, policy, Digest(policy), room, takes_back=takes_back)
    return (yield from _confirmed(own, _submit(own)))


def submit_chunk(
    request_id: str, policy: Policy, chunk: Chunk, room: Admission, announced: Intent | None = None
) -> Operation[int]:
    """Submits a request of one chunk, as `submit` does; `room` says how long it waits.

    `announced` stands in `active` already, and the request itself may be there, too.
    """
    own = Submission(request_id, policy, Digest(policy), room, announced)
    return (yield from _confirmed(own, _begin(own, chunk, None)))


def begin(
    request_id: str, policy: Policy, digest: Digest, open_ms: int, announced: Intent | None = None
) -> Operation[None]:
    """Creates a request that is open and empty, or finds the one of this digest.

    It may go without a chunk for `open_ms`. Raises RequestExists, RequestEnded and RedisFull.
    """
    room = Admission(request_id, policy.queue, settings.MAX_WAIT_S)
    own = Submission(request_id, policy, digest, room, announced, open_ms)
    reply = yield from enqueue(own, [], is_open=True)
    yield from dispatch(own, reply[5] if reply[0] == b"exists" else reply[1])


def _confirmed(own: Submission, submission: Operation[int]) -> Operation[int]:
    if not own.policy.durable:
        return (yield from submission)
    yield from check_replicas(own.id, own.policy.durable)
    total = yield from submission
    yield from confirm_submission(own.id, own.policy.durable, own.digest.hex)
    return total


def _submit(own: Submission) -> Operation[int]:
    first: Chunk = (yield NextChunk()) or []
    # One chunk of look-ahead: a request that fits into one call is never open.
    following: Chunk | None = (yield NextChunk()) if first else None
    return (yield from _begin(own, first, following))


def _begin(own: Submission, first: Chunk, following: Chunk | None) -> Operation[int]:
    own.digest.add(first)
    reply = yield from enqueue(own, first, is_open=following is not None)
    word, total = reply[0], len(first)
    if word == b"exists":
        return (yield from _or_discard(own, _resume(own, reply, first, following)))
    if word == b"ended":
        yield retire(own.policy.queue, own.id, reply[1])
        return total
    yield from dispatch(own, reply[1])
    if following is None:
        return total
    return (yield from _or_discard(own, _append_rest(own, following, 1, total)))


def _ended(request_id: str, summary: list[Any]) -> RequestEnded:
    if is_cancelled(summary):
        return cancelled_error(request_id, summary)
    return RequestEnded(
        f"request {request_id} ended before its submission was complete ({summary[8].decode()})"
    )


def _or_discard(own: Submission, rest: Operation[int]) -> Operation[int]:
    """Runs the rest of a submission; no room, or Ctrl-C, cancels the open request.

    The request stays if it is another producer's or gone. It also stays if Redis does not answer:
    then a repeat with the same id resumes.
    """
    try:
        return (yield from rest)
    except GeneratorExit:  # the caller is gone; an open request is cancelled in time
        raise
    except FairlaneError as error:
        if isinstance(error, (RedisFull, QueueFull)):
            yield from _take_back(own, error)
        raise
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            yield Hurry()
        with suppress(FairlaneError):  # the caller's own error is the one to raise
            yield from _take_back(own, error)
        raise


def _pull(own: Submission) -> Operation[Chunk | None]:
    """Returns the next chunk; takes the request back if a body is refused.

    Any other error of the caller's bodies takes it back, too: see _or_discard.
    """
    try:
        chunk: Chunk | None = yield NextChunk()
    except FairlaneError as error:
        yield from _take_back(own, error)
        raise
    return chunk


def _take_back(own: Submission, error: BaseException) -> Operation[None]:
    if own.takes_back:
        yield from discard(own, f"submission: {type(error).__name__}")


def _append_rest(own: Submission, chunk: Chunk | None, chunks: int, total: int) -> Operation[int]:
    while chunk is not None:
        own.digest.add(chunk)
        chunks += 1
        total += len(chunk)
        reply = yield from _append(own, chunk, chunks)
        yield from _check_open(own, reply)
        yield from dispatch(own, reply[-1])
        chunk = yield from _pull(own)
    names = keys.request_keys(own.id)
    reply = yield library().seal(names, chunks=chunks, chain=own.digest.hex)
    if reply[0] == b"ended" and not is_cancelled(reply[1]):
        yield retire(own.policy.queue, own.id, reply[1])
    else:
        yield from _check_open(own, reply)
        yield from dispatch(own, reply[-1])
    return total


def _append(own: Submission, chunk: Chunk, number: int) -> Operation[list[Any]]:
    while True:
        try:
            yield from own.room.ask(number, len(chunk))
            reply: list[Any] = yield library().append(
                keys.request_keys(own.id),
                chunk=number,
                chain=own.digest.hex,
                before=own.digest.before,
                open_ms=settings.OPEN_MS,
                bodies=chunk,
            )
        except (RedisFull, QueueFull) as error:
            yield from own.room.wait(error)
        else:
            own.room.found()
            return reply


def _check_open(own: Submission, reply: list[Any]) -> Operation[None]:
    word = reply[0]
    if word == b"ended":
        yield retire(own.policy.queue, own.id, reply[1])
        raise _ended(own.id, reply[1])
    if word == b"cancelling":
        raise cancelled_error(own.id, reply[1])
    if word == b"gone":
        raise RequestLost(f"request {own.id} vanished from Redis while it was being submitted")
    if word in {b"conflict", b"closed"}:
        raise already_exists(own.id)


def _resume(
    own: Submission, reply: list[Any], first: Chunk, following: Chunk | None
) -> Operation[int]:
    """Goes on at the first chunk that a request with the same first chunk does not have."""
    _, stored, chain, is_open, _, tokens = reply
    yield from dispatch(own, tokens)
    chunks, total, chunk = 1, len(first), following
    while chunk is not None and chunks < stored:
        own.digest.add(chunk)
        chunks, total = chunks + 1, total + len(chunk)
        chunk = yield from _pull(own)
    if chunks != stored or own.digest.hex != chain.decode():
        raise already_exists(own.id)
    if chunk is not None and not is_open:
        raise already_exists(own.id)
    if not is_open:
        return total
    return (yield from _append_rest(own, chunk, chunks, total))
