"""The parts of a snapshot of a queue. All times are in ms by the Redis of the queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairlane.found import Demand, WorkerState
    from fairlane.operations.lease.stats import Measured


@dataclass(frozen=True, slots=True)
class RequestSample:
    """The counts of one unfinished request.

    `waiting` sub-requests wait for their first delivery, `left` are neither done nor dead.
    `held` is how many of its `limit` permits are held. It starts nothing before `opens_ms`.
    """

    id: str
    priority: int
    state: str
    submitted_ms: int
    total: int
    done: int
    dead: int
    left: int
    waiting: int
    held: int
    limit: int
    opens_ms: int
    tenant: str
    tags: tuple[str, ...]

    def is_waiting(self, now_ms: int) -> bool:
        """Returns True if sub-requests wait that may start now."""
        return self.state == "active" and self.waiting > 0 and self.opens_ms <= now_ms


@dataclass(slots=True)
class LaneSample:
    """One priority: its tokens, and the sums of the requests that were read.

    `tokens` is how many more leases workers could take. All requests are read if the snapshot is
    exact. `waiting`, `held` and `dead` are as in RequestSample.
    """

    priority: int
    tokens: int = 0
    requests: int = 0
    waiting: int = 0
    held: int = 0
    dead: int = 0

    def add(self, one: RequestSample) -> None:
        """Adds the counts of a request."""
        self.requests += 1
        self.waiting += one.waiting
        self.held += one.held
        self.dead += one.dead


@dataclass(frozen=True, slots=True)
class ServerState:
    """One primary at one moment; `node` is "" for a single server.

    `program` is Redis or Valkey. `used`, `most` and `peak` are bytes; `most` 0 = no maxmemory.
    `persistence` is a sentence, `commands_per_s` the server's own figure. `error` is why the rest
    is not known.
    """

    node: str
    program: str = ""
    version: str = ""
    role: str = ""
    used: int = 0
    most: int = 0
    peak: int = 0
    persistence: str = ""
    is_persisted: bool = False
    replicas: int = 0
    clients: int = 0
    blocked: int = 0
    commands_per_s: int = 0
    uptime_s: int = 0
    keys: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True)
class ServerStates:
    """The primaries; in a cluster, its state ("ok" or "fail") and how many slots are served."""

    nodes: list[ServerState]
    cluster: str = ""
    slots: int = 0


@dataclass(frozen=True, slots=True)
class WorkerTotals:
    """The workers as a whole: those alive, and among them those that hold leases.

    `units` is how many calls they make concurrently, `held` how many leases they hold, `per_s` how
    many sub-requests they finish in a second while they work. `oldest_ms` is the age of the oldest
    heartbeat. `is_exact` is False if there are more workers than were read.
    """

    alive: int
    busy: int
    late: int
    units: int
    held: int
    per_s: float
    oldest_ms: int
    is_exact: bool = True


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A queue at `now_ms`, from one bounded read.

    `unfinished` requests are in it; `requests` are those of them that were read, the most urgent
    first. `is_exact` is True if all were read: then `demand`, `oldest` and the sums in `lanes`
    are those of the queue. `lanes` has the priorities with a token or a request. `delayed` tokens
    are due later, `stale` ones can start nothing. `workers` are rows for `worker_totals`; `took` is
    what some of them took last, worker -> requests. `measured` is what workers have measured since
    the first sub-request, by priority. `ended` is the length of the completion log. `rate` is the
    queue's, in words. The bound `max_waiting` and the count `waiting` are None without a bound.
    """

    queue: str
    now_ms: int
    is_paused: bool
    paused_until_ms: int | None
    unfinished: int
    ended: int
    is_exact: bool
    lanes: list[LaneSample]
    delayed: int
    stale: int
    requests: list[RequestSample]
    oldest: RequestSample | None
    demand: Demand
    rate: str | None
    max_waiting: int | None
    waiting: int | None
    worker_totals: WorkerTotals
    workers: list[WorkerState]
    took: dict[str, list[str]]
    measured: dict[int, Measured]
    servers: ServerStates
    shards: tuple[int, ...]

    def held_by_tenant(self) -> dict[str, int]:
        """Returns tenant -> permits held; "" stands for requests without a tenant."""
        found: dict[str, int] = {}
        for one in self.requests:
            if one.held:
                found[one.tenant] = found.get(one.tenant, 0) + one.held
        return found
