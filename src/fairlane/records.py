"""The records: one for each fact, as the library returns it.

They are the same objects in `--json`, over HTTP, in the dashboard and in `top`; results and dead
sub-requests have other types in JSON, because a body may be no text. A name that ends in `_ms` is
a moment in ms since 1970 by the Redis of the request or the queue, or a length of time in ms; `_s`
is in seconds, `per_s` a number in a second, `is_` a yes or no. What is absent is None, and `null`
in JSON. See docs/decisions/0054-one-record-for-each-fact.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlane.call_records import CodeRelease, LongCall, SlowCall  # noqa: TC001  msgspec reads it
from fairlane.common.task_names import Tasks, task_of, tasks_words
from fairlane.common.text import figure, format_duration
from fairlane.model import ENDED_STATES, ending_words, outcome_of

if TYPE_CHECKING:
    from fairlane.errors import FairlaneError


# ------------------------------------------------------------------ a request


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCounts:
    """Counts of one request at one moment, as a list shows them.

    `state` is active, paused, cancelling, expiring (past its deadline), done, cancelled or lost.
    `outcome` is how it came out: failed (no sub-request is done, some are dead), partly_failed,
    repaired (none is dead, and it was reopened), done, cancelled or lost; None until it has ended.
    `reopened` is how often it was opened again after its end, to run its dead sub-requests again.
    `left` sub-requests are neither done, dead nor cancelled; `waiting` of them wait for their first
    delivery. Workers hold `held` of its `limit` permits, which is None if only the log has it.
    Nothing starts before `opens_ms`: it is delayed, a handler asked for a pause, or it waits for
    a rate. `is_open`: more sub-requests may come. `tags` and `tenant` are those of its options.
    `tasks` is task -> how many of its sub-requests call it, None if that is not known; `other`
    counts the calls of tasks that are not named. `redact` are the fields that views hide. `call` is
    the short form of the only call, while its body is kept; a live view does not read it.

    A live view does not read `is_open` and `reason`. `log_id` is the place of an ended request in
    the completion log, if the row is from there.
    """

    id: str
    queue: str
    state: str
    outcome: str | None = field(init=False)
    priority: int
    total: int
    done: int = 0
    dead: int = 0
    cancelled: int = 0
    left: int = 0
    waiting: int = 0
    held: int = 0
    limit: int | None = None
    is_open: bool = False
    submitted_ms: int = 0
    opens_ms: int | None = None
    ended_ms: int | None = None
    reason: str | None = None
    reopened: int = 0
    tags: tuple[str, ...] = ()
    tenant: str | None = None
    tasks: Tasks = field(default_factory=dict)
    redact: tuple[str, ...] = ()
    call: str | None = None
    log_id: str | None = None

    def __post_init__(self) -> None:
        outcome = outcome_of(self.state, self.done, self.dead, self.reopened)
        object.__setattr__(self, "outcome", outcome)

    @property
    def shown_state(self) -> str:
        """Returns the outcome in words: `failed`, `done, 57 dead`; the state until the end."""
        return ending_words(self.state, self.done, self.dead, self.reopened)

    @property
    def shown_tasks(self) -> str:
        """Returns the only call, or the tasks in words; "" if its producer named none."""
        return self.call or tasks_words(self.tasks)

    @property
    def ended(self) -> bool:
        """Returns True once no sub-request of the request will run any more."""
        return self.state in ENDED_STATES

    def may_start(self, now_ms: int) -> bool:
        """Returns True if sub-requests wait that may start now."""
        return self.state == "active" and self.waiting > 0 and (self.opens_ms or 0) <= now_ms


@dataclass(frozen=True, slots=True)
class Repair:
    """Dead sub-requests of an ended request, `count` of them, were requeued at this time.

    It was reopened so often then, this time included. `by` is the token of the HTTP API, if that
    was the way; a caller without the scope operate does not see it.
    """

    reopened: int
    at_ms: int
    count: int
    by: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress(RequestCounts):
    """One request in full: its counts, its settings and its failures at one moment.

    `failures` counts failed attempts, also those of sub-requests that are done by now;
    `last_failure` is the last failed attempt. If a worker gave a sub-request back later,
    `given_back` stands in its place, with the reason. `timeouts` counts the handler calls that took
    longer than `time_limit_ms`. `left_out` counts the bodies that are no sub-requests, because the
    request is `distinct` and had their keys already. `durable` is a number of replicas, and `rates`
    are in words. `limits` are its keys, each with the limit that its submission named. `order_key`
    is the key in whose order it runs.
    `is_rate_limited`: a rate set `opens_ms`, not a delay or a handler.

    `repairs` are its last five openings after an end, newest first. `by` is the token of the HTTP
    API that submitted it; a caller without the scope operate does not see it. `holders`, the two
    fields of retries and `long_calls`, which run unusually long, are read only for `fairlane
    status`; elsewhere they are None.
    """

    limit: int
    left_out: int = 0
    failures: int = 0
    timeouts: int = 0
    last_failure: FailedAttempt | None = None
    given_back: FailedAttempt | None = None
    attempts: int | None = None
    backoff_ms: tuple[int, int] | None = None
    lease_ms: int | None = None
    retain_ms: int | None = None
    deadline_ms: int | None = None
    time_limit_ms: int | None = None
    durable: int | None = None
    rates: tuple[str, ...] = ()
    limits: dict[str, int] = field(default_factory=dict)
    order_key: str | None = None
    order_on_dead: str | None = None
    is_rate_limited: bool = False
    share: int | None = None
    repairs: tuple[Repair, ...] = ()
    by: str | None = None
    holders: tuple[Holder, ...] | None = None
    retries_waiting: int | None = None
    next_retry_ms: int | None = None
    long_calls: tuple[LongCall, ...] | None = None


@dataclass(frozen=True, slots=True)
class KeyState:
    """A key of a queue: its limit, and what holds it and waits for it now.

    `is_set`: a person has set the limit, so it stays when the key is not used. `of_task`: the key
    is the limit of a task, and a worker has set it to this number. `called` is work
    that has room and waits for a worker, or keeps its place while another key is full. `holders`
    and `next_requests` are up to 100 requests that hold the key, and that come next, up to 10 in a
    list of keys. `waits_ms` is how long the oldest of those that come next has waited, None = none
    waits.

    `is_order`: it is an order key. One request has it from its start to its end, and those that
    wait for the turn are counted, from their submission on. `stopped_by` is a request that ended
    with dead sub-requests, and stops those behind it (`order_on_dead="stop"`).
    """

    name: str
    limit: int
    is_set: bool
    of_task: int | None
    held: int
    called: int
    waiting: int
    waits_ms: int | None
    holders: tuple[str, ...]
    next_requests: tuple[str, ...]
    is_order: bool = False
    stopped_by: str | None = None


@dataclass(frozen=True, slots=True)
class KeyPage:
    """Keys of a queue by name; `more`: there are others."""

    keys: list[KeyState]
    more: bool


@dataclass(frozen=True, slots=True)
class Holder:
    """A worker that holds a permit of a request; `owed` of its sub-requests are not settled.

    `calls` are those that reported how far they are.
    """

    permit: int
    worker: str
    owed: int
    fence: str
    calls: tuple[CallProgress, ...] = ()


@dataclass(frozen=True, slots=True)
class CallProgress:
    """One call of the request `id` under a permit: `done` of `total` parts of a sub-request."""

    id: str
    permit: int
    index: int
    done: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion(RequestCounts):
    """One entry of the completion log; `log_id` is where to resume after it."""

    ended_ms: int
    log_id: str


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
class DeadSubRequest:
    """A sub-request that was given up, with its body.

    `attempt` is the number of its last delivery (0: there was none). `reason` is attempts, timeout,
    rejected, killed, died or deadline; `error` a traceback or a sentence. `dead_id` is its id in
    `dead`.
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
        from fairlane.common.fingerprint import fingerprint_of

        return fingerprint_of(self.reason, self.error)

    @property
    def task(self) -> str:
        """Returns the task that it calls; "" if it is no call."""
        return task_of(self.body)

    @property
    def died_ms(self) -> int:
        """Returns when the sub-request was given up, by the clock of the request's Redis."""
        return int(self.dead_id.partition("-")[0])


