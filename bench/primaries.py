"""One queue over one, two and three primaries: how fast, and how the work spreads over them.

`python bench/primaries.py [runs] [sub-requests] [samples]`

All primaries are on this machine, so what it can do as a whole is the limit. That the work spreads
is seen in what each of them had to do: processor time and commands. The last part measures what
an urgent request pays for it: a worker asks one shard after the other.
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
from pathlib import Path
from typing import TYPE_CHECKING, Any

import support
from fairlane import Queue, Worker

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tests.support.clusters import Cluster, run_cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlane import Context

RUNS = int(sys.argv[1]) if len(sys.argv) > 1 else 5
COUNT = int(sys.argv[2]) if len(sys.argv) > 2 else 40_000
SAMPLES = int(sys.argv[3]) if len(sys.argv) > 3 else 60
BODY = b"x" * 100
SETTINGS = ((1, 0), (2, 0), (2, 2), (3, 0), (3, 3))  # primaries, shards
SIZES = {  # of a request, how many sub-requests there are, ms of a slice
    "requests of one": (1, COUNT // 4, 20.0),
    "requests of 10": (10, COUNT, 20.0),
    "requests of 1,000": (1_000, 5 * COUNT, 20.0),
    "requests of 100, one at a time (slices off)": (100, COUNT // 4, 0.0),
}
WORKERS = 2
BULK_REQUESTS = 6
BULK_S = 0.0001  # one sub-request of the bulk
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
_SLICES = 1 << 16  # starts of slices that are kept


@dataclass
class Spent:
    """What one primary had done: processor seconds, commands from clients and in all."""

    cpu_s: float
    calls: int
    commands: int

    def __sub__(self, other: Spent) -> Spent:
        return Spent(
            self.cpu_s - other.cpu_s, self.calls - other.calls, self.commands - other.commands
        )


@dataclass
class Row:
    """One setting, over all runs."""

    primaries: int
    shards: int
    count: int  # sub-requests
    rates: list[float] = field(default_factory=list)
    submitted: list[float] = field(default_factory=list)
    spent: list[list[Spent]] = field(default_factory=list)  # run by run, the busiest first
    home: list[float] = field(default_factory=list)  # the dispatch slot's primary's share of CPU

    def per_thousand(self, values: list[float]) -> str:
        """By primary, for a thousand sub-requests."""
        return " / ".join(f"{1000 * one / self.count:,.0f}" for one in values)


@contextmanager
def cluster_of(primaries: int) -> Iterator[Cluster]:
    """Primaries without persistence on the first core; everything else is on the last one."""
    with run_cluster(primaries, 0, node_timeout_ms=10_000) as cluster:
        for node in cluster.nodes:
            support.pin(node.pid, support.CORES[0])
        support.pin(0, support.CORES[-1])
        yield cluster


def spent(cluster: Cluster) -> list[Spent]:
    """By primary, since it was started."""
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
    """Workers in processes of their own, until nothing is left; `began` keeps the first call."""

    def echo(body: bytes) -> bytes:
        if began[:8] == bytes(8):
            struct.pack_into("d", began, 0, time.time())
        return body

    pids = []
    for _ in range(WORKERS):
        pid = os.fork()
        if pid == 0:
            most = {} if slice_ms else {"tokens": 1}
            Worker(queue, echo, slice_ms=slice_ms, **most).run(until_idle=True)
            os._exit(0)
        pids.append(pid)
    return pids


def drain(row: Row, size: int, slice_ms: float) -> None:
    """One run: all of it is submitted, then drained; what each primary had to do for both."""
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
    """When the last of so many requests ended, in ms of the server, which is this machine."""
    ended, place = 0, "0"
    while ended < wanted:
        time.sleep(_LOOK_S)
        for ending in queue.completions(place, follow=False):
            ended, place = ended + 1, ending.log_id
    return int(place.partition("-")[0])


def measure(size: int, count: int, slice_ms: float) -> list[Row]:
    """Every setting in turn, run after run."""
    rows = [Row(*setting, count) for setting in SETTINGS]
    for run in range(RUNS):
        for row in rows:
            drain(row, size, slice_ms)
            said = f"{row.primaries} primaries, {row.shards} shards: {row.rates[-1]:,.0f}/s"
            print(f"run {run + 1}/{RUNS}  {said}", file=sys.stderr)
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
    """When each slice began, in memory that worker and client share."""

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, 8 * (_SLICES + 1))
        self._last: Any = None

    def note(self, lease: Any) -> None:
        """In the worker: the handler works under this lease now."""
        if lease == self._last:
            return
        self._last = lease
        (count,) = struct.unpack_from("q", self._page)
        struct.pack_into("d", self._page, 8 * (count % _SLICES + 1), time.monotonic())
        struct.pack_into("q", self._page, 0, count + 1)

    def between(self, since: float, until: float) -> int:
        """How many slices began in between."""
        (count,) = struct.unpack_from("q", self._page)
        kept = range(max(0, count - _SLICES), count)
        moments = (struct.unpack_from("d", self._page, 8 * (n % _SLICES + 1))[0] for n in kept)
        return sum(1 for moment in moments if since < moment < until)


def urgent(primaries: int, shards: int) -> tuple[list[float], list[int]]:
    """Milliseconds until an urgent request's handler starts, and the slices begun before it."""
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
        raise SystemExit("the bulk was over before the last urgent request")
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
        "Sub-requests of 100 bytes, submitted by `submit_many`, then drained by "
        f"{WORKERS} worker processes that echo (*drained/s*: from the first call of a handler to "
        f"the last entry of the completion log); median of {RUNS} runs. All primaries share one "
        "core here, so *drained/s* cannot grow with their number. *One core each* is what the "
        "busiest primary's processor time would allow if each had a core of its own; *of one* "
        "compares that with one primary. *Calls* are scripts and pops that clients sent, "
        "*commands* all that ran, those inside scripts included; both per 1,000 sub-requests, "
        "the busiest primary first."
    )
    about_urgent = (
        f"{SAMPLES} requests of one sub-request at priority 0, one after the other, while "
        f"{BULK_REQUESTS} requests of priority 50 and limit 3 keep the only worker busy "
        f"({BULK_S * 1000:g} ms each, slices of 20 ms): from the return of submit_request until "
        "its handler starts. The worker of a spread queue asks one shard after the other, so an "
        "urgent token may wait for a slice of each of the others."
    )
    lines = [story, ""]
    for name, (size, count, slice_ms) in SIZES.items():
        title = f"## {name[0].upper()}{name[1:]}: {count:,} sub-requests"
        lines += [title, "", *table(measure(size, count, slice_ms)), ""]
    lines += ["## An urgent request in a busy queue", "", about_urgent, "", *inversion()]
    support.write("primaries", "One queue over several primaries", lines)


if __name__ == "__main__":
    main()
