"""Submission: intent [D] -> enqueue, append ..., seal [R] -> insert_tokens [D]."""

from __future__ import annotations

import hashlib
import struct
from typing import TYPE_CHECKING, Any

from .. import keys, settings
from ..errors import (
    FairlaneError,
    InvalidArgument,
    RedisFull,
    RequestEnded,
    RequestExists,
    RequestLost,
)
from ..model import ENDED_STATES
from ..scripts import library
from ..steps import Batch, Call, Command, Operation, Pull
from .control import as_text
from .tokens import insert, retire

if TYPE_CHECKING:
    from ..model import Policy

Chunk = list[bytes]


class Digest:
    """SHA-256 over the policy and every chunk so far, chained; bodies are length-prefixed.

    Two submissions with one id are the same request exactly if their digests are.
    """

    def __init__(self, policy: Policy) -> None:
        self._link = repr(tuple(_terms(policy).values())).encode()

    def add(self, chunk: Chunk) -> str:
        """The digest up to and with `chunk`, hex."""
        lengths = struct.pack(f"<{len(chunk)}I", *map(len, chunk))
        digest = hashlib.sha256(b"%d|" % len(self._link) + self._link + lengths)
        digest.update(b"".join(chunk))
        self._link = digest.digest()
        return self.hex

    @property
    def hex(self) -> str:
        """The digest up to and with the last chunk added."""
        return self._link.hex()


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
    scripts = library()
    given_up, grace = 0, settings.INTENT_GRACE_MS
    if policy.deadline_ms:  # the auditor's first look must not be later than it
        grace = min(grace, max(policy.deadline_ms, settings.INTENT_GRACE_MS // 5))
    while True:
        intent, before = yield scripts.intend(
            (keys.active(policy.queue),),
            id=request_id,
            grace=grace,
            above=given_up,
        )
        try:
            reply: list[Any] = yield scripts.enqueue(
                keys.request_keys(request_id),
                digest=link,
                intent=intent,
                open_ms=settings.OPEN_MS if is_open else 0,
                bodies=chunk,
                **_terms(policy),
            )
        except (InvalidArgument, RedisFull):  # refused before anything was written: no trace stays
            yield _withdraw(policy.queue, request_id, intent, before)
            raise
        word = reply[0]
        if word in {b"exists", b"conflict"}:
            yield from _found(request_id, policy, reply, intent, before)
        if word == b"conflict":
            raise _exists(request_id)
        if word != b"late":
            return reply
        given_up = reply[1]  # the auditor gave this intent up: announce it anew, and later


def _terms(policy: Policy) -> dict[str, int | str]:
    """The policy in the words of enqueue.lua."""
    return {
        "queue": policy.queue,
        "priority": policy.priority,
        "limit": policy.limit,
        "attempts": policy.attempts,
        "backoff_min": policy.backoff_ms[0],
        "backoff_max": policy.backoff_ms[1],
        "lease_ms": policy.lease_ms,
        "retain_ms": policy.retain_ms,
        "deadline_ms": policy.deadline_ms,
        "time_limit_ms": policy.time_limit_ms,
        "durable": policy.durable,
        "parent": policy.parent,
    }


def _withdraw(queue: str, request_id: str, intent: int, before: int) -> Command | Call:
    """Takes an intent back: the auditor looks when it would have looked, or not at all."""
    if before:
        return Command(b"ZADD", keys.active(queue), b"XX", before, request_id)
    return library().drop((keys.active(queue),), id=request_id, seen=intent)


def _found(
    request_id: str, policy: Policy, reply: list[Any], intent: int, before: int
) -> Operation[None]:
    """There is a request of this id: our intent must not keep the auditor from it."""
    summary = reply[1] if reply[0] == b"conflict" else reply[4]
    home = yield Command(b"HGET", keys.request_hash(request_id), b"queue")
    is_ours, is_over = home == policy.queue.encode(), summary[0].decode() in ENDED_STATES
    if is_ours and is_over:
        yield retire(policy.queue, request_id, summary)
    if before or is_over or not is_ours:  # else its entry was missing: now it is looked after
        yield _withdraw(policy.queue, request_id, intent, before)


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
    """The rest of a submission; a full Redis or Ctrl-C cancels the open request.

    Not when the request is somebody else's or gone, and not when Redis does not answer: then a
    repeat with the same id resumes.
    """
    try:
        return (yield from rest)
    except GeneratorExit:  # nobody listens any more; an open request is cancelled in time
        raise
    except FairlaneError as error:
        if isinstance(error, RedisFull):
            yield from _discard_open(request_id, policy.queue, error)
        raise
    except BaseException as error:
        yield from _discard_open(request_id, policy.queue, error)
        raise


def _pull(request_id: str, policy: Policy) -> Operation[Chunk | None]:
    """The next chunk; if the caller's bodies fail, the open request is cancelled."""
    try:
        chunk: Chunk | None = yield Pull()
    except GeneratorExit:  # nobody listens any more; an open request is cancelled in time
        raise
    except BaseException as error:
        yield from _discard_open(request_id, policy.queue, error)
        raise
    return chunk


def _discard_open(request_id: str, queue: str, error: BaseException) -> Operation[None]:
    is_open = yield Command(b"HGET", keys.request_hash(request_id), b"open")
    if is_open == b"1":
        yield from discard(request_id, queue, f"submission: {type(error).__name__}")


def _append_rest(
    request_id: str, policy: Policy, digest: Digest, chunk: Chunk | None, chunks: int, total: int
) -> Operation[int]:
    scripts, names = library(), keys.request_keys(request_id)
    while chunk is not None:
        digest.add(chunk)
        chunks += 1
        total += len(chunk)
        reply = yield scripts.append(
            names, chunk=chunks, chain=digest.hex, open_ms=settings.OPEN_MS, bodies=chunk
        )
        yield from _check_open(request_id, policy, reply)
        yield from _dispatch(request_id, policy, reply[-1])
        chunk = yield from _pull(request_id, policy)
    reply = yield scripts.seal(names, chunks=chunks, chain=digest.hex)
    if reply[0] == b"ended":
        yield retire(policy.queue, request_id, reply[1])
    else:
        yield from _check_open(request_id, policy, reply)
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
    chunks, total, chunk = 1, len(first), following
    while chunk is not None and chunks < stored:
        link = digest.add(chunk)
        chunks, total = chunks + 1, total + len(chunk)
        chunk = yield from _pull(request_id, policy)
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
    """Takes a half-submitted request back: its tokens, its keys, its place in `active`.

    It never was, so it is not logged. A slice that is still held ends by itself, and then it was.
    """
    permits = yield Command(b"HGETALL", keys.permits(request_id))
    reply = yield library().cancel(keys.request_keys(request_id), reason=reason)
    for k, text in as_text(permits).items():
        if text.startswith("q:"):
            _, g, _, lane, _ = text.split(":")
            yield Command(b"LREM", keys.lanes(queue)[int(lane)], 1, f"{request_id}#{k}.{g}")
    if reply[0] == b"ended":
        yield Command(b"UNLINK", *keys.request_keys(request_id))
        yield Command(b"ZREM", keys.active(queue), request_id)
