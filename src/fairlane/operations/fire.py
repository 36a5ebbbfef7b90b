"""Submits the requests of due ticks: exactly one request a tick, whichever workers live.

The id of a request is made of its schedule and its tick, so a tick that is submitted twice finds
its request. Only then the schedule moves to its next tick, by compare-and-set. So a leader may end
between the two, and two leaders may do this concurrently.

A request is forgotten at some time after its end. So a leader notes in the dispatch slot that it
begins with a tick, before it submits the requests. The next leader that finds this note looks for
those requests in the completion log, too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlane import settings
from fairlane.errors import FairlaneError, QueueFull, RedisFull, RequestEnded, RequestExists
from fairlane.operations.batching import call_each, run_each_or_error
from fairlane.operations.create import GROUP, create, create_one
from fairlane.operations.durability import check_replicas, confirm_submission
from fairlane.operations.lives import logged_ids
from fairlane.operations.new_request import Digest, NewRequest
from fairlane.operations.schedules import (
    check_schedule_name,
    cron_of,
    decode,
    keys_of,
    move_tick,
    request_id,
)
from fairlane.protocol import keys, scripts
from fairlane.protocol.request_hash import hmget, parse_fields
from fairlane.protocol.steps import Batch, Command

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fairlane.operations.schedules import Definition
    from fairlane.options import Policy
    from fairlane.protocol.steps import Call


_ENTRY = 64  # bytes that a sub-request costs beside its body


class Move(NamedTuple):
    """Ticks of one schedule to submit, at most a group, and its next tick after them."""

    name: str
    raw: bytes
    expected: int
    ticks: list[int]
    next: int
    definition: Definition
    policy: Policy
    began: int = 0  # when another leader began with these ticks, ms; 0 = none has


@dataclass(slots=True)
class Fired:
    """What one pass did. `waiting` due schedules could not be submitted: their errors by name.

    `has_moved`: a schedule has another tick now, so a further pass is needed. `next_ms` is when the
    next tick was due before that, by the dispatch slot's clock, which was at `now_ms`; 0 = there is
    none. `is_full`: there is no room for more requests.
    """

    now_ms: int
    next_ms: int
    requests: int = 0
    is_full: bool = False
    has_moved: bool = False
    waiting: dict[str, FairlaneError] = field(default_factory=dict)


async def fire(queue: str, skip: int = 0) -> Fired:
    """Submits what a bounded number of due schedules owe, and moves each to its next tick.

    The first `skip` due schedules are left out, because they wait since an earlier pass.
    """
    most = settings.SCHEDULES_PAGE
    call = scripts.claim_ticks(keys_of(queue), skip=skip, most=most)
    reply = await call
    rows = reply.rows
    fired = Fired(reply.now, reply.next)
    watched = read_spans(reply.watched)
    moves: list[Move] = []
    for name, tick, raw, began in zip(rows[::4], rows[1::4], rows[2::4], rows[3::4], strict=True):
        shown = name.decode("utf-8", "replace")
        try:
            moves += plan(queue, shown, raw, tick, fired.now_ms, watched, began)
        except FairlaneError as error:
            fired.waiting[shown] = error
    for group in _groups(moves):
        if fired.is_full:
            for move in group:
                fired.waiting.setdefault(move.name, QueueFull("no room"))
            await call_each(_give_up(queue, group))
            continue
        await _fire_group(queue, group, fired)
    return fired


Span = tuple[int, int]  # a time in which some leader lived, in ms


def read_spans(text: bytes) -> list[Span]:
    """Reads the spans of lua/v1/lib/queue.lua, the earliest first."""
    pairs = [part.partition(b"-") for part in text.split(b",") if part]
    return [(int(begin), int(end)) for begin, _, end in pairs]


def plan(
    queue: str,
    name: str,
    raw: bytes,
    tick: int,
    now_ms: int,
    watched: Sequence[Span] = (),
    began: int = 0,
) -> list[Move]:
    """Returns what a due schedule submits, in parts of at most a group. Raises InvalidArgument."""
    check_schedule_name(queue, name)
    definition = decode(raw)
    cron = cron_of(definition.cron, definition.tz)
    policy = definition.policy(queue)
    ticks = owed(definition, tick, now_ms, watched)
    then = cron.next(now_ms)
    moves = []
    expected = tick
    most = max(1, min(GROUP, settings.CHUNK_BYTES // _size_of(definition)))
    for start in range(0, max(1, len(ticks)), most):
        part, rest = ticks[start : start + most], ticks[start + most :]
        upto = rest[0] if rest else then
        moves.append(Move(name, raw, expected, part, upto, definition, policy, began))
        expected = upto
    return moves


def owed(definition: Definition, tick: int, now_ms: int, watched: Sequence[Span] = ()) -> list[int]:
    """Returns the ticks from `tick` until now that get a request, by the policy for missed ones.

    A tick was not missed if a leader lived a few seconds after it, in one of the spans `watched`,
    though the queue may have had no room for its request since. At most the latest thousand count.
    """
    cron = cron_of(definition.cron, definition.tz)
    found: set[int] = set()
    for begin, end in (*watched, (now_ms, now_ms)):
        first, until = max(tick, begin - settings.LATE_TICK_MS), min(end, now_ms)
        if first <= until:
            found |= {*cron.latest(first, until, settings.MISSED_MOST)}
    if definition.missed != "skip":
        most = definition.most if definition.missed == "all" else 1
        found |= {*cron.latest(tick, now_ms, most)}
    return sorted(found)[-settings.MISSED_MOST :]


def _size_of(definition: Definition) -> int:
    """Returns about how many bytes one request has in a call."""
    return sum(len(body) + _ENTRY for body in definition.bodies)


def _groups(moves: list[Move]) -> Iterator[list[Move]]:
    """Yields moves in groups of so many requests and bytes as one create takes."""
    group: list[Move] = []
    count = size = 0
    for move in moves:
        more = len(move.ticks)
        larger = size + more * _size_of(move.definition)
        if group and (count + more > GROUP or larger > settings.CHUNK_BYTES):
            yield group
            group, count, larger = [], 0, larger - size
        group.append(move)
        count, size = count + more, larger
    if group:
        yield group


async def _fire_group(queue: str, group: list[Move], fired: Fired) -> None:
    owners: list[Move] = []
    new: list[NewRequest] = []
    had = await _submitted_before(queue, [move for move in group if move.began], fired)
    for move in group:
        for tick in move.ticks if move.name not in fired.waiting else ():
            made = request_id(queue, move.name, tick)
            if made in had:
                continue
            digest = Digest(move.policy)
            digest.add(move.definition.bodies)
            new.append(NewRequest(made, move.policy, digest, move.definition.bodies))
            owners.append(move)
    errors = await _submit(new) if new else []
    submitted = set[str]()
    for move, error in zip(owners, errors, strict=True):
        if error is None or isinstance(error, (RequestExists, RequestEnded)):
            fired.requests += error is None  # else the tick has its request already
            submitted.add(move.name)
            continue
        fired.waiting.setdefault(move.name, error)
        fired.is_full |= isinstance(error, (QueueFull, RedisFull))
    calls = [
        move_tick(queue, move.name, move.raw, move.expected, move.next)
        for move in group
        if move.name not in fired.waiting
    ]
    for reply in await call_each(calls):  # what fails here is repeated by the next pass
        fired.has_moved |= not isinstance(reply, FairlaneError) and not reply.is_moved
    refused = {
        move.name
        for move, error in zip(owners, errors, strict=True)
        if isinstance(error, (QueueFull, RedisFull))
    }
    clean = [move for move in group if move.name in refused - submitted]
    await call_each(_give_up(queue, clean))


def _give_up(queue: str, moves: Sequence[Move]) -> list[Call[Any]]:
    """Returns the calls that remove the notes of moves of which nothing was submitted.

    If another leader has begun with a move, it may have submitted a part: then the note stays.
    """
    return [
        move_tick(queue, move.name, move.raw, move.expected, move.expected)
        for move in moves
        if not move.began
    ]


async def _submitted_before(queue: str, begun: Sequence[Move], fired: Fired) -> set[str]:
    """Returns which requests of these moves another leader has submitted, and are gone by now.

    A move whose requests cannot be looked for is put into `fired.waiting`.
    """
    names = {request_id(queue, move.name, tick): move for move in begun for tick in move.ticks}
    ids = list(names)
    rows = await run_each_or_error([hmget(name, "state", "over") for name in ids])
    gone, had = set[str](), set[str]()
    for name, row in zip(ids, rows, strict=True):
        if isinstance(row, FairlaneError):
            fired.waiting.setdefault(names[name].name, row)
            continue
        state, over = parse_fields(("state", "over"), row)
        if over:  # a person deleted it
            had.add(name)
        elif state in {"", "abandoned"} and not _is_recent(names[name].began, fired.now_ms):
            gone.add(name)
    if gone:
        entries = await Batch([Command(b"ZSCORE", keys.active(queue), name) for name in gone])
        had |= {name for name, at in zip(gone, entries, strict=True) if at and float(at) % 1}
        had |= await logged_ids(queue, gone)
    return had


def _is_recent(began_ms: int, now_ms: int) -> bool:
    """Returns True if a request that was submitted since is still known, whatever became of it."""
    longest_ms = settings.LEAST_TOMBSTONE_MS - 1000 * settings.CALL_PATIENCE_S
    return 0 <= now_ms - began_ms <= longest_ms


async def _submit(new: list[NewRequest]) -> list[FairlaneError | None]:
    """Submits requests; returns the error of each, None = Redis has it."""
    errors: dict[str, FairlaneError] = {}
    together = [one for one in new if not one.policy.durable]
    if together:
        for one, made in zip(together, await create(together), strict=True):
            if isinstance(made, FairlaneError):
                errors[one.id] = made
    for one in new:
        if one.policy.durable:
            try:
                await check_replicas(one.id, one.policy.durable)
                await create_one(one)
                await confirm_submission(one.id, one.policy.durable, one.digest.hex)
            except FairlaneError as error:
                errors[one.id] = error
    return [errors.get(one.id) for one in new]