@dataclass(slots=True)
class DeadGroup:
    """Dead sub-requests of one request with equal failures; `where` is `file:line function`.

    `indexes` are the first few of them. `first_ms` and `last_ms` are when the first and last died.
    `tasks` is task -> how many of them call it, and `call` the short form of the first one.
    `is_new`: none that is kept failed so before the newest release of the users' code.
    """

    fingerprint: str
    reason: str
    headline: str
    where: str | None
    first_ms: int
    last_ms: int
    count: int = 0
    indexes: list[int] = field(default_factory=list)
    tasks: dict[str, int] = field(default_factory=dict)
    call: str | None = None
    is_new: bool = False


@dataclass(frozen=True, slots=True)
class RequestPage:
    """A page of requests: unfinished ones, then ended ones.

    `after` continues behind this page, None at the end. `now_ms` is the time of the queue's Redis.
    `is_sorted` is False if there are more requests than one part reads: then each part is sorted.
    """

    requests: list[RequestCounts]
    after: str | None
    now_ms: int
    is_sorted: bool = True


@dataclass(frozen=True, slots=True)
class WorkerState:
    """One worker. `is_alive` is False if its last beat is late: it is stopped, cut off or dead.

    `id` is host:port of its health port, `host` the name of its machine. Times are in ms by the
    Redis of the queue, `started_ms` by the worker's clock. `leases` is how many leases it held at
    its last beat, `calls` those that reported progress. It makes `units` calls concurrently, and
    finishes `per_s` sub-requests in a second while it works; None if that is not measured yet.
    `version` is its version of Fairlane, `release` that of the users' code, None if it names none.
    `slow` are calls that run for 10 s or longer: of each task the longest ones, up to 20.
    `awaits` are the requests for which its handlers wait, if all units do so; up to 5. If its
    record has expired, all that it says is None.
    """

    id: str
    host: str | None
    pid: int | None
    started_ms: int | None
    beat_ms: int
    beat_age_ms: int
    is_alive: bool
    leases: int
    calls: tuple[CallProgress, ...]
    units: int | None = None
    per_s: float | None = None
    version: str | None = None
    release: str | None = None
    slow: tuple[SlowCall, ...] = ()
    awaits: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningCall:
    """A call of a handler that runs now.

    `index` is that of its sub-request; None for a call of a batch handler with `count` of them.
    `task` is the name of the task that is called, and `call` the call in its short form. It runs
    for `ran_ms` under permit and `fence`, in process and thread of the worker's machine; `beside`
    other calls run in its process. `lines` are the innermost lines of the user's code, the
    innermost one first; none if they were not asked for. `problem` says what is unusual about them.
    """

    worker: str
    id: str
    index: int | None
    count: int
    task: str | None
    permit: int
    fence: int
    attempt: int
    attempts: int
    ran_ms: int
    limit_ms: int | None
    process: int
    thread: int | None
    beside: int
    call: str | None = None
    lines: tuple[str, ...] = ()
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCalls:
    """The calls that a worker runs now, those first that run for longest; `more` are left out.

    `problem`: why the worker has not named them.
    """

    worker: str
    calls: tuple[RunningCall, ...] = ()
    more: int = 0
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KilledCall:
    """A call that a person has ended after `ran_ms`, at `attempt` of `attempts`.

    `verdict` is charge, free or dead. If that `ended_process`, `others` ran in it and run again.
    """

    id: str
    index: int
    worker: str
    process: int
    attempt: int
    attempts: int
    verdict: str
    ran_ms: int
    ended_process: bool
    others: int


