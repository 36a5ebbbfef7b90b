"""The options of a request: how each is read and checked, and the policy that Redis stores."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from fairlane import settings
from fairlane.common.clock import LAST_MS, duration_ms, moment_ms
from fairlane.common.rate import Shared, rate_of, rates_text
from fairlane.common.task_names import tasks_text
from fairlane.common.text import exact
from fairlane.common.xid import Key, packed_ids, read_distinct, xid
from fairlane.errors import InvalidArgument
from fairlane.option_types import PolicyFields
from fairlane.options_table import (
    BY_NAME,
    CHOICE,
    DURATION,
    FLAG,
    KEY,
    LIMITS,
    MOMENT,
    NAME,
    NAMES,
    OPTIONS,
    PAUSE,
    RATE,
    TASKS,
    WHOLE,
    Option,
    field_of,
)
from fairlane.protocol.keys import check_key_name, check_name, new_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Unpack

    from fairlane.option_types import RequestOptions

_TRACE = re.compile(r"[0-9a-f]{2}-[0-9a-f]+-[0-9a-f]+-[0-9a-f]{2} ?[!-~]*", re.IGNORECASE)
# What is no part of the content of a request, so no digest has it.
APART = ("task", "redact")
_RATE_PARTS = ("burst", "rate_key", "weight")
_NAMES = {option.name: option for option in OPTIONS}
# With these, a policy depends on the time, on chance, or on what an iterable yields.
_MADE_ANEW = frozenset({"run_at", "on_duplicate", "tags", "after", "redact"})


# ------------------------------------------------------------------ one value
# A value as a caller gives it becomes a value as a policy has it: a time is a number of ms.


def read_option(name: str, value: Any, called: str = "") -> Any:
    """Returns the value of an option as a policy has it. Raises InvalidArgument.

    The error calls the option `called`, by default by its name.
    """
    option, called = BY_NAME[name], called or name
    if option.kind == DURATION:
        ms = duration_ms(called, value)
        return _time(option, called, ms, value)
    if option.kind == PAUSE:
        return _pause(option, called, value)
    if option.kind == MOMENT:
        return moment_ms(called, value)
    if option.kind == NAMES:
        value = _names(called, value)
    if option.kind == LIMITS:
        value = read_limits(called, value)
    if option.kind == TASKS:
        return tasks_text(value)
    _CHECKS[option.kind](option, called, value)
    return value


def check_option(name: str, value: Any) -> Any:
    """Returns the value of an option as a policy has it. Raises InvalidArgument."""
    option = BY_NAME[name]
    _CHECKS[option.kind](option, name, value)
    return value


def plain_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns checked options as JSON has them: durations in seconds, several names as a tuple.

    What has no form in JSON stays as it is.
    """
    return {name: _plain(BY_NAME[name], value) for name, value in given.items()}


def _plain(option: Option, value: Any) -> Any:
    if option.kind == DURATION:
        return read_option(option.name, value) / 1000
    if option.kind == PAUSE:
        return tuple(ms / 1000 for ms in read_option(option.name, value))
    if option.kind == LIMITS:
        return dict(read_limits(option.name, value))
    return _names(option.name, value) if option.kind == NAMES else value


@lru_cache(maxsize=32)
def _range_ms(option: Option) -> tuple[int, int]:
    return settings.duration_ms(option.least), settings.duration_ms(option.most)


def _time(option: Option, called: str, ms: object, given: object) -> int:
    """Returns ms in the option's range, which includes 0 if no time is its default."""
    least, most = _range_ms(option)
    is_whole = isinstance(ms, int) and not isinstance(ms, bool)
    if not is_whole or not (least <= ms <= most or (not ms and option.default is None)):  # type: ignore[operator]
        raise InvalidArgument(
            f"{called} {shown_time(given)} is not valid: a time from {option.least} to "
            f"{option.most} is expected"
        )
    return ms  # type: ignore[return-value]


def _pause(option: Option, called: str, given: object) -> tuple[int, int]:
    if isinstance(given, str):
        try:
            low, high = settings.duration_range_ms(given)
        except InvalidArgument as error:
            raise InvalidArgument(f"{called} {error}") from None
    elif isinstance(given, (tuple, list)):
        if len(given) != 2:  # noqa: PLR2004
            raise InvalidArgument(
                f"{called} {given!r} is not valid: give the shortest and the longest time"
            )
        low, high = (duration_ms(called, one) for one in given)
    else:
        low = high = duration_ms(called, given)
    for ms in (low, high):
        _time(option, called, ms, given)
    if low > high:
        raise InvalidArgument(
            f"{called} {shown_time(given)} ends before it begins: write the shorter duration first"
        )
    return low, high


