"""The commit of staged rows: begin, pin, roll, seal; every step is idempotent.

First all requests are checked, and refused before any of them changes. Then each request is
created, open and empty. Its manifest (which areas, in which order) is pinned once. Its chunks are
rolled into it one by one, many in flight. If a transaction runs again after a crash, it finds the
manifest and goes on at the next chunk. Areas that were staged since have no effect.
"""

from __future__ import annotations

import struct
import zlib
from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlane import settings
from fairlane.errors import (
    FairlaneError,
    InvalidArgument,
    QueueFull,
    RedisFull,
    RequestEnded,
    RequestExists,
    RequestLost,
)
from fairlane.model import ENDED_STATES
from fairlane.operations.admission import Admission, read_bounds
from fairlane.operations.change import cancel
from fairlane.operations.create import Digest, NewRequest, create, create_one
from fairlane.operations.tokens import follow_up
from fairlane.protocol import keys, scripts
from fairlane.protocol.request_hash import hmget, parse_fields, read
from fairlane.protocol.steps import Batch, Call, Command, Pause, run_all, run_each

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fairlane.options import Policy
    from fairlane.protocol.lua import Reply
    from fairlane.protocol.scripts import (
        AppendPartitionReply,
        AppendStagedReply,
        AppendUniqueReply,
        PinManifestReply,
        StageReply,
    )


_LONGEST_PAUSE_S = 1.0
_GIVEN_UP = b"-"  # the mark of an abort, in the set of begun requests
_PAGE = 500  # requests of one page
FAILED = "its write by Spark has failed"


async def begin_live(
    request_id: str, policy: Policy, txn: Txn, *, by_ids: bool, is_noted: bool = False
) -> None:
    """Creates the open request, unless it exists. Raises RequestExists.

    `by_ids`: rows have ids, so any transaction may bring them. Otherwise a request that is to
    be sealed belongs to this transaction alone. `is_noted`: records the request, so that
    `abort_live` finds it even if the task that brought its rows failed. Raises RequestEnded if
    the abort came first.
    """
    (stored,) = await read(request_id, "digest")
    digest = shared_digest(policy) if by_ids else txn.digest_of(policy, stored)
    if stored and stored != digest.hex:
        (is_open,) = await read(request_id, "open")
        owner = await Command(b"GET", keys.owner(request_id))
        raise exists(request_id, owner_of(owner, policy, stored) if is_open == "1" else "")
    is_own = not by_ids and digest.hex != shared_digest(policy).hex
    if is_own:
        await _note(request_id, digest.hex, txn, is_noted=is_noted)
    if not stored:
        room = Admission(request_id, policy.queue, settings.MAX_WAIT_S)
        await create_one(NewRequest(request_id, policy, digest, [], txn.open_ms, room))
    if is_own and is_noted and await Command(b"SISMEMBER", keys.begun(txn.name), _GIVEN_UP):
        await _give_up(request_id, digest.hex)
        raise RequestEnded(f"request {request_id} is not written: {FAILED} meanwhile")


async def _note(request_id: str, digest: str, txn: Txn, *, is_noted: bool) -> None:
    """Records a request's owner, and its id for an abort, before the request is begun."""
    notes = [claim(request_id, txn)]
    if is_noted:
        begun = keys.begun(txn.name)
        notes.append(Command(b"SADD", begun, f"{request_id} {digest}"))
        notes.append(Command(b"PEXPIRE", begun, txn.keep_ms))
    await Batch(notes)


async def note_keyed(request_id: str, txn: Txn) -> None:
    """Records that a transaction brings rows by their keys, for reads by `txn`."""
    record = keys.transaction(request_id, txn.name)
    keyed = Command(b"HSET", record, b"keyed", 1)
    await Batch([keyed, Command(b"PEXPIRE", record, txn.keep_ms)])


async def start_live(txn: Txn) -> None:
    """Clears the mark of an earlier abort, before the tasks of a transaction start."""
    await Command(b"SREM", keys.begun(txn.name), _GIVEN_UP)


