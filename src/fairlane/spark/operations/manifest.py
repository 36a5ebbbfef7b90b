"""Moves the chunks of a pinned manifest into their requests, many in flight, each once."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlane import settings
from fairlane.errors import (
    FairlaneError,
    InvalidArgument,
    QueueFull,
    RequestEnded,
    RequestExists,
    RequestLost,
)
from fairlane.operations.admission import Admission
from fairlane.operations.follow_up import follow_up
from fairlane.operations.new_request import Digest
from fairlane.protocol import keys
from fairlane.protocol.request_hash import read
from fairlane.protocol.scripts import library
from fairlane.protocol.steps import Batch, Call, Command, Operation
from fairlane.spark.operations.staging import CHECKS, Area

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairlane.options import Policy
    from fairlane.protocol.replies import Reply

WINDOW = 8  # chunks in flight: a server works on one while the next is on its way
MANIFEST_MOST = 1 << 20  # bytes
ABANDONED = "abandoned"  # the reason of an open request that got no rows in time (reap.lua)


@dataclass(slots=True)
class Share:
    """Holds what a transaction adds to one request: areas in the order of their rows."""

    id: str
    policy: Policy
    areas: list[Area]


@dataclass(slots=True)
class Txn:
    """Holds one transaction. With `seal` its requests take no rows after its own.

    A request that it seals is its own from the beginning: another transaction is refused.
    """

    name: str
    seal: bool
    open_ms: int = settings.SINK_OPEN_MS
    rolled: list[tuple[str, Reply]] = field(default_factory=list)  # tokens are to be dispatched

    @property
    def keep_ms(self) -> int:
        """Returns how long its records stay: a repeat of it must find them while it may add rows.

        So they must stay at least as long as its requests may be open.
        """
        return max(settings.PINNED_MS, self.open_ms)

    def own_digest(self, policy: Policy) -> Digest:
        """Returns the digest of a request that is this transaction's alone."""
        digest = Digest(policy)
        digest.add([b"txn", self.name.encode()])
        return digest

    def digest_of(self, policy: Policy, stored: str) -> Digest:
        """Returns the digest with which to begin a request whose digest is `stored`, or ""."""
        shared = shared_digest(policy)
        return self.own_digest(policy) if self.seal and stored != shared.hex else shared


def shared_digest(policy: Policy) -> Digest:
    """Returns the digest of a request that many transactions fill."""
    digest = Digest(policy)
    digest.add([])
    return digest


def claim(request_id: str, txn: Txn) -> Command:
    """Returns the command that records a request's owner, for the text of a refusal."""
    return Command(b"SET", keys.owner(request_id), txn.name, b"PX", txn.keep_ms)


def owner_of(owner: bytes | None, policy: Policy, stored: str) -> str:
    """Returns the transaction that owns the request with the digest `stored`, "" if unknown.

    The record may be of an earlier life of the id, so the digest decides.
    """
    name = (owner or b"").decode("utf-8", "replace")
    return name if name and Txn(name, True).own_digest(policy).hex == stored else ""


def keep_open(request_id: str, txn: Txn) -> Call:
    """Returns the call that gives an open request more time; it pins nothing."""
    return library().pin_manifest(
        record_keys(request_id, txn.name),
        manifest="",
        open_ms=txn.open_ms,
        ttl=txn.keep_ms,
    )


class Brought(NamedTuple):
    """Counts what one commit of a transaction added to one request."""

    request: str
    given: int  # rows that this write has staged
    pinned: int  # rows of the transaction, as the first commit pinned them
    added: int  # how many of these this commit added
    is_same: bool  # the given rows and the pinned rows have equal counts and checksums
    is_as_begun: bool  # the request was begun with the policy given