def shown_time(given: object) -> str:
    """Returns a time as its caller wrote it."""
    if isinstance(given, timedelta):
        given = given.total_seconds()
    if isinstance(given, (int, float)) and not isinstance(given, bool):
        return f"{exact(given)} s"
    if isinstance(given, (tuple, list)):
        return "..".join(map(shown_time, given))
    return str(given)


def _names(called: str, names: object) -> tuple[str, ...]:
    if isinstance(names, str):
        return (names,)
    if isinstance(names, bytes) or not isinstance(names, Iterable):
        raise InvalidArgument(f"{called} {names!r} is not valid: give a name, or a list of names")
    found = tuple(names)
    return tuple(dict.fromkeys(found)) if all(isinstance(one, str) for one in found) else found


Limits = tuple[tuple[str, int], ...]  # keys by name, each with its limit


def read_limits(called: str, given: object) -> Limits:
    """Returns the keys and limits of a dict, or of texts such as `api=10`, by name.

    Raises InvalidArgument for another value, and for a key with two limits.
    """
    parts = given.split(",") if isinstance(given, str) else given
    if isinstance(given, Mapping):
        parts = [*given.items()]
    if not isinstance(parts, (list, tuple)):
        raise InvalidArgument(f"{called} {given!r:.60} is not valid: give a dict of key and limit")
    found = dict[str, int]()
    for part in parts:
        if isinstance(part, tuple) and len(part) == 2 and isinstance(part[0], str):  # noqa: PLR2004
            name, number = part
        else:
            name, number = _split_limit(called, part or given)
        if found.setdefault(name, number) != number:
            raise InvalidArgument(
                f"key {name} has two limits, {found[name]} and {number}: name it once"
            )
    return tuple(sorted(found.items()))


def _split_limit(called: str, part: object) -> tuple[str, int]:
    name, equals, number = part.rpartition("=") if isinstance(part, str) else ("", "", "")
    if not equals or not re.fullmatch(r"-?\d{1,9}", number):
        raise InvalidArgument(
            f"{called} {part!r:.60} is not valid: write a key and its limit, as customer-42=3"
        )
    return name, int(number)


def named_keys(limits: Limits, order_key: str) -> tuple[str, ...]:
    """Returns the names of all keys of a request: those of its limits, and that of its order."""
    return (*(name for name, _ in limits), *([order_key] if order_key else []))


def limits_text(limits: Limits) -> str:
    """Returns keys and limits as the scripts have them: `api=10,customer-42=3`."""
    return ",".join(f"{name}={limit}" for name, limit in limits)


# ------------------------------------------------------------------ checks
# Each takes an option, what the error calls it, and a value as a policy has it.


