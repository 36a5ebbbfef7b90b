"""The endpoints of programs that watch the server: its health, a queue's metrics for Prometheus."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from starlette.responses import Response

from fairlane import metrics as defined
from fairlane.common.histogram import Distribution, bounds_of
from fairlane.common.task_names import OTHER
from fairlane.errors import FairlaneError
from fairlane.operations.stats import by_task
from fairlane.operations.task_states import unusual_of
from fairlane.web.answers import Refusal, answer
from fairlane.web.route import Endpoint
from fairlane.web.schemas import Health

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from prometheus_client import Metric
    from starlette.requests import Request as Call

    from fairlane.metrics import Metric as Defined
    from fairlane.operations.observe import Snapshot
    from fairlane.operations.stats import Measured
    from fairlane.records import Demand
    from fairlane.web.app import Site


# ------------------------------------------------------------------ families
# Turns a snapshot of a queue into families of metrics.


SINGLE = "single"  # the name of a server that is no cluster
STATES = ("active", "paused", "cancelling", "expiring")  # of an unfinished request
# The ends of the buckets are those of the measurements' own buckets, so all counts are exact: a
# value with N bits is at most 2**N - 1.
_WAITED_BITS = (0, *range(2, 26, 2))  # of ms: 3 ms to 4.7 hours
_RAN_BITS = tuple(range(6, 34, 2))  # of microseconds: 63 us to 72 minutes
Values = dict[str, float]
_TASK = ["queue", *defined.TASK_DONE.labels]


def absent(queue: str) -> Iterator[Metric]:
    """Yields what is known of a queue while Redis does not answer."""
    yield _plain(defined.UP, queue, 0)


def families(found: Snapshot, demand: Demand) -> Iterator[Metric]:
    """Yields the metrics of a queue."""
    totals = found.worker_totals
    for metric, value in (
        (defined.UP, 1),
        (defined.EXACT, found.is_exact),
        (defined.PAUSED, found.is_paused),
        (defined.DEMAND, demand.demand),
        (defined.WANTED, demand.wanted),
        (defined.UNFINISHED, found.unfinished),
        (defined.DELAYED, found.delayed),
        (defined.UNITS, totals.units),
    ):
        yield _plain(metric, found.queue, value)
    if demand.backlog.grows_per_s is not None:
        yield _plain(defined.GROWTH, found.queue, demand.backlog.grows_per_s)
    states = Counter(one.state for one in found.requests)
    yield _labelled(defined.REQUESTS, found.queue, {state: states[state] for state in STATES})
    workers = {"alive": totals.alive, "busy": totals.busy, "late": totals.late}
    yield _labelled(defined.WORKERS, found.queue, workers)
    yield from _by_band(found, demand)
    yield from _measured(found.queue, found.measured)
    tasks = by_task(found.tasks)
    yield from _by_task(found.queue, tasks)
    yield _long_calls(found, tasks)
    nodes = [one for one in found.servers.nodes if not one.error]
    for metric, memory in (
        (defined.MEMORY, {one.node or SINGLE: one.used for one in nodes}),
        (defined.MEMORY_LIMIT, {one.node or SINGLE: one.most for one in nodes}),
    ):
        yield _labelled(metric, found.queue, memory)


def _by_band(found: Snapshot, demand: Demand) -> Iterator[Metric]:
    waiting, running, ready, dead, oldest = (dict.fromkeys(defined.BANDS, 0.0) for _ in range(5))
    for lane in found.lanes:
        band = defined.band_of(lane.priority)
        running[band] += lane.held
        ready[band] += lane.tokens
        dead[band] += lane.dead
    for priority, count in demand.backlog.lanes.items():
        waiting[defined.band_of(priority)] += count
    for one in found.requests:
        if one.may_start(found.now_ms):
            band = defined.band_of(one.priority)
            oldest[band] = max(oldest[band], (found.now_ms - one.submitted_ms) / 1000)
    for metric, values in (
        (defined.WAITING, waiting),
        (defined.RUNNING, running),
        (defined.READY, ready),
        (defined.DEAD, dead),
        (defined.OLDEST, oldest),
    ):
        yield _labelled(metric, found.queue, values)


def _measured(queue: str, measured: Mapping[int, Measured]) -> Iterator[Metric]:
    bands: dict[str, list[Measured]] = {}
    for priority, one in measured.items():
        bands.setdefault(defined.band_of(priority), []).append(one)
    waited = {
        band: Distribution().merge([one.waited for one in found]) for band, found in bands.items()
    }
    ran = {band: Distribution().merge([one.ran for one in found]) for band, found in bands.items()}
    yield _histogram(defined.WAITED, queue, waited, _WAITED_BITS, 1_000)
    yield _histogram(defined.RAN, queue, ran, _RAN_BITS, 1_000_000)
    for metric, name in ((defined.FAILED, "failed"), (defined.TIMEOUTS, "timeouts")):
        family = CounterMetricFamily(metric.family, metric.help, labels=_labels(metric))
        for band, found in sorted(bands.items()):
            family.add_metric([queue, band], sum(one.counts.get(name, 0) for one in found))
        yield family


def _by_task(queue: str, tasks: Mapping[str, Measured]) -> Iterator[Metric]:
    done = CounterMetricFamily(defined.TASK_DONE.family, defined.TASK_DONE.help, labels=_TASK)
    failed = CounterMetricFamily(defined.TASK_FAILED.family, defined.TASK_FAILED.help, labels=_TASK)
    seconds = CounterMetricFamily(
        defined.TASK_SECONDS.family, defined.TASK_SECONDS.help, labels=_TASK
    )
    for task, one in tasks.items():
        done.add_metric([queue, task], one.ran.count)
        failed.add_metric([queue, task], one.counts["failed"])
        seconds.add_metric([queue, task], one.ran.sum / 1e6)
    yield from (done, failed, seconds)


def _long_calls(found: Snapshot, tasks: Mapping[str, Measured]) -> Metric:
    """Returns how many calls run unusually long, by task; a task without a name of its own: OTHER.

    Each task has a sample, so that an alert ends when its calls have ended.
    """
    counts = dict.fromkeys((*tasks, OTHER), 0.0)
    for call in unusual_of(found.workers, found.tasks, found.measured):
        counts[call.task if call.task and call.task in tasks else OTHER] += 1
    return _labelled(defined.LONG_CALLS, found.queue, counts)


def _histogram(
    metric: Defined, queue: str, by_band: Mapping[str, Distribution], bits: Iterable[int],
    per_s: int,
) -> Metric:  # fmt: skip
    family = HistogramMetricFamily(metric.name, metric.help, labels=_labels(metric))
    for band, found in sorted(by_band.items()):
        ends = [(1 << count) - 1 for count in bits]
        counts = [(str(end / per_s), _up_to(found, end)) for end in ends]
        family.add_metric([queue, band], [*counts, ("+Inf", found.count)], found.sum / per_s)
    return family


def _up_to(found: Distribution, most: int) -> int:
    return sum(count for bucket, count in found.buckets.items() if bounds_of(bucket)[1] <= most)


def _plain(metric: Defined, queue: str, value: float) -> Metric:
    family = GaugeMetricFamily(metric.name, metric.help, labels=_labels(metric))
    family.add_metric([queue], value)
    return family


def _labelled(metric: Defined, queue: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(metric.name, metric.help, labels=_labels(metric))
    for label, value in values.items():
        family.add_metric([queue, label], value)
    return family


def _labels(metric: Defined) -> list[str]:
    return ["queue", *metric.labels]


# ------------------------------------------------------------------ endpoint
# The endpoint that Prometheus scrapes.


MEDIA = "text/plain; version=0.0.4; charset=utf-8"
_MOST_S = 5.0  # Prometheus waits ten seconds by default


class _Families:
    """A collector of what was read already."""

    def __init__(self, found: Iterable[Metric]) -> None:
        self._found = found

    def collect(self) -> Iterable[Metric]:
        return self._found


async def metrics(site: Site, _: Call) -> Response:
    """Returns the metrics; 200 also if Redis does not answer: one metric reports that."""
    queue = site.queue
    try:
        async with asyncio.timeout(_MOST_S):
            snapshot = await site.snapshots.get()
            found = families(snapshot, (await site.demand.get()).demand)
    except (TimeoutError, FairlaneError):
        found = absent(queue.name)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(found))
    return Response(generate_latest(registry), media_type=MEDIA)


# ------------------------------------------------------------------ health
# Liveness, readiness: what starts the server asks them.


_READY_S = 2.0


async def live(_: Site, __: Call) -> Response:
    """Returns 200 while the process answers."""
    return answer(Health())


async def ready(site: Site, _: Call) -> Response:
    """Returns 200 if Redis answers and the server does not stop; Redis is asked once a second."""
    if site.stopping.is_set():
        raise Refusal(503, "the server stops")
    try:
        async with asyncio.timeout(_READY_S):
            await site.readiness.get()
    except TimeoutError:
        raise Refusal(503, "Redis does not answer") from None
    return answer(Health())


ENDPOINTS = (
    Endpoint(
        method="GET", path="/livez", handle=live, group="Health", summary="Is the process alive",
        gives=Health, cost=0,
    ),
    Endpoint(
        method="GET", path="/readyz", handle=ready, group="Health", summary="Can it serve calls",
        gives=Health, refuses=(503,), cost=0,
    ),
    Endpoint(
        method="GET", path="/metrics", handle=metrics, group="Health", scopes=("view",), gives=str,
        summary="Show the queue as metrics for Prometheus", streams=(MEDIA,),
    ),
)  # fmt: skip
