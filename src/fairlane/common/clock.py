"""Time: `wall_ms` is for people, `mono_s` for durations, Redis keeps the deadlines."""

from __future__ import annotations

import random
import time
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from fairlane import settings
from fairlane.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterator


LAST_MS = 253_402_300_799_000  # the end of the year 9999
_MOST_S = 1e300  # seconds, in either direction: a float has no larger number of ms


def wall_ms() -> int:
    """Returns the ms since 1970 by this machine's clock. Never compare it with a server's time."""
    return time.time_ns() // 1_000_000


mono_s = time.monotonic  # seconds of a clock that never goes back; use only differences


def sleep(seconds: float) -> None:
    """Sleeps. Only this function does, so that a test can replace it."""
    time.sleep(seconds)


def duration_ms(name: str, given: object) -> int:
    """Returns a duration in ms: seconds, text such as 10m, or a timedelta. Raises InvalidArgument.

    The error has its name.
    """
    if isinstance(given, str):
        try:
            return settings.duration_ms(given)
        except InvalidArgument as error:
            raise InvalidArgument(f"{name} {error}") from None
    if isinstance(given, timedelta):
        given = given.total_seconds()
    if isinstance(given, bool) or not isinstance(given, (int, float)) or given != given:  # noqa: PLR0124  nan
        raise InvalidArgument(
            f"{name} {given!r} is not valid: give seconds, text such as 10m, or a timedelta"
        )
    return ms_of(name, given)


def ms_of(name: str, seconds: float) -> int:
    """Returns seconds as whole ms, 0 only for 0 seconds. Raises InvalidArgument."""
    given: object = seconds
    is_number = isinstance(given, (int, float)) and not isinstance(given, bool)
    if not is_number or not -_MOST_S < seconds < _MOST_S:  # also refuses nan
        raise InvalidArgument(f"{name} {seconds!r} is not valid: a number of seconds is expected")
    return (round(seconds * 1000) or (1 if seconds > 0 else -1)) if seconds else 0


def moment_ms(name: str, moment: datetime | str) -> int:
    """Returns a time as ms since 1970. Raises InvalidArgument, which has its name."""
    given: object = moment
    try:
        found = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
    except ValueError:
        found = None
    if not isinstance(found, datetime) or found.tzinfo is None:
        raise InvalidArgument(
            f"{name} {str(given)!r} is not valid: a time with a zone is expected, such as "
            "2026-12-24T18:00+01:00"
        )
    ms = max(1, round(found.timestamp() * 1000))
    if ms > LAST_MS:
        raise InvalidArgument(f"{name} {str(given)!r} is not valid: year 9999 (UTC) is the last")
    return ms


# ------------------------------------------------------------------ backoff
# How long to wait before the next try, for calls to Redis and for sub-requests.


def connection_delays(patience_s: float) -> Iterator[float]:
    """Yields seconds between retries of one call: 0.02 doubling to 1, until `patience_s` is over.

    The time begins now and includes the calls, because a call to a server that does not answer
    takes its whole timeout.
    """
    return _delays(mono_s() + patience_s)


def _delays(end: float) -> Iterator[float]:
    delay = 0.02
    while (left := end - mono_s()) > 0:
        yield min(left, delay * random.uniform(0.5, 1.0))
        delay = min(1.0, delay * 2)


def retry_delay_ms(attempt: int, backoff_min_ms: int, backoff_max_ms: int) -> int:
    """Returns the ms until a failed sub-request runs again: doubling per attempt, with jitter.

    The value lies between a half of and the whole backoff_min * 2^(attempt - 1), and is never
    shorter than backoff_min nor longer than backoff_max. The first pause is up to twice as long as
    the shortest one, so that calls that failed together do not come back together.
    """
    ceiling = min(backoff_max_ms, backoff_min_ms * 2 ** min(max(1, attempt - 1), 30))
    return random.randint(max(backoff_min_ms, ceiling // 2), ceiling)
