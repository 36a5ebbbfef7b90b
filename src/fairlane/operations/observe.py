"""One bounded read of a queue, for everything that shows it: dashboard, terminal, metrics.

The cost does not grow with the queue: at most 1,000 workers, 500 requests, 200 tokens, and the
counts of each lane. No keys are scanned. If a part is cut, its `is_exact` is False.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlane.common.task_names import read_tasks
from fairlane.common.text import split_names
from fairlane.errors import FairlaneError
from fairlane.model import ENDED_STATES
from fairlane.operations.backlog import WaitingRow, backlog_of, endings_of, newest_ended
from fairlane.operations.estimate import FIELDS, bounded, more_of
from fairlane.operations.find import list_workers
from fairlane.operations.limit_keys import KeyRoom
from fairlane.operations.pause import QueuePause, read_until
from fairlane.operations.rates import parse_queue_rate
from fairlane.operations.server_checks import Facts
from fairlane.operations.shards import read_shards
from fairlane.operations.stats import read_releases, read_stats, read_task_stats
from fairlane.operations.tokens import count_stale, parse, read_waiting, without_stale
from fairlane.protocol import keys
from fairlane.protocol.request_hash import hmget, parse_fields
from fairlane.protocol.server_info import read_info, release, time_ms
from fairlane.protocol.steps import Batch, Command, Nodes, OnNode, run_all
from fairlane.records import Demand, QueueBacklog, RequestCounts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from fairlane.call_records import CodeRelease
    from fairlane.common.rate import Rate
    from fairlane.operations.estimate import OpenFields
    from fairlane.operations.stats import Measured, TaskStats
    from fairlane.operations.tokens import Waiting
    from fairlane.records import WorkerPage, WorkerState


# ------------------------------------------------------------------ model
# The parts of a snapshot of a queue. All times are in ms by the clock of the queue's Redis.


@dataclass(slots=True)
class LaneSample:
    """One priority: its tokens, and the sums of the requests that were read.

    `tokens` is how many more leases workers could take. All requests are read if the snapshot is
    exact. `waiting`, `held` and `dead` are as in RequestCounts.
    """

    priority: int
    tokens: int = 0
    requests: int = 0
    waiting: int = 0
    held: int = 0
    dead: int = 0

    def add(self, one: RequestCounts) -> None:
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

    The queue has `unfinished` requests; `requests` are those that were read, the most urgent
    first. `is_exact` is True if all were read. Then `demand`, `oldest` and the sums in `lanes`
    count all requests. `lanes` has the priorities with a token or a request. `delayed` tokens
    are due later, `stale` ones can start nothing. `workers` are rows for `worker_totals`; `took` is
    what some of them took last, worker -> requests. `measured` is what workers have measured since
    the first sub-request, by priority, and `tasks` by task and release. `releases` are the last
    ones of the users' code, the newest first. `ended` is the length of the completion
    log. `rate` is the queue's, in words. If the queue has no bound, `max_waiting` and `admitted`,
    which counts for it, are None.
    """

    queue: str
    backlog: QueueBacklog
    now_ms: int
    is_paused: bool
    paused_until_ms: int | None
    unfinished: int
    ended: int
    is_exact: bool
    lanes: list[LaneSample]
    delayed: int
    stale: int
    requests: list[RequestCounts]
    oldest: RequestCounts | None
    demand: Demand
    rate: str | None
    max_waiting: int | None
    admitted: int | None
    worker_totals: WorkerTotals
    workers: list[WorkerState]
    took: dict[str, list[str]]
    measured: dict[int, Measured]
    tasks: TaskStats
    releases: tuple[CodeRelease, ...]
    servers: ServerStates
    shards: tuple[int, ...]

    def held_by_tenant(self) -> dict[str, int]:
        """Returns tenant -> permits held; "" stands for requests without a tenant."""
        found: dict[str, int] = {}
        for one in self.requests:
            if one.held:
                tenant = one.tenant or ""
                found[tenant] = found.get(tenant, 0) + one.held
        return found


# ------------------------------------------------------------------ sample
# Chooses the unfinished requests that a snapshot reads, and reads their counts.
#
# All are read if there are at most MOST_REQUESTS. Otherwise these are read: requests of the first
# tokens of every lane, the first entries of `active`, and what workers took last.


CONF = (b"paused_until", b"rate", b"max_waiting", b"waiting", b"releases")
MOST_REQUESTS = 500
MOST_TOOK = 100  # workers whose last tokens are read
_MOST_PART = MOST_REQUESTS // 3  # of each kind, if there are more requests
_SHOWN_TOOK = 8  # requests of one worker
_FIELDS = (*FIELDS, "cancelled", "tenant", "tags", "task", "redact")


class Sample(NamedTuple):
    """The requests that were read: their counts, and the fields for their demand.

    `away` entries of `active` were read, too, and are no requests with work.
    """

    requests: list[RequestCounts]
    fields: list[OpenFields]
    away: int


