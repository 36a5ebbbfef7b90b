"""The data classes: what is submitted, what a worker holds, what is returned."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from fairlane.common.fingerprint import fingerprint_of
from fairlane.errors import InvalidArgument
from fairlane.options import check_whole

if TYPE_CHECKING:
    from fairlane.common.rate import Rate

ENDED_STATES = frozenset({"done", "cancelled"})


class Token(NamedTuple):
    """A hint popped from a lane: this request may use one more worker.

    `turn` is `<share>:<tenant>` if the request names a tenant, else "".
    """

    request_id: str
    k: str
    g: str
    turn: str = ""

    @property
    def text(self) -> str:
        """Returns the token as it is written in a lane, or among those of its tenant."""
        return f"{self.request_id}#{self.permit}"

    @property
    def permit(self) -> str:
        """Returns what mint returns for the token."""
        return f"{self.k}.{self.g}@{self.turn}" if self.turn else f"{self.k}.{self.g}"


Entry = tuple[bytes, tuple[bytes, bytes]]  # one delivered sub-request: (<ms>-<index>, (b"b", body))


@dataclass(slots=True)
class Slice:
    """The sub-requests that one lease covers, and the proof that the caller holds the lease.

    `taken_ms` is the time of the acquire by the request slot's clock, which also made the entry
    ids. `waiting` is how many sub-requests of the request no worker had begun then. `trace` is the
    context of the span that submitted the request, as text; "" = there is none.
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
    turn: str = ""  # as that of its token
    trace: str = ""


class Verdict(NamedTuple):
    """What became of an entry without a result: `retry`, `timeout`, `dead`, `release` or `unbegun`.

    A released or unbegun one is not charged; unbegun ones may be delivered together.
    If the verdict makes the entry dead, `head` is the header of its result: see result_head.
    """

    entry_id: bytes
    verdict: str
    delay_ms: int
    head: bytes
    error: str


RESULT_HEAD = b"%b:%b:%d:%d:%d"


def result_head(index: bytes, status: bytes, attempt: int, waited_ms: int, ran_us: int) -> bytes:
    """Returns the header of a result in `out:{id}`; d = done, n = done with None, x = dead.

    g = given back; that stands only in the note of why the entry waits, see Progress.given_back.
    """
    return RESULT_HEAD % (index, status, attempt, waited_ms, ran_us)


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
    Nothing starts before `opens_ms`, a time by the request's Redis: it is delayed, a handler asked
    for a pause, or it waits for its `rates`. `tags`, `tenant` and `share` are those of its options.
    `left_out` counts the bodies that are no sub-requests, because the request is `distinct` and had
    their keys already.
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
    share: int = 0
    left_out: int = 0
    detail: dict[str, str] = field(default_factory=dict, compare=False, repr=False)

    @property
    def ended(self) -> bool:
        """Returns True once no sub-request of the request will run any more."""
        return self.state in ENDED_STATES

    @property
    def is_rate_limited(self) -> bool:
        """Returns True if it was its rate that set `opens_ms`, and not a delay or a handler."""
        return self.detail.get("limited") == "1"

    @property
    def left(self) -> int:
        """Returns how many sub-requests are neither done, dead nor cancelled."""
        return self.total - self.done - self.dead - self.cancelled

    @property
    def waiting(self) -> int:
        """Returns how many sub-requests wait for their first delivery."""
        return int(self.detail.get("fresh") or 0)


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
        return cls(indexes=frozenset(check_whole("index", index, 0, 2**53) for index in indexes))


def _check_fingerprint(text: str) -> str:
    if not isinstance(text, str) or not re.fullmatch(r"[0-9a-f]{10}", text):
        raise InvalidArgument(f"fingerprint {text!r} is not valid: 10 hex digits are expected")
    return text


@dataclass(frozen=True, slots=True)
class Completion:
    """One entry of the completion log; `log_id` is where to resume after it.

    In a list of requests `tags` and `tenant` are those of a request that is still kept.
    """

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
    tags: tuple[str, ...] = ()
    tenant: str = ""