def check_whole(name: str, value: object, low: int, high: int) -> int:
    """Returns a whole number of this range. Raises InvalidArgument."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidArgument(
            f"{name} {value!r} is not valid: a whole number from {low} to {high} is expected"
        )
    return value


def _check_whole(option: Option, called: str, value: object) -> None:
    check_whole(called, value, option.least, option.most)


def _check_duration(option: Option, called: str, ms: Any) -> None:
    _time(option, called, ms, ms / 1000 if isinstance(ms, int) else ms)


def _check_pause(option: Option, called: str, pair: Any) -> None:
    _pause(option, called, tuple(ms / 1000 for ms in pair))


def _check_moment(_: Option, called: str, ms: object) -> None:
    check_whole(called, ms, 0, LAST_MS)


def _check_rate(_: Option, __: str, rate: Any) -> None:
    rate_of(rate)


def _check_name(_: Option, called: str, name: str) -> None:
    if name != "":
        check_name(called, name)


def _check_names(option: Option, _: str, names: object) -> None:
    kind = option.unit
    if not isinstance(names, tuple):
        raise InvalidArgument(f"{kind}s {names!r:.40} are not valid: give a list of names")
    if len(names) > option.most:
        raise InvalidArgument(f"{len(names):,} {kind}s are too many: name at most {option.most}")
    for name in names:
        check_name(kind, name)


def _check_limits(_: Option, __: str, limits: Any) -> None:
    check_limits(limits)


def check_limits(limits: Limits) -> Limits:
    """Returns keys that a request may name. Raises InvalidArgument."""
    most = BY_NAME["limits"].most
    if len(limits) > most:
        raise InvalidArgument(f"{len(limits):,} keys are too many: a request names at most {most}")
    for name, limit in limits:
        check_key_name(name)
        check_whole(f"limit of key {name}", limit, 1, BY_NAME["limit"].most)
    return limits


def _check_choice(option: Option, called: str, value: object) -> None:
    if not isinstance(value, str) or value not in {"", *option.most}:
        raise InvalidArgument(f"{called} {value!r} is not valid: write {', '.join(option.most)}")


def _check_flag(_: Option, called: str, value: object) -> None:
    if not isinstance(value, bool):
        raise InvalidArgument(f"{called} {value!r} is not valid: give True or False")


def _check_tasks(_: Option, called: str, text: object) -> None:
    if not isinstance(text, str):
        raise InvalidArgument(f"{called} {text!r:.80} is not valid: give the name of a task")


_CHECKS: dict[str, Callable[[Option, str, Any], None]] = {
    WHOLE: _check_whole,
    DURATION: _check_duration,
    PAUSE: _check_pause,
    MOMENT: _check_moment,
    RATE: _check_rate,
    NAME: _check_name,
    NAMES: _check_names,
    CHOICE: _check_choice,
    FLAG: _check_flag,
    KEY: _check_flag,
    LIMITS: _check_limits,
    TASKS: _check_tasks,
}


# ------------------------------------------------------------------ all options of a request


def policy_of(
    queue: str, *, trace: str = "", by: str = "", **options: Unpack[RequestOptions]
) -> Policy:
    """Returns the policy of a request. Raises InvalidArgument, and TypeError for a wrong name.

    `by` is the caller for whom the server of the HTTP API submits.

    A producer gives the same options again and again, and to check them takes an eighth of its
    time. So each policy is made once if its options are all that it depends on.
    """
    is_usual = _MADE_ANEW.isdisjoint(options) and isinstance(options.get("task", ""), str)
    if not trace and is_usual:
        try:
            return _usual_policy(queue, by=by, **options)  # type: ignore[arg-type]  # hashed, or TypeError
        except TypeError:  # a wrong option, or one that has no hash
            pass
    return _new_policy(queue, trace, by, **options)


def _new_policy(
    queue: str, trace: str = "", by: str = "", **options: Unpack[RequestOptions]
) -> Policy:
    given: dict[str, Any] = dict(options)
    check_option_names(given, _NAMES)
    fields = _rate_fields(queue, given)
    for name, value in given.items():
        if name == "distinct":
            fields |= read_distinct(value)
        else:
            fields[field_of(_NAMES[name])] = read_option(name, value)
    _check_deadline_of_start(fields)
    if fields.get("order_key"):
        fields.setdefault("limit", 1)
    if fields.get("on_duplicate"):
        fields["nonce"] = secrets.token_hex(8)
    return Policy(queue=queue, trace=trace, by=by, **fields)


# Typed, so that True is not taken for 1. An app may have hundreds of tasks.
_usual_policy = lru_cache(maxsize=1024, typed=True)(_new_policy)


def check_option_names(given: Iterable[str], names: Iterable[str]) -> None:
    """Raises TypeError for a name that is none of these, with a hint."""
    for name in given:
        if name not in names:
            from difflib import get_close_matches

            near = get_close_matches(name, sorted(names), n=1)
            hint = f"did you mean {near[0]}?" if near else f"the options are {_listed(names)}"
            raise TypeError(f"option {name} is not valid: {hint}")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def _check_deadline_of_start(fields: dict[str, Any]) -> None:
    """Raises InvalidArgument if, by this machine's clock, the deadline passes before run_at."""
    start_ms, deadline_ms = fields.get("start_ms", 0), fields.get("deadline_ms", 0)
    if 0 < deadline_ms <= start_ms - round(time.time() * 1000):
        raise InvalidArgument(
            f"deadline {exact(deadline_ms / 1000)} s is not valid: it counts from the submission, "
            "and must be later than run_at"
        )


def _rate_fields(queue: str, given: dict[str, Any]) -> dict[str, Any]:
    """Takes rate, burst, rate_key and weight out; returns what the policy has of them."""
    parts = {name: given.pop(name) for name in _RATE_PARTS if name in given}
    if "rate" not in given:
        if parts:
            raise InvalidArgument(f"{next(iter(parts))} needs a rate: give rate, too, as 100/s")
        return {}
    shared = None
    if "rate_key" in parts:
        shared = Shared(check_name("queue", queue), check_name("rate_key", parts["rate_key"]))
    rate = rate_of(given.pop("rate"), parts.get("burst"), parts.get("weight", 1), shared)
    return {"rates": (rate,)}


def id_for(policy: Policy, given: str | None) -> str:
    """Returns the id of a request: the caller's, else a new one. Raises InvalidArgument."""
    if given is None and policy.on_duplicate:
        raise InvalidArgument("on_duplicate needs an id: a new one has no other request")
    return new_id() if given is None else given


