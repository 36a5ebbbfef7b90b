"""Submission: intent [D] -> enqueue, append ..., seal [R] -> insert_tokens [D]."""

from __future__ import annotations

import hashlib
import struct
from typing import TYPE_CHECKING, Any

from .. import keys, settings
from ..errors import (
    InvalidArgument,
    RedisFull,
    RedisUnfit,
    RedisUnreachable,
    RequestEnded,
    RequestExists,
    RequestLost,
)
from ..model import ENDED_STATES
from ..scripts import library
from ..steps import Batch, Command, Operation, Pull
from .control import cancel
from .tokens import insert, retire

if TYPE_CHECKING:
    from ..model import Policy

Chunk = list[bytes]


class Digest:
    """SHA-256 over the policy and every chunk so far, chained; bodies are length-prefixed.

    Two submissions with one id are the same request exactly if their digests are.
    """

    def __init__(self, policy: Policy) -> None:
        options = (
            policy.queue, policy.priority, policy.limit, policy.attempts, *policy.backoff_ms,
            policy.lease_ms, policy.retain_ms,
        )  # fmt: skip
        self._link = repr(options).encode()

    def add(self, chunk: Chunk) -> str:
        """The digest up to and with `chunk`, hex."""
        lengths = struct.pack(f"<{len(chunk)}I", *map(len, chunk))
        digest = hashlib.sha256(b"%d|" % len(self._link) + self._link + lengths)
        digest.update(b"".join(chunk))
        self._link = digest.digest()
        return digest.hexdigest()


def submit(request_id: str, policy: Policy) -> Operation[int]:
    """Submits the caller's chunks as one request; returns how many sub-requests it has.

    Repeatable: with the same id and content it resumes or finds the request as it is. Raises
    RequestExists, RequestEnded (cancelled meanwhile), RequestLost.
    """
    digest = Digest(policy)
    first: Chunk = (yield Pull()) or []
    # One chunk of look-ahead: a request that fits into one call is never open.
    following: Chunk | None = (yield Pull()) if first else None
    link = digest.add(first)
    reply = yield from _enqueue(request_id, policy, link, first, is_open=following is not None)
    word, total, chunks = reply[0], len(first), 1
    if word == b"exists":
        resumed = _resume(request_id, policy, reply, digest, link, first, following)
        return (yield from _or_discard(request_id, policy, resumed))
    if word == b"ended":
        yield retire(policy.queue, request_id, reply[1])
        return total
    yield from _dispatch(request_id, policy, reply[-1])
    if following is None:
        return total
    rest = _append_rest(request_id, policy, digest, following, chunks, total)
    return (yield from _or_discard(request_id, policy, rest))


def _enqueue(
    request_id: str, policy: Policy, link: str, chunk: Chunk, *, is_open: bool
) -> Operation[list[Any]]:
    scripts, active = library(), (keys.active(policy.queue),)
    seen = 0
    while True:
        intent = yield scripts.intend(
            active, id=request_id, grace=settings.INTENT_GRACE_MS, above=seen
        )
        try:
            reply: list[Any] = yield scripts.enqueue(
                keys.request_keys(request_id),
                queue=policy.queue,
                priority=policy.priority,
                limit=policy.limit,
                digest=link,
                intent=intent,
                open_ms=settings.OPEN_MS if is_open else 0,
                attempts=policy.attempts,
                backoff_min=policy.backoff_ms[0],
                backoff_max=policy.backoff_ms[1],
                lease_ms=policy.lease_ms,
                retain_ms=policy.retain_ms,
                bodies=chunk,
            )
        except (InvalidArgument, RedisFull):  # refused before anything was written: no trace stays
            yield scripts.drop(active, id=request_id, seen=intent)
            raise
        if reply[0] == b"conflict":
            home = yield Command(b"HGET", keys.request_hash(request_id), b"queue")
            if home != policy.queue.encode():  # another queue looks after it
                yield scripts.drop(active, id=request_id, seen=intent)
            elif reply[1][0].decode() in ENDED_STATES:
                yield retire(policy.queue, request_id, reply[1])
            raise _exists(request_id)
        if reply[0] != b"late":
            return reply
        seen = reply[1]  # the auditor had given the intent up: announce it anew, and later