@dataclass(frozen=True, slots=True)
class WorkerPage:
    """Workers, those alive first; `more` is how many others there are, with older beats."""

    workers: list[WorkerState]
    more: int


_IDLE = "nothing works on them now"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueBacklog:
    """How much waits in a queue, and how fast it goes.

    `waiting` sub-requests wait for their first delivery, by priority in `lanes`. In a second
    `came_per_s` came, by the last minute, and `done_per_s` are finished, by the pace that workers
    report. `grows_per_s` is the difference; it is negative if the queue shrinks. At this pace the
    queue is empty in `empty_ms`; None: it grows, is paused, or nothing works on it. Unless
    `is_exact`, a part of the requests was read, and `waiting` and `lanes` are an estimate. What is
    not known is None: what came, unless all was read and the endings of some seconds; and what is
    finished, if this user of Redis may not read the workers.
    """

    waiting: int
    empty_ms: int | None
    grows_per_s: float | None
    came_per_s: float | None
    done_per_s: float | None
    lanes: dict[int, int]
    is_exact: bool
    is_paused: bool

    @property
    def count(self) -> str:
        """Returns how many wait, as text: `5,000`, or `about 5,000` if a part was read."""
        return f"{self.waiting:,}" if self.is_exact else f"about {self.waiting:,}"

    @property
    def words(self) -> str:
        """Returns how many wait, and the trend, as text."""
        return "; ".join(filter(None, (self.count, self.trend)))

    @property
    def trend(self) -> str:
        """Returns the trend in words; "" if nothing waits, or the trend is not known."""
        if self.is_paused or not self.waiting:
            return "paused" if self.waiting else ""
        if self.grows_per_s is None or self.done_per_s is None:
            return _IDLE if self.done_per_s == 0 else ""
        pace = f"{figure(self.done_per_s)}/s are finished"
        if self.empty_ms is not None:
            came = f", {figure(self.came_per_s)}/s come" if self.came_per_s else ""
            return f"empty in {_about(self.empty_ms)}: {pace}{came}"
        if self.grows_per_s > 0:
            return f"grows by {figure(self.grows_per_s)}/s: {pace}"
        return f"stays as it is: {pace}, as many come" if self.done_per_s else _IDLE


