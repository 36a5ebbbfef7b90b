"""The metrics of a queue and of a worker: their names, and how they are written as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


# ------------------------------------------------------------------ definitions
# Every metric: of a worker's health port, of `fairlane serve`, or of both.
#
# Labels have few values: the queue, a band of ten priorities, a state, a primary, one of 200 tasks
# or `other`. Nothing that a producer names freely (a request, a tenant, a tag) is a label, because
# each value costs memory in Prometheus.


BANDS = tuple(f"{first}-{first + 9}" for first in range(0, 100, 10))


class Metric(NamedTuple):
    """One metric. `labels` come after the label `queue`, which each has."""

    name: str
    kind: str  # counter, gauge or histogram
    help: str
    labels: tuple[str, ...] = ()

    @property
    def family(self) -> str:
        """Returns the name without the ending of a counter."""
        return self.name.removesuffix("_total")

    @property
    def samples(self) -> Iterator[str]:
        """Yields the names of its samples."""
        if self.kind == "histogram":
            yield from (f"{self.name}_{end}" for end in ("bucket", "count", "sum"))
        else:
            yield self.name


def band_of(priority: int) -> str:
    """Returns the band of a priority, such as 40-49."""
    return BANDS[priority // 10]


def _worker(name: str, kind: str, text: str) -> Metric:
    return Metric(f"fairlane_worker_{name}" + ("_total" if kind == "counter" else ""), kind, text)


# By their names in the report of `/healthz`, which has busy_us.
WORKER = {
    name: _worker(name, kind, text)
    for name, kind, text in (
        ("done", "counter", "Sub-requests completed with a result."),
        ("failed", "counter", "Handler calls that failed."),
        ("slices", "counter", "Leases worked off."),
        ("busy_seconds", "counter", "Time spent in handlers."),
        ("unconfirmed", "counter", "Durable settlements that too few replicas confirmed."),
        ("retries", "counter", "Sub-requests that failed and will run again."),
        ("rejected", "counter", "Sub-requests that the handler rejected."),
        ("timeouts", "counter", "Handler calls whose time ran out."),
        ("lost", "counter", "Results refused because their lease was another worker's by then."),
        (
            "dead",
            "counter",
            "Sub-requests that failed at their last attempt or were rejected.",
        ),
        ("crashes", "counter", "Processes that died by themselves."),
        ("held", "gauge", "Leases held now."),
        ("processes", "gauge", "Processes running."),
        ("restarts", "counter", "Processes started again after they died or were killed."),
        ("healthy", "gauge", "1 while Redis answers the beats."),
    )
}


def _queue(name: str, text: str, *labels: str, kind: str = "gauge") -> Metric:
    return Metric(f"fairlane_queue_{name}", kind, text, labels)


# The leading worker has these two, and so has the server.
DEMAND = _queue("demand", "Leases that workers could take now.")
WANTED = _queue("wanted", "Leases that workers have or could take now.")
# The server alone has the others.
UP = _queue("up", "1 if Redis answered this scrape, else the queue's other metrics are absent.")
EXACT = _queue("exact", "1 if all unfinished requests were read, 0 if a part of them.")
PAUSED = _queue("paused", "1 while the queue is paused.")
UNFINISHED = _queue("unfinished", "Requests that have not ended.")
DELAYED = _queue("delayed", "Tokens that are due later.")
REQUESTS = _queue("requests", "Unfinished requests that were read, by state.", "state")
WAITING = _queue("waiting", "Sub-requests that wait for their first delivery.", "band")
GROWTH = _queue(
    "growth", "By how much the waiting sub-requests grow in a second; < 0: they shrink."
)
RUNNING = _queue("running", "Leases that workers hold.", "band")
READY = _queue("ready", "Tokens in the lanes: leases that workers could take.", "band")
DEAD = _queue("dead", "Dead sub-requests of unfinished requests.", "band")
OLDEST = _queue(
    "oldest_seconds", "Age of the oldest request with work that may start; 0 if none waits.", "band"
)
WORKERS = _queue("workers", "Workers that are alive, and those with a late heartbeat.", "state")
UNITS = _queue("units", "Calls that the workers can make concurrently.")
WAITED = _queue(
    "waited_seconds", "From the submission of a sub-request to its call.", "band", kind="histogram"
)
RAN = _queue("ran_seconds", "Duration of the calls with a result.", "band", kind="histogram")
FAILED = _queue("failed_total", "Handler calls that failed.", "band", kind="counter")
TIMEOUTS = _queue("timeouts_total", "Handler calls whose time ran out.", "band", kind="counter")
TASK_DONE = _queue("task_done_total", "Calls with a result.", "task", kind="counter")
TASK_FAILED = _queue("task_failed_total", "Calls that failed.", "task", kind="counter")
TASK_SECONDS = _queue(
    "task_ran_seconds_total", "Duration of the calls with a result.", "task", kind="counter"
)
LONG_CALLS = _queue(
    "long_calls", "Calls that run for ten times as long as their task's usually do.", "task"
)
MEMORY = Metric("fairlane_redis_memory_bytes", "gauge", "Memory that a primary uses.", ("node",))
MEMORY_LIMIT = Metric(
    "fairlane_redis_memory_limit_bytes", "gauge", "maxmemory of a primary; 0 = none.", ("node",)
)
QUEUE = (
    *(DEMAND, WANTED, UP, EXACT, PAUSED, UNFINISHED, DELAYED, REQUESTS, WAITING, GROWTH),
    *(RUNNING, READY, DEAD, OLDEST, WORKERS, UNITS, WAITED, RAN, FAILED, TIMEOUTS),
    *(TASK_DONE, TASK_FAILED, TASK_SECONDS, LONG_CALLS, MEMORY, MEMORY_LIMIT),
)
ALL = (*WORKER.values(), *QUEUE)
# A program with streams of Spark has these, see fairlane.spark.StreamMetrics.
STREAM_LAG = Metric(
    "fairlane_stream_lag", "gauge", "Entries that a query has not read.", ("query",)
)
STREAM_ROWS = Metric("fairlane_stream_rows_total", "counter", "Rows of a query.", ("query",))
STREAM_BATCH = Metric("fairlane_stream_batch", "gauge", "The last micro-batch.", ("query",))


# ------------------------------------------------------------------ plain
# Writes metrics as text, for a process that has the standard library alone.


MEDIA = "text/plain; version=0.0.4"


def text_of(queue: str, values: Iterable[tuple[Metric, float]]) -> str:
    """Returns one sample of each metric. No name of a queue has a character to escape."""
    lines = []
    for metric, value in values:
        lines += [
            f"# HELP {metric.name} {metric.help}",
            f"# TYPE {metric.name} {metric.kind}",
            f'{metric.name}{{queue="{queue}"}} {value + 0}',  # True is 1
        ]
    return "\n".join(lines) + "\n"