async def end_live(txn: Txn) -> None:
    """Deletes the record of the requests that were begun, because no abort follows."""
    await Command(b"UNLINK", keys.begun(txn.name))


async def abort_live(txn: Txn) -> None:
    """Cancels the open requests that a transaction has begun for itself alone.

    It leaves a mark, which refuses requests that tasks begin later. If a full Redis refuses the
    mark, the recorded requests are cancelled before RedisFull is raised.
    """
    begun = keys.begun(txn.name)
    refused_mark: RedisFull | None = None
    try:
        await Command(b"SADD", begun, _GIVEN_UP)
    except RedisFull as error:
        refused_mark = error
    await Command(b"PEXPIRE", begun, settings.STAGE_MS)
    cursor = b"0"
    while True:
        cursor, names = await Command(b"SSCAN", begun, cursor, b"COUNT", _PAGE)
        for name in names:
            if name != _GIVEN_UP:
                await _give_up(*name.decode().split(" "))
        if int(cursor) == 0:
            break
    if refused_mark is not None:
        raise refused_mark


async def _give_up(request_id: str, digest: str) -> None:
    """Cancels an open request with this digest. A sealed one is complete and stays."""
    stored, is_open, queue = await read(request_id, "digest", "open", "queue")
    if stored == digest and is_open == "1":
        await cancel(request_id, FAILED, queue=queue)


def append_unique(
    request_id: str, ids: bytes, packed: bytes, txn: Txn, retain_ms: int
) -> Call[AppendUniqueReply]:
    """Returns the call that adds packed sub-requests, each if its id (packed, too) is new."""
    names = (*keys.request_keys(request_id), keys.unique_ids(request_id))
    ttl = txn.open_ms + retain_ms
    return scripts.append_unique(
        names, open_ms=txn.open_ms, ttl=ttl, given=ids, packed=packed, keep=txn.keep
    )


def append_partition(
    request_id: str, partition: int, first: int, packed: bytes, txn: Txn
) -> Call[AppendPartitionReply]:
    """Returns the call that adds packed sub-requests after the first `first` of a partition."""
    return scripts.append_partition(
        record_keys(request_id, txn.name),
        partition=partition,
        first=first,
        open_ms=txn.open_ms,
        ttl=txn.keep_ms,
        keep=txn.keep,
        packed=packed,
    )


async def add(request_id: str, queue: str, call: Call[Any], txn: Txn, max_waiting: int = 0) -> int:
    """Sends a call of append_unique or append_partition; returns how many sub-requests were new.

    With `max_waiting` it returns when at most that many of the request's sub-requests wait for
    a worker. The request stays open meanwhile. Raises RequestExists (it is sealed),
    RequestEnded, RequestLost and RedisFull.
    """
    reply = await call
    if not reply.is_ok:
        await refused(request_id, queue, reply)
    if calls := follow_up(queue, (request_id, reply)):
        await Batch(calls)
    waiting, pause = reply.waiting, 0.0
    while max_waiting and waiting > max_waiting:
        pause = min(_LONGEST_PAUSE_S, pause * 2 or 0.01)
        await Pause(pause)
        keep = keep_open(request_id, txn)
        kept, counts = await Batch([keep, hmget(request_id, "fresh")])
        if not kept.is_pinned:  # it is sealed or has ended: the next call raises
            break
        waiting = int(parse_fields(["fresh"], counts)[0] or 0)
    return int(reply.added)


# ------------------------------------------------------------------ staging
# Staging: the rows of many writers wait in areas of the request's slot that no worker reads.
#
# An area has one writer, and a writer that runs again uses another area. Areas that no transaction
# pins (commit.py) expire. Sub-requests travel packed: their count, the length of each, then the
# bodies. Their keys may follow in the same way. All numbers are little-endian of four bytes.


AREAS_MOST = 500  # keys of one call
CHECKS = 65_521  # checksums are added modulo this


