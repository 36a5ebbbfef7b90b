"""The commit of staged rows: begin, pin, roll, seal; every step is idempotent.

First all requests are checked, and refused before any of them changes. Then each request is
created, open and empty. Its manifest (which areas, in which order) is pinned once. Its chunks are
rolled into it one by one, many in flight. If a transaction runs again after a crash, it finds the
manifest and goes on at the next chunk. Areas that were staged since have no effect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from fairlane import settings
from fairlane.errors import FairlaneError, RequestLost
from fairlane.model import ENDED_STATES
from fairlane.operations.admission import Admission, read_bounds
from fairlane.operations.batching import run_all, run_each
from fairlane.operations.create import create
from fairlane.operations.follow_up import follow_up
from fairlane.operations.new_request import NewRequest
from fairlane.protocol import keys
from fairlane.protocol.request_hash import hmget, parse_fields
from fairlane.protocol.scripts import library
from fairlane.protocol.steps import Batch, Call, Command, Operation
from fairlane.spark.operations.manifest import (
    ABANDONED,
    Brought,
    Rolling,
    Share,
    Txn,
    abandoned,
    claim,
    closed,
    cut_short,
    exists,
    manifest_of,
    missing,
    owner_of,
    record_keys,
    refused,
    roll_all,
    roll_slowly,
)
from fairlane.spark.operations.staging import unstage

if TYPE_CHECKING:
    from collections.abc import Sequence

GROUP = 100  # requests of one round trip
_FIELDS = ("digest", "open", "state", "reason")
_SEALED = ("chunks", "chain", "open", "state", "open_until", "reason")


def commit(shares: Sequence[Share], txn: Txn) -> Operation[list[Brought]]:
    """Adds all shares to their requests, each once, even if it runs several times or in parallel.

    Returns what this run added to each request. Raises RequestExists (also if another
    transaction has sealed a request), RequestEnded, RequestLost (the staged rows are gone) and
    RedisFull. Refusals that can be found early are raised before anything changes.
    """
    rollings: list[Rolling] = []
    for at in range(0, len(shares), GROUP):
        rollings += yield from _look_all(shares[at : at + GROUP], txn)
    bound = 0
    if shares:
        bound = (yield from read_bounds(shares[0].policy.queue)).max_waiting
    for at in range(0, len(rollings), GROUP):
        yield from _commit_group(rollings[at : at + GROUP], txn, bound)
    return [rolling.brought() for rolling in rollings]


# ------------------------------------------------------------------ before anything is seen


def look(share: Share, txn: Txn) -> Operation[Rolling]:
    """Checks that a share is complete and may be added. Raises as commit does; writes nothing."""
    (rolling,) = yield from _look_all([share], txn)
    return rolling


def _look_all(shares: Sequence[Share], txn: Txn) -> Operation[list[Rolling]]:
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
    replies = yield from run_all(commands)
    rollings = [
        _judge(share, txn, _Record(*record), parse_fields(_FIELDS, request), owner)
        for share, record, request, owner in zip(
            shares, replies[::3], replies[1::3], replies[2::3], strict=True
        )
    ]
    fresh = [rolling.share for rolling in rollings if not rolling.is_pinned and not rolling.is_done]
    yield from _check_whole(fresh, txn)
    return rollings


class _Record(NamedTuple):
    """What a transaction has added to a request: fields of its record, None = missing."""

    manifest: bytes | None
    state: bytes | None
    rolled: bytes | None


def _judge(
    share: Share, txn: Txn, record: _Record, request: list[str], owner: bytes | None
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


def _check_whole(shares: Sequence[Share], txn: Txn) -> Operation[None]:
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
    replies = yield from run_all(commands)
    for (request_id, area), count, rows in zip(areas, replies[1::3], replies[2::3], strict=True):
        if count != area.chunks + 1 or int(rows or 0) != area.rows:  # the field `rows`, too
            raise missing(request_id)


# ------------------------------------------------------------------ one group


def _commit_group(group: list[Rolling], txn: Txn, bound: int) -> Operation[None]:
    todo = [rolling for rolling in group if not rolling.is_done]
    yield from _begin_all([rolling for rolling in todo if not rolling.is_there], txn)
    yield from _pin_all(todo, txn)
    if bound:
        for rolling in todo:
            yield from roll_slowly(rolling, txn, bound)
    else:
        yield from roll_all(todo, txn)
    for rolling in todo:
        losers = [area.name for area in rolling.share.areas if area not in rolling.areas]
        yield from unstage(rolling.share.id, txn.name, losers, is_loser=True)
    for rolling in group:
        if rolling.is_done:
            names = [area.name for area in rolling.share.areas]
            yield from unstage(rolling.share.id, txn.name, names, is_loser=True)
    if txn.seal and todo:
        yield from seal_all([rolling.share.id for rolling in todo], todo[0].share.policy.queue)


def _begin_all(group: list[Rolling], txn: Txn) -> Operation[None]:
    """Creates the requests, open and empty. Raises the first error, after all were tried."""
    if not group:
        return
    yield from run_each([claim(rolling.share.id, txn) for rolling in group if rolling.is_own()])
    requests = []
    for rolling in group:
        request_id, policy = rolling.share.id, rolling.share.policy
        room = Admission(request_id, policy.queue, settings.MAX_WAIT_S)
        requests.append(NewRequest(request_id, policy, rolling.digest, [], txn.open_ms, room))
    for created in (yield from create(requests)):
        if isinstance(created, FairlaneError):
            raise created


def _pin_all(group: list[Rolling], txn: Txn) -> Operation[None]:
    calls = [
        library().pin_manifest(
            record_keys(rolling.share.id, txn.name),
            manifest=manifest_of(rolling.share),
            open_ms=txn.open_ms,
            ttl=txn.keep_ms,
        )
        for rolling in group
    ]
    # The record of an owner may be another transaction's, of an earlier life of the id.
    claims = [claim(rolling.share.id, txn) for rolling in group if rolling.is_own()]
    replies = (yield from run_all([*calls, *claims]))[: len(calls)]
    for rolling, call, raw in zip(group, calls, replies, strict=True):
        reply = call.reply(raw)
        if not reply.is_pinned:
            yield from refused(rolling.share.id, rolling.share.policy.queue, reply)
        rolling.take_manifest(reply.manifest.decode())
        rolling.position, rolling.rolled = int(reply.position), int(reply.rolled)
        rolling.state = reply.state.decode()


def seal(request_id: str, queue: str) -> Operation[None]:
    """Seals one request. Raises as seal_all does."""
    yield from seal_all([request_id], queue)


def seal_all(ids: Sequence[str], queue: str) -> Operation[None]:
    """Seals these open requests: no more rows come in.

    All are sealed before the first error is raised. A repeat finds them sealed, also after
    their end. Raises RequestLost. Raises RequestEnded for a request that was cancelled before
    it was sealed: its other rows do not run.
    """
    failure: FairlaneError | None = None
    left = list(ids)
    while left:
        replies = yield from run_each([hmget(request_id, *_SEALED) for request_id in left])
        seals = dict(zip(left, map(_seal_of, left, replies), strict=True))
        calls = {request_id: call for request_id, call in seals.items() if isinstance(call, Call)}
        replies = yield from run_each([*calls.values()])
        outcomes = (*seals.values(), *replies)
        failure = failure or next((o for o in outcomes if isinstance(o, FairlaneError)), None)
        answered = {
            request_id: call.reply(raw)
            for (request_id, call), raw in zip(calls.items(), replies, strict=True)
            if not isinstance(raw, FairlaneError)
        }
        if steps := follow_up(queue, *answered.items()):
            yield Batch(steps)
        # The next read finds the requests that are still open, because rows came in meanwhile.
        left = [*answered]
    if failure is not None:
        raise failure


def _seal_of(request_id: str, reply: Any) -> Call | FairlaneError | None:
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
    return library().seal(keys.request_keys(request_id), chunks=int(chunks), chain=chain)
