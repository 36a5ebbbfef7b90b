"""What a caller chooses among requests, and what a worker holds: tokens, slices, verdicts."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple, Protocol, TypedDict, Unpack

from fairlane.common.clock import duration_ms, moment_ms, wall_ms
from fairlane.common.task_names import check_task
from fairlane.errors import InvalidArgument
from fairlane.options import check_option_names, check_whole

ENDED_STATES = frozenset({"done", "cancelled"})


class Token(NamedTuple):
    """A hint popped from a lane: this request may use one more worker.

    `turn` is `<share>:<tenant>` if the request names a tenant, else "". `keys` are the keys of the
    request with their limits, as `api=10,customer-42=3`, else "". They begin with another `%` if
    they are in another slot than the request.
    """

    request_id: str
    k: str
    g: str
    turn: str = ""
    keys: str = ""

    @property
    def text(self) -> str:
        """Returns the token as it is written in a lane, or among those of its tenant."""
        return f"{self.request_id}#{self.permit}"

    @property
    def is_apart(self) -> bool:
        """Returns True if its keys must be taken before the acquire, because no script has both."""
        return self.keys.startswith("%")

    @property
    def key_names(self) -> list[str]:
        """Returns the names of its keys."""
        parts = self.keys.removeprefix("%").split(",")
        return [part.partition("=")[0] for part in parts if part]

    @property
    def permit(self) -> str:
        """Returns what mint returns for the token."""
        turn = f"@{self.turn}" if self.turn else ""
        return f"{self.k}.{self.g}{turn}%{self.keys}" if self.keys else f"{self.k}.{self.g}{turn}"


Entry = tuple[bytes, tuple[bytes, bytes]]  # one delivered sub-request: (<ms>-<index>, (b"b", body))


@dataclass(slots=True)
class Slice:
    """The sub-requests that one lease covers, and the proof that the caller holds the lease.

    `taken_ms` is the time of the acquire by the request slot's clock, which also made the entry
    ids. `waiting` is how many sub-requests of the request no worker had begun then. `trace` is the
    context of the span that submitted the request, as text; "" = there is none. `redact` are the
    fields of its bodies whose values no log and no error may have.
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
    redact: tuple[str, ...] = ()


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


_RESULT_HEAD = b"%b:%b:%d:%d:%d"


def result_head(index: bytes, status: bytes, attempt: int, waited_ms: int, ran_us: int) -> bytes:
    """Returns the header of a result in `out:{id}`; d = done, n = done with None, x = dead.

    b = done, and it names the next step; f = done, and it chooses children (flow_branches.py).
    g = given back; that stands only in the note of why the entry waits, see Progress.given_back.
    """
    return _RESULT_HEAD % (index, status, attempt, waited_ms, ran_us)


RUNNING = ("active", "paused", "cancelling", "expiring")
ENDED = ("done", "cancelled", "lost")
STATE_GROUPS = {"running": RUNNING, "ended": ENDED}  # words for several states
# Outcomes that are no states, and the state of such a request. A filter takes both words.
OUTCOMES = {"failed": "done", "partly_failed": "done", "repaired": "done"}
ENDINGS = ("done", *OUTCOMES, "cancelled")  # what a webhook may ask for
_OUTCOME_ORDER = (
    "failed",
    "partly_failed",
    "repaired",
    *ENDED,
)  # of a list that is sorted by state
STATE_ORDER = (*RUNNING, *_OUTCOME_ORDER)


def outcome_of(state: str, done: int, dead: int, reopened: int = 0) -> str | None:
    """Returns how a request in this state came out: a word for people; None until it has ended.

    It is `failed` if sub-requests are dead and none is done, `partly_failed` if some are dead and
    some are done, `repaired` if none is dead and the request was reopened, otherwise the state.
    Dead sub-requests that were dropped still count.
    """
    if state != "done":
        return state if state in ENDED else None
    if not dead:
        return "repaired" if reopened else "done"
    return "partly_failed" if done else "failed"


def outcome_words(outcome: str, dead: int) -> str:
    """Returns an outcome as it is shown: `failed`, `done, 57 dead`, or `done, repaired`."""
    if outcome == "partly_failed":
        return f"done, {dead:,} dead"
    return "done, repaired" if outcome == "repaired" else outcome


def ending_words(state: str, done: int, dead: int, reopened: int = 0) -> str:
    """Returns a state as it is shown: how the request came out, if it has ended."""
    outcome = outcome_of(state, done, dead, reopened)
    return outcome_words(outcome, dead) if outcome else state


class RequestFilters(TypedDict, total=False):
    """What a list of requests shows; each keyword may be left out, and then excludes nothing.

    `states` are active, paused, cancelling, expiring, done, cancelled and lost, or the words
    running and ended for several of them. The outcomes failed, partly_failed and repaired are
    words for some of the requests that are done. `priorities` are 0 to 99. `id_prefix` is how the
    id begins. `older_s` and `newer_s` are seconds since the submission: at least, and less than.
    A request is listed if it has all of `tags`, one of `tenants`, and calls of one of `tasks`. A
    single state, priority, tag, tenant or task needs no list.
    """

    states: str | Iterable[str]
    priorities: int | Iterable[int]
    id_prefix: str
    older_s: float
    newer_s: float
    tags: str | Iterable[str]
    tenants: str | Iterable[str]
    tasks: str | Iterable[str]


class RequestChoice(RequestFilters, total=False):
    """Which requests a change is for: those that the filters accept, or `everything`."""

    everything: bool


