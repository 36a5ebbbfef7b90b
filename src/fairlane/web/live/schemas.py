"""What the live stream and the doctor send."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from fairlane.live import Frame  # noqa: TC001  msgspec reads the types
from fairlane.operations.observe import LaneSample, RequestSample, ServerStates, WorkerTotals  # noqa: TC001

if TYPE_CHECKING:
    from fairlane.found import WorkerState
    from fairlane.operations.finding import Finding
    from fairlane.operations.observe import Snapshot

MOST_WORKERS = 100
MOST_REQUESTS = 50


class LiveWorker(msgspec.Struct, frozen=True):
    """One worker; `requests` are those of the tokens that it took last."""

    id: str
    host: str
    pid: int
    started_ms: int
    beat_age_ms: int
    is_alive: bool
    leases: int
    units: int
    per_s: float
    release: str
    requests: list[str]


class Now(msgspec.Struct, frozen=True):
    """The details of the newest look; they are not kept. `more` counts what is left out."""

    queue: str
    at_ms: int
    is_exact: bool
    is_paused: bool
    paused_until_ms: int | None
    unfinished: int
    ended: int
    stale: int
    demand: int
    held: int
    lanes: list[LaneSample]
    oldest: RequestSample | None
    requests: list[RequestSample]
    more_requests: int
    worker_totals: WorkerTotals
    workers: list[LiveWorker]
    more_workers: int
    servers: ServerStates
    shards: list[int]


class Live(msgspec.Struct, frozen=True):
    """One event: the frames since the last event, and the details of the newest look.

    The first event has the last minutes. While Redis is away, one event has `away`, a sentence.
    """

    frames: list[Frame]
    every_s: float
    now: Now | None = None
    away: str = ""


class RawLive(msgspec.Struct, frozen=True):
    """The same, with parts that are encoded already: once, however many watch."""

    frames: list[msgspec.Raw]
    every_s: float
    now: msgspec.Raw | None
    away: str


class FindingRow(msgspec.Struct, frozen=True):
    """What one check found; `severity` is ok, note, warn or bad."""

    check: str
    severity: str
    what: str
    remedy: str
    subject: str


class Doctor(msgspec.Struct, frozen=True):
    """The findings of an examination of the servers and of the queue, and when it was made."""

    at_ms: Annotated[int, msgspec.Meta(ge=0)]
    findings: list[FindingRow]


def now_of(found: Snapshot) -> Now:
    """Returns the details of a snapshot."""
    shown = sorted(found.workers, key=lambda one: (one.is_alive, -one.leases, one.id))
    rows = [_row(one, found.took) for one in shown[:MOST_WORKERS]]
    requests = sorted(found.requests, key=lambda one: (not one.held, one.priority))[:MOST_REQUESTS]
    return Now(
        queue=found.queue,
        at_ms=found.now_ms,
        is_exact=found.is_exact,
        is_paused=found.is_paused,
        paused_until_ms=found.paused_until_ms,
        unfinished=found.unfinished,
        ended=found.ended,
        stale=found.stale,
        demand=found.demand.demand,
        held=found.demand.held,
        lanes=found.lanes,
        oldest=found.oldest,
        requests=requests,
        more_requests=max(0, found.unfinished - len(requests)),
        worker_totals=found.worker_totals,
        workers=rows,
        more_workers=len(found.workers) - len(rows),
        servers=found.servers,
        shards=list(found.shards),
    )


def _row(one: WorkerState, took: dict[str, list[str]]) -> LiveWorker:
    same: dict[str, Any] = {
        name: getattr(one, name) for name in LiveWorker.__struct_fields__ if name != "requests"
    }
    return LiveWorker(**same, requests=took.get(one.id, []) if one.leases else [])


def finding_of(one: Finding) -> FindingRow:
    """Returns a finding without its repair."""
    return FindingRow(one.check, one.severity, one.what, one.remedy, one.subject)
