"""Schedules: requests that are submitted at the ticks of a cron line."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from difflib import get_close_matches
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from fairlane import settings
from fairlane.common.chunking import chunks
from fairlane.common.text import plural
from fairlane.errors import (
    FairlaneError,
    InvalidArgument,
    QueueFull,
    RedisFull,
    RequestEnded,
    RequestExists,
    ScheduleNotFound,
    type_of,
)
from fairlane.operations.after import logged_states
from fairlane.operations.create import GROUP, NO_ORDER, Digest, NewRequest, create, create_one
from fairlane.operations.durability import check_replicas, confirm_submission
from fairlane.operations.limit_keys import in_force
from fairlane.operations.tokens import was_seen
from fairlane.options import check_option_names, plain_options, policy_of
from fairlane.options_table import OPTIONS
from fairlane.protocol import keys, scripts
from fairlane.protocol.keys import check_name
from fairlane.protocol.request_hash import hmget, parse_fields
from fairlane.protocol.steps import Batch, Command, SingleServer, call_each, run_each_or_error

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from datetime import tzinfo

    from fairlane.common.chunking import Body
    from fairlane.options import Policy
    from fairlane.protocol.scripts import MoveTickReply
    from fairlane.protocol.steps import Call


# ------------------------------------------------------------------ schedule
# A schedule: what it submits and when, as text in Redis and as an object.


Missed = Literal["skip", "one", "all"]
MISSED = ("skip", "one", "all")
DEFAULT_MISSED: Missed = "one"
_TICK = "%Y%m%dT%H%M%SZ"
_TICK_LENGTH = len("20261224T180000Z")
_LONGEST_ID = 128
_ONCE = {option.name for option in OPTIONS if "schedule" not in option.where.split()}


@dataclass(frozen=True, slots=True)
class Definition:
    """What a schedule does, as it is kept in Redis.

    `options` are those of submit_request. `app` is True if an app has registered it.
    """

    cron: str
    tz: str
    bodies: list[bytes]
    missed: Missed = DEFAULT_MISSED
    most: int = settings.MISSED_MOST
    options: dict[str, Any] = field(default_factory=dict)
    app: bool = False

    def policy(self, queue: str) -> Policy:
        """Returns the policy of its requests. Raises InvalidArgument."""
        try:
            return policy_of(queue, **self.options)
        except TypeError as error:  # an option of another release
            raise InvalidArgument(f"{error}; another release may have written it") from None

    def encode(self) -> bytes:
        """Returns the text in Redis: JSON, bodies in base64. Equal schedules have equal texts."""
        import msgspec

        return msgspec.json.encode(self, order="sorted")


def define(
    *,
    cron: str,
    bodies: Iterable[Body],
    tz: str = "UTC",
    missed: Missed = DEFAULT_MISSED,
    most: int = settings.MISSED_MOST,
    app: bool = False,
    **options: Any,
) -> Definition:
    """Returns a checked definition. Raises InvalidArgument, and TypeError for a wrong option."""
    if missed not in MISSED:
        raise InvalidArgument(f"missed {missed!r} is not valid: write {', '.join(MISSED)}")
    is_whole = isinstance(most, int) and not isinstance(most, bool)
    if not is_whole or not 1 <= most <= settings.MISSED_MOST:
        raise InvalidArgument(
            f"most {most!r} is not valid: 1 to {settings.MISSED_MOST:,} missed ticks are expected"
        )
    if given := sorted(_ONCE & options.keys()):
        raise InvalidArgument(f"{given[0]} has no meaning in a schedule: leave it out")
    check_option_names(options, [option.name for option in OPTIONS])
    options = plain_options(options)
    policy_of(settings.DEFAULT_QUEUE, **options)
    found: list[bytes] = []
    for chunk in chunks(bodies):
        found += chunk
        if len(found) > settings.CHUNK_ENTRIES or sum(map(len, found)) > settings.MAX_SCHEDULE:
            raise InvalidArgument(
                f"the bodies of the schedule are too many or too large: keep at most "
                f"{settings.CHUNK_ENTRIES:,} bodies with {settings.MAX_SCHEDULE // 1024} KiB "
                "together, and let a handler find the rest"
            )
    if not found:
        raise InvalidArgument("a schedule has no body: each of its requests needs one")
    line = cron_of(cron, tz).line
    return Definition(line, tz, found, missed, most, options, app)


def decode(raw: bytes) -> Definition:
    """Reads a definition from the text that `encode` made. Raises InvalidArgument."""
    import msgspec

    try:
        return msgspec.json.decode(raw, type=Definition)
    except msgspec.MsgspecError as error:
        raise InvalidArgument(
            f"its definition cannot be read ({error}): a newer release may have written it"
        ) from None


def digest_of(raw: bytes) -> str:
    """Returns the SHA-1 by which scripts recognise a definition."""
    return hashlib.sha1(raw, usedforsecurity=False).hexdigest()


def check_schedule_name(queue: str, name: str) -> str:
    """Returns a name whose requests have valid ids. Raises InvalidArgument."""
    check_name("schedule", name)
    if ":" in name:
        raise InvalidArgument(
            f"schedule {name!r} is not valid: use letters, digits and the characters _ . -"
        )
    most = _LONGEST_ID - _TICK_LENGTH - len(queue) - 2
    if len(name) > most:
        raise InvalidArgument(
            f"schedule {name[:60]!r} has {len(name)} characters: in queue {queue[:60]} the ids of "
            f"its requests have room for {max(0, most)}, so choose a shorter name"
        )
    return name


def request_id(queue: str, name: str, tick: int) -> str:
    """Returns the id of the request of a tick.

    It has the queue's name because ids are unique across queues. A schedule's name has no colon, so
    no other queue and schedule make the same id.
    """
    return f"{queue}:{name}:{datetime.fromtimestamp(tick / 1000, UTC).strftime(_TICK)}"


def is_of_tick(name: str) -> bool:
    """Returns True for an id that the request of a tick may have."""
    queue, _, rest = name.partition(":")
    try:
        datetime.strptime(rest.rpartition(":")[2], _TICK).replace(tzinfo=UTC)
    except ValueError:
        return False
    return bool(queue) and rest.count(":") > 0


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule as it was read at `now_ms` of the queue's Redis.

    `next_ms` is when its next tick is due, 0 while it is paused. `options` are those of
    submit_request; `missed` and `most` are the policy for missed ticks. `is_of_app` is True if a
    worker registered it for its app.
    """

    name: str
    queue: str
    cron: str
    tz: str
    bodies: tuple[bytes, ...]
    missed: Missed
    most: int
    options: dict[str, Any]
    is_of_app: bool
    next_ms: int
    now_ms: int

    @property
    def state(self) -> str:
        """Returns active, paused, or overdue: no worker has submitted the tick yet."""
        if not self.next_ms:
            return "paused"
        return "overdue" if self.next_ms < self.now_ms - settings.LATE_TICK_MS else "active"

    def next(self, count: int = 1) -> list[datetime]:
        """Returns the next ticks as times in the zone of the schedule; [] while it is paused.

        Raises InvalidArgument if this machine has no such zone.
        """
        is_number = isinstance(count, int) and not isinstance(count, bool)
        if not is_number or not 0 <= count <= settings.MISSED_MOST:
            raise InvalidArgument(
                f"count {count!r} is not valid: 0 to {settings.MISSED_MOST:,} is expected"
            )
        if not self.next_ms:
            return []
        begin = max(self.now_ms, self.next_ms - 1)
        return cron_of(self.cron, self.tz).moments(begin, count)


