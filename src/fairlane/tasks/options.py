"""The options of tasks, with their types, and how a request gets them."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any, TypedDict

from fairlane import settings
from fairlane.errors import ArgumentsRefused, InvalidArgument
from fairlane.options import policy_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime, timedelta

Duration = float | str  # seconds, or text such as "500ms", "30s", "5m", "24h"


class TaskOptions(TypedDict, total=False):
    """The options of a task; each has the default of Queue.submit_request.

    A duration is a number of seconds, or text such as "500ms", "30s", "5m" or "24h".

    Attributes:
        priority: 0 (first) to 99.
        limit: The most workers of one request, 1 to 10,000.
        attempts: How often a call is tried before it is dead, 1 to 100.
        backoff: The shortest and the longest pause before another attempt, as "1s..5m".
        time_limit: The longest time of one call.
        deadline: No call starts later than this after the submission.
        lease: How long a lease lasts unless it is extended.
        retain: How long results are kept after the end.
        max_wait: How long a submission waits for room in a full queue.
        durable: How many replicas must confirm each write.
        delay: No call starts before: a duration, or a timedelta.
        run_at: No call starts before: a datetime with a zone, or ISO 8601 text with one.
        rate: The most calls that start in a time: "100/s", "30/m" or "5/h".
        burst: How many of them may start together after a pause.
        rate_key: Tasks with the same key share the rate; otherwise all calls of the task do.
        weight: How much each call counts at the rate.
        tags: Name or names by which requests are found and changed together.
        tenant: Tenants of one priority get equal time, however many requests each has.
        share: The tenant gets this many times as much time as a tenant with 1; 1 to 999.
        ageing: If nothing of a request has started for this time, one slice goes before all others.
        after: Id or ids of requests that must be done before. If one of them has dead sub-requests,
            was cancelled, withdrawn or lost, or nothing is left that shows its end, this request is
            cancelled.
        after_any_end: Any end of the requests in `after` is enough.
    """

    priority: int
    limit: int
    attempts: int
    backoff: str
    time_limit: Duration
    deadline: Duration
    lease: Duration
    retain: Duration
    max_wait: Duration
    durable: int
    delay: Duration | timedelta
    run_at: datetime | str
    rate: str
    burst: int
    rate_key: str
    weight: int
    tags: str | Iterable[str]
    tenant: str
    share: int
    ageing: Duration
    after: str | Iterable[str]
    after_any_end: bool


class RequestOptions(TaskOptions, total=False):
    """The options of one request: those of a task, and the request's `id`.

    Attributes:
        id: The id of the request; a repeat of the same submission adds nothing new.
        on_duplicate: What happens if another request with the id runs, or began less than `window`
            ago. "keep" submits nothing, "replace" cancels it, "debounce" cancels it if it has not
            started, so that the `delay` begins anew.
        window: See `on_duplicate`.
    """

    id: str
    on_duplicate: str
    window: Duration


_DURATIONS = ("time_limit", "deadline", "lease", "retain", "max_wait", "ageing", "window")
_TASK, _REQUEST = TaskOptions.__annotations__, RequestOptions.__annotations__


def task_options(task: str, given: dict[str, Any]) -> dict[str, Any]:
    """Returns options of a task as Queue.submit_request takes them.

    Raises ArgumentsRefused for an unknown option, and InvalidArgument for a bad value.
    """
    return _with_rate_key(task, _checked(f"task {task}", given, _TASK))


def word_of(option: str) -> str:
    """Returns the word by which a program names an option of Queue.submit_request."""
    return option.removesuffix("_s")


def request_options(task: str, given: dict[str, Any]) -> dict[str, Any]:
    """Returns options of one request, also its `id`; raises the same."""
    return _with_rate_key(task, _checked(f"task {task}", given, _REQUEST))


def group_options(given: dict[str, Any]) -> dict[str, Any]:
    """Returns options of a group's request, with the same words; raises the same."""
    return _checked("group", given, _REQUEST)


def executor_options(given: dict[str, Any]) -> dict[str, Any]:
    """Returns options of an Executor, which are those of a task; raises the same."""
    return _checked("executor", given, _TASK)


def _with_rate_key(task: str, found: dict[str, Any]) -> dict[str, Any]:
    """Makes a rate that of all calls of the task, because most requests of a task have one call."""
    if "rate" in found:
        found.setdefault("rate_key", task)
    return found


def _checked(what: str, given: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"write one of {', '.join(known)}"
            raise ArgumentsRefused(f"{what}: unknown option {name}: {hint}")
    try:
        found = dict(_as_submitted(name, value) for name, value in given.items())
        policy = {name: value for name, value in found.items() if name not in {"id", "max_wait_s"}}
        policy_of(settings.DEFAULT_QUEUE, **policy)
    except InvalidArgument as error:
        raise InvalidArgument(f"{what}: {error}") from None
    return found


def _as_submitted(name: str, value: Any) -> tuple[str, Any]:
    if name in _DURATIONS:
        return f"{name}_s", _seconds(name, value)
    if name == "backoff":
        if not isinstance(value, str):
            raise InvalidArgument(f"backoff {value!r} is not valid: write a range such as 1s..5m")
        low, high = settings.duration_range_ms(value)
        return "backoff_s", (low / 1000, high / 1000)
    return name, value


def _seconds(name: str, value: Any) -> float:
    """Returns a duration in seconds. Raises InvalidArgument."""
    if isinstance(value, str):
        return settings.duration_ms(value) / 1000
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e9:  # noqa: PLR2004
        raise InvalidArgument(
            f"{name} {value!r} is not valid: seconds or a text such as 30s is expected"
        )
    return float(value)