async def read_took(queue: str, workers: Sequence[WorkerState]) -> dict[str, list[str]]:
    """Returns worker -> the requests of the tokens that its units took last, if it holds leases."""
    busy = [one.id for one in workers if one.is_alive and one.leases][:MOST_TOOK]
    rows = await run_all([Command(b"HGETALL", keys.taken(queue, name)) for name in busy])
    return {name: _requests_in(row) for name, row in zip(busy, rows, strict=True)}


def _requests_in(row: list[bytes]) -> list[str]:
    parsed = (parse(token) for tokens in row[1::2] for token in tokens.split())
    return list(dict.fromkeys(one.request_id for one in parsed if one))[:_SHOWN_TOOK]


async def read_sample(
    queue: str, tokens: Waiting, took: dict[str, list[str]], unfinished: int
) -> Sample:
    """Returns the counts of the requests that are chosen, the most urgent first."""
    is_all = unfinished <= MOST_REQUESTS
    most = MOST_REQUESTS if is_all else _MOST_PART
    names = await Command(b"ZRANGE", keys.active(queue), 0, most - 1)
    listed = [name.decode("utf-8", "replace") for name in names]
    taken = [name for row in took.values() for name in row][:most]
    waiting = [] if is_all else tokens.request_ids()[:most]
    requests, fields = await _read(queue, list(dict.fromkeys([*listed, *taken, *waiting])))
    away = len({*listed}.difference(one.id for one in requests))
    return Sample(requests, fields, away)


async def _read(queue: str, ids: Sequence[str]) -> tuple[list[RequestCounts], list[OpenFields]]:
    rows = await run_all([hmget(name, *_FIELDS) for name in ids])
    found = []
    for name, row in zip(ids, rows, strict=True):
        fields = dict(zip(_FIELDS, parse_fields(_FIELDS, row), strict=True))
        is_over = fields["state"] in {*ENDED_STATES, "abandoned", ""}
        if fields["queue"] == queue and not is_over and fields["limit"]:
            found.append((name, fields))
    held = await run_all([Command(b"ZCARD", keys.leases(name)) for name, _ in found])
    both = [(name, fields, count) for (name, fields), count in zip(found, held, strict=True)]
    requests = sorted(map(_request, both), key=lambda one: (one.priority, one.submitted_ms))
    return requests, both


def _request(row: OpenFields) -> RequestCounts:
    name, fields, held = row

    def number(field: str) -> int:
        return int(fields[field] or 0)

    settled = number("done") + number("dead") + number("cancelled")
    return RequestCounts(
        id=name,
        queue=fields["queue"],
        state=fields["state"],
        priority=number("priority"),
        total=number("total"),
        done=number("done"),
        dead=number("dead"),
        cancelled=number("cancelled"),
        left=max(0, number("total") - settled),
        waiting=number("fresh"),
        held=held,
        limit=number("limit"),
        submitted_ms=number("born"),
        opens_ms=number("opens") or None,
        tags=split_names(fields["tags"]),
        tenant=fields["tenant"] or None,
        tasks=read_tasks(fields["task"], number("total")),
        redact=split_names(fields["redact"]),
    )


def count_active(queue: str) -> Batch:
    """Returns the batch that counts requests and endings, and reads the settings and the time."""
    return Batch(
        [
            Command(b"ZCARD", keys.active(queue)),
            Command(b"XLEN", keys.completed(queue)),
            Command(b"HMGET", keys.conf(queue), *CONF),
            Command(b"TIME"),
            newest_ended(queue),
        ]
    )


# ------------------------------------------------------------------ servers
# Reads what each primary reports of itself: memory, persistence, clients.


MOST_NODES = 50  # primaries that are read


async def read_servers() -> ServerStates:
    """Returns the primaries by one INFO each. A primary that does not reply has an `error`."""
    nodes = (await Nodes())[:MOST_NODES]
    found: list[ServerState] = []
    for node in nodes:
        found += await _server(node)
    if not nodes or nodes[0] is None:
        return ServerStates(found)
    try:
        text = await OnNode(nodes[0], Command(b"CLUSTER", b"INFO"))
    except FairlaneError:
        return ServerStates(found)
    info = read_info(text)
    return ServerStates(found, info.get("cluster_state", ""), int(info.get("cluster_slots_ok", 0)))


async def _server(node: Any) -> list[ServerState]:
    shown = "" if node is None else ":".join(map(str, node))
    try:
        text = await OnNode(node, Command(b"INFO"))
    except FairlaneError as error:
        return [ServerState(shown, error=str(error))]
    return [_state(shown, Facts(read_info(text), None))]


def _state(node: str, facts: Facts) -> ServerState:
    name, version = release(facts.info)
    text, is_persisted = _persistence(facts)
    return ServerState(
        node=node,
        program=name,
        version=".".join(map(str, version)),
        role="primary" if facts.info.get("role") == "master" else facts.info.get("role", ""),
        used=facts.number("used_memory"),
        most=facts.number("maxmemory"),
        peak=facts.number("used_memory_peak"),
        persistence=text,
        is_persisted=is_persisted,
        replicas=facts.number("connected_slaves"),
        clients=facts.number("connected_clients"),
        blocked=facts.number("blocked_clients"),
        commands_per_s=facts.number("instantaneous_ops_per_sec"),
        uptime_s=facts.number("uptime_in_seconds"),
        keys=_keys(facts.info),
    )


