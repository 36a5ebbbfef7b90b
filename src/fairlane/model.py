"""The data classes: what is submitted, what a worker holds, what is returned."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from fairlane import settings
from fairlane.common.fingerprint import fingerprint_of
from fairlane.common.rate import Rate, rates_text
from fairlane.errors import InvalidArgument
from fairlane.protocol.keys import LANES, check_name

ENDED_STATES = frozenset({"done", "cancelled"})
MAX_LIMIT = 10_000
MAX_TAGS = 20
MAX_AFTER = 100
_DAY_MS = 86_400_000
_LAST_MS = 253_402_300_799_000  # the end of the year 9999


def _whole(name: str, value: object, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidArgument(
            f"{name} {value!r} is not valid: a whole number from {low} to {high} is expected"
        )
    return value


def _time(name: str, ms: object, low: int, high: int) -> None:
    """Raises InvalidArgument, with seconds, unless `ms` is a whole number of the range."""
    is_whole = isinstance(ms, int) and not isinstance(ms, bool)
    if not is_whole or not low <= ms <= high:  # type: ignore[operator]
        shown = f"{ms / 1000:g} s" if is_whole else repr(ms)  # type: ignore[operator]
        raise InvalidArgument(
            f"{name} {shown} is not valid: {low / 1000:g} to {high / 1000:,.0f} s is expected"
        )


def check_priority(priority: int) -> int:
    """Returns a lane, 0 (first) to 99. Raises InvalidArgument."""
    return _whole("priority", priority, 0, LANES - 1)


def check_limit(limit: int) -> int:
    """Returns the most workers of a request, 1 to 10,000. Raises InvalidArgument."""
    return _whole("limit", limit, 1, MAX_LIMIT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The options of a request; durations in ms. Raises InvalidArgument as Lua would.

    No sub-request starts later than `deadline_ms` after the submission. `time_limit_ms` is the
    longest that one call of the handler may take. `durable` is how many replicas must confirm a
    write; 0 = none. `parent` is the request whose dead sub-requests these were. Nothing starts in
    the first `delay_ms`, or before `start_ms`, a time since 1970. `rates` bound how many
    sub-requests start. `tags` and `tenant` are names for choosing requests. If nothing has started
    for `ageing_ms`, one slice goes first. It starts `after` other requests are done, or have ended.
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
    ageing_ms: int = 0
    after: tuple[str, ...] = ()
    after_any_end: bool = False

    def __post_init__(self) -> None:
        check_name("queue", self.queue)
        check_priority(self.priority)
        check_limit(self.limit)
        _whole("attempts", self.attempts, 1, 100)
        if not isinstance(self.backoff_ms, tuple) or len(self.backoff_ms) != 2:  # noqa: PLR2004
            raise InvalidArgument(
                f"backoff {self.backoff_ms!r} is not valid: two numbers of ms are expected"
            )
        low, high = self.backoff_ms
        _time("backoff", low, 0, _DAY_MS)
        _time("backoff", high, low, _DAY_MS)
        _time("lease", self.lease_ms, 1_000, _DAY_MS)
        _time("retain", self.retain_ms, settings.LEAST_RETAIN_MS, 366 * _DAY_MS)
        _time("deadline", self.deadline_ms, 0, 366 * _DAY_MS)
        _time("time limit", self.time_limit_ms, 0, _DAY_MS)
        _whole("durable (replicas)", self.durable, 0, 16)
        if self.parent:
            check_name("parent", self.parent)
        self._check_extras()

    def _check_extras(self) -> None:
        self._check_start()
        if self.ageing_ms:
            _time("ageing", self.ageing_ms, 1_000, _DAY_MS)
        if self.tenant:
            check_name("tenant", self.tenant)
        _check_names("tag", self.tags, MAX_TAGS)
        _check_names("request id", self.after, MAX_AFTER)

    def _check_start(self) -> None:
        _time("delay", self.delay_ms, 0, 366 * _DAY_MS)
        _whole("start", self.start_ms, 0, _LAST_MS)
        given = {"after": self.after, "delay": self.delay_ms, "run_at": self.start_ms}
        if len(both := [name for name, value in given.items() if value]) > 1:
            raise InvalidArgument(f"{' and '.join(both)} are given together: name one of them")
        if self.after_any_end and not self.after:
            raise InvalidArgument("after_any_end needs after: name the requests to wait for")
        if 0 < self.deadline_ms <= self.delay_ms:
            raise InvalidArgument(
                f"deadline {self.deadline_ms / 1000:g} s is not valid: it counts from the "
                f"submission, and must be later than the delay of {self.delay_ms / 1000:g} s"
            )

    @property
    def extras(self) -> str:
        """Returns the other options, as lua/v1/lib/create/extras.lua reads them."""
        mode = "end" if self.after_any_end else "done"
        found = {
            "parent": self.parent,
            "tags": ",".join(self.tags),
            "tenant": self.tenant,
            "delay": self.delay_ms,
            "start": self.start_ms,
            "rates": rates_text(self.rates) if self.rates else "",
            "ageing": self.ageing_ms,
            "after": f"{mode}:{','.join(self.after)}" if self.after else "",
        }
        return "\n".join(f"{name}={value}" for name, value in found.items() if value)


def _check_names(kind: str, names: object, most: int) -> None:
    if not isinstance(names, tuple) or len(names) > most:
        raise InvalidArgument(f"{names!r} is not valid: at most {most} names are expected")
    for name in names:
        check_name(kind, name)


class Token(NamedTuple):
    """A hint popped from a lane: this request may use one more worker."""

    request_id: str
    k: str
    g: str

    @property
    def text(self) -> str:
        """Returns the token as it is written in a lane."""
        return f"{self.request_id}#{self.k}.{self.g}"


Entry = tuple[bytes, tuple[bytes, bytes]]  # one delivered sub-request: (<ms>-<index>, (b"b", body))


@dataclass(slots=True)
class Slice:
    """The sub-requests that one lease covers, and the proof that the caller holds the lease.

    `taken_ms` is the time of the acquire by the request slot's clock, which also made the entry
    ids. `waiting` is how many sub-requests of the request no worker had begun then.
    """

    request_id: str
    k: str
    fence: bytes
    op: bytes
    attempt: int
    attempts: int
    backoff_ms: tuple[int, int]
    lease_ms: int
    priority: int
    taken_ms: int
    entries: list[Entry]
    time_limit_ms: int = 0
    durable: int = 0
    waiting: int = 0


class Verdict(NamedTuple):
    """What became of an entry without a result: `retry`, `timeout`, `dead` or `release`.

    If the verdict makes the entry dead, `head` is the header of its result: see result_head.
    """

    entry_id: bytes
    verdict: str
    delay_ms: int
    head: bytes
    error: str


def result_head(index: bytes, status: bytes, attempt: int, waited_ms: int, ran_us: int) -> bytes:
    """Returns the header of a result in `out:{id}`; d = done, n = done with None, x = dead.

    g = given back; that stands only in the note of why the entry waits, see Progress.given_back.
    """
    return b"%b:%b:%d:%d:%d" % (index, status, attempt, waited_ms, ran_us)


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of one sub-request, as it is read back.

    `status` is "done" or "dead". `body` is None if the handler returned None, or if the sub-request
    is dead; then `error` gives the reason. `waited_ms` is the time from the submission to the call
    of the handler, `ran_ms` the time in the handler.
    """

    index: int
    status: str
    attempt: int
    body: bytes | None
    error: str | None
    worker: str
    waited_ms: int
    ran_ms: float


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """One failed attempt: its sub-request, its time by the request's Redis, and its error.

    `error` is a traceback or a sentence; the middle of a long one is left out.
    """

    index: int
    attempt: int
    at_ms: int
    error: str