def schedule_of(queue: str, name: str, raw: bytes, tick: float, now_ms: int) -> Schedule:
    """Returns the schedule of a definition in Redis. Raises InvalidArgument."""
    try:
        found = decode(raw)
    except InvalidArgument as error:
        raise InvalidArgument(f"schedule {name}: {error}") from None
    return Schedule(
        name=name,
        queue=queue,
        cron=found.cron,
        tz=found.tz,
        bodies=tuple(found.bodies),
        missed=found.missed,
        most=found.most,
        options=found.options,
        is_of_app=found.app,
        next_ms=int(tick),
        now_ms=now_ms,
    )


# ------------------------------------------------------------------ cron
# When a cron line is due in a time zone. Times are in ms since 1970, UTC.
#
# A line has five fields: minute, hour, day of the month, month, day of the week; or six with
# seconds first. Where clocks change, it behaves as Debian's cron does. A fixed time that is
# skipped is due when the skipped hour is over, and a fixed time that comes twice is due once. A
# line whose minute or hour begins with a star follows the clock.


_LONGEST = 200  # characters of a line
_FIELDS = ("minute", "hour", "day of the month", "month", "day of the week")
_EXAMPLE, _ZONE = "0 7 * * mon-fri", "Europe/Berlin"


class Cron:
    """A checked cron line in a zone: `line`, `zone` and its ticks. Raises InvalidArgument."""

    def __init__(self, line: str, tz: str) -> None:
        self.zone = zone_of(tz)
        self.line = " ".join(line.split())
        if len(line) > _LONGEST:
            raise InvalidArgument(
                f"cron line {self.line[:60]!r}... has {len(line):,} characters: "
                f"write at most {_LONGEST}"
            )
        self._check()

    def after(self, ms: int) -> Iterator[int]:
        """Yields the ticks later than `ms`, in their order."""
        from cronsim import CronSim

        last = ms
        for moment in CronSim(self.line, datetime.fromtimestamp(ms / 1000, self.zone)):
            tick = round(moment.timestamp() * 1000)
            if tick > last:  # an hour that comes twice has no second fixed time
                yield tick
                last = tick

    def next(self, ms: int) -> int:
        """Returns the first tick later than `ms`. Raises InvalidArgument: there is none."""
        tick = next(self.after(ms), None)
        if tick is None:
            raise InvalidArgument(self._never())
        return tick

    def latest(self, first: int, until: int, most: int) -> list[int]:
        """Returns the ticks from `first` to `until`, both included; at most the latest `most`.

        It looks back from `until`, each time twice as far, until it has `most` ticks. So the cost
        depends on `most`, and not on how long there was no worker.
        """
        span = settings.LATE_TICK_MS
        while True:
            begin = max(first, until - span)
            found = list(self._until(begin - 1, until))
            if len(found) >= most or begin == first:
                return found[-most:]
            span *= 2

    def moments(self, after_ms: int, count: int) -> list[datetime]:
        """Returns the next `count` ticks later than `after_ms`, in the zone."""
        return [self.moment(tick) for tick in islice(self.after(after_ms), count)]

    def moment(self, tick: int) -> datetime:
        """Returns a tick as a time in the zone."""
        return datetime.fromtimestamp(tick / 1000, self.zone)

    def _until(self, after: int, until: int) -> Iterator[int]:
        for tick in self.after(after):
            if tick > until:
                return
            yield tick

    def _check(self) -> None:
        """Raises InvalidArgument for a line that is not valid, or is never due."""
        if _is_valid(self.line):
            return
        fields = self.line.split()
        if len(fields) not in (5, 6):
            raise InvalidArgument(
                f"cron line {self.line!r} has {plural(len(fields), 'field')}: write 5, such as "
                f"{_EXAMPLE}"
            )
        names = _FIELDS if len(fields) == len(_FIELDS) else ("second", *_FIELDS)
        for place, (name, part) in enumerate(zip(names, fields, strict=True)):
            alone = ["*"] * len(fields)
            alone[place] = part
            if not _is_valid(" ".join(alone)):
                raise InvalidArgument(
                    f"cron line {self.line!r} is not valid: {name} {part} is wrong; "
                    f"a line such as {_EXAMPLE} is expected"
                )
        raise InvalidArgument(self._never())

    def _never(self) -> str:
        return f"cron line {self.line!r} is never due: no day of the calendar fits, choose another"