# ------------------------------------------------------------------ what is stored


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy(PolicyFields):
    """The options of a request as Redis stores them, see RequestOptions; durations are in ms.

    `start_ms` is `run_at`, in ms since 1970. A repeated call has the same
    `nonce`. `flow` and `feed` are those of a step of a flow, as operations/flow_hand_over.py writes
    them. `by` is the caller for whom the server of the HTTP API submits, and `trace` the context of
    the producer's span. Two submissions that differ only in `key`, `by`, `trace`, `task` or
    `redact` are equal. `derived` is for operations/create.py, which keeps there what follows from
    the policy. Raises InvalidArgument as Lua would.
    """

    nonce: str = ""
    key: Key = field(default=xid, compare=False)
    flow: str = ""
    feed: str = ""
    by: str = ""
    trace: str = ""
    derived: Any = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_name("queue", self.queue)
        for option, name, default in _CHECKED:
            value = getattr(self, name)
            if value is not default:
                _CHECKS[option.kind](option, option.name, value)
        self._check_start()
        self._check_duplicates()
        if self.share != 1 and not self.tenant:
            raise InvalidArgument("share needs a tenant: name the tenant that gets this share")
        self._check_order()
        if self.by:
            check_name("caller", self.by)
        if self.trace and not _TRACE.fullmatch(self.trace):
            raise InvalidArgument(f"trace {self.trace[:60]!r} is not valid: give a traceparent")

    def _check_duplicates(self) -> None:
        if self.window_ms and not self.on_duplicate:
            raise InvalidArgument("window needs on_duplicate: write keep, replace or debounce")
        if self.window_ms > self.retain_ms:
            raise InvalidArgument(
                f"window {exact(self.window_ms / 1000)} s is longer than the retention of "
                f"{exact(self.retain_ms / 1000)} s: a request is not known for longer than that"
            )
        if self.on_duplicate == "debounce" and not self.delay_ms:
            raise InvalidArgument("debounce needs a delay: give delay, as it begins anew each time")

    def _check_order(self) -> None:
        if self.order_key and self.limit != 1:
            raise InvalidArgument(
                f"limit {self.limit} is not possible with order_key: its sub-requests start one "
                "after the other, so leave out limit"
            )
        if self.order_on_dead and not self.order_key:
            raise InvalidArgument("order_on_dead needs order_key: name the key")

    def _check_start(self) -> None:
        given = {"after": self.after, "delay": self.delay_ms, "run_at": self.start_ms}
        if len(both := [name for name, value in given.items() if value]) > 1:
            raise InvalidArgument(f"{' and '.join(both)} are given together: name one of them")
        if self.after_any_end and not self.after:
            raise InvalidArgument("after_any_end needs after: name the requests to wait for")
        if 0 < self.deadline_ms <= self.delay_ms:
            raise InvalidArgument(
                f"deadline {exact(self.deadline_ms / 1000)} s is not valid: it counts from the "
                f"submission, and must be later than the delay of {exact(self.delay_ms / 1000)} s"
            )

    def in_queue(self, queue: str) -> Policy:
        """Returns the policy of the same request in another queue."""
        return replace(self, queue=queue, rates=tuple(rate.in_queue(queue) for rate in self.rates))

    def ids_of(self, bodies: Sequence[bytes]) -> bytes:
        """Returns the ids of sub-requests as the scripts take them; none unless `distinct`."""
        return packed_ids(bodies, self.key) if self.distinct else b""

    @property
    def extras(self) -> str:
        """Returns other options as lua/v1/lib/create.lua has them; not `by`, `trace` and APART."""
        return self.extras_with(",".join(self.after))

    def extras_with(self, others: str) -> str:
        """Returns the same with this text of the requests that it starts after."""
        return "\n".join(f"{name}={value}" for name, value in self._lines(others) if value)

    def _lines(self, others: str) -> Iterator[tuple[str, object]]:
        mode = "end" if self.after_any_end else "done"
        composed = {
            "tags": ",".join(self.tags),
            "rates": rates_text(self.rates) if self.rates else "",
            "unique": f"{self.window_ms}:{self.nonce}" if self.on_duplicate else "",
            "after": f"{mode}:{others}" if others else "",
            "distinct": int(self.distinct),
            "limits": limits_text(self.limits),
            "on_dead": self.order_on_dead.replace("go_on", ""),
        }
        for line, name, default in _LINES:
            value = composed[line] if line in composed else getattr(self, name)
            yield line, "" if value == default else value
        yield "flow", self.flow
        yield "feed", self.feed


_CHECKED = tuple(
    (option, name, PolicyFields.__dataclass_fields__[name].default)
    for option in OPTIONS
    if (name := field_of(option)) not in {"", "rates"}
)
_FIRST = ("tags", "tenant", "share")  # the order of the lines is part of a request's digest
_LINES = sorted(
    [
        (option.stored, field_of(option), option.default)
        for option in OPTIONS
        if option.stored not in {"", "policy", *APART}
    ],
    key=lambda line: line[0] not in _FIRST,
)