class DeadFilters(TypedDict, total=False):
    """Which dead sub-requests; each keyword may be left out, and then excludes nothing.

    `fingerprint` and `task` are one or several. `error` is a part of the text of the error, in
    letters of any case. They died at `since` or later and before `until`: each is a datetime with a
    zone, ISO 8601 text with one, or how long ago, as "10m" or a timedelta, by this machine's clock.
    `since` "release" is when the first worker of the newest release of your code began.
    """

    fingerprint: str | Iterable[str] | None
    task: str | Iterable[str] | None
    error: str | None
    since: datetime | timedelta | str | None
    until: datetime | timedelta | str | None


class ChosenFilters(DeadFilters, total=False):
    """Which dead sub-requests of one request; `indexes` alone are those of these indexes."""

    indexes: Iterable[int] | None


class DeadRow(Protocol):
    """What a choice looks at; `died_ms` is by the clock of the request's Redis."""

    @property
    def index(self) -> int:
        """Returns its index in the request."""

    @property
    def fingerprint(self) -> str:
        """Returns the hash that equal failures share."""

    @property
    def task(self) -> str:
        """Returns the task that it calls; "" if it is no call."""

    @property
    def error(self) -> str:
        """Returns a traceback or a sentence."""

    @property
    def died_ms(self) -> int:
        """Returns when it was given up."""


@dataclass(frozen=True, slots=True)
class DeadChoice:
    """A choice of dead sub-requests; what is None, "" or 0 excludes nothing. See DeadFilters."""

    fingerprints: frozenset[str] | None = None
    indexes: frozenset[int] | None = None
    tasks: frozenset[str] | None = None
    error: str = ""
    since_ms: int = 0
    until_ms: int = 0
    since_release: bool = False

    @classmethod
    def of(cls, **wanted: Unpack[ChosenFilters]) -> DeadChoice:
        """Returns the choice for these arguments of the API.

        Raises InvalidArgument, and TypeError for a wrong name.
        """
        given = {name: one for name, one in wanted.items() if one is not None}
        check_option_names(given, ChosenFilters.__annotations__)
        if "indexes" in given and len(given) > 1:
            raise InvalidArgument("indexes are given with another choice: name indexes alone")
        fields: dict[str, Any] = {}
        for name, value in given.items():
            fields |= _READ[name](value)
        found = cls(**fields)
        if found.until_ms and found.since_ms >= found.until_ms:
            raise InvalidArgument("since is not before until: nothing can have died between them")
        return found

    def accepts(self, one: DeadRow) -> bool:
        """Returns True if a dead sub-request is chosen, whatever the newest release is."""
        return (
            (self.indexes is None or one.index in self.indexes)
            and one.died_ms >= self.since_ms
            and (not self.until_ms or one.died_ms < self.until_ms)
            and (self.tasks is None or one.task in self.tasks)
            and (not self.error or self.error in one.error.lower())
            and (self.fingerprints is None or one.fingerprint in self.fingerprints)
        )

    def may_accept(self, tasks: Collection[str]) -> bool:
        """Returns False if none of a request with only these tasks is chosen; () = not known."""
        return self.tasks is None or not tasks or not self.tasks.isdisjoint(tasks)


def _several(value: object) -> Iterable[Any]:
    return (value,) if isinstance(value, str) or not isinstance(value, Iterable) else value


def _read_indexes(value: object) -> frozenset[int]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise InvalidArgument(f"indexes {value!r} is not valid: a list of numbers is expected")
    return frozenset(check_whole("index", index, 0, 2**53) for index in value)


def _read_error(value: object) -> str:
    if not isinstance(value, str) or not value or len(value) > _LONGEST_ERROR:
        raise InvalidArgument(
            f"error {value!r:.60} is not valid: 1 to {_LONGEST_ERROR} characters of its text are "
            "expected"
        )
    return value.lower()


def past_ms(name: str, given: object, more: str = "") -> int:
    """Returns a moment as ms since 1970, also of text such as 10m: so long ago.

    Raises InvalidArgument, which has its name, and all forms, of which `more` has another one.
    """
    try:
        if isinstance(given, timedelta) or (
            isinstance(given, str) and given.endswith(("s", "m", "h", "d"))
        ):
            return max(1, wall_ms() - duration_ms(name, given))
        return moment_ms(name, given)  # type: ignore[arg-type]  # it checks the type
    except InvalidArgument:
        if not isinstance(given, str):
            raise
        raise InvalidArgument(
            f"{name} {given!r:.60} is not valid: give how long ago, such as 10m, or a time with a "
            f"zone, such as 2026-12-24T18:00+01:00{more}"
        ) from None


RELEASE = "release"  # instead of a moment: when the newest release began
_RELEASE_WORDS = ", or `release`: since the newest release of your code"
_LONGEST_ERROR = 500
_READ: dict[str, Callable[[Any], dict[str, Any]]] = {
    "fingerprint": lambda one: {"fingerprints": frozenset(map(_check_fingerprint, _several(one)))},
    "indexes": lambda one: {"indexes": _read_indexes(one)},
    "task": lambda one: {"tasks": frozenset(map(check_task, _several(one)))},
    "error": lambda one: {"error": _read_error(one)},
    "since": lambda one: (
        {"since_release": True}
        if one == RELEASE
        else {"since_ms": past_ms("since", one, _RELEASE_WORDS)}
    ),
    "until": lambda one: {"until_ms": past_ms("until", one)},
}


def _check_fingerprint(text: object) -> str:
    if not isinstance(text, str) or not re.fullmatch(r"[0-9a-f]{10}", text):
        raise InvalidArgument(f"fingerprint {text!r} is not valid: 10 hex digits are expected")
    return text
