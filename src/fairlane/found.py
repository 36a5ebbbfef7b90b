"""What is looked for, found or changed: requests, workers, queues, failures, a change's report."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypedDict

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fairlane.errors import FairlaneError
    from fairlane.model import Completion, DeadGroup, FailedAttempt, Progress
    from fairlane.operations.control.call_progress import CallProgress


RUNNING = ("active", "paused", "cancelling", "expiring")
ENDED = ("done", "cancelled", "lost")
STATE_GROUPS = {"running": RUNNING, "ended": ENDED}  # words for several states


class RequestFilters(TypedDict, total=False):
    """What a list of requests shows; each keyword may be left out, and then excludes nothing.

    `states` are active, paused, cancelling, expiring, done, cancelled and lost, or the words
    running and ended for several of them. `priorities` are 0 to 99. `id_prefix` is how the id
    begins. `older_s` and `newer_s` are seconds since the submission: at least, and less than.
    A request is listed if it has all of `tags`, and one of `tenants`.
    """

    states: Iterable[str]
    priorities: Iterable[int]
    id_prefix: str
    older_s: float
    newer_s: float
    tags: Iterable[str]
    tenants: Iterable[str]


class RequestChoice(RequestFilters, total=False):
    """Which requests a change is for: those that the filters accept, or `everything`."""

    everything: bool


class RequestPage(NamedTuple):
    """A page of requests: Progress of unfinished ones, Completion of ended ones.

    `after` continues behind this page; "" at the end. `now_ms` is the time of the queue's Redis.
    """

    requests: list[Progress | Completion]
    after: str
    now_ms: int


@dataclass(frozen=True, slots=True)
class WorkerState:
    """One worker. `is_alive` is False if its last beat is late: it is stopped, cut off or dead.

    `id` is host:port of its health port, `host` the name of its machine; "" and 0 if its record
    has expired. Times are in ms by the Redis of the queue, `started_ms` by the worker's clock.
    `leases` is how many leases it held at its last beat, `calls` those that reported progress.
    """

    id: str
    host: str
    pid: int
    started_ms: int
    beat_ms: int
    beat_age_ms: int
    is_alive: bool
    leases: int
    calls: tuple[CallProgress, ...]


class WorkerPage(NamedTuple):
    """Workers, those alive first; `more` is how many others there are, with older beats."""

    workers: list[WorkerState]
    more: int


@dataclass(frozen=True, slots=True)
class QueueSummary:
    """What is in one queue: tokens in its lanes, unfinished requests, live workers, endings.

    `waiting` is how many more leases workers could take now; tokens due later are not counted.
    A number is None if this user of Redis may not read it. `paused_until` is in ms by the Redis of
    the queue; None: the queue is not paused, or until it is resumed.
    """

    name: str
    waiting: int | None = None
    requests: int | None = None
    workers: int | None = None
    ended: int | None = None
    shards: tuple[int, ...] = ()
    paused: bool = False
    paused_until: int | None = None


class QueuePage(NamedTuple):
    """Some queues by name; `after` continues behind this page, "" at the end."""

    queues: list[QueueSummary]
    after: str


@dataclass(slots=True)
class ChangeReport:
    """What became of the requests of a change so far: `Queue.change` counts in it.

    `ended` had ended or were gone meanwhile, or are about to end, so nothing was changed. `failed`
    has the error of each request that could not be changed.
    """

    changed: int = 0
    ended: int = 0
    failed: dict[str, FairlaneError] = field(default_factory=dict)

    @property
    def reached(self) -> int:
        """Returns how many requests the change has reached."""
        return self.changed + self.ended + len(self.failed)


class RequestErrors(NamedTuple):
    """The failures of a request at `now_ms` of its Redis.

    `groups` are its dead sub-requests with equal failures, most first; `more` dead ones were not
    read. `retries` sub-requests wait for another attempt, the first of them until `due_ms`.
    """

    progress: Progress
    groups: list[DeadGroup]
    more: int
    retries: int
    due_ms: int
    now_ms: int

    @property
    def last_error(self) -> FailedAttempt | None:
        """Returns the last failed attempt, or why a sub-request was last given back.

        Redis keeps only the last one.
        """
        return self.progress.last_failure or self.progress.given_back

    @property
    def is_given_back(self) -> bool:
        """Returns True if `last_error` is why a worker gave a sub-request back."""
        return self.progress.last_failure is None


class StepProgress(NamedTuple):
    """A step of a run, the step that feeds it ("" = none), and the counts of its request."""

    step: str
    source: str
    is_compensating: bool
    progress: Progress


class FlowProgress(NamedTuple):
    """The steps of one run now, in their order; compensating steps are last."""

    id: str
    flow: str
    steps: list[StepProgress]

    @property
    def state(self) -> str:
        """Returns active, done or cancelled. It is active until every step has ended."""
        if not all(one.progress.ended for one in self.steps):
            return "active"
        is_cancelled = any(one.progress.state == "cancelled" for one in self.steps)
        return "cancelled" if is_cancelled else "done"
