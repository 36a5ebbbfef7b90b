"""The options of a request: typed keywords of the API, and the policy that Redis stores."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, TypedDict

from fairlane import settings
from fairlane.common.clock import LAST_MS, duration_s, moment_ms, ms_of
from fairlane.common.rate import Rate, Shared, rate_of, rates_text
from fairlane.common.text import exact
from fairlane.common.xid import Key, packed_ids, read_distinct, xid
from fairlane.errors import InvalidArgument
from fairlane.protocol.keys import LANES, check_name, new_id

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Unpack

MAX_LIMIT = 10_000
MAX_TAGS = 20
MAX_SHARE = 999
MAX_AFTER = 100
ON_DUPLICATE = ("keep", "replace", "debounce")
_DAY_MS = 86_400_000
_TRACE = re.compile(r"[0-9a-f]{2}-[0-9a-f]+-[0-9a-f]+-[0-9a-f]{2} ?[!-~]*", re.IGNORECASE)


class SharedOptions(TypedDict, total=False):
    """The options that the requests of one call share; each may be left out.

    Attributes:
        priority: 0 (first) to 99.
        attempts: How often a sub-request is tried before it is dead.
        backoff_s: The shortest and the longest pause before another attempt.
        lease_s: How long a lease lasts unless it is extended.
        retain_s: How long results are kept after the end.
        deadline_s: No sub-request starts later than this after the submission; 0 = no limit.
        time_limit_s: The longest time of one call of the handler; 0 = no limit.
        durable: How many replicas must confirm each write.
        delay: How long nothing starts: seconds, a timedelta, or text such as "10m".
        run_at: When the first may start: a datetime with a zone, or ISO 8601 text with one.
        rate: The most sub-requests that start in a time: "100/s", "30/m" or "5/h".
        burst: How many of them may start together after a pause.
        rate_key: Requests of the queue with the same key, rate and burst share the rate. A request
            with another rate for this key does not slow them down.
        weight: How much each sub-request counts at the rate.
        tags: Name or names by which requests are found and changed together.
        tenant: Tenants of one priority get equal time, however many requests each has.
        share: The tenant gets this many times as much time as a tenant with 1; 1 to 999.
        ageing_s: If nothing has started for this time, one slice goes before all others.
        after: Id or ids of requests that must be done before. If one of them has dead sub-requests,
            was cancelled, withdrawn or lost, or nothing is left that shows its end, this request is
            cancelled.
        after_any_end: Any end of the requests in `after` is enough.
        on_duplicate: What happens if another request with the id runs, or began less than
            `window_s` ago. "keep" submits nothing, "replace" cancels it, "debounce" cancels it if
            it has not started. Without it, other content raises RequestExists.
        window_s: See `on_duplicate`.
        distinct: Leaves out each sub-request whose key the request already has. The key is its
            `xid`, or what this function returns for its body: text, or bytes.
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
    tags: str | Iterable[str]
    tenant: str
    share: int
    ageing_s: float
    after: str | Iterable[str]
    after_any_end: bool
    on_duplicate: str
    window_s: float
    distinct: bool | Key


class RequestOptions(SharedOptions, total=False):
    """The options of one request; `limit` is the most workers that hold parts of it."""

    limit: int


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
# With these, a policy depends on the time, on chance, or on what an iterable yields.
_MADE_ANEW = frozenset({"run_at", "on_duplicate", "tags", "after"})


def policy_of(
    queue: str, *, trace: str = "", by: str = "", **options: Unpack[RequestOptions]
) -> Policy:
    """Returns the policy of a request. Raises InvalidArgument, and TypeError for a wrong name.

    `by` is the caller for whom the server of the HTTP API submits.

    A producer gives the same options again and again, and to check them takes an eighth of its
    time. So each policy is made once if its options are all that it depends on.
    """
    if not trace and _MADE_ANEW.isdisjoint(options):
        try:
            return _usual_policy(queue, by=by, **options)  # type: ignore[arg-type]  # hashed, or TypeError
        except TypeError:  # a wrong option, or one that has no hash
            pass
    return _new_policy(queue, trace, by, **options)


def _new_policy(
    queue: str, trace: str = "", by: str = "", **options: Unpack[RequestOptions]
) -> Policy:
    given: dict[str, Any] = dict(options)
    if not given.keys() <= _NAMES:
        raise TypeError(_wrong_name(next(name for name in given if name not in _NAMES)))
    if "backoff_s" in given:
        given["backoff_ms"] = _backoff_ms(given.pop("backoff_s"))
    for name, stored in _TIMES.items():
        if name in given:
            given[stored] = ms_of(name, given.pop(name))
    _read_start(given)
    _check_deadline_of_start(given)
    _read_rate(queue, given)
    for name in ("tags", "after"):
        if name in given:
            given[name] = _names(name, given[name])
    if "distinct" in given:
        given |= read_distinct(given.pop("distinct"))
    if given.get("on_duplicate"):
        given["nonce"] = secrets.token_hex(8)
    return Policy(queue=queue, trace=trace, by=by, **given)


