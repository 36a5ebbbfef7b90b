"""Adds, lists, pauses, resumes and removes schedules."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, NamedTuple

from fairlane.errors import FairlaneError, InvalidArgument, ScheduleNotFound
from fairlane.operations.schedules.cron import cron_of
from fairlane.operations.schedules.schedule import (
    Definition,
    Schedule,
    check_schedule_name,
    decode,
    digest_of,
    schedule_of,
)
from fairlane.protocol import keys
from fairlane.protocol.scripts import library
from fairlane.protocol.steps import Batch, Command, Operation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fairlane.protocol.steps import Call

_SCANNED = 100  # definitions of one call


class _Stored(NamedTuple):
    """A schedule in Redis at `now_ms`; b"" = there is none, tick None = it is paused."""

    raw: bytes
    tick: int | None
    now_ms: int


def keys_of(queue: str) -> tuple[bytes, ...]:
    """Returns the keys of the scripts that change schedules."""
    return *keys.schedules(queue), keys.firing(queue)


def put(queue: str, name: str, wanted: Definition) -> Operation[Schedule]:
    """Adds a schedule, or gives an existing one this definition; returns it.

    The first tick is later than now. An existing schedule keeps its next tick, which may be a
    missed one, unless its cron line or zone changes. A paused one stays paused. Raises
    InvalidArgument before anything is written.
    """
    check_schedule_name(queue, name)
    wanted.policy(queue)
    line, raw = cron_of(wanted.cron, wanted.tz), wanted.encode()
    while True:
        stored = yield from _read(queue, name)
        tick: int | str = ""
        if not _is_due_alike(stored.raw, wanted):
            tick = line.next(stored.now_ms)
        if raw != stored.raw:
            found = digest_of(stored.raw) if stored.raw else ""
            call = library().put_schedule(
                keys_of(queue), schedule=name, found=found, definition=raw, tick=tick
            )
            if (yield from call.run()).is_changed:
                continue
        stored = yield from _read(queue, name)
        if stored.raw:  # else another caller removed it
            return schedule_of(queue, name, stored.raw, stored.tick or 0, stored.now_ms)


def _is_due_alike(raw: bytes, wanted: Definition) -> bool:
    """Returns True if a definition in Redis has the same line and zone."""
    try:
        return bool(raw) and _line_of(decode(raw)) == _line_of(wanted)
    except InvalidArgument:  # a newer release wrote it
        return False


def _line_of(one: Definition) -> tuple[str, str]:
    return one.cron, one.tz


def register(queue: str, wanted: Mapping[str, Definition]) -> Operation[list[str]]:
    """Adds the schedules of apps; returns those of apps that are in Redis and not wanted here."""
    for name, definition in wanted.items():
        yield from put(queue, name, definition)
    names = yield from _names_of_apps(queue)
    return sorted(names - wanted.keys())


def list_schedules(queue: str) -> Operation[list[Schedule]]:
    """Returns the schedules of a queue, the next one first, paused ones last.

    Raises InvalidArgument if one of them cannot be read.
    """
    now_ms = yield from _now(queue)
    found: list[Schedule] = []
    for name, (raw, tick) in (yield from _all(queue)).items():
        found.append(schedule_of(queue, name, raw, tick or 0, now_ms))
    return sorted(found, key=lambda one: (not one.next_ms, one.next_ms, one.name))


def pause(queue: str, name: str) -> Operation[Schedule]:
    """Pauses a schedule: it has no tick until it is resumed. Raises ScheduleNotFound."""
    return (yield from _set_tick(queue, name, is_paused=True))


def resume(queue: str, name: str) -> Operation[Schedule]:
    """Resumes a paused schedule; what was due meanwhile was not missed. Raises ScheduleNotFound."""
    return (yield from _set_tick(queue, name, is_paused=False))


def remove(queue: str, name: str) -> Operation[None]:
    """Removes a schedule; its requests stay. Raises ScheduleNotFound.

    The schedule is read first, because the reply to a repeated removal would be that there is none.
    """
    check_schedule_name(queue, name)
    if not (yield from _read(queue, name)).raw:
        raise (yield from _not_found(queue, name))
    yield library().drop_schedule(keys_of(queue), schedule=name)


def move_tick(queue: str, name: str, raw: bytes, expected: int | None, tick: int | None) -> Call:
    """Returns the call that sets a schedule's next tick, if it still is as the caller read it."""
    return library().move_tick(
        keys_of(queue),
        schedule=name,
        found=digest_of(raw),
        expected="" if expected is None else expected,
        tick="" if tick is None else tick,
    )


def _set_tick(queue: str, name: str, *, is_paused: bool) -> Operation[Schedule]:
    check_schedule_name(queue, name)
    while True:
        stored = yield from _read(queue, name)
        if not stored.raw:
            raise (yield from _not_found(queue, name))
        if (stored.tick is None) == is_paused:
            return schedule_of(queue, name, stored.raw, stored.tick or 0, stored.now_ms)
        tick = None
        if not is_paused:
            found = schedule_of(queue, name, stored.raw, 0, stored.now_ms)
            tick = cron_of(found.cron, found.tz).next(stored.now_ms)
        yield move_tick(queue, name, stored.raw, stored.tick, tick)


def _read(queue: str, name: str) -> Operation[_Stored]:
    schedules, ticks = keys.schedules(queue)
    now = library().due_schedules((schedules, ticks), skip=0, most=0)
    reads = Command(b"HGET", schedules, name), Command(b"ZSCORE", ticks, name)
    raw, tick, reply = yield Batch([*reads, now])
    return _Stored(raw or b"", None if tick is None else int(float(tick)), now.reply(reply).now)


def _now(queue: str) -> Operation[int]:
    """Returns the time of the dispatch slot in ms; the clocks of two nodes are never compared."""
    call = library().due_schedules(keys.schedules(queue), skip=0, most=0)
    now: int = (yield from call.run()).now
    return now


def _all(queue: str) -> Operation[dict[str, tuple[bytes, int | None]]]:
    """Returns the definition and the tick of each schedule, None = it is paused."""
    schedules, ticks = keys.schedules(queue)
    found: dict[str, tuple[bytes, int | None]] = {}
    cursor: bytes | int = 0
    while True:
        cursor, flat = yield Command(b"HSCAN", schedules, cursor, b"COUNT", _SCANNED)
        names, texts = flat[::2], flat[1::2]
        scores = (yield Batch([Command(b"ZSCORE", ticks, one) for one in names])) if names else []
        for name, raw, tick in zip(names, texts, scores, strict=True):
            found[name.decode("utf-8", "replace")] = raw, None if tick is None else int(float(tick))
        if not int(cursor):
            return found


def _names_of_apps(queue: str) -> Operation[set[str]]:
    names = set()
    for name, (raw, _) in (yield from _all(queue)).items():
        try:
            if decode(raw).app:
                names.add(name)
        except FairlaneError:  # the leader reports it
            continue
    return names


def _not_found(queue: str, name: str) -> Operation[ScheduleNotFound]:
    names = sorted((yield from _all(queue)))
    near = get_close_matches(name, names, n=1)
    if near:
        hint = f"did you mean {near[0]}?"
    elif names:
        hint = f"fairlane schedule list --queue {queue} shows its schedules"
    else:
        hint = "it has no schedules"
    return ScheduleNotFound(f"schedule {name} is not in queue {queue}: {hint}")
