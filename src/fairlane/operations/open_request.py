"""An open request: chunks are added to it one after the other, until it is sealed."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from fairlane import settings
from fairlane.errors import (
    FairlaneError,
    QueueFull,
    RedisFull,
    RedisUnreachable,
    RequestClosed,
    RequestEnded,
    RequestLost,
)
from fairlane.operations.admission import Admission, check_max_wait
from fairlane.operations.create import already_exists, cancelled_error, create_one
from fairlane.operations.follow_up import follow_up
from fairlane.operations.new_request import Created, Digest, NewRequest
from fairlane.operations.tokens import count_stop, drop_active, retire
from fairlane.protocol import keys, scripts
from fairlane.protocol.steps import Batch, Command

if TYPE_CHECKING:
    from typing import Any

    from fairlane.operations.new_request import Chunk
    from fairlane.option_types import Duration
    from fairlane.options import Policy
    from fairlane.protocol.replies import Reply, Summary
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
    """Takes tokens out of their lanes; one that is left would cost a worker one call."""
    for lane, permit in zip(tokens[::3], tokens[1::3], strict=True):
        token = f"{own.id}#{permit.decode()}"
        await Command(b"LREM", keys.lane(own.policy.queue, int(lane)), 1, token)
