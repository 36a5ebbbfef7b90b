"""What a token with the scope counts gets instead of data: counts, names, times, kinds of errors.

Each type that such a token may get is listed here, with the fields that are replaced. A type that
is not listed is an error, so a new answer shows nothing by mistake.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import secrets
from contextvars import ContextVar
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec

from fairlane.common.fingerprint import read_failure
from fairlane.operations.call_words import HIDDEN
from fairlane.operations.incident_checks import CAUSE_REMOVED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from fairlane.records import Cause

COUNTS = "counts"  # the scope
LOOK = ("view", COUNTS)  # of a call that has data with the one, and none with the other
_hides_data: ContextVar[bool] = ContextVar("hides_data", default=False)


def shows_data(scopes: Sequence[str], own: Sequence[str]) -> bool:
    """Returns True if one of the caller's `own` scopes lets it see the data of a call's answer."""
    return not scopes or any(scope in own for scope in scopes if scope != COUNTS)


@contextlib.contextmanager
def hiding(*, hides: bool) -> Iterator[None]:
    """Lets the answers that are made in the block have no data, if `hides`."""
    token = _hides_data.set(hides)
    try:
        yield
    finally:
        _hides_data.reset(token)


def hides_data() -> bool:
    """Returns True if the caller of the present call may see no data."""
    return _hides_data.get()


# ------------------------------------------------------------------ replacements

_KEY = secrets.token_bytes(32)
# The class of an exception, if its name ends as those of exceptions do: another word may be data.
_KIND = re.compile(
    r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*?(?:Error|Exception|Warning|Timeout|Expired|NotFound|Interrupt"
    r"|Exit|Group|Retry|Reject|Iteration)"
)
_ERROR = "an error"
# What a finding says before the text of an error, and what it says behind the first line of that.
_BEFORE, _BEHIND = ": ", re.compile(r" \(|, task ")


def kind_of(error: str) -> str:
    """Returns the class of the exception in an error's text or first line, else "an error"."""
    found = read_failure(error)
    for name in (found.type, found.headline.partition(":")[0]):
        if _KIND.fullmatch(name):
            return name
    return _ERROR


def _opaque(fingerprint: str) -> str:
    """Returns another name for a group of failures, because a hash of its text can be guessed."""
    digest = hashlib.blake2b(fingerprint.encode(), key=_KEY, digest_size=5)
    return digest.hexdigest()


def _without(_: Any) -> None:
    return None


def _hidden(_: Any) -> str:
    return HIDDEN


def _cause(found: Cause) -> Cause:
    """Returns a cause without the text of an error, which its figures name."""
    figures = dict(found.figures)
    text = found.text
    for name in ("error", "reason"):
        if figures.get(name):
            kind = kind_of(figures[name])
            text = text.replace(figures[name], kind)
            figures[name] = kind
    return replace(found, text=text, figures=figures)


# The checks of the doctor whose findings have the text of an error.
_ERROR_CHECKS = frozenset({"given back", "failures", "deaths", "retries", "webhooks"})


def _finding(found: Any) -> Any:
    """Returns a finding of the doctor with the class of an error in place of its text.

    Its remedy ends before the command with the fingerprint, which does not work without that.
    """
    if found.check not in _ERROR_CHECKS:
        return found
    words, is_named, error = found.what.partition(_BEFORE)
    kind = kind_of(_BEHIND.split(error, 1)[0])
    what = f"{words}{_BEFORE}{kind}" if is_named else HIDDEN
    remedy = found.remedy.partition(CAUSE_REMOVED)[0]
    return msgspec.structs.replace(found, what=what, remedy=remedy)


# ------------------------------------------------------------------ types

_ROW: dict[str, Callable[[Any], Any]] = {"call": _without, "reason": _without}
_GROUP = {
    "headline": kind_of,
    "where": _without,
    "call": _without,
    "fingerprint": _opaque,
}
# Type -> field -> what replaces its value. A type name has one meaning in the package.
_REPLACED: dict[str, dict[str, Callable[[Any], Any]]] = {
    "RequestCounts": _ROW,
    "Progress": _ROW,
    "Completion": _ROW,
    "FailedAttempt": {"error": kind_of},
    "DeadGroup": _GROUP,
    "FailureGroup": _GROUP,
    "RetryGroup": {"headline": kind_of, "where": _without, "fingerprint": _opaque},
    "DeadLine": {
        "body": _hidden,
        "error": kind_of,
        "call": _without,
        "fingerprint": _opaque,
    },
    "ResultLine": {"body": _hidden, "error": lambda text: None if text is None else kind_of(text)},
    "RunningCall": {"call": _without},
}
_WHOLE: dict[str, Callable[[Any], Any]] = {"Cause": _cause, "FindingRow": _finding}
_PLAIN = frozenset(
    (
        *("CallProgress", "CodeRelease", "DeadExample", "DeadPage", "DeadRequest", "Demand"),
        *("Doctor", "Estimate"),
        *("FlowList", "FlowState", "HeldLease", "Holder", "KeyPage", "KeyState", "LanePlace"),
        *("LongCall", "Me", "SlowCall", "TaskPage", "TaskState"),
        *("QueueBacklog", "QueueErrors", "QueuePage", "QueueState", "QueueSummary", "Repair"),
        *("RecentLeases", "RequestErrors", "RequestLive", "RequestPage", "RequestStacks"),
        *("ScheduleList", "ScheduleRow", "SettledLease", "StepRow", "WhyWaiting", "WorkerCalls"),
        *("WorkerPage", "WorkerState"),
        "RawLive",  # its rows have neither calls nor reasons: a live view does not read them
    )
)
KNOWN = frozenset({*_REPLACED, *_WHOLE, *_PLAIN})
_VALUES = (str, int, float, bool, type(None), msgspec.Raw)


def without_data(value: Any) -> Any:
    """Returns an answer as a token with the scope counts may see it.

    Raises TypeError for a type that is not listed here.
    """
    kind = type(value)
    if isinstance(value, _VALUES):
        return value
    if kind in {list, tuple}:
        return kind(map(without_data, value))
    if kind is dict:
        return {name: without_data(one) for name, one in value.items()}
    name = kind.__name__
    if name in _WHOLE:
        return _WHOLE[name](value)
    if name not in KNOWN:
        raise TypeError(f"{name} is no answer for the scope {COUNTS}")
    own = _REPLACED.get(name, {})
    change: Callable[..., Any] = replace if is_dataclass(value) else msgspec.structs.replace
    return change(
        value,
        **{
            field: own[field](one) if field in own else without_data(one)
            for field, one in _fields(value)
        },
    )


def _fields(value: Any) -> Iterator[tuple[str, Any]]:
    if is_dataclass(value):
        names = [field.name for field in fields(value) if field.init]
    else:
        names = value.__struct_fields__
    for name in names:
        yield name, getattr(value, name)