def _about(ms: int) -> str:
    """Returns a length of time in its largest unit, because it is an estimate."""
    unit = next((size for size in (3_600_000, 60_000, 1_000) if ms >= 2 * size), None)
    return "less than 2 s" if unit is None else format_duration(round(ms / unit) * unit)


@dataclass(frozen=True, slots=True)
class QueueSummary:
    """What is in one queue: what waits, unfinished requests, live workers, endings.

    `backlog` is by up to 100 unfinished requests. `tokens` is how many more leases workers could
    take now; those due later are not counted.
    `dead` are the dead sub-requests that are kept of these and of the last 100 endings.
    A number is None if this user of Redis may not read it. `paused_until_ms` is by the Redis of
    the queue; None: the queue is not paused, or until it is resumed.
    """

    name: str
    backlog: QueueBacklog | None = None
    tokens: int | None = None
    requests: int | None = None
    workers: int | None = None
    ended: int | None = None
    shards: tuple[int, ...] = ()
    is_paused: bool = False
    paused_until_ms: int | None = None
    dead: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStatus:
    """A queue now: what waits, workers, its most urgent unfinished requests, tokens by lane.

    `requests` are the 1,000 most urgent ones among those of the first tokens and the first entries
    of `active`, and `states` counts them; `more` is how many others are unfinished. `lanes` and
    `delayed` leave out stale tokens, which can start nothing; `stale` counts those. `workers` are
    those without a late beat; `beats` is the age of each last beat in ms, until the record expires.
    `ended` is the length of the completion log. `admitted` sub-requests count for the bound
    `max_waiting`; None without a bound. `paused_until_ms` None: the queue is not paused, or until
    it is resumed. `long_calls` run unusually long, the longest first.
    """

    queue: str
    backlog: QueueBacklog
    lanes: dict[int, int]
    delayed: int
    stale: int
    shards: tuple[int, ...]
    workers: tuple[str, ...]
    beats: dict[str, int]
    states: dict[str, int]
    requests: tuple[RequestCounts, ...]
    more: int
    ended: int
    max_waiting: int | None
    admitted: int | None
    is_paused: bool
    paused_until_ms: int | None
    rate: str | None
    long_calls: tuple[LongCall, ...] = ()


@dataclass(frozen=True, slots=True)
class QueuePage:
    """Some queues by name; `after` continues behind this page, None at the end."""

    queues: list[QueueSummary]
    after: str | None


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


