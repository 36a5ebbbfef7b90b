"""The options of a request, and of a list, in the API: typed keywords; times are in seconds."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, TypedDict

from fairlane import settings
from fairlane.common.rate import OWN, rate_of
from fairlane.errors import InvalidArgument
from fairlane.policy import Policy
from fairlane.protocol.keys import check_name

if TYPE_CHECKING:
    from typing import Any, Unpack


class SharedOptions(TypedDict, total=False):
    """What the requests of one call share: each keyword may be left out.

    `priority` is 0 (first) to 99. `attempts` is how often a sub-request is tried before it is dead,
    `backoff_s` the shortest and the longest pause before another try. `lease_s` is how long a lease
    lasts unless it is extended. `retain_s` is how long results are kept after the end. No
    sub-request starts later than `deadline_s` after the submission. A call of the handler may take
    `time_limit_s`; 0 means no limit for both. `durable` replicas must confirm each write.

    Nothing starts in the first `delay` (seconds, a timedelta, or text such as "10m"), or before
    `run_at` (a datetime with a zone, or ISO 8601 text with one). At most `rate` ("100/s", "30/m",
    "5/h") sub-requests start in a time, after a pause `burst` together; each counts for `weight`.
    Requests with the same `rate_key` share the rate. `tags` and `tenant` are names by which
    requests are found and changed together. If nothing of it has started for `ageing_s`, one slice
    goes before all others. It starts `after` the requests with these ids are done; if one of them
    has dead sub-requests or was cancelled, it is cancelled, unless `after_any_end` is set.

    `on_duplicate` is what happens if the id has another request, which runs or began less than
    `window_s` ago: "keep" submits nothing, "replace" cancels that one, "debounce" cancels it if it
    has not started, so that the `delay` begins anew. Without it, a repeat of the same content finds
    the request, and other content raises RequestExists.
    """

    priority: int
    attempts: int
    backoff_s: tuple[float, float]
    lease_s: float
    retain_s: float
    deadline_s: float
    time_limit_s: float
    durable: int
    delay: float | timedelta | str
    run_at: datetime | str
    rate: str
    burst: int
    rate_key: str
    weight: int
    tags: Iterable[str]
    tenant: str
    ageing_s: float
    after: Iterable[str]
    after_any_end: bool
    on_duplicate: str
    window_s: float


class RequestOptions(SharedOptions, total=False):
    """The options of one request; `limit` is the most workers that hold parts of it."""

    limit: int


RUNNING = ("active", "paused", "cancelling", "expiring")
ENDED = ("done", "cancelled", "lost")
STATE_GROUPS = {"running": RUNNING, "ended": ENDED}  # words for several states


class RequestFilters(TypedDict, total=False):
    """What a list of requests shows; each keyword may be left out, and then excludes nothing.

    `states` are active, paused, cancelling, expiring, done, cancelled and lost, or the words
    running and ended for several of them. `priorities` are 0 to 99. `id_prefix` is how the id
    begins. `older_s` and `newer_s` are seconds since the submission: at least, and less than.
    """

    states: Iterable[str]
    priorities: Iterable[int]
    id_prefix: str
    older_s: float
    newer_s: float


_TIMES = {
    "lease_s": "lease_ms",
    "retain_s": "retain_ms",
    "deadline_s": "deadline_ms",
    "time_limit_s": "time_limit_ms",
    "ageing_s": "ageing_ms",
    "window_s": "window_ms",
}
_RATE_PARTS = ("burst", "rate_key", "weight")
_NAMES = frozenset(RequestOptions.__optional_keys__)


def policy_of(queue: str, **options: Unpack[RequestOptions]) -> Policy:
    """Returns the policy of a request. Raises InvalidArgument, and TypeError for a wrong name."""
    given: dict[str, Any] = dict(options)
    if not given.keys() <= _NAMES:
        raise TypeError(_wrong_name(next(name for name in given if name not in _NAMES)))
    if "backoff_s" in given:
        given["backoff_ms"] = _backoff_ms(given.pop("backoff_s"))
    for name, stored in _TIMES.items():
        if name in given:
            given[stored] = ms_of(name, given.pop(name))
    _read_start(given)
    _read_rate(given)
    for name in ("tags", "after"):
        if name in given:
            given[name] = _names(name, given[name])
    if given.get("on_duplicate"):
        given["nonce"] = secrets.token_hex(8)
    return Policy(queue=queue, **given)


def _read_start(given: dict[str, Any]) -> None:
    """Replaces delay and run_at by what the policy has."""
    if "delay" in given:
        delay = given.pop("delay")
        if isinstance(delay, timedelta):
            delay = delay.total_seconds()
        elif isinstance(delay, str):
            delay = settings.duration_ms(delay) / 1000
        given["delay_ms"] = ms_of("delay", delay)
    if "run_at" in given:
        given["start_ms"] = _moment_ms(given.pop("run_at"))


def _moment_ms(moment: datetime | str) -> int:
    """Returns a time as ms since 1970. Raises InvalidArgument."""
    given: object = moment
    try:
        found = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
    except ValueError:
        found = None
    if not isinstance(found, datetime) or found.tzinfo is None:
        raise InvalidArgument(
            f"run_at {str(given)!r} is not valid: a time with a zone is expected, such as "
            "2026-12-24T18:00+01:00"
        )
    return max(1, round(found.timestamp() * 1000))


def _read_rate(given: dict[str, Any]) -> None:
    """Replaces rate, burst, rate_key and weight by what the policy has."""
    parts = {name: given.pop(name) for name in _RATE_PARTS if name in given}
    if "rate" not in given:
        if parts:
            raise InvalidArgument(f"{next(iter(parts))} needs a rate: give rate, too, as 100/s")
        return
    bucket = OWN
    if "rate_key" in parts:
        bucket = "key/" + check_name("rate_key", parts["rate_key"])
    rate = rate_of(given.pop("rate"), parts.get("burst"), bucket, parts.get("weight", 1))
    given["rates"] = (rate,)


def _names(option: str, names: Iterable[str]) -> tuple[str, ...]:
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise InvalidArgument(f"{option} {names!r} is not valid: a list of names is expected")
    return tuple(dict.fromkeys(names))


def ms_of(name: str, seconds: float) -> int:
    """Returns seconds as whole ms, at least 1 unless it is 0. Raises InvalidArgument."""
    given: object = seconds
    is_number = isinstance(given, (int, float)) and not isinstance(given, bool)
    if not is_number or not math.isfinite(seconds):
        raise InvalidArgument(f"{name} {seconds!r} is not valid: a number of seconds is expected")
    return (round(seconds * 1000) or 1) if seconds else 0


def _backoff_ms(pair: tuple[float, float]) -> tuple[int, int]:
    given: object = pair
    if not isinstance(given, tuple) or len(given) != 2:  # noqa: PLR2004
        raise InvalidArgument(
            f"backoff_s {pair!r} is not valid: two numbers of seconds are expected"
        )
    return ms_of("backoff_s", pair[0]), ms_of("backoff_s", pair[1])


def _wrong_name(name: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, sorted(_NAMES), n=1)
    hint = f"did you mean {near[0]}?" if near else f"the options are {', '.join(sorted(_NAMES))}"
    return f"option {name} is not valid: {hint}"
