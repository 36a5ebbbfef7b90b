"""Submits the requests of due ticks: exactly one request a tick, whichever workers live.

The id of a request is made of its schedule and its tick, so a tick that is submitted twice finds
its request. Only then the schedule moves to its next tick, by compare-and-set. So a leader may end
between the two, and two leaders may do this concurrently.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from fairlane import settings
from fairlane.errors import FairlaneError, QueueFull, RedisFull, RequestEnded, RequestExists
from fairlane.operations.batching import call_each
from fairlane.operations.create.digest import Digest
from fairlane.operations.create.group import GROUP, create, create_one
from fairlane.operations.create.new_request import NewRequest
from fairlane.operations.schedules.change import move_tick
from fairlane.operations.schedules.cron import cron_of
from fairlane.operations.schedules.schedule import (
    check_schedule_name,
    decode,
    request_id,
)
from fairlane.operations.submit.durability import check_replicas, confirm_submission
from fairlane.protocol import keys
from fairlane.protocol.scripts import library

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlane.operations.schedules.schedule import Definition
    from fairlane.options import Policy
    from fairlane.protocol.steps import Operation

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


def fire(queue: str, skip: int = 0) -> Operation[Fired]:
    """Submits what a bounded number of due schedules owe, and moves each to its next tick.

    The first `skip` due schedules are left out, because they wait since an earlier pass.
    """
    most = settings.SCHEDULES_PAGE
    call = library().due_schedules(keys.schedules(queue), skip=skip, most=most)
    reply = yield from call.run()
    rows = reply.rows
    fired = Fired(reply.now, reply.next)
    moves: list[Move] = []
    for name, tick, raw in zip(rows[::3], rows[1::3], rows[2::3], strict=True):
        shown = name.decode("utf-8", "replace")
        try:
            moves += plan(queue, shown, raw, tick, fired.now_ms)
        except FairlaneError as error:
            fired.waiting[shown] = error
    for group in _groups(moves):
        if fired.is_full:
            for move in group:
                fired.waiting.setdefault(move.name, QueueFull("no room"))
            continue
        yield from _fire_group(queue, group, fired)
    return fired


def plan(queue: str, name: str, raw: bytes, tick: int, now_ms: int) -> list[Move]:
    """Returns what a due schedule submits, in parts of at most a group. Raises InvalidArgument."""
    check_schedule_name(queue, name)
    definition = decode(raw)
    cron = cron_of(definition.cron, definition.tz)
    policy = definition.policy(queue)
    ticks = owed(definition, tick, now_ms)
    then = cron.next(now_ms)
    moves = []
    expected = tick
    most = max(1, min(GROUP, settings.CHUNK_BYTES // _size_of(definition)))
    for start in range(0, max(1, len(ticks)), most):
        part, rest = ticks[start : start + most], ticks[start + most :]
        upto = rest[0] if rest else then
        moves.append(Move(name, raw, expected, part, upto, definition, policy))
        expected = upto
    return moves


def owed(definition: Definition, tick: int, now_ms: int) -> list[int]:
    """Returns the ticks from `tick` until now that get a request, by the policy for missed ones.

    A tick that is at most a few seconds late was not missed.
    """
    cron = cron_of(definition.cron, definition.tz)
    recent = cron.latest(max(tick, now_ms - settings.LATE_TICK_MS), now_ms, settings.MISSED_MOST)
    if definition.missed == "all":
        return cron.latest(tick, now_ms, max(definition.most, len(recent)))
    if definition.missed == "one" and not recent:
        return cron.latest(tick, now_ms, 1)
    return recent


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


def _fire_group(queue: str, group: list[Move], fired: Fired) -> Operation[None]:
    owners: list[Move] = []
    new: list[NewRequest] = []
    for move in group:
        for tick in move.ticks:
            digest = Digest(move.policy)
            digest.add(move.definition.bodies)
            made = request_id(queue, move.name, tick)
            new.append(NewRequest(made, move.policy, digest, move.definition.bodies))
            owners.append(move)
    errors = (yield from _submit(new)) if new else []
    for move, error in zip(owners, errors, strict=True):
        if error is None or isinstance(error, (RequestExists, RequestEnded)):
            fired.requests += error is None  # else the tick has its request already
            continue
        fired.waiting.setdefault(move.name, error)
        fired.is_full = fired.is_full or isinstance(error, (QueueFull, RedisFull))
    calls = [
        move_tick(queue, move.name, move.raw, move.expected, move.next)
        for move in group
        if move.name not in fired.waiting
    ]
    for reply in (yield from call_each(calls)):  # what fails here is repeated by the next pass
        fired.has_moved |= not isinstance(reply, FairlaneError) and not reply.is_moved


def _submit(new: list[NewRequest]) -> Operation[list[FairlaneError | None]]:
    """Submits requests; returns the error of each, None = Redis has it."""
    errors: dict[str, FairlaneError] = {}
    together = [one for one in new if not one.policy.durable]
    if together:
        for one, made in zip(together, (yield from create(together)), strict=True):
            if isinstance(made, FairlaneError):
                errors[one.id] = made
    for one in new:
        if one.policy.durable:
            try:
                yield from check_replicas(one.id, one.policy.durable)
                yield from create_one(one)
                yield from confirm_submission(one.id, one.policy.durable, one.digest.hex)
            except FairlaneError as error:
                errors[one.id] = error
    return [errors.get(one.id) for one in new]