@dataclass(frozen=True, slots=True)
class RequestErrors:
    """The failures of a request at `now_ms` of its Redis.

    `groups` are its dead sub-requests with equal failures, most first; `more` dead ones were not
    read. `retries` sub-requests wait for another attempt, the first of them until `due_ms`. Redis
    keeps only the last failed attempt, `request.last_failure`.
    """

    request: Progress
    groups: list[DeadGroup]
    more: int
    retries: int
    due_ms: int | None
    now_ms: int

    @property
    def last_error(self) -> FailedAttempt | None:
        """Returns the last failed attempt, or why a sub-request was last given back."""
        return self.request.last_failure or self.request.given_back

    @property
    def is_given_back(self) -> bool:
        """Returns True if `last_error` is why a worker gave a sub-request back."""
        return self.request.last_failure is None


@dataclass(frozen=True, slots=True)
class DeadExample:
    """One dead sub-request of a group: the id of its request, and its index."""

    id: str
    index: int


@dataclass(slots=True)
class FailureGroup:
    """Dead sub-requests of several requests with equal failures; see DeadGroup.

    `requests` have such ones; `examples` are a few of them.
    """

    fingerprint: str
    reason: str
    headline: str
    where: str | None
    first_ms: int
    last_ms: int
    count: int = 0
    requests: int = 0
    examples: list[DeadExample] = field(default_factory=list)
    tasks: dict[str, int] = field(default_factory=dict)
    call: str | None = None
    is_new: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadRequest:
    """A request with dead sub-requests that are kept, because they were not requeued or dropped.

    `kept` of its `dead` sub-requests are left, or chosen if there is a choice; the others are those
    of RequestCounts.
    """

    id: str
    state: str
    outcome: str | None
    total: int
    dead: int
    kept: int
    submitted_ms: int
    tasks: Tasks = field(default_factory=dict)


@dataclass(slots=True)
class RetryGroup:
    """Unfinished requests whose last failed attempts are equal, as those of FailureGroup are.

    `count` of their sub-requests wait for another attempt, `done` are done. `examples` are a few of
    the ids; the last attempt failed at `last_ms`.
    """

    fingerprint: str
    headline: str
    where: str | None
    last_ms: int
    count: int = 0
    done: int = 0
    requests: int = 0
    examples: list[str] = field(default_factory=list)
    tasks: dict[str, int | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class QueueErrors:
    """The failures of a queue, those that are most first.

    `requests` are those that have dead sub-requests, at most 1,000; `more_requests` are left out.
    `more` dead sub-requests, and those of `unread` requests, were not read. `release` is the newest
    one of the users' code, None if workers name none. `retries` are failures after which
    sub-requests wait for another attempt: of each request the last one.
    """

    groups: list[FailureGroup]
    requests: list[DeadRequest]
    more_requests: int
    more: int
    unread: int
    release: CodeRelease | None = None
    retries: list[RetryGroup] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Cause:
    """One thing that holds up a request: its kind, a sentence, and its figures.

    `kind` is paused, cancelling, expiring, after, delay, handler (one asked for a pause), rate,
    limit, held, task, retry, open, late (workers), queue (paused), queue_rate, workers (none),
    lanes (tokens are ahead), token, long_call (a call runs unusually long) or starved (all units
    wait for such calls). `until_ms` is when it ends, by the request's Redis; None = that is not
    known. `figures` are the numbers and names of the sentence.
    """

    kind: str
    text: str
    until_ms: int | None = None
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LanePlace:
    """Where the next token of a request is: how many tokens of which lanes workers take before it.

    `place` is 1 for the token that the next free worker takes. `ahead` is lane -> tokens, without
    stale ones; `requests` is how many requests have them. Unless `is_exact`, at least so many are
    ahead. `is_lost`: the token is in no lane now. More urgent requests at work go first, too:
    `urgent` of them hold `urgent_held` permits.
    """

    ahead: dict[int, int]
    requests: int
    is_exact: bool = True
    is_lost: bool = False
    urgent: int = 0
    urgent_held: int = 0
    place: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "place", sum(self.ahead.values()) + 1)


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
    why_not: str | None = None


@dataclass(frozen=True, slots=True)
class WhyWaiting:
    """What holds up a request at `now_ms` of its Redis; the cause that matters most comes first.

    Without a cause it has ended. `workers` is worker -> how many permits of the request it holds.
    `lane_place` is None if the request has no token that a worker could take.
    """

    request: Progress
    causes: list[Cause]
    workers: dict[str, int]
    lane_place: LanePlace | None
    estimate: Estimate
    now_ms: int


