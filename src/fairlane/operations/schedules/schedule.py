"""A schedule: what it submits and when, as text in Redis and as an object."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

from fairlane import settings
from fairlane.common.chunking import chunks
from fairlane.errors import InvalidArgument
from fairlane.operations.schedules.cron import cron_of
from fairlane.options import policy_of
from fairlane.protocol.keys import check_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fairlane.common.chunking import Body
    from fairlane.options import Policy

Missed = Literal["skip", "one", "all"]
MISSED = ("skip", "one", "all")
DEFAULT_MISSED: Missed = "one"
_TICK = "%Y%m%dT%H%M%SZ"
_TICK_LENGTH = len("20261224T180000Z")
_LONGEST_ID = 128
_ONCE = {
    "run_at",
    "after",
    "after_any_end",
    "on_duplicate",
    "window_s",
    "distinct",
}  # of a single request


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
        given = dict(self.options)
        if "backoff_s" in given:
            given["backoff_s"] = tuple(given["backoff_s"])
        try:
            return policy_of(queue, **given)
        except TypeError as error:  # an option of a newer release
            raise InvalidArgument(f"{error}; a newer release may have written it") from None

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
    policy_of(settings.DEFAULT_QUEUE, **options)
    if isinstance(options.get("delay"), timedelta):
        options["delay"] = options["delay"].total_seconds()
    found: list[bytes] = []
    for chunk in chunks(bodies):
        found += chunk
        if len(found) > settings.CHUNK_ENTRIES or sum(map(len, found)) > settings.MAX_SCHEDULE:
            raise InvalidArgument(
                f"the bodies of the schedule are too large: keep up to {settings.CHUNK_ENTRIES:,} "
                f"with {settings.MAX_SCHEDULE // 1024} KiB together, let a handler find the rest"
            )
    if not found:
        raise InvalidArgument("a schedule has no body: each of its requests needs one")
    line = cron_of(cron, tz).line
    return Definition(line, tz, found, missed, most, options, app)


def decode(raw: bytes) -> Definition:
    """Returns the definition that `encode` made. Raises InvalidArgument."""
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
            f"its requests have room for {max(0, most)}"
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
