"""Submission: intent [D] -> enqueue, append ..., seal [R] -> insert_tokens [D]."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from fairlane import settings
from fairlane.errors import FairlaneError, QueueFull, RedisFull, RedisUnreachable, RequestClosed
from fairlane.operations.create.admission import Admission, check_max_wait
from fairlane.operations.create.alone import already_exists
from fairlane.operations.create.digest import Digest
from fairlane.operations.create.group import create_one
from fairlane.operations.create.new_request import NewRequest, RequestKept
from fairlane.operations.submit.discard import discard
from fairlane.operations.submit.durability import check_replicas, confirm_submission
from fairlane.operations.submit.open_request import Submission
from fairlane.protocol.steps import Hurry, NextChunk, Operation

if TYPE_CHECKING:
    from fairlane.operations.create.digest import Chunk
    from fairlane.operations.create.new_request import Created, Guard
    from fairlane.options import Policy


def submit(
    request_id: str,
    policy: Policy,
    max_wait_s: float = 0.0,
    *,
    takes_back: bool = True,
    guard: Guard | None = None,
) -> Operation[int]:
    """Submits the caller's chunks as one request; returns how many sub-requests it has.

    Idempotent: with the same id and content it resumes or finds the request, and an abandoned
    request is submitted anew. A chunk for which Redis or the queue has no room is tried again for
    `max_wait_s` seconds. Raises RequestExists, RequestEnded (it was cancelled, before or
    meanwhile), RequestLost, RedisFull and QueueFull (nothing is left of it). With policy.durable it
    also raises RedisUnfit (too few replicas: nothing was written) and NotDurable (the request goes
    on). Without `takes_back` an incomplete one stays open for a repeat. `guard`: see NewRequest.
    """
    room = Admission(request_id, policy.queue, check_max_wait(max_wait_s))
    new = NewRequest(
        request_id, policy, Digest(policy), [], room=room, takes_back=takes_back, guard=guard
    )
    try:
        return (yield from _confirmed(new, _submit(new)))
    except RequestKept as kept:
        return kept.total


def submit_chunk(new: NewRequest) -> Operation[int]:
    """Submits a request of one chunk, as `submit` does."""
    return (yield from _confirmed(new, _begin(new, None)))


def _confirmed(new: NewRequest, submission: Operation[int]) -> Operation[int]:
    if not new.policy.durable:
        return (yield from submission)
    yield from check_replicas(new.id, new.policy.durable)
    total = yield from submission
    yield from confirm_submission(new.id, new.policy.durable, new.digest.hex)
    return total


def _submit(new: NewRequest) -> Operation[int]:
    new.begin((yield NextChunk()) or [])
    # One chunk of look-ahead: a request that fits into one call is never open.
    following: Chunk | None = (yield NextChunk()) if new.bodies else None
    new.open_ms = 0 if following is None else settings.OPEN_MS
    return (yield from _begin(new, following))


def _begin(new: NewRequest, following: Chunk | None) -> Operation[int]:
    created = yield from create_one(new)
    if following is None and new.is_complete:
        return created.total
    return (yield from complete(new, created, following))


def complete(new: NewRequest, created: Created, following: Chunk | None = None) -> Operation[int]:
    """Completes a created request: the chunks that it does not have yet, then the seal.

    Returns how many sub-requests it has. Raises as submit does.
    """
    return (yield from _or_discard(new, _resume(new, created, following)))


def _or_discard(new: NewRequest, rest: Operation[int]) -> Operation[int]:
    """Runs the rest of a submission; no room, or Ctrl-C, cancels the open request.

    The request stays if it is another producer's or gone. It also stays if Redis does not answer:
    then a repeat with the same id resumes, or the caller runs what the error has as `take_back`.
    """
    try:
        return (yield from rest)
    except GeneratorExit:  # the caller is gone; an open request is cancelled in time
        raise
    except FairlaneError as error:
        if isinstance(error, (RedisFull, QueueFull)):
            yield from _take_back(new, error)
        elif isinstance(error, RedisUnreachable) and new.takes_back:
            error.take_back = partial(_take_back_later, new, type(error).__name__)
        raise
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            yield Hurry()
        with suppress(FairlaneError):  # the caller's own error is the one to raise
            yield from _take_back(new, error)
        raise


def _pull(new: NewRequest) -> Operation[Chunk | None]:
    """Returns the next chunk; takes the request back if a body is refused.

    Any other error of the caller's bodies takes it back, too: see _or_discard.
    """
    try:
        chunk: Chunk | None = yield NextChunk()
    except FairlaneError as error:
        yield from _take_back(new, error)
        raise
    return chunk


def _take_back(new: NewRequest, error: BaseException) -> Operation[None]:
    if new.takes_back:
        yield from discard(new, f"submission: {type(error).__name__}")


def _take_back_later(new: NewRequest, reason: str) -> Operation[None]:
    """Takes back what a submission wrote before its error, with a chunk whose reply was lost."""
    if new.unsure is not None:
        new.digest = new.unsure
    yield from discard(new, f"submission: {reason}")


def _resume(new: NewRequest, created: Created, following: Chunk | None) -> Operation[int]:
    """Goes on at the first chunk that the request does not have."""
    chunks, chunk = 1, following
    while chunk is not None and chunks < created.chunks:
        new.digest.add(chunk)
        chunks += 1
        chunk = yield from _pull(new)
    if chunks != created.chunks or new.digest.hex != created.chain:
        raise already_exists(new.id)
    if chunk is not None and not created.is_open:
        raise already_exists(new.id)
    if not created.is_open:
        return created.total
    return (yield from _append_rest(new, created, chunk))


def _append_rest(new: NewRequest, created: Created, chunk: Chunk | None) -> Operation[int]:
    request = Submission(new, created)
    while chunk is not None:
        try:
            yield from request.add(chunk)
        except RequestClosed:  # another producer has sealed it before
            raise already_exists(new.id) from None
        chunk = yield from _pull(new)
    return (yield from request.seal())
