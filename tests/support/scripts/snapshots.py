"""Makes snapshots of a queue by hand, without Redis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlane.operations.backlog import WaitingRow, backlog_of
from fairlane.operations.observe import (
    LaneSample,
    ServerState,
    ServerStates,
    Snapshot,
    WorkerTotals,
)
from fairlane.operations.stats import Measured
from fairlane.records import Demand, RequestCounts, WorkerState

if TYPE_CHECKING:
    from collections.abc import Mapping

NOW_MS = 1_800_000_000_000
NO_BACKLOG = backlog_of([], 0, [], [], NOW_MS, is_paused=False)


def measured(done: int, waited_ms: int = 10, ran_us: int = 500, failed: int = 0) -> Measured:
    """Returns what workers have measured after `done` sub-requests."""
    found = Measured()
    if done:
        found.waited.add({waited_ms: done})
        found.ran.add({ran_us: done})
    found.counts["failed"] = failed
    return found


def request(name: str, **given: Any) -> RequestCounts:
    """Returns a request, by default one of priority 5 that waits."""
    usual: dict[str, Any] = {
        "queue": "req", "priority": 5, "state": "active", "submitted_ms": NOW_MS - 4_000,
        "total": 10, "done": 2,
        "dead": 0, "left": 8, "waiting": 7, "held": 0, "limit": 3, "opens_ms": None, "tenant": None,
        "tags": (),
    }  # fmt: skip
    return RequestCounts(id=name, **(usual | given))


def worker(name: str, **given: Any) -> WorkerState:
    """Returns a worker that is alive and holds a lease."""
    usual: dict[str, Any] = {
        "host": "machine", "pid": 7, "started_ms": NOW_MS - 60_000, "beat_ms": NOW_MS - 400,
        "beat_age_ms": 400, "is_alive": True, "leases": 1, "calls": (), "units": 4, "per_s": 2.5,
        "version": "0.1.0",
    }  # fmt: skip
    return WorkerState(id=name, **(usual | given))


def snapshot_of(
    *requests: RequestCounts,
    workers: tuple[WorkerState, ...] = (),
    after_s: float = 0,
    stats: Mapping[int, Measured] | None = None,
    **given: Any,
) -> Snapshot:
    """Returns a snapshot of these requests and workers."""
    lanes: dict[int, LaneSample] = {}
    for one in requests:
        lane = lanes.setdefault(one.priority, LaneSample(one.priority))
        lane.add(one)
        lane.tokens += max(0, min((one.limit or 0) - one.held, one.waiting))
    held = sum(one.held for one in requests)
    tokens = sum(lane.tokens for lane in lanes.values())
    rows = [WaitingRow(one.priority, one.waiting, one.total, one.submitted_ms) for one in requests]
    backlog = backlog_of(rows, len(rows), [], workers, NOW_MS, is_paused=False)
    usual: dict[str, Any] = {
        "queue": "req", "backlog": backlog,
        "now_ms": NOW_MS + round(1000 * after_s), "is_paused": False,
        "paused_until_ms": None, "unfinished": len(requests), "ended": 0, "is_exact": True,
        "lanes": [lanes[priority] for priority in sorted(lanes)], "delayed": 0, "stale": 0,
        "requests": list(requests), "oldest": requests[0] if requests else None,
        "demand": Demand(
            "req", backlog, tokens, held, len(requests), is_paused=False, is_exact=True
        ),
        "worker_totals": WorkerTotals(
            len(workers), sum(one.leases > 0 for one in workers), 0,
            sum(one.units or 0 for one in workers), held, 5.0, 400,
        ),
        "workers": list(workers), "took": {}, "measured": dict(stats or {}), "tasks": {},
        "servers": ServerStates([ServerState("", "Valkey", "9.0.0", "primary", used=1 << 20)]),
        "shards": (), "releases": (), "rate": None, "max_waiting": None, "admitted": None,
    }  # fmt: skip
    return Snapshot(**(usual | given))