class Area(NamedTuple):
    """Counts what one writer has staged for one request: chunks and sub-requests.

    `check` is the checksum of all its chunks.
    """

    name: str
    chunks: int
    rows: int
    check: int = 0

    def grown(self, rows: int, *packed: bytes) -> Area:
        """Returns the area with one more chunk: its packed bodies, and its packed keys if any."""
        check = (self.check + sum(map(check_of, packed))) % CHECKS
        return Area(self.name, self.chunks + 1, self.rows + rows, check)


def pack(bodies: Sequence[bytes]) -> bytes:
    """Returns one packed chunk of at most 1,000 bodies and 1 MiB of them."""
    return joined(len(bodies), struct.pack(f"<{len(bodies)}I", *map(len, bodies)), b"".join(bodies))


def joined(count: int, lengths: bytes, bodies: bytes) -> bytes:
    """Returns a packed chunk, made of its columns."""
    return b"".join((struct.pack("<I", count), lengths, bodies))


def check_of(packed: bytes) -> int:
    """Returns the checksum of packed bodies or keys: the sum of all bytes after their count.

    So the same rows have the same sum over all chunks, whatever their order and partitions are.
    """
    return zlib.adler32(memoryview(packed)[4:], 0) & 0xFFFF


def stage(
    request_id: str, txn: str, area: str, chunk: int, packed: bytes, ttl_ms: int
) -> Call[StageReply]:
    """Returns the call that stages a chunk, numbered from 1, for `ttl_ms`; it is idempotent."""
    name = keys.area(request_id, txn, area)
    return scripts.stage((name,), chunk=chunk, ttl=ttl_ms, packed=packed)


async def stage_all(calls: Sequence[Call[Any]]) -> None:
    """Sends these calls in one round trip. Raises RedisFull, after which they may be sent again."""
    if calls:
        await Batch(calls)


async def unstage(
    request_id: str, txn: str, areas: Iterable[str], *, is_loser: bool = False
) -> bool:
    """Drops areas of a transaction; returns False, and drops none, if it is pinned.

    `is_loser`: the areas are not in its manifest, and are dropped in any case.
    """
    record = keys.transaction(request_id, txn)
    names = [keys.area(request_id, txn, area) for area in areas]
    keep = "1" if is_loser else "0"
    for at in range(0, len(names), AREAS_MOST):
        part = names[at : at + AREAS_MOST]
        reply = await scripts.unstage((record, *part), keep=keep)
        if reply.is_pinned:
            return False
    return True


# ------------------------------------------------------------------ manifest
# Moves the chunks of a pinned manifest into their requests, many in flight, each once.


WINDOW = 8  # chunks in flight: a server works on one while the next is on its way
MANIFEST_MOST = 1 << 20  # bytes
ABANDONED = "abandoned"  # the reason of an open request that got no rows in time (reap.lua)


@dataclass(slots=True)
class TxnShare:
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
    keeps_bodies: bool = False  # results show them
    rolled: list[tuple[str, Reply]] = field(default_factory=list)  # tokens are to be dispatched

    @property
    def keep_ms(self) -> int:
        """Returns how long its records stay: a repeat of it must find them while it may add rows.

        So they must stay at least as long as its requests may be open.
        """
        return max(settings.PINNED_MS, self.open_ms)

    @property
    def keep(self) -> str:
        """Returns what the scripts get for `keeps_bodies`."""
        return "1" if self.keeps_bodies else ""

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


