"""Rows that join an open request as they come: workers begin while their writers still write.

Each is added once: by an id of its own, or by its place in a partition whose rows are the same, in
the same order, whenever it is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import keys, settings
from ..scripts import library
from ..steps import Batch, Call, Operation, Pause
from .fields import read
from .rolling import Txn, exists, record_keys, refused, shared_digest
from .submit import begin
from .tokens import insert_all

if TYPE_CHECKING:
    from ..model import Policy

_LONGEST_PAUSE_S = 1.0


def begin_live(request_id: str, policy: Policy, txn: Txn, *, by_ids: bool) -> Operation[None]:
    """The request comes into being, open, unless it is there. Raises RequestExists.

    `by_ids`: its rows have ids, so that it is no matter who brings them; else a request that is to
    be sealed belongs to this transaction alone.
    """
    (stored,) = yield from read(request_id, "digest")
    digest = shared_digest(policy) if by_ids else txn.digest_of(policy, stored)
    if not stored:
        yield from begin(request_id, policy, digest, txn.open_ms)
    elif stored != digest.hex:
        raise exists(request_id)


def by_id(request_id: str, ids: bytes, packed: bytes, txn: Txn, retain_ms: int) -> Call:
    """The call that adds packed sub-requests, each if its id (packed, too) is new."""
    names = (*keys.request_keys(request_id), keys.unique_ids(request_id))
    ttl = txn.open_ms + retain_ms
    return library().add_unique(names, open_ms=txn.open_ms, ttl=ttl, given=ids, packed=packed)


def by_place(request_id: str, partition: int, first: int, packed: bytes, txn: Txn) -> Call:
    """The call that adds packed sub-requests behind the first `first` ones of a partition."""
    return library().add_part(
        record_keys(request_id, txn.name),
        partition=partition,
        first=first,
        open_ms=txn.open_ms,
        ttl=settings.PINNED_MS,
        packed=packed,
    )


def add(request_id: str, queue: str, call: Call, max_waiting: int = 0) -> Operation[int]:
    """Makes such a call; returns how many were new.

    With `max_waiting` it comes back when no more than so many sub-requests of it wait for a worker.
    Raises RequestExists (it is sealed), RequestEnded, RequestLost and RedisFull.
    """
    reply = yield call
    if reply[0] != b"ok":
        yield from refused(request_id, queue, reply)
    _, tokens, added, waiting = reply
    calls = insert_all(queue, [(request_id, tokens)])
    if calls:
        yield Batch(calls)
    pause = 0.0
    while max_waiting and waiting > max_waiting:
        pause = min(_LONGEST_PAUSE_S, pause * 2 or 0.01)
        yield Pause(pause)
        (fresh,) = yield from read(request_id, "fresh")
        waiting = int(fresh or 0)
    return int(added)


def is_own(request_id: str, policy: Policy, txn: Txn) -> Operation[bool]:
    """True when this transaction began the request, for itself alone."""
    (stored,) = yield from read(request_id, "digest")
    return stored == txn.own_digest(policy).hex