def cron_of(line: str, tz: str) -> Cron:
    """Returns a checked cron line in a zone. Raises InvalidArgument."""
    given: tuple[tuple[str, object, str], ...] = (
        ("cron line", line, _EXAMPLE),
        ("time zone", tz, _ZONE),
    )
    for what, value, example in given:
        if not isinstance(value, str):
            raise InvalidArgument(f"{what} is {type_of(value)}: write text such as {example}")
    return _cron_of(line, tz)


@lru_cache(maxsize=4096)
def _cron_of(line: str, tz: str) -> Cron:
    return Cron(line, tz)


def _is_valid(line: str) -> bool:
    """Returns True if the line can be read and is due at some time."""
    from cronsim import CronSim, CronSimError

    try:
        return next(CronSim(line, datetime(2000, 1, 1, tzinfo=UTC)), None) is not None
    except (CronSimError, AssertionError, TypeError, ValueError):
        return False


def zone_of(tz: str) -> tzinfo:
    """Returns the zone of this name, as `Europe/Berlin`. Raises InvalidArgument."""
    from zoneinfo import ZoneInfo

    if tz == "UTC":  # it needs no time zone data
        return UTC
    try:
        return ZoneInfo(tz)
    except (LookupError, OSError, ValueError):
        raise InvalidArgument(_unknown_zone(tz)) from None