def _exists(request_id: str) -> RequestExists:
    return RequestExists(
        f"request {request_id} exists with other content or options: "
        "choose another id, or submit the same again"
    )


def _ended(request_id: str, summary: list[Any]) -> RequestEnded:
    return RequestEnded(
        f"request {request_id} ended before its submission was complete ({summary[8].decode()})"
    )


def _dispatch(request_id: str, policy: Policy, tokens: list[Any]) -> Operation[None]:
    calls = insert(policy.queue, request_id, tokens)
    if calls:
        yield Batch(calls)


def _or_discard(request_id: str, policy: Policy, rest: Operation[int]) -> Operation[int]:
    """The rest of a submission; what stops it short cancels the open request.

    That is an error of the source, a full Redis or Ctrl-C. Not when the request is somebody
    else's or gone, and not when Redis does not answer: then a repeat with the same id resumes.
    """
    try:
        return (yield from rest)
    except GeneratorExit:  # nobody listens any more; an open request is cancelled in time
        raise
    except (RequestEnded, RequestExists, RequestLost, RedisUnfit, RedisUnreachable):
        raise
    except BaseException as error:
        if (yield Command(b"HGET", keys.request_hash(request_id), b"open")) == b"1":
            yield from discard(request_id, policy.queue, f"submission: {type(error).__name__}")
        raise


def _append_rest(
    request_id: str, policy: Policy, digest: Digest, chunk: Chunk | None, chunks: int, total: int
) -> Operation[int]:
    scripts, names = library(), keys.request_keys(request_id)
    while chunk is not None:
        link = digest.add(chunk)
        chunks += 1
        total += len(chunk)
        reply = yield scripts.append(
            names, chunk=chunks, chain=link, open_ms=settings.OPEN_MS, bodies=chunk
        )
        yield from _check_open(request_id, policy, reply)
        yield from _dispatch(request_id, policy, reply[-1])
        chunk = yield Pull()
    reply = yield scripts.seal(names, chunks=chunks)
    if reply[0] == b"ended":
        yield retire(policy.queue, request_id, reply[1])
    elif reply[0] == b"gone":
        raise RequestLost(f"request {request_id} vanished from Redis while it was being submitted")
    else:
        yield from _dispatch(request_id, policy, reply[-1])
    return total


def _check_open(request_id: str, policy: Policy, reply: list[Any]) -> Operation[None]:
    word = reply[0]
    if word == b"ended":
        yield retire(policy.queue, request_id, reply[1])
        raise _ended(request_id, reply[1])
    if word == b"gone":
        raise RequestLost(f"request {request_id} vanished from Redis while it was being submitted")
    if word in {b"conflict", b"closed"}:
        raise _exists(request_id)


def _resume(
    request_id: str,
    policy: Policy,
    reply: list[Any],
    digest: Digest,
    link: str,
    first: Chunk,
    following: Chunk | None,
) -> Operation[int]:
    """The id exists with this first chunk: goes on at the first chunk that is missing there."""
    _, stored, chain, is_open, summary, tokens = reply
    yield from _dispatch(request_id, policy, tokens)
    if summary[0].decode() in ENDED_STATES:
        yield retire(policy.queue, request_id, summary)
    chunks, total, chunk = 1, len(first), following
    while chunk is not None and chunks < stored:
        link = digest.add(chunk)
        chunks, total = chunks + 1, total + len(chunk)
        chunk = yield Pull()
    if chunks != stored or link != chain.decode():
        raise _exists(request_id)
    if chunk is not None and summary[0] == b"cancelled":
        raise _ended(request_id, summary)
    if chunk is not None and not is_open:
        raise _exists(request_id)
    if not is_open:
        return total
    return (yield from _append_rest(request_id, policy, digest, chunk, chunks, total))


def discard(request_id: str, queue: str, reason: str) -> Operation[None]:
    """Cancels a half-submitted request and removes its keys; a slice still held ends by itself."""
    ended = yield from cancel(request_id, reason, queue=queue)
    if ended:
        yield Command(b"UNLINK", *keys.request_keys(request_id))
