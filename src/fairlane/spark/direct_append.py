"""Adds rows to an open request immediately, so workers begin while the writers still write.

Each row is added once: by an id of its own, or by its place in a partition. By place, a partition
must have the same rows in the same order whenever it is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlane import settings
from fairlane.errors import RedisFull, RequestEnded
from fairlane.operations.admission import Admission
from fairlane.operations.change import cancel
from fairlane.operations.create import create_one
from fairlane.operations.follow_up import follow_up
from fairlane.operations.new_request import NewRequest
from fairlane.protocol import keys, scripts
from fairlane.protocol.request_hash import hmget, parse_fields, read
from fairlane.protocol.steps import Batch, Call, Command, Pause
from fairlane.spark.commit import (
    Txn,
    claim,
    exists,
    keep_open,
    owner_of,
    record_keys,
    refused,
    shared_digest,
)

if TYPE_CHECKING:
    from fairlane.options import Policy
    from fairlane.protocol.scripts import AppendPartitionReply, AppendUniqueReply


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
    return scripts.append_unique(names, open_ms=txn.open_ms, ttl=ttl, given=ids, packed=packed)


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
