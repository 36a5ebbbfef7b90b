"""The commit of what was staged: begin, pin, roll, seal; each step may be done again by anybody.

First everything is looked at, and refused before anything is seen. Then each request comes into
being, open and empty; its manifest (which areas, in which order) is pinned, once and for all; and
its chunks are rolled into it one by one, many in flight. Whoever runs the transaction again after a
crash finds the manifest and goes on at the chunk that is next, whatever was staged since.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlane import settings
from fairlane.errors import FairlaneError, RequestLost
from fairlane.model import ENDED_STATES
from fairlane.operations.batching import run_all, run_each
from fairlane.operations.lease.tokens import insert_all, retire_all
from fairlane.operations.submit.admission import read_bounds
from fairlane.operations.submit.digest import terms
from fairlane.operations.submit.intents import announce
from fairlane.operations.submit.stream import begin
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

GROUP = 100  # requests that go on together
_FIELDS = ("digest", "open", "state", "reason")
_SEALED = ("chunks", "chain", "open", "state", "open_until", "reason")


def commit(shares: Sequence[Share], txn: Txn) -> Operation[list[Brought]]:
    """Brings all shares in, each once, however often and by whomever this is run.

    Returns what this run brought into each request. Raises RequestExists (also when
    another transaction has sealed a request), RequestEnded, RequestLost (what was staged is gone)
    and RedisFull; before anything is seen if it can be known then.
    """
    looked: list[Rolling] = []
    for at in range(0, len(shares), GROUP):
        looked += yield from _look_all(shares[at : at + GROUP], txn)
    bound = 0
    if shares:
        bound = (yield from read_bounds(shares[0].policy.queue)).max_waiting
    for at in range(0, len(looked), GROUP):
        yield from _commit_group(looked[at : at + GROUP], txn, bound)
    return [one.brought() for one in looked]


# ------------------------------------------------------------------ before anything is seen


def look(share: Share, txn: Txn) -> Operation[Rolling]:
    """Is all there, and may it come in? As commit raises, but before anything is written."""
    (rolling,) = yield from _look_all([share], txn)
    return rolling


def _look_all(shares: Sequence[Share], txn: Txn) -> Operation[list[Rolling]]:
    for share in shares:
        manifest_of(share)
    asked: list[Command] = []
    for share in shares:
        record = keys.transaction(share.id, txn.name)
        asked += [
            Command(b"HMGET", record, b"manifest", b"state", b"rolled"),
            hmget(share.id, *_FIELDS),
            Command(b"GET", keys.owner(share.id)),
        ]
    replies = yield from run_all(asked)
    found = [
        _judge(share, txn, record, parse_fields(_FIELDS, request), owner)
        for share, record, request, owner in zip(
            shares, replies[::3], replies[1::3], replies[2::3], strict=True
        )
    ]
    fresh = [one.share for one in found if not one.is_pinned and not one.is_done]
    yield from _check_whole(fresh, txn)
    return found


def _judge(
    share: Share, txn: Txn, record: list[Any], request: list[str], owner: bytes | None
) -> Rolling:
    stored, is_open, state, reason = request
    digest = txn.digest_of(share.policy, stored)
    if record[0] is not None:
        found = Rolling(share, digest, True, True, is_done=record[1] == b"sealed" and txn.seal)
        found.take_manifest(record[0].decode())
        found.rolled = int(record[2] or 0)
        found.is_as_begun = stored in {"", digest.hex}
        return found
    if stored and stored != digest.hex:  # one that is sealed is complete: there is no going on
        raise exists(share.id, owner_of(owner, share.policy, stored) if is_open == "1" else "")
    if state in ENDED_STATES and reason == ABANDONED:
        raise abandoned(share.id)
    if stored and (state in ENDED_STATES or is_open != "1"):
        if not share.areas and txn.seal and stored == txn.own_digest(share.policy).hex:
            return Rolling(share, digest, True, False, is_done=True)
        raise closed(share.id)
    return Rolling(share, digest, bool(stored), False)


def _check_whole(shares: Sequence[Share], txn: Txn) -> Operation[None]:
    """Every area has what its writer said, and stays from now on."""
    areas = [(share.id, area) for share in shares for area in share.areas]
    asked: list[Command] = []
    for request_id, area in areas:
        name = keys.area(request_id, txn.name, area.name)
        asked += [
            Command(b"PEXPIRE", name, settings.PINNED_MS),
            Command(b"HLEN", name),
            Command(b"HGET", name, b"rows"),
        ]
    replies = yield from run_all(asked)
    for (request_id, area), count, rows in zip(areas, replies[1::3], replies[2::3], strict=True):
        if count != area.chunks + 1 or int(rows or 0) != area.rows:  # the field `rows`, too
            raise missing(request_id)


# ------------------------------------------------------------------ one group


def _commit_group(group: list[Rolling], txn: Txn, bound: int) -> Operation[None]:
    todo = [one for one in group if not one.is_done]
    yield from _begin_all([one for one in todo if not one.is_there], txn)
    yield from _pin_all(todo, txn)
    if bound:
        for one in todo:
            yield from roll_slowly(one, txn, bound)
    else:
        yield from roll_all(todo, txn)
    for one in todo:
        losers = [area.name for area in one.share.areas if area not in one.areas]
        yield from unstage(one.share.id, txn.name, losers, is_loser=True)
    for one in group:
        if one.is_done:
            names = [area.name for area in one.share.areas]
            yield from unstage(one.share.id, txn.name, names, is_loser=True)
    if txn.seal and todo:
        yield from seal_all([one.share.id for one in todo], todo[0].share.policy.queue)


def _begin_all(group: list[Rolling], txn: Txn) -> Operation[None]:
    """The requests come into being together; what does not go smoothly goes one by one."""
    if not group:
        return
    policy = group[0].share.policy
    yield from run_each([claim(one.share.id, txn) for one in group if one.is_own()])
    _, intents = yield from announce(policy, [one.share.id for one in group])
    calls = [
        library().enqueue(
            keys.request_keys(one.share.id),
            digest=one.digest.hex,
            intent=intent.score,
            open_ms=txn.open_ms,
            shards=intent.shards,
            over=0,
            bodies=[],
            **terms(one.share.policy),
        )
        for one, intent in zip(group, intents, strict=True)
    ]
    replies = yield Batch(calls, lenient=True)
    failure: FairlaneError | None = None
    for one, intent, reply in zip(group, intents, replies, strict=True):
        if isinstance(reply, FairlaneError) or reply[0] != b"ok":
            share = one.share
            try:
                yield from begin(share.id, share.policy, one.digest, txn.open_ms, intent)
            except FairlaneError as error:
                failure = failure or error
    if failure is not None:
        raise failure


def _pin_all(group: list[Rolling], txn: Txn) -> Operation[None]:
    calls = [
        library().pin_manifest(
            record_keys(one.share.id, txn.name),
            manifest=manifest_of(one.share),
            open_ms=txn.open_ms,
            ttl=settings.PINNED_MS,
        )
        for one in group
    ]
    claims = [claim(one.share.id, txn) for one in group if one.is_own()]  # another's may lie there
    replies = (yield from run_all([*calls, *claims]))[: len(calls)]
    for one, reply in zip(group, replies, strict=True):
        if reply[0] != b"pinned":
            yield from refused(one.share.id, one.share.policy.queue, reply)
        _, manifest, position, rolled, state = reply
        one.take_manifest(manifest.decode())
        one.position, one.rolled, one.state = int(position), int(rolled), state.decode()


def seal(request_id: str, queue: str) -> Operation[None]:
    """The same for one request."""
    yield from seal_all([request_id], queue)


def seal_all(ids: Sequence[str], queue: str) -> Operation[None]:
    """Nothing more comes into these open requests, whoever brought what is in them.

    All are sealed before one is complained of. A repeat finds them sealed, also after their end.
    Raises RequestEnded when one was cancelled before it was sealed (what is left of its rows does
    not run), RequestLost.
    """
    failure: FairlaneError | None = None
    left = list(ids)
    while left:
        replies = yield from run_each([hmget(one, *_SEALED) for one in left])
        found = dict(zip(left, map(_seal_of, left, replies), strict=True))
        calls = {one: call for one, call in found.items() if isinstance(call, Call)}
        replies = yield from run_each([*calls.values()])
        said = dict(zip(calls, replies, strict=True))
        errors = (one for one in (*found.values(), *replies) if isinstance(one, FairlaneError))
        failure = failure or next(errors, None)
        # Another look says what became of the others: somebody may have brought more.
        left = [one for one, reply in said.items() if not isinstance(reply, FairlaneError)]
        yield from _dispatch_sealed(queue, {one: said[one] for one in left})
    if failure is not None:
        raise failure


def _seal_of(request_id: str, reply: Any) -> Call | FairlaneError | None:
    """The call that seals a request, or what is wrong with it; None for one that is sealed."""
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


def _dispatch_sealed(queue: str, said: dict[str, Any]) -> Operation[None]:
    minted = [(one, reply[1]) for one, reply in said.items() if reply[0] == b"ok"]
    ended = [(one, reply[1]) for one, reply in said.items() if reply[0] == b"ended"]
    if calls := [*insert_all(queue, minted), *retire_all(queue, ended)]:
        yield Batch(calls)