def _persistence(facts: Facts) -> tuple[str, bool]:
    if facts.info.get("aof_enabled") == "1":
        is_ok = facts.info.get("aof_last_write_status", "ok") == "ok"
        return ("append-only file" if is_ok else "append-only file, the last write failed"), is_ok
    changes = facts.number("rdb_changes_since_last_save")
    if facts.info.get("rdb_last_bgsave_status", "ok") != "ok":
        return f"the last snapshot failed; {changes:,} changes are in memory only", False
    return f"no append-only file; {changes:,} changes since the last snapshot", False


def _keys(info: dict[str, str]) -> int:
    """Returns the keys of database 0, from `keys=5,expires=1`."""
    first = info.get("db0", "").partition(",")[0].partition("=")[2]
    return int(first) if first.isdigit() else 0


_MOST_TOKENS = 200


async def snapshot(queue: str) -> Snapshot:
    """Returns the state of a queue now. Raises RedisError."""
    spread = await read_shards(queue)
    counted = await count_active(queue)
    unfinished, ended, (until, text, most, waits, code), time, newest = counted
    pause = QueuePause(read_until(until), time_ms(time))
    rate = parse_queue_rate(queue, text)
    tokens = await read_waiting(queue, spread.served, _MOST_TOKENS, is_spread=True)
    stale = await count_stale(queue, tokens)
    lanes, delayed = without_stale(tokens.counts, stale)
    page = await list_workers(queue)
    totals = totals_of(page)
    took = await read_took(queue, page.workers)
    sample = await read_sample(queue, tokens, took, unfinished)
    is_exact = unfinished <= MOST_REQUESTS
    rows = [WaitingRow.of(counts) for counts in sample.requests]
    backlog = backlog_of(
        *(rows, unfinished, endings_of(queue, newest), page.workers, pause.now_ms),
        is_paused=pause.is_paused,
        away=sample.away,
    )
    counts = (sum(lanes.values()), totals.held, unfinished)
    demand = Demand(queue, backlog, *counts, pause.is_paused, is_exact)
    demand = await _demand(demand, sample, pause.now_ms, rate)
    return Snapshot(
        queue=queue,
        backlog=backlog,
        now_ms=pause.now_ms,
        is_paused=pause.is_paused,
        paused_until_ms=pause.until_ms,
        unfinished=unfinished,
        ended=ended,
        is_exact=is_exact,
        lanes=_lanes(lanes, sample.requests),
        delayed=delayed,
        stale=stale.total(),
        requests=sample.requests,
        oldest=_oldest(sample.requests, pause.now_ms),
        demand=demand,
        rate=rate.words if rate is not None else None,
        max_waiting=int(most) if most else None,
        admitted=int(waits or 0) if most else None,
        worker_totals=totals,
        workers=page.workers,
        took=took,
        measured=await read_stats(queue),
        tasks=await read_task_stats(queue),
        releases=read_releases((code or b"").decode("utf-8", "replace")),
        servers=await read_servers(),
        shards=spread.present.numbers,
    )


async def _demand(counted: Demand, sample: Sample, now_ms: int, rate: Rate | None) -> Demand:
    """Returns the demand of the requests if all were read, else the demand `counted`."""
    found = counted
    if found.is_exact:
        more = await more_of(sample.fields, now_ms, KeyRoom(found.queue))
        held = sum(one.held for one in sample.requests)
        found = replace(found, demand=more, held=held, requests=len(sample.requests))
    return replace(found, demand=0 if found.is_paused else bounded(found.demand, rate))


def _lanes(tokens: Mapping[int, int], requests: Iterable[RequestCounts]) -> list[LaneSample]:
    found = {lane: LaneSample(lane, count) for lane, count in tokens.items()}
    for one in requests:
        found.setdefault(one.priority, LaneSample(one.priority)).add(one)
    return [found[lane] for lane in sorted(found)]


def _oldest(requests: Iterable[RequestCounts], now_ms: int) -> RequestCounts | None:
    """Returns the request that was submitted first among those with something to start now."""
    waiting = (one for one in requests if one.may_start(now_ms))
    return min(waiting, key=lambda one: one.submitted_ms, default=None)


def totals_of(page: WorkerPage) -> WorkerTotals:
    """Returns the sums over the workers of a page."""
    alive = [one for one in page.workers if one.is_alive]
    return WorkerTotals(
        alive=len(alive),
        busy=sum(one.leases > 0 for one in alive),
        late=len(page.workers) - len(alive),
        units=sum(one.units or 0 for one in alive),
        held=sum(one.leases for one in alive),
        per_s=round(sum(one.per_s or 0.0 for one in alive), 3),
        oldest_ms=max((one.beat_age_ms for one in page.workers), default=0),
        is_exact=not page.more,
    )