# Typed, so that True is not taken for 1.
_usual_policy = lru_cache(maxsize=128, typed=True)(_new_policy)


def _read_start(given: dict[str, Any]) -> None:
    """Replaces delay and run_at by what the policy has."""
    if "delay" in given:
        delay = given.pop("delay")
        if isinstance(delay, timedelta):
            delay = delay.total_seconds()
        elif isinstance(delay, str):
            delay = duration_s("delay", delay)
        given["delay_ms"] = ms_of("delay", delay)
    if "run_at" in given:
        given["start_ms"] = moment_ms("run_at", given.pop("run_at"))


def _check_deadline_of_start(given: dict[str, Any]) -> None:
    """Raises InvalidArgument if, by this machine's clock, the deadline passes before run_at."""
    start_ms, deadline_ms = given.get("start_ms", 0), given.get("deadline_ms", 0)
    if 0 < deadline_ms <= start_ms - round(time.time() * 1000):
        raise InvalidArgument(
            f"deadline {exact(deadline_ms / 1000)} s is not valid: it counts from the submission, "
            "and must be later than run_at"
        )


def _read_rate(queue: str, given: dict[str, Any]) -> None:
    """Replaces rate, burst, rate_key and weight by what the policy has."""
    parts = {name: given.pop(name) for name in _RATE_PARTS if name in given}
    if "rate" not in given:
        if parts:
            raise InvalidArgument(f"{next(iter(parts))} needs a rate: give rate, too, as 100/s")
        return
    shared = None
    if "rate_key" in parts:
        shared = Shared(check_name("queue", queue), check_name("rate_key", parts["rate_key"]))
    rate = rate_of(given.pop("rate"), parts.get("burst"), parts.get("weight", 1), shared)
    given["rates"] = (rate,)


def _names(option: str, names: object) -> tuple[str, ...]:
    if isinstance(names, str):
        return (names,)
    if isinstance(names, bytes) or not isinstance(names, Iterable):
        raise InvalidArgument(f"{option} {names!r} is not valid: give a name, or a list of names")
    return tuple(dict.fromkeys(names))


def id_for(policy: Policy, given: str | None) -> str:
    """Returns the id of a request: the caller's, else a new one. Raises InvalidArgument."""
    if given is None and policy.on_duplicate:
        raise InvalidArgument("on_duplicate needs an id: a new one has no other request")
    return new_id() if given is None else given


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


# ------------------------------------------------------------------ what is stored


