"""What is looked for, found or changed: requests, workers, queues, failures, a change's report."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from fairlane.errors import FairlaneError
    from fairlane.model import Completion, DeadGroup, FailedAttempt, Progress
    from fairlane.operations.request_state import CallProgress


RUNNING = ("active", "paused", "cancelling", "expiring")
ENDED = ("done", "cancelled", "lost")
STATE_GROUPS = {"running": RUNNING, "ended": ENDED}  # words for several states


class RequestFilters(TypedDict, total=False):
    """What a list of requests shows; each keyword may be left out, and then excludes nothing.

    `states` are active, paused, cancelling, expiring, done, cancelled and lost, or the words
    running and ended for several of them. `priorities` are 0 to 99. `id_prefix` is how the id
    begins. `older_s` and `newer_s` are seconds since the submission: at least, and less than.
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


class RequestPage(NamedTuple):
    """A page of requests: Progress of unfinished ones, Completion of ended ones.

    `after` continues behind this page; "" at the end. `now_ms` is the time of the queue's Redis.
    `is_sorted` is False if there are more requests than one part reads: then each part is sorted.
    """

    requests: list[Progress | Completion]
    after: str
    now_ms: int
    is_sorted: bool = True


@dataclass(frozen=True, slots=True)
class WorkerState:
    """One worker. `is_alive` is False if its last beat is late: it is stopped, cut off or dead.

    `id` is host:port of its health port, `host` the name of its machine; "" and 0 if its record
    has expired. Times are in ms by the Redis of the queue, `started_ms` by the worker's clock.
    `leases` is how many leases it held at its last beat, `calls` those that reported progress.
    It makes `units` calls concurrently, and finishes `per_s` sub-requests in a second while it
    works; 0 = that is not measured yet. `release` is its version of Fairlane.
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
    units: int = 0
    per_s: float = 0.0
    release: str = ""


class WorkerPage(NamedTuple):
    """Workers, those alive first; `more` is how many others there are, with older beats."""

    workers: list[WorkerState]
    more: int


@dataclass(frozen=True, slots=True)
class QueueSummary:
    """What is in one queue: tokens in its lanes, unfinished requests, live workers, endings.

    `waiting` is how many more leases workers could take now; tokens due later are not counted.
    `dead` are the dead sub-requests of up to 100 unfinished requests and of the last 100 endings.
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
    dead: int | None = None


class QueuePage(NamedTuple):
    """Some queues by name; `after` continues behind this page, "" at the end."""

    queues: list[QueueSummary]
    after: str


@dataclass(slots=True)
class ChangeReport:
    """What became of the requests of a change so far: `Queue.change` counts in it.

    `ended` had ended or were gone meanwhile, or are about to end, so nothing was changed. `failed`
    has the error of each request that could not be changed. `dead` is how many dead sub-requests
    were requeued or dropped.
    """

    changed: int = 0
    ended: int = 0
    failed: dict[str, FairlaneError] = field(default_factory=dict)
    dead: int = 0

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


@dataclass(slots=True)
class FailureGroup:
    """Dead sub-requests of several requests with equal failures; see DeadGroup.

    `requests` have such ones; `examples` are a few of them, each (request, index).
    """

    fingerprint: str
    reason: str
    headline: str
    where: str
    first_ms: int
    last_ms: int
    count: int = 0
    requests: int = 0
    examples: list[tuple[str, int]] = field(default_factory=list)


class QueueErrors(NamedTuple):
    """The failures of a queue, those that are most first.

    `more` dead sub-requests, and those of `unread` requests, were not read.
    """

    groups: list[FailureGroup]
    more: int
    unread: int


@dataclass(frozen=True, slots=True)
class Cause:
    """One thing that holds up a request: its kind, a sentence, and its figures.

    `kind` is paused, cancelling, expiring, after, delay, handler (one asked for a pause), rate,
    limit, held, task, retry, open, late (workers), queue (paused), queue_rate, workers (none),
    lanes (tokens are ahead) or token. `until_ms` is when it ends, in ms by the request's Redis; 0 =
    that is not known. `figures` are the numbers and names of the sentence.
    """

    kind: str
    text: str
    until_ms: int = 0
    figures: dict[str, Any] = field(default_factory=dict)


class LanePlace(NamedTuple):
    """Where the next token of a request is: how many tokens of which lanes workers take before it.

    `ahead` is lane -> tokens, without stale ones; `requests` is how many requests have them.
    Unless `is_exact`, at least so many are ahead. `is_lost`: the token is in no lane now. More
    urgent requests at work go first, too: `urgent` of them hold `urgent_held` permits.
    """

    ahead: dict[int, int]
    requests: int
    is_exact: bool = True
    is_lost: bool = False
    urgent: int = 0
    urgent_held: int = 0

    @property
    def place(self) -> int:
        """Returns 1 for the token that the next free worker takes."""
        return sum(self.ahead.values()) + 1


@dataclass(frozen=True, slots=True)
class Estimate:
    """When a request starts and ends, in ms by its Redis, if nothing more urgent comes.

    `starts_ms` is 0 if it has started. None: there is no basis for it, and `why_not` says why.
    `per_s` is how many sub-requests the queue's workers finish in a second, `units` how many calls
    they make concurrently.
    """

    starts_ms: int | None = None
    ends_ms: int | None = None
    per_s: float = 0.0
    units: int = 0
    why_not: str = ""


class WhyWaiting(NamedTuple):
    """What holds up a request at `now_ms` of its Redis; the cause that matters most comes first.

    Without a cause it has ended. `workers` is worker -> how many permits of the request it holds.
    `lane_place` is None if the request has no token that a worker could take.
    """

    progress: Progress
    causes: list[Cause]
    workers: dict[str, int]
    lane_place: LanePlace | None
    estimate: Estimate
    now_ms: int


class HeldLease(NamedTuple):
    """A permit that a worker holds since `since_ms`; `owed` of its sub-requests are not settled.

    Unless the worker extends the lease, it is over at `until_ms`.
    """

    permit: int
    worker: str
    since_ms: int
    until_ms: int
    owed: int


class SettledLease(NamedTuple):
    """What a worker settled in one call: how many sub-requests, and when the first one began.

    `waited` and `ran` have how many of the done ones waited and ran for how long: ms -> count,
    where all times of a bucket count as its smallest one. Buckets are at most 25 % wide.
    """

    log_id: str
    worker: str
    began_ms: int
    settled_ms: int
    done: int
    dead: int
    waited: Mapping[float, int]
    ran: Mapping[float, int]


class RecentLeases(NamedTuple):
    """The leases of a request at `now_ms` of its Redis: those that are held, and the last others.

    `settled` has the oldest first. `is_whole` is True if no earlier one is left out.
    """

    held: list[HeldLease]
    settled: list[SettledLease]
    is_whole: bool
    now_ms: int


class Demand(NamedTuple):
    """How much work of a queue could start now if there were workers: a signal for autoscaling.

    `demand` is how many more leases workers could take: each request counts with its free permits
    or its ready sub-requests, whichever is less. `held` is how many leases they have. `requests`
    are unfinished. In a snapshot `is_exact` is False if there are very many requests: then the
    tokens in the lanes are counted, and only the first of them are checked for stale ones.
    """

    queue: str
    demand: int
    held: int
    requests: int
    is_paused: bool
    is_exact: bool

    @property
    def wanted(self) -> int:
        """Returns how many leases workers could have: those that they have, and the demand."""
        return self.demand + self.held


class StepProgress(NamedTuple):
    """A step of a run, the steps that feed it (none = the first), and the counts of its request."""

    step: str
    sources: tuple[str, ...]
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