@dataclass(frozen=True, slots=True)
class Progress:
    """Counts of one request at one moment; workers hold `held` of its `limit` permits.

    `state` is active, paused, cancelling, expiring (past its deadline), done or cancelled.
    `timeouts` counts the handler calls that took longer than `time_limit_ms`. `deadline_ms` is a
    time by the request's Redis, and `durable` a number of replicas. `parent` is the request whose
    dead sub-requests these were. 0 or "" = none. `failures` counts failed attempts, also those of
    sub-requests that are done by now; `last_failure` is the last failed attempt. If a
    worker gave a sub-request back later, `given_back` stands in its place, with the reason.
    Nothing starts before `opens_ms`, a time by the request's Redis: it is delayed, or waits for
    its `rates`. `tags` and `tenant` are those of its options.
    """

    id: str
    state: str
    total: int
    done: int
    dead: int
    cancelled: int
    held: int
    limit: int
    priority: int
    queue: str
    reason: str = ""
    submitted_ms: int = 0
    ended_ms: int = 0
    is_open: bool = False
    timeouts: int = 0
    deadline_ms: int = 0
    time_limit_ms: int = 0
    durable: int = 0
    parent: str = ""
    failures: int = 0
    last_failure: FailedAttempt | None = None
    given_back: FailedAttempt | None = None
    opens_ms: int = 0
    rates: tuple[Rate, ...] = ()
    tags: tuple[str, ...] = ()
    tenant: str = ""
    detail: dict[str, str] = field(default_factory=dict, compare=False, repr=False)

    @property
    def ended(self) -> bool:
        """Returns True once no sub-request of the request will run any more."""
        return self.state in ENDED_STATES

    @property
    def left(self) -> int:
        """Returns how many sub-requests are neither done, dead nor cancelled."""
        return self.total - self.done - self.dead - self.cancelled


