"""When a cron line is due in a time zone. Times are in ms since 1970, UTC.

A line has five fields: minute, hour, day of the month, month, day of the week; or six with seconds
first. Where clocks change, it behaves as Debian's cron does. A fixed time that is skipped is due
when the skipped hour is over, and a fixed time that comes twice is due once. A line whose minute or
hour begins with a star follows the clock.
"""

from __future__ import annotations

from datetime import UTC, datetime
from difflib import get_close_matches
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING

from fairlane import settings
from fairlane.common.text import plural
from fairlane.errors import InvalidArgument, type_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import tzinfo

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

        It reads a part of the time, and one twice as long until there are enough. So a long time
        without a worker costs little more than the ticks that are returned.
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
        for place, (name, field) in enumerate(zip(names, fields, strict=True)):
            alone = ["*"] * len(fields)
            alone[place] = field
            if not _is_valid(" ".join(alone)):
                raise InvalidArgument(
                    f"cron line {self.line!r} is not valid: {name} {field} is wrong; "
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