@dataclass(frozen=True, slots=True)
class HeldLease:
    """A permit that a worker holds since `since_ms`; `owed` of its sub-requests are not settled.

    Unless the worker extends the lease, it is over at `until_ms`.
    """

    permit: int
    worker: str
    since_ms: int
    until_ms: int
    owed: int


@dataclass(frozen=True, slots=True)
class SettledLease:
    """What a worker settled in one call: how many sub-requests, and when the first one began.

    `waited` and `ran` have how many of the done ones waited and ran for how long: pairs of ms and
    count, where all times of a bucket count as its smallest one. Buckets are at most 25 % wide.
    """

    log_id: str
    worker: str
    began_ms: int
    settled_ms: int
    done: int
    dead: int
    waited: list[tuple[float, int]]
    ran: list[tuple[float, int]]


@dataclass(frozen=True, slots=True)
class RecentLeases:
    """The leases of a request at `now_ms` of its Redis: those that are held, and the last others.

    `settled` has the oldest first. `is_whole` is True if no earlier one is left out.
    """

    held: list[HeldLease]
    settled: list[SettledLease]
    is_whole: bool
    now_ms: int


@dataclass(frozen=True, slots=True)
class Demand:
    """How much work of a queue could start now if there were workers: a signal for autoscaling.

    `backlog` is how much waits. `demand` is how many more leases workers could take: each request
    counts with its free permits or its ready sub-requests, whichever is less. `held` is how many
    leases they have, and `wanted` the sum of both; divide that by the units of one worker to get
    the number of workers. `requests` are unfinished. In a snapshot `is_exact` is False if there
    are very many requests: then the tokens in the lanes are counted, and only the first of them
    are checked for stale ones.
    Over HTTP, with more than 500 requests, these are the numbers of the server's last walk over
    all of them, `age_ms` old.
    """

    queue: str
    backlog: QueueBacklog
    demand: int
    held: int
    requests: int
    is_paused: bool
    is_exact: bool
    age_ms: int = 0
    wanted: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "wanted", self.demand + self.held)


class StepProgress(NamedTuple):
    """A step of a run, the steps that feed it (none = the first), and the counts of its request.

    `gets` is what it gets of them: "results" of one, "dead" sub-requests, a "branch" (the results
    that name it), "chosen" children, a "join" of the results of children, or a "merge" of the
    results of several steps. The first step gets the "input".
    """

    step: str
    sources: tuple[str, ...]
    is_compensating: bool
    progress: Progress
    gets: str


class FlowProgress(NamedTuple):
    """The steps of one run now, in their order; compensating steps are last.

    `gone` is how many more steps the run had, which are no longer kept.
    """

    id: str
    flow: str
    steps: list[StepProgress]
    gone: int = 0

    @property
    def state(self) -> str:
        """Returns active, done, cancelled or unknown. It is active until every step has ended.

        It is unknown if a step is no longer kept, because that one may have been cancelled.
        """
        if not all(one.progress.ended for one in self.steps):
            return "active"
        if any(one.progress.state == "cancelled" for one in self.steps):
            return "cancelled"
        return "unknown" if self.gone else "done"

    @property
    def done(self) -> int:
        """Returns how many sub-requests of the steps are done."""
        return sum(one.progress.done for one in self.steps)

    @property
    def dead(self) -> int:
        """Returns how many sub-requests of the steps are dead."""
        return sum(one.progress.dead for one in self.steps)

    @property
    def outcome(self) -> str | None:
        """Returns how the run came out, as that of a request with all its sub-requests.

        It is None until every step has ended, and while the state is unknown.
        """
        return outcome_of(self.state, self.done, self.dead, self.reopened)

    @property
    def reopened(self) -> int:
        """Returns how often steps were opened again after their end."""
        return sum(one.progress.reopened for one in self.steps)

    @property
    def shown_state(self) -> str:
        """Returns the outcome in words, the state until the end."""
        return ending_words(self.state, self.done, self.dead, self.reopened)