def check_whole(name: str, value: object, low: int, high: int) -> int:
    """Returns a whole number of this range. Raises InvalidArgument."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidArgument(
            f"{name} {value!r} is not valid: a whole number from {low} to {high} is expected"
        )
    return value


def _time(name: str, ms: object, low: int, high: int) -> None:
    """Raises InvalidArgument, with seconds, unless `ms` is a whole number of the range."""
    is_whole = isinstance(ms, int) and not isinstance(ms, bool)
    if not is_whole or not low <= ms <= high:  # type: ignore[operator]
        shown = f"{exact(ms / 1000)} s" if is_whole else repr(ms)  # type: ignore[operator]
        raise InvalidArgument(
            f"{name} {shown} is not valid: {exact(low / 1000)} to {high / 1000:,.0f} s is expected"
        )


def check_priority(priority: int) -> int:
    """Returns a lane, 0 (first) to 99. Raises InvalidArgument."""
    return check_whole("priority", priority, 0, LANES - 1)


def check_limit(limit: int) -> int:
    """Returns the most workers of a request, 1 to 10,000. Raises InvalidArgument."""
    return check_whole("limit", limit, 1, MAX_LIMIT)


def check_share(share: int) -> int:
    """Returns the share of a tenant, or raises InvalidArgument."""
    return check_whole("share", share, 1, MAX_SHARE)


def check_deadline(deadline_ms: int) -> int:
    """Returns a deadline in ms, 0 (none) to 366 days. Raises InvalidArgument."""
    _time("deadline", deadline_ms, 0, 366 * _DAY_MS)
    return deadline_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The options of a request as Redis stores them, see SharedOptions; durations are in ms.

    `start_ms` is `run_at`, in ms since 1970. `parent` is the request whose dead sub-requests these
    were. A repeated call has the same `nonce`. `flow` and `feed` are those of a step of a flow, as
    operations/hand_over.py writes them. `by` is the caller for whom the
    server of the HTTP API submits, and `trace` the context of the producer's span. Two submissions
    that differ only in `key`, `by` or `trace` are equal. Raises InvalidArgument as Lua would.
    """

    queue: str = settings.DEFAULT_QUEUE
    priority: int = settings.DEFAULT_PRIORITY
    limit: int = settings.DEFAULT_LIMIT
    attempts: int = settings.DEFAULT_ATTEMPTS
    backoff_ms: tuple[int, int] = settings.DEFAULT_BACKOFF_MS
    lease_ms: int = settings.DEFAULT_LEASE_MS
    retain_ms: int = settings.DEFAULT_RETAIN_MS
    deadline_ms: int = 0
    time_limit_ms: int = 0
    durable: int = 0
    parent: str = ""
    delay_ms: int = 0
    start_ms: int = 0
    rates: tuple[Rate, ...] = ()
    tags: tuple[str, ...] = ()
    tenant: str = ""
    share: int = 1
    ageing_ms: int = 0
    after: tuple[str, ...] = ()
    after_any_end: bool = False
    on_duplicate: str = ""
    window_ms: int = 0
    nonce: str = ""
    distinct: bool = False
    key: Key = field(default=xid, compare=False)
    flow: str = ""
    feed: str = ""
    by: str = ""
    trace: str = ""

    def __post_init__(self) -> None:
        check_name("queue", self.queue)
        check_priority(self.priority)
        check_limit(self.limit)
        check_whole("attempts", self.attempts, 1, 100)
        if not isinstance(self.backoff_ms, tuple) or len(self.backoff_ms) != 2:  # noqa: PLR2004
            raise InvalidArgument(
                f"backoff {self.backoff_ms!r} is not valid: two numbers of ms are expected"
            )
        low, high = self.backoff_ms
        _time("backoff", low, 0, _DAY_MS)
        _time("backoff", high, low, _DAY_MS)
        _time("lease", self.lease_ms, 1_000, _DAY_MS)
        _time("retain", self.retain_ms, 0, 366 * _DAY_MS)
        check_deadline(self.deadline_ms)
        _time("time limit", self.time_limit_ms, 0, _DAY_MS)
        check_whole("durable (replicas)", self.durable, 0, 16)
        if self.parent:
            check_name("parent", self.parent)
        self._check_extras()

    def _check_extras(self) -> None:
        self._check_start()
        self._check_duplicates()
        if self.ageing_ms:
            _time("ageing", self.ageing_ms, 1_000, _DAY_MS)
        if self.tenant:
            check_name("tenant", self.tenant)
        check_share(self.share)
        if self.share != 1 and not self.tenant:
            raise InvalidArgument("share needs a tenant: name the tenant that gets this share")
        _check_names("tag", self.tags, MAX_TAGS)
        _check_names("request id", self.after, MAX_AFTER)
        if self.by:
            check_name("caller", self.by)
        if self.trace and not _TRACE.fullmatch(self.trace):
            raise InvalidArgument(f"trace {self.trace[:60]!r} is not valid: give a traceparent")

    def _check_duplicates(self) -> None:
        if self.on_duplicate not in {"", *ON_DUPLICATE}:
            raise InvalidArgument(
                f"on_duplicate {self.on_duplicate!r} is not valid: write {', '.join(ON_DUPLICATE)}"
            )
        if self.window_ms and not self.on_duplicate:
            raise InvalidArgument("window needs on_duplicate: write keep, replace or debounce")
        _time("window", self.window_ms, 0, 366 * _DAY_MS)
        if self.window_ms > self.retain_ms:
            raise InvalidArgument(
                f"window {exact(self.window_ms / 1000)} s is longer than the retention of "
                f"{exact(self.retain_ms / 1000)} s: a request is not known for longer than that"
            )
        if self.on_duplicate == "debounce" and not self.delay_ms:
            raise InvalidArgument("debounce needs a delay: give delay, as it begins anew each time")

    def _check_start(self) -> None:
        _time("delay", self.delay_ms, 0, 366 * _DAY_MS)
        check_whole("start", self.start_ms, 0, LAST_MS)
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
        """Returns other options as lua/v1/lib/create.lua has them; not `by` and `trace`."""
        return self.extras_with(",".join(self.after))

    def extras_with(self, others: str) -> str:
        """Returns the same with this text of the requests that it starts after."""
        mode = "end" if self.after_any_end else "done"
        found = {
            "parent": self.parent,
            "tags": ",".join(self.tags),
            "tenant": self.tenant,
            "share": self.share if self.share != 1 else 0,
            "delay": self.delay_ms,
            "start": self.start_ms,
            "rates": rates_text(self.rates) if self.rates else "",
            "ageing": self.ageing_ms,
            "unique": f"{self.window_ms}:{self.nonce}" if self.on_duplicate else "",
            "after": f"{mode}:{others}" if others else "",
            "distinct": int(self.distinct),
            "flow": self.flow,
            "feed": self.feed,
        }
        return "\n".join(f"{name}={value}" for name, value in found.items() if value)


def _check_names(kind: str, names: object, most: int) -> None:
    if not isinstance(names, tuple):
        raise InvalidArgument(f"{kind}s {names!r:.40} are not valid: give a list of names")
    if len(names) > most:
        raise InvalidArgument(f"{len(names):,} {kind}s are too many: name at most {most}")
    for name in names:
        check_name(kind, name)
