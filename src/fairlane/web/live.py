"""The live stream: its events, the doctor's findings beside them, and the endpoints."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from fairlane.call_records import LongCall  # noqa: TC001  msgspec reads it
from fairlane.common import clock
from fairlane.live import (
    Frame,
    Poller,
)
from fairlane.operations.doctor import examine_queue, examine_servers
from fairlane.operations.observe import LaneSample, ServerStates, WorkerTotals  # noqa: TC001
from fairlane.operations.task_states import unusual_of
from fairlane.records import QueueBacklog, RequestCounts  # noqa: TC001  msgspec reads it
from fairlane.web.answers import EVENTS, answer, event_stream
from fairlane.web.route import Endpoint

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from starlette.requests import Request as Call
    from starlette.responses import Response

    from fairlane.aio.queue import Queue
    from fairlane.operations.check_result import Finding
    from fairlane.operations.observe import Snapshot
    from fairlane.records import WorkerState
    from fairlane.web.app import Site


# ------------------------------------------------------------------ broadcast
# Sends the events of a poller. Each frame is encoded once for all watchers.


# These texts replace an error's own, because that names the place of Redis.
_CUT_OFF = "Redis does not answer"
_UNREAD = "The queue cannot be read: fairlane doctor finds out why"


class Broadcast:
    """The events of a poller, whose parts are encoded once for all watchers.

    If a watcher reads slowly, one event has several frames, but none that has left the history.
    So the memory is bounded.
    """

    def __init__(self, read: Callable[[], Awaitable[Snapshot]]) -> None:
        self.poller = Poller(read)
        self._frames: dict[int, msgspec.Raw] = {}
        self._now: tuple[int, msgspec.Raw | None] = (-1, None)

    async def events(self, after: int) -> AsyncGenerator[RawLive, None]:
        """Yields what is newer than the frame `after`, without an end."""
        poller = self.poller
        seen = -1 if poller.frames or poller.away else poller.changes
        async with poller.watching():
            while True:
                seen = await poller.next_change(seen)
                event = self._event(after)
                after = poller.frames[-1].number if poller.frames else after
                yield event

    def _event(self, after: int) -> RawLive:
        poller = self.poller
        kept = {one.number: self._frames.get(one.number) for one in poller.frames}
        self._frames = {
            one.number: kept[one.number] or msgspec.Raw(msgspec.json.encode(one))
            for one in poller.frames
        }
        frames = [self._frames[one.number] for one in poller.after(after)]
        away = (_CUT_OFF if poller.is_cut_off else _UNREAD) if poller.away else ""
        return RawLive(frames, poller.every_s, self._details(), away)

    def _details(self) -> msgspec.Raw | None:
        latest, poller = self.poller.latest, self.poller
        if latest is None or poller.away:
            return None
        if self._now[0] != poller.changes:
            self._now = poller.changes, msgspec.Raw(msgspec.json.encode(now_of(latest)))
        return self._now[1]

    @property
    def number(self) -> int:
        """Returns the number of the newest frame."""
        return self.poller.frames[-1].number if self.poller.frames else 0


# ------------------------------------------------------------------ examination
# Examines once a minute what is wrong with the servers and the queue, and the remedies.


FRESH_S = 60.0


class Examination:
    """The last examination of a queue, which is repeated after a minute."""

    def __init__(self) -> None:
        self._last: Doctor | None = None
        self._until = 0.0
        self._turn = asyncio.Lock()

    async def read(self, queue: Queue) -> Doctor:
        """Returns the findings. Raises RedisError if no server answers."""
        async with self._turn:
            if self._last is None or clock.mono_s() >= self._until:
                servers = examine_servers(clock.mono_s, clock.wall_ms)
                found = await queue.driver.run(servers)
                found += await queue.driver.run(examine_queue(queue.name))
                self._last = Doctor(clock.wall_ms(), [finding_of(one) for one in found])
                self._until = clock.mono_s() + FRESH_S
            return self._last


# ------------------------------------------------------------------ schemas
# What the live stream and the doctor send.


MOST_WORKERS = 100
MOST_REQUESTS = 50
MOST_LONG_CALLS = 20


class LiveWorker(msgspec.Struct, frozen=True):
    """One worker; `requests` are those of the tokens that it took last."""

    id: str
    host: str | None
    pid: int | None
    started_ms: int | None
    beat_age_ms: int
    is_alive: bool
    leases: int
    units: int | None
    per_s: float | None
    version: str | None
    release: str | None
    requests: list[str]


class Now(msgspec.Struct, frozen=True):
    """The details of the newest look; they are not kept. `more` counts what is left out."""

    queue: str
    backlog: QueueBacklog
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
    oldest: RequestCounts | None
    requests: list[RequestCounts]
    more_requests: int
    worker_totals: WorkerTotals
    workers: list[LiveWorker]
    more_workers: int
    servers: ServerStates
    shards: list[int]
    long_calls: list[LongCall]
    more_long_calls: int


class Live(msgspec.Struct, frozen=True):
    """One event: the frames since the last event, and the details of the newest look.

    The first event has the last minutes. If Redis is unreachable, one event has a sentence, `away`.
    """

    frames: list[Frame]
    every_s: float
    now: Now | None = None
    away: str = ""


class RawLive(msgspec.Struct, frozen=True):
    """A `Live` whose parts are encoded already, once for all watchers."""

    frames: list[msgspec.Raw]
    every_s: float
    now: msgspec.Raw | None
    away: str


class FindingRow(msgspec.Struct, frozen=True):
    """What one check found; `severity` is ok, note, warn or bad. `see` is a section of the docs."""

    check: str
    severity: str
    what: str
    remedy: str
    subject: str
    see: str


class Doctor(msgspec.Struct, frozen=True):
    """The findings of an examination of the servers and of the queue, and when it was made."""

    at_ms: Annotated[int, msgspec.Meta(ge=0)]
    findings: list[FindingRow]


def now_of(found: Snapshot) -> Now:
    """Returns the details of a snapshot."""
    shown = sorted(found.workers, key=lambda one: (one.is_alive, -one.leases, one.id))
    rows = [_row(one, found.took) for one in shown[:MOST_WORKERS]]
    requests = sorted(found.requests, key=lambda one: (not one.held, one.priority))[:MOST_REQUESTS]
    calls = unusual_of(found.workers, found.tasks, found.measured)
    return Now(
        queue=found.queue,
        backlog=found.backlog,
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
        long_calls=calls[:MOST_LONG_CALLS],
        more_long_calls=len(calls[MOST_LONG_CALLS:]),
    )


def _row(one: WorkerState, took: dict[str, list[str]]) -> LiveWorker:
    same: dict[str, Any] = {
        name: getattr(one, name) for name in LiveWorker.__struct_fields__ if name != "requests"
    }
    return LiveWorker(**same, requests=took.get(one.id, []) if one.leases else [])


def finding_of(one: Finding) -> FindingRow:
    """Returns a finding without its repair."""
    return FindingRow(one.check, one.severity, one.what, one.remedy, one.subject, one.see)


# ------------------------------------------------------------------ watch
# /v1/live sends the state of the queue to all watchers; /v1/doctor returns what is wrong.


_LOOK = ("view",)


async def live(site: Site, call: Call) -> Response:
    """Sends the state of the queue once a second; the first event has its last minutes.

    If Last-Event-ID is sent, the first event has only what came since.
    """
    after = 0
    with contextlib.suppress(ValueError):
        after = int(call.headers.get("last-event-id", "0"))
    events = site.live.events(after if after <= site.live.number else 0)  # else of another process
    return event_stream(site, call, events, "live", lambda _: site.live.number)


async def doctor(site: Site, _: Call) -> Response:
    """Returns the findings of the last examination, which is repeated after a minute."""
    return answer(await site.examination.read(site.queue))


ENDPOINTS = (
    Endpoint(
        method="GET", path="/v1/live", handle=live, group="Live", scopes=_LOOK,
        summary="Watch the queue", gives=Live, streams=(EVENTS,),
    ),
    Endpoint(
        method="GET", path="/v1/doctor", handle=doctor, group="Live", scopes=_LOOK,
        summary="Examine the servers and the queue", gives=Doctor, refuses=(503,),
    ),
)  # fmt: skip
