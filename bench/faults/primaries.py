"""Measures one queue over one, two and three primaries: its speed, and the load of each primary.

`python -m bench.faults.primaries [runs] [sub-requests] [samples]`

All primaries run on this machine, so its total speed is the limit. The processor time and commands
of each primary show how the work spreads. The last part measures the cost for an urgent request,
because a worker polls one shard after the other.
"""

from __future__ import annotations

import mmap
import os
import signal
import struct
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bench.harness import support
from tests.support.servers.clusters import Cluster, run_cluster

from fairlane import Queue, Worker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlane import Context

RUNS = int(sys.argv[1]) if len(sys.argv) > 1 else 5
COUNT = int(sys.argv[2]) if len(sys.argv) > 2 else 40_000
SAMPLES = int(sys.argv[3]) if len(sys.argv) > 3 else 60
BODY = b"x" * 100
SETTINGS = ((1, 0), (2, 0), (2, 2), (3, 0), (3, 3))  # primaries, shards
SIZES = {  # size of a request, number of sub-requests, ms of a slice
    "requests of one": (1, COUNT // 4, 20.0),
    "requests of 10": (10, COUNT, 20.0),
    "requests of 1,000": (1_000, 5 * COUNT, 20.0),
    "requests of 100, one at a time (slices off)": (100, COUNT // 4, 0.0),
}
WORKERS = 2
BULK_REQUESTS = 6
BULK_S = 0.0001  # time of one sub-request of the bulk
URGENT = ((1, 0), (3, 0), (3, 3), (3, 9))
COLUMNS = (
    *("primaries", "shards", "submitted/s", "drained/s", "Redis µs each", "CPU by primary"),
    *(
        "calls by primary",
        "commands by primary",
        "dispatch slot's CPU",
        "one core each, per second",
    ),
    "of one",
)
URGENT_COLUMNS = (
    *("primaries", "shards", "median ms", "95 % ms", "worst ms"),
    *("slices of others before it: median", "95 %", "most"),
)
_LOOK_S = 0.05
_SLICES = 1 << 16  # the newest starts of slices that stay in memory


@dataclass
class Spent:
    """Holds the load of one primary: processor seconds, calls of clients and all commands."""

    cpu_s: float
    calls: int
    commands: int

    def __sub__(self, other: Spent) -> Spent:
        return Spent(
            self.cpu_s - other.cpu_s, self.calls - other.calls, self.commands - other.commands
        )


@dataclass
class Row:
    """Holds the figures of one setting over all runs."""

    primaries: int
    shards: int
    count: int  # sub-requests
    rates: list[float] = field(default_factory=list)
    submitted: list[float] = field(default_factory=list)
    spent: list[list[Spent]] = field(default_factory=list)  # by run, the busiest primary first
    home: list[float] = field(default_factory=list)  # CPU share of the dispatch slot's primary

    def per_thousand(self, values: list[float]) -> str:
        """Returns the value of each primary for a thousand sub-requests."""
        return " / ".join(f"{1000 * one / self.count:,.0f}" for one in values)


@contextmanager
def cluster_of(primaries: int) -> Iterator[Cluster]:
    """Runs primaries without persistence on the first core, and this process on the last one."""
    with run_cluster(primaries, 0, node_timeout_ms=10_000) as cluster:
        for node in cluster.nodes:
            support.pin(node.pid, support.CORES[0])
        support.pin(0, support.CORES[-1])
        yield cluster


def spent(cluster: Cluster) -> list[Spent]:
    """Returns the load of each primary since its start."""
    found = []
    for node in cluster.nodes:
        cpu, stats = node.control.info("cpu"), node.control.info("commandstats")
        by_name = {name.removeprefix("cmdstat_"): row["calls"] for name, row in stats.items()}
        calls = sum(
            by_name.get(name, 0) for name in ("evalsha", "eval", "lmpop", "blmpop", "brpop")
        )
        seconds = cpu["used_cpu_user"] + cpu["used_cpu_sys"]
        found.append(Spent(seconds, calls, sum(by_name.values())))
    return found


def work(queue: Queue, slice_ms: float, began: mmap.mmap) -> list[int]:
    """Starts worker processes that drain the queue; `began` receives the time of the first call."""

    def echo(body: bytes) -> bytes:
        if began[:8] == bytes(8):
            struct.pack_into("d", began, 0, time.time())
        return body

    pids = []
    for _ in range(WORKERS):
        pid = os.fork()
        if pid == 0:
            most = {} if slice_ms else {"tokens": 1}
            Worker(queue, echo, slice_s=slice_ms / 1000, **most).run(until_idle=True)
            os._exit(0)
        pids.append(pid)
    return pids


def drain(row: Row, size: int, slice_ms: float) -> None:
    """Submits and drains all sub-requests once, and adds rates and loads to the row."""
    with cluster_of(row.primaries) as cluster, Queue.from_url(cluster.url) as queue:
        queue.set_shards(row.shards)
        before, at = spent(cluster), time.perf_counter()
        made = queue.submit_many([[BODY] * size] * (row.count // size))
        row.submitted.append(row.count / (time.perf_counter() - at))
        first = mmap.mmap(-1, 8)
        pids = work(queue, slice_ms, first)
        last_ms = last_end(queue, len(made))
        (began,) = struct.unpack("d", first[:8])
        row.rates.append(row.count / (last_ms / 1000 - began))
        after = spent(cluster)
        for pid in pids:
            os.waitpid(pid, 0)
        each = [one - other for one, other in zip(after, before, strict=True)]
        home = cluster.nodes.index(cluster.owner("{req}:0"))
        row.home.append(each[home].cpu_s / sum(one.cpu_s for one in each))
        row.spent.append(sorted(each, key=lambda one: -one.cpu_s))


def last_end(queue: Queue, wanted: int) -> int:
    """Returns the server's time in ms at the end of the last of these requests."""
    ended, place = 0, "0"
    while ended < wanted:
        time.sleep(_LOOK_S)
        for ending in queue.completions(place, follow=False):
            ended, place = ended + 1, ending.log_id
    return int(place.partition("-")[0])


def measure(size: int, count: int, slice_ms: float) -> list[Row]:
    """Measures all settings in turn, run after run."""
    rows = [Row(*setting, count) for setting in SETTINGS]
    for run in range(RUNS):
        for row in rows:
            drain(row, size, slice_ms)
            text = f"{row.primaries} primaries, {row.shards} shards: {row.rates[-1]:,.0f}/s"
            print(f"run {run + 1}/{RUNS}  {text}", file=sys.stderr)
    return rows


def table(rows: list[Row]) -> list[str]:
    lines = [
        "| " + " | ".join(COLUMNS) + " |",
        "|---:|---:|---:|---:|---:|---|---|---|---:|---:|---:|",
    ]
    alone = 0.0
    for row in rows:
        middle = [
            [
                support.median([getattr(run[n], name) for run in row.spent])
                for n in range(row.primaries)
            ]
            for name in ("cpu_s", "calls", "commands")
        ]
        cpu, calls, commands = middle
        possible = row.count / max(cpu)
        alone = alone or possible
        shares = " / ".join(f"{100 * one / sum(cpu):.0f} %" for one in cpu)
        lines.append(
            f"| {row.primaries} | {row.shards or 'none'} | {support.median(row.submitted):,.0f} "
            f"| {support.median(row.rates):,.0f} | {1e6 * sum(cpu) / row.count:.1f} | {shares} "
            f"| {row.per_thousand(calls)} | {row.per_thousand(commands)} "
            f"| {100 * support.median(row.home):.0f} % | {possible:,.0f} | {possible / alone:.2f} |"
        )
    return lines


# ------------------------------------------------------------------ an urgent request


class Starts:
    """Holds the start of each slice in memory that worker and client share."""

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, 8 * (_SLICES + 1))
        self._last: Any = None

    def note(self, lease: Any) -> None:
        """Notes the start of a slice if the lease is new; the worker calls it."""
        if lease == self._last:
            return
        self._last = lease
        (count,) = struct.unpack_from("q", self._page)
        struct.pack_into("d", self._page, 8 * (count % _SLICES + 1), time.monotonic())
        struct.pack_into("q", self._page, 0, count + 1)

    def between(self, since: float, until: float) -> int:
        """Returns the number of slices that began between two times."""
        (count,) = struct.unpack_from("q", self._page)
        kept = range(max(0, count - _SLICES), count)
        moments = (struct.unpack_from("d", self._page, 8 * (n % _SLICES + 1))[0] for n in kept)
        return sum(1 for moment in moments if since < moment < until)


def urgent(primaries: int, shards: int) -> tuple[list[float], list[int]]:
    """Returns the ms until an urgent request's handler starts, and the slices that began before."""
    starts = Starts()

    def handler(body: bytes, context: Context) -> bytes:
        if body == b"urgent":
            return b"%f" % time.monotonic()
        starts.note((context.id, context.fence))
        end = time.perf_counter() + BULK_S
        while time.perf_counter() < end:
            pass
        return b""

    waits, slices = [], []
    with cluster_of(primaries) as cluster, Queue.from_url(cluster.url) as queue:
        queue.set_shards(shards)
        each = 10 * COUNT // BULK_REQUESTS
        bulk = [
            queue.submit_request((b"bulk" for _ in range(each)), priority=50, limit=3)
            for _ in range(BULK_REQUESTS)
        ]
        worker = os.fork()
        if worker == 0:
            Worker(queue, handler).run()
            os._exit(0)
        while sum(request.progress().done for request in bulk) < 2_000:
            time.sleep(0.01)
        for _ in range(SAMPLES):
            request = queue.submit_request([b"urgent"], priority=0, limit=1)
            submitted = time.monotonic()
            started = float(next(request.results()).body or b"nan")
            waits.append((started - submitted) * 1000)
            slices.append(starts.between(submitted, started))
        left = sum(request.progress().left for request in bulk)
        for request in bulk:
            request.cancel()
        os.kill(worker, signal.SIGTERM)
        os.waitpid(worker, 0)
    if not left:
        raise SystemExit("the bulk ended before the last urgent request: give more sub-requests")
    return sorted(waits), sorted(slices)


def inversion() -> list[str]:
    lines = [
        "| " + " | ".join(URGENT_COLUMNS) + " |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for primaries, shards in URGENT:
        waits, slices = urgent(primaries, shards)
        half, high = len(waits) // 2, int(0.95 * len(waits))
        lines.append(
            f"| {primaries} | {shards or 'none'} | {waits[half]:.1f} | {waits[high]:.1f} "
            f"| {waits[-1]:.1f} | {slices[half]} | {slices[high]} | {slices[-1]} |"
        )
        print(lines[-1], file=sys.stderr)
    return lines


def main() -> None:
    story = (
        "`submit_many` submits bodies of 100 bytes, then "
        f"{WORKERS} worker processes drain them and return each body. *Drained/s* counts from the "
        "first call of a handler to the last entry of the completion log. The figures are medians "
        f"of {RUNS} runs. All primaries share one core here, so *drained/s* cannot grow with their "
        "number. *One core each* is the rate that the busiest primary's processor time would allow "
        "if each primary had a core of its own. *Of one* compares that rate with the one of a "
        "single primary. *Calls* are the scripts and pops that clients sent. *Commands* are all "
        "commands that ran, also those inside scripts. Both are per 1,000 sub-requests, the "
        "busiest primary first."
    )
    about_urgent = (
        f"A client submits {SAMPLES} requests of one sub-request at priority 0, one after the "
        f"other, while {BULK_REQUESTS} requests of priority 50 and limit 3 keep the only worker "
        f"busy. Their sub-requests take {BULK_S * 1000:g} ms each, in slices of 20 ms. The time "
        "counts from the return of submit_request until the handler starts. The worker of a "
        "spread queue polls one shard after the other, so an urgent token may wait for a slice of "
        "each other shard."
    )
    lines = [story, ""]
    for name, (size, count, slice_ms) in SIZES.items():
        title = f"## {name[0].upper()}{name[1:]}: {count:,} sub-requests"
        lines += [title, "", *table(measure(size, count, slice_ms)), ""]
    lines += ["## An urgent request in a busy queue", "", about_urgent, "", *inversion()]
    support.write("primaries", "One queue over several primaries", lines)


if __name__ == "__main__":
    main()
