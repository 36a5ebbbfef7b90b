"""One bounded read of a queue, for everything that shows it: dashboard, terminal, metrics.

The cost does not grow with the queue: at most 1,000 workers, 500 requests, 200 tokens, and the
counts of each lane. It scans no keys. What is cut is marked (`is_exact`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlane.found import Demand
from fairlane.operations.blockers.demand import bounded, more_of
from fairlane.operations.find.waiting import count_stale, read_waiting, without_stale
from fairlane.operations.find.workers import list_workers
from fairlane.operations.lease.shards import read_shards
from fairlane.operations.lease.stats import read_stats
from fairlane.operations.maintenance.queue_pause import QueuePause, read_until
from fairlane.operations.maintenance.queue_rate import parse_queue_rate
from fairlane.operations.observe.model import LaneSample, Snapshot, WorkerTotals
from fairlane.operations.observe.sample import (
    MOST_REQUESTS,
    count_active,
    read_sample,
    read_took,
)
from fairlane.operations.observe.servers import read_servers
from fairlane.protocol.server_info import time_ms

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from fairlane.common.rate import Rate
    from fairlane.found import WorkerPage
    from fairlane.operations.observe.model import RequestSample
    from fairlane.operations.observe.sample import Sample
    from fairlane.protocol.steps import Operation

_MOST_TOKENS = 200


def snapshot(queue: str) -> Operation[Snapshot]:
    """Returns how a queue stands now. Raises RedisError."""
    spread = yield from read_shards(queue)
    unfinished, ended, (until, text, most, waits), time = yield count_active(queue)
    pause = QueuePause(read_until(until), time_ms(time))
    rate = parse_queue_rate(queue, text)
    tokens = yield from read_waiting(queue, spread.served, _MOST_TOKENS, is_spread=True)
    stale = yield from count_stale(queue, tokens)
    lanes, delayed = without_stale(tokens.counts, stale)
    page = yield from list_workers(queue)
    totals = totals_of(page)
    took = yield from read_took(queue, page.workers)
    sample = yield from read_sample(queue, tokens, took, unfinished)
    is_exact = unfinished <= MOST_REQUESTS
    demand = Demand(queue, sum(lanes.values()), totals.held, unfinished, pause.is_paused, is_exact)
    demand = yield from _demand(demand, sample, pause.now_ms, rate)
    return Snapshot(
        queue=queue,
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
        waiting=int(waits or 0) if most else None,
        worker_totals=totals,
        workers=page.workers,
        took=took,
        measured=(yield from read_stats(queue)),
        servers=(yield from read_servers()),
        shards=spread.present.numbers,
    )


def _demand(counted: Demand, sample: Sample, now_ms: int, rate: Rate | None) -> Operation[Demand]:
    """Returns the demand: of the requests if all were read, else what was counted."""
    found = counted
    if found.is_exact:
        more = yield from more_of(sample.fields, now_ms)
        held = sum(one.held for one in sample.requests)
        found = found._replace(demand=more, held=held, requests=len(sample.requests))
    return found._replace(demand=0 if found.is_paused else bounded(found.demand, rate))


def _lanes(tokens: Mapping[int, int], requests: Iterable[RequestSample]) -> list[LaneSample]:
    found = {lane: LaneSample(lane, count) for lane, count in tokens.items()}
    for one in requests:
        found.setdefault(one.priority, LaneSample(one.priority)).add(one)
    return [found[lane] for lane in sorted(found)]


def _oldest(requests: Iterable[RequestSample], now_ms: int) -> RequestSample | None:
    """Returns the request that was submitted first among those with something to start now."""
    waiting = (one for one in requests if one.is_waiting(now_ms))
    return min(waiting, key=lambda one: one.submitted_ms, default=None)


def totals_of(page: WorkerPage) -> WorkerTotals:
    """Returns the sums over the workers of a page."""
    alive = [one for one in page.workers if one.is_alive]
    return WorkerTotals(
        alive=len(alive),
        busy=sum(one.leases > 0 for one in alive),
        late=len(page.workers) - len(alive),
        units=sum(one.units for one in alive),
        held=sum(one.leases for one in alive),
        per_s=round(sum(one.per_s for one in alive), 3),
        oldest_ms=max((one.beat_age_ms for one in page.workers), default=0),
        is_exact=not page.more,
    )