@dataclass(frozen=True, slots=True)
class DeadSubRequest:
    """A sub-request that was given up, with its body.

    `attempt` is the number of its last delivery (0: there was none). `reason` is attempts, timeout,
    rejected, died or deadline; `error` a traceback or a sentence. `dead_id` is its id in `dead`.
    """

    index: int
    attempt: int
    reason: str
    error: str
    worker: str
    body: bytes
    dead_id: str

    @property
    def fingerprint(self) -> str:
        """Returns the hash that equal failures share."""
        return fingerprint_of(self.reason, self.error)

    @property
    def died_ms(self) -> int:
        """Returns when the sub-request was given up, by the clock of the request's Redis."""
        return int(self.dead_id.partition("-")[0])


@dataclass(slots=True)
class DeadGroup:
    """Dead sub-requests of one request with equal failures; `where` is `file:line function` or "".

    `indexes` are the first few of them. `first_ms` and `last_ms` are when the first and last died.
    """

    fingerprint: str
    reason: str
    headline: str
    where: str
    first_ms: int
    last_ms: int
    count: int = 0
    indexes: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class DeadChoice:
    """A choice of dead sub-requests: by fingerprints, by indexes, or all of them (both None)."""

    fingerprints: frozenset[str] | None = None
    indexes: frozenset[int] | None = None

    @classmethod
    def of(
        cls, fingerprint: str | Iterable[str] | None = None, indexes: Iterable[int] | None = None
    ) -> DeadChoice:
        """Returns the choice for these arguments of the API. Raises InvalidArgument."""
        if fingerprint is not None and indexes is not None:
            raise InvalidArgument("name fingerprints or indexes, not both")
        if fingerprint is not None:
            several = [fingerprint] if isinstance(fingerprint, str) else fingerprint
            return cls(fingerprints=frozenset(map(_check_fingerprint, several)))
        if indexes is None:
            return cls()
        if not isinstance(indexes, Iterable):
            raise InvalidArgument(
                f"indexes {indexes!r} is not valid: a list of numbers is expected"
            )
        return cls(indexes=frozenset(_whole("index", index, 0, 2**53) for index in indexes))


def _check_fingerprint(text: str) -> str:
    if not isinstance(text, str) or not re.fullmatch(r"[0-9a-f]{10}", text):
        raise InvalidArgument(f"fingerprint {text!r} is not valid: 10 hex digits are expected")
    return text


@dataclass(frozen=True, slots=True)
class Completion:
    """One entry of the completion log; `log_id` is where to resume after it."""

    log_id: str
    id: str
    state: str
    priority: int
    total: int
    done: int
    dead: int
    cancelled: int
    submitted_ms: int
    ended_ms: int
    reason: str = ""