def _unknown_zone(tz: str) -> str:
    from zoneinfo import available_timezones

    known = available_timezones()
    if not known:
        return f"time zone {tz!r} cannot be read: install the Python package tzdata"
    by_name = {name.lower(): name for name in known}
    by_city = {name.rpartition("/")[2].lower(): name for name in sorted(known)}
    asked = tz[:60].lower().replace(" ", "_")
    near = get_close_matches(asked, [*by_name, *by_city], n=1)
    hint = f"write a name such as {_ZONE}"
    if near:
        hint = f"did you mean {by_name.get(near[0]) or by_city[near[0]]}?"
    return f"time zone {tz[:60]!r} does not exist: {hint}"


# ------------------------------------------------------------------ change
# Adds, lists, pauses, resumes and removes schedules.


_SCANNED = 100  # definitions of one call


class _Stored(NamedTuple):
    """A schedule in Redis at `now_ms`; b"" = there is none, tick None = it is paused."""

    raw: bytes
    tick: int | None
    now_ms: int


def keys_of(queue: str) -> tuple[bytes, ...]:
    """Returns the keys of the scripts that change schedules."""
    return *keys.schedules(queue), keys.firing(queue)


async def put_schedule(queue: str, name: str, wanted: Definition) -> Schedule:
    """Adds a schedule, or gives an existing one this definition; returns it.

    The first tick is later than now. An existing schedule keeps its next tick, which may be a
    missed one, unless its cron line or zone changes. A paused one stays paused. Raises
    InvalidArgument before anything is written.
    """
    check_schedule_name(queue, name)
    is_ordered = bool(wanted.policy(queue).order_key)
    line, raw = cron_of(wanted.cron, wanted.tz), wanted.encode()
    while True:
        stored = await _read(queue, name)
        tick: int | str = ""
        if not _is_due_alike(stored.raw, wanted):
            tick = line.next(stored.now_ms)
        if raw != stored.raw:
            found = digest_of(stored.raw) if stored.raw else ""
            call = scripts.put_schedule(
                keys_of(queue), schedule=name, found=found, definition=raw, tick=tick
            )
            reply = await (SingleServer(call) if is_ordered else call)
            if reply is None:
                raise InvalidArgument(NO_ORDER)
            if reply.is_changed:
                continue
        stored = await _read(queue, name)
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


async def register(queue: str, wanted: Mapping[str, Definition]) -> list[str]:
    """Adds the schedules of apps; returns the schedules of apps in Redis that `wanted` lacks."""
    for name, definition in wanted.items():
        await put_schedule(queue, name, definition)
    names = await _names_of_apps(queue)
    return sorted(names - wanted.keys())


async def list_schedules(queue: str) -> list[Schedule]:
    """Returns the schedules of a queue, the next one first, paused ones last.

    Raises InvalidArgument if one of them cannot be read.
    """
    now_ms = await _now(queue)
    found: list[Schedule] = []
    for name, (raw, tick) in (await _all(queue)).items():
        found.append(schedule_of(queue, name, raw, tick or 0, now_ms))
    return sorted(found, key=lambda one: (not one.next_ms, one.next_ms, one.name))


async def pause(queue: str, name: str) -> Schedule:
    """Pauses a schedule: it has no tick until it is resumed. Raises ScheduleNotFound."""
    return await _set_tick(queue, name, is_paused=True)


async def resume(queue: str, name: str) -> Schedule:
    """Resumes a paused schedule. Ticks during the pause get no request. Raises ScheduleNotFound."""
    return await _set_tick(queue, name, is_paused=False)