def keep_open(request_id: str, txn: Txn) -> Call[PinManifestReply]:
    """Returns the call that gives an open request more time; it pins nothing."""
    return scripts.pin_manifest(
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

    share: TxnShare
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

    def call(self, position: int, txn: Txn) -> Call[AppendStagedReply]:
        """Returns the call that rolls the chunk at this position."""
        at = bisect_right(self.starts, position) - 1
        area, chunk = self.areas[at], position - self.starts[at] + 1
        is_last = position == self.total - 1
        last = "area" if chunk == area.chunks else ""
        return scripts.append_staged(
            (*record_keys(self.share.id, txn.name), keys.area(self.share.id, txn.name, area.name)),
            position=position,
            chunk=chunk,
            link=f"{txn.name}:{area.name}:{chunk}",
            last="seal" if is_last and txn.seal else last,
            open_ms=txn.open_ms,
            ttl=txn.keep_ms,
            keep=txn.keep,
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


def manifest_of(share: TxnShare) -> str:
    """Returns the manifest: a line for each area. Raises InvalidArgument."""
    text = "".join(f"{area.name},{area.chunks},{area.rows},{area.check}\n" for area in share.areas)
    if len(text) > MANIFEST_MOST:
        raise InvalidArgument(
            f"request {share.id} would be written by {len(share.areas):,} partitions: coalesce them"
        )
    return text


async def roll_all(group: list[Rolling], txn: Txn) -> None:
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
        replies = await Batch([*_dispatched(left, txn), *(call for _, call in rolls)], lenient=True)
        first = len(replies) - len(rolls)
        await _take_all(rolls, replies[first:], txn)
        for reply in replies[:first]:
            if isinstance(reply, FairlaneError):
                raise reply
        left = [rolling for rolling in left if rolling.position < rolling.total]
    calls = _dispatched(group, txn)
    if calls:
        await Batch(calls)


async def roll_slowly(rolling: Rolling, txn: Txn, bound: int) -> None:
    """Rolls a share into a queue with a bound: every chunk asks for room and waits for it."""
    room = Admission(rolling.share.id, rolling.share.policy.queue, settings.MAX_WAIT_S)
    room.bound = bound
    while rolling.position < rolling.total:
        (chunks,) = await read(rolling.share.id, "chunks")
        try:
            await room.ask(int(chunks or 0) + 1, rolling.rows_at(rolling.position))
        except QueueFull as error:
            await room.wait(error)
            await keep_open(rolling.share.id, txn)  # the next turn reads its state
            continue
        room.found()
        call = rolling.call(rolling.position, txn)
        await _take_all([(rolling, call)], [await call], txn)
        calls = _dispatched([rolling], txn)
        if calls:
            await Batch(calls)


async def _take_all(
    rolls: Sequence[tuple[Rolling, Call[Any]]], replies: Sequence[Any], txn: Txn
) -> None:
    """Reads the replies of rolls. Keeps the tokens of all before it raises the first refusal."""
    failure: tuple[Rolling, AppendStagedReply | PinManifestReply | FairlaneError] | None = None
    for (rolling, _), reply in zip(rolls, replies, strict=True):
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
            await Batch(calls)
        rolling, reply = failure
        await refused(rolling.share.id, rolling.share.policy.queue, reply)


def _dispatched(group: list[Rolling], txn: Txn) -> list[Call[Any]]:
    """Returns the calls that dispatch the tokens of the last replies."""
    queue = group[0].share.policy.queue if group else settings.DEFAULT_QUEUE
    calls = follow_up(queue, *txn.rolled)
    txn.rolled = []
    return calls


# ------------------------------------------------------------------ refusals


async def refused(
    request_id: str, queue: str, reply: AppendStagedReply | PinManifestReply | FairlaneError
) -> None:
    """Raises the error that a refusal means."""
    if isinstance(reply, FairlaneError):
        raise reply
    if reply.is_ended:
        await Batch(follow_up(queue, (request_id, reply)))
        raise cut_short(request_id, (reply.summary.reason or reply.summary.state).decode())
    if reply.is_closed:
        raise closed(request_id)
    if reply.word == "missing":
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


GROUP = 100  # requests of one round trip
_FIELDS = ("digest", "open", "state", "reason")
_SEALED = ("chunks", "chain", "open", "state", "open_until", "reason")


async def commit(shares: Sequence[TxnShare], txn: Txn) -> list[Brought]:
    """Adds all shares to their requests, each once, even if it runs several times or in parallel.

    Returns what this run added to each request. Raises RequestExists (also if another
    transaction has sealed a request), RequestEnded, RequestLost (the staged rows are gone) and
    RedisFull. Refusals that can be found early are raised before anything changes.
    """
    rollings: list[Rolling] = []
    for at in range(0, len(shares), GROUP):
        rollings += await _look_all(shares[at : at + GROUP], txn)
    bound = 0
    if shares:
        bound = (await read_bounds(shares[0].policy.queue)).max_waiting
    for at in range(0, len(rollings), GROUP):
        await _commit_group(rollings[at : at + GROUP], txn, bound)
    return [rolling.brought() for rolling in rollings]


# ------------------------------------------------------------------ before anything is seen


async def look(share: TxnShare, txn: Txn) -> Rolling:
    """Checks that a share is complete and may be added. Raises as commit does; writes nothing."""
    (rolling,) = await _look_all([share], txn)
    return rolling


async def _look_all(shares: Sequence[TxnShare], txn: Txn) -> list[Rolling]:
    for share in shares:
        manifest_of(share)
    commands: list[Command] = []
    for share in shares:
        record = keys.transaction(share.id, txn.name)
        commands += [
            Command(b"HMGET", record, b"manifest", b"state", b"rolled"),
            hmget(share.id, *_FIELDS),
            Command(b"GET", keys.owner(share.id)),
        ]
    replies = await run_all(commands)
    rollings = [
        _judge(share, txn, _Record(*record), parse_fields(_FIELDS, request), owner)
        for share, record, request, owner in zip(
            shares, replies[::3], replies[1::3], replies[2::3], strict=True
        )
    ]
    fresh = [rolling.share for rolling in rollings if not rolling.is_pinned and not rolling.is_done]
    await _check_whole(fresh, txn)
    return rollings


class _Record(NamedTuple):
    """What a transaction has added to a request: fields of its record, None = missing."""

    manifest: bytes | None
    state: bytes | None
    rolled: bytes | None


def _judge(
    share: TxnShare, txn: Txn, record: _Record, request: list[str], owner: bytes | None
) -> Rolling:
    stored, is_open, state, reason = request
    digest = txn.digest_of(share.policy, stored)
    if record.manifest is not None:
        is_sealed = (record.state or b"").decode() == "sealed"
        rolling = Rolling(share, digest, True, True, is_done=is_sealed and txn.seal)
        rolling.take_manifest(record.manifest.decode())
        rolling.rolled = int(record.rolled or 0)
        rolling.is_as_begun = stored in {"", digest.hex}
        return rolling
    if stored and stored != digest.hex:  # a sealed request is complete and cannot go on
        raise exists(share.id, owner_of(owner, share.policy, stored) if is_open == "1" else "")
    if state in ENDED_STATES and reason == ABANDONED:
        raise abandoned(share.id)
    if stored and (state in ENDED_STATES or is_open != "1"):
        if not share.areas and txn.seal and stored == txn.own_digest(share.policy).hex:
            return Rolling(share, digest, True, False, is_done=True)
        raise closed(share.id)
    return Rolling(share, digest, bool(stored), False)


async def _check_whole(shares: Sequence[TxnShare], txn: Txn) -> None:
    """Checks that every area holds what its writer reported, and extends its life."""
    areas = [(share.id, area) for share in shares for area in share.areas]
    commands: list[Command] = []
    for request_id, area in areas:
        name = keys.area(request_id, txn.name, area.name)
        commands += [
            Command(b"PEXPIRE", name, txn.keep_ms),
            Command(b"HLEN", name),
            Command(b"HGET", name, b"rows"),
        ]
    replies = await run_all(commands)
    for (request_id, area), count, rows in zip(areas, replies[1::3], replies[2::3], strict=True):
        if count != area.chunks + 1 or int(rows or 0) != area.rows:  # the field `rows`, too
            raise missing(request_id)


# ------------------------------------------------------------------ one group


async def _commit_group(group: list[Rolling], txn: Txn, bound: int) -> None:
    todo = [rolling for rolling in group if not rolling.is_done]
    await _begin_all([rolling for rolling in todo if not rolling.is_there], txn)
    await _pin_all(todo, txn)
    if bound:
        for rolling in todo:
            await roll_slowly(rolling, txn, bound)
    else:
        await roll_all(todo, txn)
    for rolling in todo:
        losers = [area.name for area in rolling.share.areas if area not in rolling.areas]
        await unstage(rolling.share.id, txn.name, losers, is_loser=True)
    for rolling in group:
        if rolling.is_done:
            names = [area.name for area in rolling.share.areas]
            await unstage(rolling.share.id, txn.name, names, is_loser=True)
    if txn.seal and todo:
        await seal_all([rolling.share.id for rolling in todo], todo[0].share.policy.queue)


async def _begin_all(group: list[Rolling], txn: Txn) -> None:
    """Creates the requests, open and empty. Raises the first error, after all were tried."""
    if not group:
        return
    await run_each([claim(rolling.share.id, txn) for rolling in group if rolling.is_own()])
    requests = []
    for rolling in group:
        request_id, policy = rolling.share.id, rolling.share.policy
        room = Admission(request_id, policy.queue, settings.MAX_WAIT_S)
        requests.append(NewRequest(request_id, policy, rolling.digest, [], txn.open_ms, room))
    for created in await create(requests):
        if isinstance(created, FairlaneError):
            raise created


async def _pin_all(group: list[Rolling], txn: Txn) -> None:
    calls = [
        scripts.pin_manifest(
            record_keys(rolling.share.id, txn.name),
            manifest=manifest_of(rolling.share),
            open_ms=txn.open_ms,
            ttl=txn.keep_ms,
        )
        for rolling in group
    ]
    # The record of an owner may be another transaction's, of an earlier life of the id.
    claims = [claim(rolling.share.id, txn) for rolling in group if rolling.is_own()]
    replies = (await run_all([*calls, *claims]))[: len(calls)]
    for rolling, reply in zip(group, replies, strict=True):
        if not reply.is_pinned:
            await refused(rolling.share.id, rolling.share.policy.queue, reply)
        rolling.take_manifest(reply.manifest.decode())
        rolling.position, rolling.rolled = int(reply.position), int(reply.rolled)
        rolling.state = reply.state.decode()


async def seal(request_id: str, queue: str) -> None:
    """Seals one request. Raises as seal_all does."""
    await seal_all([request_id], queue)


async def seal_all(ids: Sequence[str], queue: str) -> None:
    """Seals these open requests: no more rows come in.

    All are sealed before the first error is raised. A repeat finds them sealed, also after
    their end. Raises RequestLost. Raises RequestEnded for a request that was cancelled before
    it was sealed: its other rows do not run.
    """
    failure: FairlaneError | None = None
    left = list(ids)
    while left:
        replies = await run_each([hmget(request_id, *_SEALED) for request_id in left])
        seals = dict(zip(left, map(_seal_of, left, replies), strict=True))
        calls = {request_id: call for request_id, call in seals.items() if isinstance(call, Call)}
        replies = await run_each([*calls.values()])
        outcomes = (*seals.values(), *replies)
        failure = failure or next((o for o in outcomes if isinstance(o, FairlaneError)), None)
        answered = {
            request_id: reply
            for request_id, reply in zip(calls, replies, strict=True)
            if not isinstance(reply, FairlaneError)
        }
        if steps := follow_up(queue, *answered.items()):
            await Batch(steps)
        # The next read finds the requests that are still open, because rows came in meanwhile.
        left = [*answered]
    if failure is not None:
        raise failure


def _seal_of(request_id: str, reply: Any) -> Call[Any] | FairlaneError | None:
    """Returns the call that seals a request, or an error; None for a sealed request."""
    if isinstance(reply, FairlaneError):
        return reply
    chunks, chain, is_open, state, open_until, reason = parse_fields(_SEALED, reply)
    if not state:
        return RequestLost(f"request {request_id} vanished from Redis before it was sealed")
    if open_until and state in {"cancelling", "cancelled"}:  # the seal takes `open_until` away
        return cut_short(request_id, reason or state)
    if is_open != "1":
        return None
    return scripts.seal(keys.request_keys(request_id), chunks=int(chunks), chain=chain)
