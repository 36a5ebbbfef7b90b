"""The options of a request, and of a list, in the API: typed keywords; times are in seconds."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypedDict

from fairlane.errors import InvalidArgument
from fairlane.model import Policy

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, Unpack


class SharedOptions(TypedDict, total=False):
    """What the requests of one call share: each keyword may be left out.

    `priority` is 0 (first) to 99. `attempts` is how often a sub-request is tried before it is dead,
    `backoff_s` the shortest and the longest pause before another try. `lease_s` is how long a lease
    lasts unless it is extended. `retain_s` is how long results are kept after the end. No
    sub-request starts later than `deadline_s` after the submission. A call of the handler may take
    `time_limit_s`; 0 means no limit for both. `durable` replicas must confirm each write.
    """

    priority: int
    attempts: int
    backoff_s: tuple[float, float]
    lease_s: float
    retain_s: float
    deadline_s: float
    time_limit_s: float
    durable: int


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
}
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
    return Policy(queue=queue, **given)


def options_of(policy: Policy) -> RequestOptions:
    """Returns the options that make this policy."""
    return {**shared_options_of(policy), "limit": policy.limit}


def shared_options_of(policy: Policy) -> SharedOptions:
    """Returns the options that make this policy, without the limit."""
    low, high = policy.backoff_ms
    return {
        "priority": policy.priority,
        "attempts": policy.attempts,
        "backoff_s": (low / 1000, high / 1000),
        "lease_s": policy.lease_ms / 1000,
        "retain_s": policy.retain_ms / 1000,
        "deadline_s": policy.deadline_ms / 1000,
        "time_limit_s": policy.time_limit_ms / 1000,
        "durable": policy.durable,
    }


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