async def drop_schedule(queue: str, name: str) -> None:
    """Removes a schedule; its requests stay. Raises ScheduleNotFound.

    The schedule is read first, because the reply to a repeated removal would be that there is none.
    """
    check_schedule_name(queue, name)
    if not (await _read(queue, name)).raw:
        raise await _not_found(queue, name)
    await scripts.drop_schedule(keys_of(queue), schedule=name)


def move_tick(
    queue: str, name: str, raw: bytes, expected: int | None, tick: int | None
) -> Call[MoveTickReply]:
    """Returns the call that sets a schedule's next tick, if it still is as the caller read it."""
    return scripts.move_tick(
        keys_of(queue),
        schedule=name,
        found=digest_of(raw),
        expected="" if expected is None else expected,
        tick="" if tick is None else tick,
    )


async def _set_tick(queue: str, name: str, *, is_paused: bool) -> Schedule:
    check_schedule_name(queue, name)
    while True:
        stored = await _read(queue, name)
        if not stored.raw:
            raise await _not_found(queue, name)
        if (stored.tick is None) == is_paused:
            return schedule_of(queue, name, stored.raw, stored.tick or 0, stored.now_ms)
        tick = None
        if not is_paused:
            found = schedule_of(queue, name, stored.raw, 0, stored.now_ms)
            tick = cron_of(found.cron, found.tz).next(stored.now_ms)
        await move_tick(queue, name, stored.raw, stored.tick, tick)


async def _read(queue: str, name: str) -> _Stored:
    schedules, ticks = keys.schedules(queue)
    now = scripts.due_schedules((schedules, ticks), skip=0, most=0)
    reads = Command(b"HGET", schedules, name), Command(b"ZSCORE", ticks, name)
    raw, tick, reply = await Batch([*reads, now])
    return _Stored(raw or b"", None if tick is None else int(float(tick)), reply.now)


async def _now(queue: str) -> int:
    """Returns the time of the dispatch slot in ms; the clocks of two nodes are never compared."""
    call = scripts.due_schedules(keys.schedules(queue), skip=0, most=0)
    now: int = (await call).now
    return now


async def _all(queue: str) -> dict[str, tuple[bytes, int | None]]:
    """Returns the definition and the tick of each schedule, None = it is paused."""
    schedules, ticks = keys.schedules(queue)
    found: dict[str, tuple[bytes, int | None]] = {}
    cursor: bytes | int = 0
    while True:
        cursor, flat = await Command(b"HSCAN", schedules, cursor, b"COUNT", _SCANNED)
        names, texts = flat[::2], flat[1::2]
        scores = await Batch([Command(b"ZSCORE", ticks, one) for one in names]) if names else []
        for name, raw, tick in zip(names, texts, scores, strict=True):
            found[name.decode("utf-8", "replace")] = raw, None if tick is None else int(float(tick))
        if not int(cursor):
            return found


async def _names_of_apps(queue: str) -> set[str]:
    names = set()
    for name, (raw, _) in (await _all(queue)).items():
        try:
            if decode(raw).app:
                names.add(name)
        except FairlaneError:  # the leader reports it
            continue
    return names


async def _not_found(queue: str, name: str) -> ScheduleNotFound:
    names = sorted(await _all(queue))
    near = get_close_matches(name, names, n=1)
    if near:
        hint = f"did you mean {near[0]}?"
    elif names:
        hint = f"fairlane schedule list --queue {queue} shows its schedules"
    else:
        hint = "it has no schedules"
    return ScheduleNotFound(f"schedule {name} is not in queue {queue}: {hint}")