@dataclass(slots=True)
class Rolling:
    """Holds the state of one share during its commit."""

    share: Share
    digest: Digest
    is_there: bool  # the request exists
    is_pinned: bool
    areas: list[Area] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)  # chunks before each area
    total: int = 0  # chunks
    position: int = 0
    state: str = "pinned"
    is_done: bool = False  # nothing is left to do
    rolled: int = 0  # sub-requests that were added before this commit
    is_as_begun: bool = True  # see Brought

    def is_own(self) -> bool:
        """Returns True if its request is this transaction's alone."""
        return self.digest.hex != shared_digest(self.share.policy).hex

    def take_manifest(self, text: str) -> None:
        """Takes over the pinned order of the areas."""
        rows = [line.split(",") for line in text.splitlines()]
        self.areas = [Area(name, *map(int, numbers)) for name, *numbers in rows]
        *self.starts, self.total = accumulate((area.chunks for area in self.areas), initial=0)

    def brought(self) -> Brought:
        """Returns what this commit added; call it after the end."""
        (given, check), (pinned, pinned_check) = _summed(self.share.areas), _summed(self.areas)
        added = 0 if self.is_done else pinned - self.rolled
        is_same = (given, check) == (pinned, pinned_check)
        return Brought(self.share.id, given, pinned, added, is_same, self.is_as_begun)

    def call(self, position: int, txn: Txn) -> Call:
        """Returns the call that rolls the chunk at this position."""
        at = bisect_right(self.starts, position) - 1
        area, chunk = self.areas[at], position - self.starts[at] + 1
        is_last = position == self.total - 1
        last = "area" if chunk == area.chunks else ""
        return library().append_staged(
            (*record_keys(self.share.id, txn.name), keys.area(self.share.id, txn.name, area.name)),
            position=position,
            chunk=chunk,
            link=f"{txn.name}:{area.name}:{chunk}",
            last="seal" if is_last and txn.seal else last,
            open_ms=txn.open_ms,
            ttl=txn.keep_ms,
        )

    def rows_at(self, position: int) -> int:
        """Returns the approximate number of sub-requests in that chunk."""
        area = self.areas[bisect_right(self.starts, position) - 1]
        return -(-area.rows // area.chunks)


def _summed(areas: Sequence[Area]) -> tuple[int, int]:
    """Returns the rows of these areas, and their checksum."""
    return sum(area.rows for area in areas), sum(area.check for area in areas) % CHECKS


def record_keys(request_id: str, txn: str) -> tuple[bytes, ...]:
    """Returns the keys of a request, and of what a transaction brings into it."""
    return (*keys.request_keys(request_id), keys.transaction(request_id, txn))


def manifest_of(share: Share) -> str:
    """Returns the manifest: a line for each area. Raises InvalidArgument."""
    text = "".join(f"{area.name},{area.chunks},{area.rows},{area.check}\n" for area in share.areas)
    if len(text) > MANIFEST_MOST:
        raise InvalidArgument(
            f"request {share.id} would be written by {len(share.areas):,} partitions: coalesce them"
        )
    return text


def roll_all(group: list[Rolling], txn: Txn) -> Operation[None]:
    """Rolls the remaining chunks of each share, in turns. Raises as commit does.

    After an error it may be run again.
    """
    left = [rolling for rolling in group if rolling.position < rolling.total]
    while left:
        each = max(1, WINDOW // len(left))
        rolls = [
            (rolling, rolling.call(position, txn))
            for rolling in left
            for position in range(rolling.position, min(rolling.position + each, rolling.total))
        ]
        replies = yield Batch([*_dispatched(left, txn), *(call for _, call in rolls)], lenient=True)
        first = len(replies) - len(rolls)
        yield from _take_all(rolls, replies[first:], txn)
        for reply in replies[:first]:
            if isinstance(reply, FairlaneError):
                raise reply
        left = [rolling for rolling in left if rolling.position < rolling.total]
    calls = _dispatched(group, txn)
    if calls:
        yield Batch(calls)


def roll_slowly(rolling: Rolling, txn: Txn, bound: int) -> Operation[None]:
    """Rolls a share into a queue with a bound: every chunk asks for room and waits for it."""
    room = Admission(rolling.share.id, rolling.share.policy.queue, settings.MAX_WAIT_S)
    room.bound = bound
    while rolling.position < rolling.total:
        (chunks,) = yield from read(rolling.share.id, "chunks")
        try:
            yield from room.ask(int(chunks or 0) + 1, rolling.rows_at(rolling.position))
        except QueueFull as error:
            yield from room.wait(error)
            yield keep_open(rolling.share.id, txn)  # the next turn reads its state
            continue
        room.found()
        call = rolling.call(rolling.position, txn)
        yield from _take_all([(rolling, call)], [(yield call)], txn)
        calls = _dispatched([rolling], txn)
        if calls:
            yield Batch(calls)


def _take_all(
    rolls: Sequence[tuple[Rolling, Call]], replies: Sequence[Any], txn: Txn
) -> Operation[None]:
    """Reads the replies of rolls. Keeps the tokens of all before it raises the first refusal."""
    failure: tuple[Rolling, Reply | FairlaneError] | None = None
    for (rolling, call), raw in zip(rolls, replies, strict=True):
        reply = raw if isinstance(raw, FairlaneError) else call.reply(raw)
        if isinstance(reply, FairlaneError) or not reply.has_tokens:
            failure = failure or (rolling, reply)
            continue
        txn.rolled.append((rolling.share.id, reply))
        rolling.position = int(reply.position)
        is_last = rolling.position == rolling.total and txn.seal
        rolling.state = reply.state.decode() if reply.is_at else "sealed" if is_last else "pinned"
    if failure is not None:
        calls = _dispatched([rolling for rolling, _ in rolls], txn)
        if calls:
            yield Batch(calls)
        rolling, reply = failure
        yield from refused(rolling.share.id, rolling.share.policy.queue, reply)


def _dispatched(group: list[Rolling], txn: Txn) -> list[Call]:
    """Returns the calls that dispatch the tokens of the last replies."""
    queue = group[0].share.policy.queue if group else settings.DEFAULT_QUEUE
    calls = follow_up(queue, *txn.rolled)
    txn.rolled = []
    return calls


# ------------------------------------------------------------------ refusals


def refused(request_id: str, queue: str, reply: Reply | FairlaneError) -> Operation[None]:
    """Raises the error that a refusal means."""
    if isinstance(reply, FairlaneError):
        raise reply
    if reply.is_ended:
        yield Batch(follow_up(queue, (request_id, reply)))
        raise cut_short(request_id, (reply.summary.reason or reply.summary.state).decode())
    if reply.is_closed:
        raise closed(request_id)
    if not reply.is_gone and reply.is_missing:
        raise missing(request_id)
    raise RequestLost(f"request {request_id} vanished from Redis while it was being written")


def exists(request_id: str, owner: str = "") -> RequestExists:
    """Returns the error for an id that is taken; the transaction `owner` may go on with it."""
    if owner:
        return RequestExists(
            f"request {request_id} exists, and the transaction {owner} began it for itself alone: "
            f"choose another id, or give the same txn ({owner}) to go on with what it began"
        )
    return RequestExists(
        f"request {request_id} exists with other content, options or from another transaction: "
        "choose another id, or give the same txn to go on with what it began"
    )


def closed(request_id: str) -> RequestExists:
    """Returns the error for a request that is sealed."""
    return RequestExists(f"request {request_id} exists and takes no more rows: choose another id")


def cut_short(request_id: str, reason: str) -> RequestEnded:
    """Returns the error for a request that ended before its last rows and its seal."""
    if reason == ABANDONED:
        return abandoned(request_id)
    return RequestEnded(f"request {request_id} ended ({reason}) before all rows were in it")


def abandoned(request_id: str) -> RequestEnded:
    """Returns the error for a request that was open without rows for too long."""
    return RequestEnded(
        f"request {request_id} was abandoned: it was open without new rows for longer than openFor "
        "allows; raise openFor, and choose another id"
    )


def missing(request_id: str) -> RequestLost:
    """Returns the error for areas that expired."""
    return RequestLost(
        f"what was staged for request {request_id} is not there any more (it expired, or Redis "
        "lost it): write it again"
    )
