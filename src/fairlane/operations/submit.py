"""Submits requests: one from a stream of bodies, or many in few round trips."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, Unpack

from fairlane import settings
from fairlane.common.chunking import split, split_async
from fairlane.errors import (
    FairlaneError,
    InvalidArgument,
    QueueFull,
    RedisFull,
    RedisUnreachable,
    RequestClosed,
    RequestEnded,
    RequestLost,
    type_of,
)
from fairlane.operations.admission import Admission, check_max_wait
from fairlane.operations.create import (
    GROUP,
    Created,
    Digest,
    NewRequest,
    RequestKept,
    already_exists,
    cancelled_error,
    create,
    create_one,
)
from fairlane.operations.durability import check_replicas, confirm_submission
from fairlane.operations.tokens import GIVEN, count_stop, drop_active, follow_up, insert, retire
from fairlane.options import policy_of
from fairlane.protocol import keys, scripts
from fairlane.protocol.steps import Batch, Command, Hurry, NextChunk, Operation, run_all

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from fairlane.common.chunking import Body
    from fairlane.operations.create import Chunk, Guard
    from fairlane.option_types import Duration, SharedOptions
    from fairlane.options import Policy
    from fairlane.protocol.lua import Reply, Summary
    from fairlane.protocol.scripts import AppendReply, SealReply


class Submission:
    """The submission of a request that its producer has begun.

    `chunks` are the chunks that Redis has, and `total` counts their sub-requests without those that
    were `left_out`. The request is given up an hour after its last chunk, see settings.OPEN_MS.
    """

    def __init__(self, new: NewRequest, created: Created) -> None:
        self.new, self.is_sealed = new, not created.is_open
        self._is_withdrawn = False
        self.chunks, self.total, self.left_out = created.chunks, created.total, created.left_out
        self._last = new.digest  # over these chunks
        self._room = new.room or Admission(new.id, new.policy.queue, 0.0)

    async def add(self, chunk: Chunk) -> None:
        """Adds the next chunk; waits for room as the submission's `max_wait` allows.

        After an error the same chunk may be added again: if Redis has it already, that changes
        nothing. Raises RequestClosed (it is sealed, or was withdrawn), RequestEnded (it was
        cancelled), RequestLost and RequestExists (another producer adds to it).
        """
        self._check_withdrawn()
        if self.is_sealed:
            raise self._closed()
        ids = self.new.policy.ids_of(chunk)
        digest = self._last.copy()
        digest.add(chunk)
        # A caller who is interrupted now may withdraw the request, with this chunk or without it.
        self.new.digest = digest
        try:
            reply = await self._append(chunk, ids)
        except FairlaneError as error:
            self.new.digest = self._last
            self.new.unsure = digest if isinstance(error, RedisUnreachable) else None
            raise
        if reply.has_tokens:
            self._last = digest
            self.chunks += 1
            sent = self.total + self.left_out + len(chunk)
            self.left_out = reply.left_out or 0
            self.total = sent - self.left_out
            with suppress(RedisUnreachable):  # the chunk is there: the auditor finds its tokens
                await self._dispatch(reply)
            return
        await self._dispatch(reply)
        if reply.is_closed:
            raise self._closed()
        if reply.is_forgotten:
            raise RequestLost(
                f"request {self.new.id} got nothing for a day, and the ids that kept repeats out "
                "are gone: cancel it, and submit all again with another id"
            )
        self._check_open(reply)

    async def seal(self) -> int:
        """Ends the submission; returns how many sub-requests it has. A repeat changes nothing.

        Raises RequestClosed (it was withdrawn), and RequestEnded, RequestLost and RequestExists as
        `add` does.
        """
        self._check_withdrawn()
        new = self.new
        new.digest = self._last  # an addition may have been interrupted
        if self.is_sealed:
            return self.total
        seal = scripts.seal(new.names, chunks=self.chunks, chain=new.digest.hex)
        reply = await seal
        await self._dispatch(reply)
        if not reply.is_ended or reply.summary.is_cancelled:
            self._check_open(reply)
        self.is_sealed = True
        total, left = self.total, self.left_out
        new.created = Created(
            self.chunks, new.digest.hex, is_open=False, total=total, left_out=left
        )
        return self.total

    async def take_back(self, error: BaseException) -> None:
        """Withdraws what the producer could not complete because of this error; see discard."""
        if not self.is_sealed:
            self._is_withdrawn = True
            await discard(self.new, f"submission: {type(error).__name__}")

    async def _append(self, chunk: Chunk, ids: bytes) -> AppendReply:
        new, room = self.new, self._room
        while True:
            try:
                await room.ask(self.chunks + 1, len(chunk))
                call = scripts.append(
                    new.names,
                    chunk=self.chunks + 1,
                    chain=new.digest.hex,
                    before=new.digest.before,
                    open_ms=settings.OPEN_MS,
                    bodies=[*chunk, ids] if new.policy.distinct else chunk,
                )
                reply = await call
            except (RedisFull, QueueFull) as error:
                await room.wait(error)
            else:
                room.found()
                return reply

    async def _dispatch(self, reply: Reply) -> None:
        if steps := follow_up(self.new.policy.queue, (self.new.id, reply)):
            await Batch(steps)

    def _closed(self) -> RequestClosed:
        return RequestClosed(
            f"request {self.new.id} is sealed: submit what is left as another request"
        )

    def _check_withdrawn(self) -> None:
        if self._is_withdrawn:
            raise RequestClosed(
                f"request {self.new.id} was withdrawn after an error of its producer: open another "
                "request"
            )

    def _check_open(self, reply: AppendReply | SealReply) -> None:
        """Raises the error of a reply with which the request took no chunk, and was not sealed."""
        request_id = self.new.id
        if reply.is_ended:
            raise _ended(request_id, reply.summary)
        if reply.is_cancelling:
            raise cancelled_error(request_id, reply.summary)
        if reply.is_gone:
            raise RequestLost(
                f"request {request_id} vanished from Redis while it was being submitted"
            )
        if not reply.has_tokens:  # a conflict
            raise already_exists(request_id)


async def open_request(
    request_id: str,
    policy: Policy,
    first: Chunk,
    max_wait: Duration = 0.0,
    open_ms: int = settings.OPEN_MS,
) -> Submission:
    """Begins a request with its first chunk, which may be empty, and leaves it open for `open_ms`.

    If a request of the id was begun with the same first chunk, its submission goes on, or is found
    sealed. Raises RequestExists, RequestEnded (it was cancelled), RedisFull and QueueFull.
    """
    keys.check_name("request id", request_id)
    room = Admission(request_id, policy.queue, check_max_wait(max_wait))
    new = NewRequest(request_id, policy, Digest(policy), [], open_ms=open_ms, room=room)
    new.begin(first)
    created = await create_one(new)
    new.digest.continue_at(created.chain)
    return Submission(new, created)


def _ended(request_id: str, summary: Summary) -> RequestEnded:
    if summary.is_cancelled:
        return cancelled_error(request_id, summary)
    return RequestEnded(
        f"request {request_id} ended before its submission was complete ({summary.reason.decode()})"
    )


# ------------------------------------------------------------------ discard
# How a producer takes back what it could not complete: discard [R], drop [D].


async def discard(own: NewRequest, reason: str) -> None:
    """Takes an open request back, as far as this submission wrote it: its keys and its tokens.

    It was never complete, so it is not logged. While a slice is held, it is cancelled instead, and
    ends with that slice. Another producer's chunks stay, and so does a life of the id that another
    producer began.
    """
    queue = own.policy.queue
    # Read first: after the discard the entry may be a newer intent of another producer.
    score = await Command(b"ZSCORE", keys.active(queue), own.id) or b"0"
    call = scripts.discard(
        own.names,
        born=own.born,
        chain=own.digest.hex,
        before=own.digest.before,
        reason=reason,
        # An auditor may have moved the entry back from an intent: at most by this.
        seen=int(float(score)) + 2 * settings.INTENT_GRACE_MS,
        ttl=settings.MARKER_MS,
    )
    reply = await call
    if reply.is_ended:
        await retire(queue, own.id, reply.summary)
    elif reply.is_ok or reply.is_held:
        await _remove_tokens(own, reply.queued)
        if reply.is_held:
            await count_stop(queue)
    if (reply.is_ok or reply.is_gone) and score != b"0":
        await drop_active(queue, own.id, score.decode())


async def _remove_tokens(own: NewRequest, tokens: list[Any]) -> None:
    """Takes tokens out of their lanes and keys; one that is left would cost a worker one call."""
    given = list[Any]()
    for lane, permit, delay in zip(tokens[::3], tokens[1::3], tokens[2::3], strict=True):
        if lane == GIVEN:
            given += (lane, permit, delay)
            continue
        token = f"{own.id}#{permit.decode()}"
        await Command(b"LREM", keys.lane(own.policy.queue, int(lane)), 1, token)
    await run_all(insert(own.policy.queue, own.id, given))


# ------------------------------------------------------------------ stream
# Submission: intent [D] -> enqueue, append ..., seal [R] -> insert_tokens [D].


async def submit(
    request_id: str,
    policy: Policy,
    max_wait: Duration = 0.0,
    *,
    only: Chunk | None = None,
    takes_back: bool = True,
    guard: Guard | None = None,
) -> int:
    """Submits the caller's chunks as one request; returns how many sub-requests it has.

    `only` is its only chunk; without it the chunks come from the caller, one at a time.

    Idempotent: with the same id and content it resumes or finds the request, and an abandoned
    request is submitted anew. A chunk for which Redis or the queue has no room is tried again for
    `max_wait` seconds. Raises RequestExists, RequestEnded (it was cancelled, before or
    meanwhile), RequestLost, RedisFull and QueueFull (nothing is left of it). With policy.durable it
    also raises RedisUnfit (too few replicas: nothing was written) and NotDurable (the request goes
    on). Without `takes_back` an incomplete one stays open for a repeat. `guard`: see NewRequest.
    """
    room = Admission(request_id, policy.queue, check_max_wait(max_wait))
    new = NewRequest(
        request_id, policy, Digest(policy), [], room=room, takes_back=takes_back, guard=guard
    )
    try:
        if only is not None:
            new.begin(only)
            return await submit_chunk(new)
        return await _submit_chunks(new)
    except RequestKept as kept:
        return kept.total


async def submit_chunk(new: NewRequest) -> int:
    """Submits a request of one chunk, as `submit` does."""
    if new.policy.durable:
        await check_replicas(new.id, new.policy.durable)
    return await _submit(new)


async def _submit(new: NewRequest, following: Chunk | None = None) -> int:
    created = await create_one(new)
    total = created.total
    if following is not None or not new.is_complete:
        total = await complete(new, created, following)
    if new.policy.durable:
        await confirm_submission(new.id, new.policy.durable, new.digest.hex)
    return total


async def _submit_chunks(new: NewRequest) -> int:
    if new.policy.durable:
        await check_replicas(new.id, new.policy.durable)
    new.begin(await NextChunk() or [])
    # One chunk of look-ahead: a request that fits into one call is never open.
    following: Chunk | None = await NextChunk() if new.bodies else None
    new.open_ms = 0 if following is None else settings.OPEN_MS
    return await _submit(new, following)


async def complete(new: NewRequest, created: Created, following: Chunk | None = None) -> int:
    """Completes a created request: the chunks that it does not have yet, then the seal.

    Returns how many sub-requests it has. Raises as submit does.
    """
    return await _or_discard(new, _resume(new, created, following))


async def _or_discard(new: NewRequest, rest: Operation[int]) -> int:
    """Runs the rest of a submission; no room, or Ctrl-C, cancels the open request.

    The request stays if it is another producer's or gone. It also stays if Redis does not answer:
    then a repeat with the same id resumes, or the caller runs what the error has as `take_back`.
    """
    try:
        return await rest
    except GeneratorExit:  # the caller is gone; an open request is cancelled in time
        raise
    except FairlaneError as error:
        if isinstance(error, (RedisFull, QueueFull)):
            await _take_back(new, error)
        elif isinstance(error, RedisUnreachable) and new.takes_back:
            error.take_back = partial(_take_back_later, new, type(error).__name__)
        raise
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            await Hurry()
        with suppress(FairlaneError):  # the caller's own error is the one to raise
            await _take_back(new, error)
        raise


async def _pull(new: NewRequest) -> Chunk | None:
    """Returns the next chunk; takes the request back if a body is refused.

    Any other error of the caller's bodies takes it back, too: see _or_discard.
    """
    try:
        chunk: Chunk | None = await NextChunk()
    except FairlaneError as error:
        await _take_back(new, error)
        raise
    return chunk


async def _take_back(new: NewRequest, error: BaseException) -> None:
    if new.takes_back:
        await discard(new, f"submission: {type(error).__name__}")


async def _take_back_later(new: NewRequest, reason: str) -> None:
    """Takes back what a submission wrote before its error, with a chunk whose reply was lost."""
    if new.unsure is not None:
        new.digest = new.unsure
    await discard(new, f"submission: {reason}")


async def _resume(new: NewRequest, created: Created, following: Chunk | None) -> int:
    """Goes on at the first chunk that the request does not have."""
    chunks, chunk = 1, following
    while chunk is not None and chunks < created.chunks:
        new.digest.add(chunk)
        chunks += 1
        chunk = await _pull(new)
    if chunks != created.chunks or new.digest.hex != created.chain:
        raise already_exists(new.id)
    if chunk is not None and not created.is_open:
        raise already_exists(new.id)
    if not created.is_open:
        return created.total
    return await _append_rest(new, created, chunk)


async def _append_rest(new: NewRequest, created: Created, chunk: Chunk | None) -> int:
    request = Submission(new, created)
    while chunk is not None:
        try:
            await request.add(chunk)
        except RequestClosed:  # another producer has sealed it before
            raise already_exists(new.id) from None
        chunk = await _pull(new)
    return await request.seal()


# ------------------------------------------------------------------ many
# Many small requests in few round trips: groups of new requests, each group by one create.


B = TypeVar("B")
Rest = TypeVar("Rest")


class Collected(NamedTuple, Generic[Rest]):
    """The next request: its only chunk, or None and all its chunks in `rest`."""

    id: str
    policy: Policy
    chunk: Chunk | None
    rest: Rest | None


class Many:
    """Collects small requests of one queue into groups; every operation it returns must be run.

    The requests share a policy, unless `add` gets another. `submitted` are the ids of the requests
    in Redis, in their order. If Redis stops answering, at least these were written. If one request
    is refused, the rest of its group is submitted, and then the error is raised. When Redis or the
    queue is full, nothing more is begun.
    """

    def __init__(
        self,
        policy: Policy,
        max_wait: Duration = 0.0,
        ids: Iterable[str] | None = None,
        limits: Iterable[int] | None = None,
    ) -> None:
        self.policy, self.max_wait_s = policy, check_max_wait(max_wait)
        self.submitted: list[str] = []
        self._totals: list[tuple[str, int]] = []  # of those submitted since take_submitted
        self._sent = 0
        self._limits = None if limits is None else iter(limits)
        self._group: list[NewRequest] = []
        self._size = 0
        self._seen: set[str] = set()
        self._is_given = ids is not None
        self._names = keys.new_ids() if ids is None else self._given(ids)
        self._count = 0

    @classmethod
    def of(
        cls,
        queue: str,
        limit: int | Iterable[int] | None,
        max_wait: Duration,
        ids: Iterable[str] | None,
        *,
        trace: str = "",
        **options: Unpack[SharedOptions],
    ) -> Many:
        """Returns a collector for these options; `limit` is one for all requests, or for each.

        None is the limit of a request for which none is given.
        """
        if isinstance(limit, Iterable):
            return cls(policy_of(queue, trace=trace, **options), max_wait, ids, limit)
        given: dict[str, Any] = {**options}
        if limit is not None:
            given["limit"] = limit
        return cls(policy_of(queue, trace=trace, **given), max_wait, ids)

    # ------------------------------------------------------------------ requests of the caller

    def collect(self, bodies: Iterable[Body]) -> Collected[Iterator[Chunk]]:
        """Returns the next request. Raises InvalidArgument, whose text names the request."""
        request_id = self._name()
        try:
            return Collected(request_id, self._policy(), *split(bodies))
        except InvalidArgument as error:
            raise self._wrong(error) from None

    async def collect_async(
        self, bodies: Iterable[Body] | AsyncIterable[Body]
    ) -> Collected[AsyncIterator[Chunk]]:
        """Returns the next request, whose bodies may come asynchronously."""
        request_id = self._name()
        try:
            return Collected(request_id, self._policy(), *await split_async(bodies))
        except InvalidArgument as error:
            raise self._wrong(error) from None

    def check_ends(self) -> None:
        """Raises InvalidArgument if an id or a limit is left over behind the last request."""
        if self._is_given and next(self._names, None) is not None:
            raise InvalidArgument(f"there are more ids than requests: {self._count:,} requests")
        if self._limits is not None and next(self._limits, None) is not None:
            raise InvalidArgument(f"there are more limits than requests: {self._count:,} requests")

    def _policy(self) -> Policy:
        if self._limits is None:
            return self.policy
        limit = next(self._limits, None)
        if limit is None:
            raise InvalidArgument("there is no limit for it: one limit for each is expected")
        return replace(self.policy, limit=limit)

    def _name(self) -> str:
        self._count += 1
        request_id = next(self._names, None)
        if request_id is None:
            raise InvalidArgument(f"there are more requests than ids: {self._count - 1:,} ids")
        return request_id

    def _given(self, ids: Iterable[str]) -> Iterator[str]:
        if isinstance(ids, (str, bytes)):
            raise InvalidArgument(f"ids {ids[:60]!r} is not valid: one id for each request")
        for request_id in ids:
            keys.check_name("request id", request_id)
            if request_id in self._seen:
                raise InvalidArgument(
                    f"request id {request_id} is given twice: each is one request"
                )
            self._seen.add(request_id)
            yield request_id

    def _wrong(self, error: InvalidArgument) -> InvalidArgument:
        return InvalidArgument(f"request {self._count - 1} of the call: {error}")

    @property
    def sent(self) -> int:
        """Returns how many sub-requests all requests together have that are in Redis."""
        return self._sent

    @contextlib.contextmanager
    def names_submitted(self) -> Iterator[None]:
        """Adds to an error that is raised inside which requests were submitted before it."""
        try:
            yield
        except FairlaneError as error:
            error.submitted = tuple(self.submitted)
            raise
        except Exception as error:
            error.add_note(f"{len(self.submitted):,} requests were submitted before")
            raise

    # ------------------------------------------------------------------ groups for Redis

    def step(self, taken: Collected[Any]) -> Operation[None] | None:
        """Takes a request; returns what is to be run now with `taken.rest`, or None."""
        if taken.chunk is not None:
            return self.add(taken.id, taken.chunk, taken.policy)
        return self.large(taken.id, taken.policy)

    def take_submitted(self) -> list[tuple[str, int]]:
        """Returns id and number of sub-requests of those submitted since the last call."""
        totals, self._totals = self._totals, []
        return totals

    def add(
        self, request_id: str, chunk: Chunk, policy: Policy | None = None
    ) -> Operation[None] | None:
        """Takes a small request; returns what submits the group before it when that is full.

        `policy` may differ from the others' in its limit and priority.
        """
        policy = policy or self.policy
        new = NewRequest(request_id, policy, Digest(policy), [])
        new.begin(chunk)  # raises before the group is taken
        size, full = sum(map(len, chunk)), None
        is_room = self._size + size <= settings.CHUNK_BYTES and len(self._group) < GROUP
        if self._group and not is_room:
            full = self.rest()
        self._group.append(new)
        self._size += size
        return full

    def rest(self) -> Operation[None]:
        """Submits what was added and not submitted yet."""
        group, self._group, self._size = self._group, [], 0
        return self._submit(group)

    async def large(self, request_id: str, policy: Policy | None = None) -> None:
        """Submits what was added, and then the caller's chunks as one request."""
        await self.rest()
        total = await submit(request_id, policy or self.policy, self.max_wait_s)
        self._count_up(request_id, total)

    async def _submit(self, group: list[NewRequest]) -> None:
        if self.policy.durable:
            for new in group:
                new.room = Admission(new.id, self.policy.queue, self.max_wait_s)
                self._count_up(new.id, await submit_chunk(new))
            return
        errors: list[FairlaneError] = []
        try:
            await self._create(group, errors)
        finally:  # also when Redis goes away in the middle
            for new in group:
                if new.created is not None and new.is_complete:
                    self._count_up(new.id, new.created.total)
        if errors:
            raise errors[0]

    async def _create(self, group: list[NewRequest], errors: list[FairlaneError]) -> None:
        """Creates a group, and completes a request that another producer of the id left open."""
        if not group:
            return
        for new, created in zip(group, await create(group, self.max_wait_s), strict=True):
            if isinstance(created, RequestKept):
                self._count_up(new.id, created.total)
            elif isinstance(created, FairlaneError):
                errors.append(created)
            elif not new.is_complete:
                try:
                    await complete(new, created)
                except RedisUnreachable:
                    raise
                except FairlaneError as error:
                    errors.append(error)

    def _count_up(self, request_id: str, total: int) -> None:
        self.submitted.append(request_id)
        self._totals.append((request_id, total))
        self._sent += total


def checked_requests(requests: Iterable[B]) -> Iterable[B]:
    """Returns `requests` itself. Raises InvalidArgument for what is no iterable of requests."""
    given: object = requests
    if isinstance(given, (str, bytes, dict)) or not isinstance(given, Iterable):
        raise InvalidArgument(
            f"requests is {type_of(given)}: an iterable of requests is expected, "
            "each an iterable of bodies"
        )
    return requests


async def checked_requests_async(
    requests: Iterable[B] | AsyncIterable[B],
) -> AsyncIterator[B]:
    """Returns the requests of an async iterable (or an ordinary one). Raises InvalidArgument."""
    if isinstance(requests, AsyncIterable):
        async for bodies in requests:
            yield bodies
        return
    for bodies in checked_requests(requests):
        yield bodies