# ------------------------------------------------------------------ fire
# Submits the requests of due ticks: exactly one request a tick, whichever workers live.
#
# The id of a request is made of its schedule and its tick, so a tick that is submitted twice finds
# its request. Only then the schedule moves to its next tick, by compare-and-set. So a leader may
# end between the two, and two leaders may do this concurrently.
#
# A request is forgotten at some time after its end. So a leader notes in the dispatch slot that it
# begins with a tick, before it submits the requests. The next leader that finds this note looks for
# those requests in the completion log, too.


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
    """What one pass did. `waiting` has the error of each due schedule that was not submitted.

    `next_ms` is the next tick after `now_ms` that the claim found, by the clock of the dispatch
    slot; 0 = there is none. `has_moved`: another caller has moved a schedule meanwhile, so the pass
    must be repeated. `full` is the refusal of Redis or of the queue, None = there is room.
    """

    now_ms: int
    next_ms: int
    requests: int = 0
    full: QueueFull | RedisFull | None = None
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
        if fired.full is not None:
            for move in group:
                fired.waiting.setdefault(move.name, fired.full)
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

    `watched` are the times in which a leader lived. A tick is missed if none lived within
    LATE_TICK_MS after it; one that only waited for room is not missed. Returns at most the latest
    MISSED_MOST ticks.
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
    """Submits the requests of moves that fit into one call, and then moves their schedules.

    A schedule of which a request is missing is not moved: its error is in `fired.waiting`, and a
    later pass submits the rest. If nothing of it was submitted, its note is removed.
    """
    new = await _requests_of(queue, group, fired)
    submitted, refused = set[str](), set[str]()
    errors = await _submit([request for _, request in new]) if new else []
    for (name, _), error in zip(new, errors, strict=True):
        if error is None or isinstance(error, (RequestExists, RequestEnded)):
            fired.requests += error is None  # else the tick has its request already
            submitted.add(name)
            continue
        fired.waiting.setdefault(name, error)
        if isinstance(error, (QueueFull, RedisFull)):
            fired.full = error
            refused.add(name)
    calls = [
        move_tick(queue, move.name, move.raw, move.expected, move.next)
        for move in group
        if move.name not in fired.waiting
    ]
    for reply in await call_each(calls):  # what fails here is repeated by the next pass
        fired.has_moved |= not isinstance(reply, FairlaneError) and not reply.is_moved
    await call_each(_give_up(queue, [one for one in group if one.name in refused - submitted]))


async def _requests_of(queue: str, group: list[Move], fired: Fired) -> list[tuple[str, NewRequest]]:
    """Returns the requests of moves that are still to be submitted, each with its schedule."""
    submitted = await _submitted_before(queue, [move for move in group if move.began], fired)
    new: list[tuple[str, NewRequest]] = []
    for move in group:
        policy = move.policy
        try:
            if policy.limits:
                policy = replace(policy, limits=await in_force(queue, policy.limits))
        except FairlaneError as unread:
            fired.waiting.setdefault(move.name, unread)
        if move.name in fired.waiting:
            continue
        for tick in move.ticks:
            made = request_id(queue, move.name, tick)
            if made not in submitted:
                digest = Digest(policy)
                digest.add(move.definition.bodies)
                new.append((move.name, NewRequest(made, policy, digest, move.definition.bodies)))
    return new


def _give_up(queue: str, moves: Sequence[Move]) -> list[Call[Any]]:
    """Returns the calls that remove the notes of moves of which nothing was submitted.

    A move to the same tick only removes the note. If another leader has begun with a move, it may
    have submitted a part: then the note stays.
    """
    return [
        move_tick(queue, move.name, move.raw, move.expected, move.expected)
        for move in moves
        if not move.began
    ]


async def _submitted_before(queue: str, begun: Sequence[Move], fired: Fired) -> set[str]:
    """Returns the ids of requests that another leader has submitted and that are gone by now.

    If Redis cannot be read for a move, its error is put into `fired.waiting`.
    """
    moves = {request_id(queue, move.name, tick): move for move in begun for tick in move.ticks}
    rows = await run_each_or_error([hmget(name, "state", "over") for name in moves])
    missing, submitted = set[str](), set[str]()
    for (name, move), row in zip(moves.items(), rows, strict=True):
        if isinstance(row, FairlaneError):
            fired.waiting.setdefault(move.name, row)
            continue
        state, over = parse_fields(("state", "over"), row)
        if over:  # a person deleted it
            submitted.add(name)
        elif state in {"", "abandoned"} and not _is_recent(move.began, fired.now_ms):
            missing.add(name)
    if missing:
        scores = await Batch([Command(b"ZSCORE", keys.active(queue), name) for name in missing])
        found = zip(missing, scores, strict=True)
        submitted |= {name for name, score in found if score and was_seen(score)}
        submitted |= {*await logged_states(queue, missing)}
    return submitted


def _is_recent(began_ms: int, now_ms: int) -> bool:
    """Returns True if a request that was submitted after `began_ms` must still be known.

    It exists, or has left a tombstone.
    """
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
