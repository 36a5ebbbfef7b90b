"""What a caller chooses among requests, and what a worker holds: tokens, slices, verdicts."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, TypedDict

from fairlane.errors import InvalidArgument
from fairlane.options import check_whole

ENDED_STATES = frozenset({"done", "cancelled"})


class Token(NamedTuple):
    """A hint popped from a lane: this request may use one more worker.

    `turn` is `<share>:<tenant>` if the request names a tenant, else "". `keys` are the keys of the
    request with their limits, as `api=10,customer-42=3`, else "".
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


_RESULT_HEAD = b"%b:%b:%d:%d:%d"


def result_head(index: bytes, status: bytes, attempt: int, waited_ms: int, ran_us: int) -> bytes:
    """Returns the header of a result in `out:{id}`; d = done, n = done with None, x = dead.

    b = done, and it names the next step; f = done, and it chooses children: operations/chosen.py.
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
    A request is listed if it has all of `tags`, and one of `tenants`. A single state, priority, tag
    or tenant needs no list.
    """

    states: str | Iterable[str]
    priorities: int | Iterable[int]
    id_prefix: str
    older_s: float
    newer_s: float
    tags: str | Iterable[str]
    tenants: str | Iterable[str]


class RequestChoice(RequestFilters, total=False):
    """Which requests a change is for: those that the filters accept, or `everything`."""

    everything: bool


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
