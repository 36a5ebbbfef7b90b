"""Measures the live view of a queue with 100,000 requests and 1,000 workers.

`python -m bench.web.dashboard`: how long a snapshot and the dashboard's calls take, and how many
commands Redis gets while 1 and while 200 viewers watch. The workers are records that beat.
"""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import redis
from bench.harness import support

from fairlane import Change, Queue
from fairlane.operations import workers
from fairlane.operations.lease import add_stats
from fairlane.protocol.steps import Batch

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlane.protocol.steps import Call

REQUESTS, WORKERS, LANES = 100_000, 1_000, 100
RUNS, WATCH_S = 15, 6.0
NAME = "big"
CALLS = (
    *("/v1/queue", "/v1/queues", "/v1/workers?limit=100", "/v1/workers?limit=1000"),
    *("/v1/requests?limit=50", "/v1/requests?limit=50&sort=-waiting", "/v1/requests?limit=1000"),
    *("/v1/requests?limit=50&state=ended", "/v1/requests?limit=50&state=ended&sort=submitted"),
    *("/v1/flows?limit=50", "/v1/errors", "/v1/schedules", "/v1/audit", "/v1/doctor"),
    *("/v1/requests/one", "/v1/requests/one/why", "/v1/requests/one/leases", "/v1/demand"),
    "/metrics",
)
ENDED = 2_000


def fill(queue: Queue) -> None:
    """Submits and ends requests, lets the workers beat once, and adds measurements of all lanes."""
    ended = queue.submit_many([[b"x"]] * ENDED, tags=["nightly"])
    queue.change(queue.select(Change.cancel(), [one.id for one in ended]))
    for lane in range(LANES):
        queue.submit_many([[b"x"]] * (REQUESTS // LANES), priority=lane)
    queue.submit_request([b"x"], id="one", priority=LANES // 2)
    chance = random.Random(1)
    for lane in range(LANES):
        waited = {int(chance.lognormvariate(5, 2)): 1 for _ in range(300)}
        ran = {1000 * value: count for value, count in waited.items()}
        queue.driver.run(_batch(add_stats(NAME, lane, waited, ran, {"failed": 3})))
    started = str(int(time.time() * 1000))
    for number in range(WORKERS):
        name = f"host{number % 50}:{10_000 + number}"
        queue.driver.run(workers.register_worker(NAME, name, f"host{number % 50}", 7, started))
        beat(queue, name, started, number)


def beat(queue: Queue, name: str, started: str, number: int) -> None:
    """Lets a worker beat."""
    holds = f"{number % 4} leases; 4 units 12.500/s; fairlane 0.1.0"
    queue.driver.run(workers.heartbeat(NAME, name, started, holds))


async def _batch(calls: list[Call[Any]]) -> Any:
    return await Batch(calls)


def times_of(call: Callable[[], object]) -> list[float]:
    """Returns how long each of the calls took, in ms; the first is not counted."""
    call()
    found = []
    for _ in range(RUNS):
        begun = time.perf_counter()
        call()
        found.append(1000 * (time.perf_counter() - begun))
    return sorted(found)


def used_s(client: redis.Redis, pid: int) -> tuple[float, float]:
    """Returns the processor time so far in seconds: of a process, and of the server."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ours = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    info = client.info("cpu")
    return ours, info["used_cpu_user"] + info["used_cpu_sys"]


def measured(label: str, call: Callable[[], object], client: redis.Redis, pid: int) -> str:
    """Returns a line of the table: median, second longest, and processor time of a call."""
    before = used_s(client, pid)
    times = times_of(call)
    after = used_s(client, pid)
    ours, theirs = (1000 * (new - old) / (RUNS + 1) for old, new in zip(before, after, strict=True))
    longest = f"{statistics.median(times):.0f} ms | {times[-2]:.0f} ms"
    return f"| {label} | {longest} | {ours:.0f} + {theirs:.0f} ms |"


async def watch(port: int, viewers: int, client: redis.Redis) -> tuple[float, float, float]:
    """Returns looks, commands and events of all viewers, each in a second."""
    streams = [
        await asyncio.open_connection("127.0.0.1", port, limit=1 << 22) for _ in range(viewers)
    ]
    events = 0

    async def read(reader: asyncio.StreamReader) -> None:
        nonlocal events
        async for line in reader:
            events += line.startswith(b"event: live")

    for _, writer in streams:
        writer.write(b"GET /v1/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
    tasks = [asyncio.create_task(read(reader)) for reader, _ in streams]
    await asyncio.sleep(3)
    client.config_resetstat()
    events, begun = 0, time.perf_counter()
    await asyncio.sleep(WATCH_S)
    took = time.perf_counter() - begun
    found = client.info("commandstats")
    calls = sum(one["calls"] for one in found.values())
    for task in tasks:
        task.cancel()
    for _, writer in streams:
        writer.close()
    await asyncio.sleep(2)
    return (found["cmdstat_info"]["calls"] / took, calls / took, events / took)


def measure(url: str) -> list[str]:
    """Returns the lines of the page."""
    queue = Queue.from_url(url, name=NAME)
    fill(queue)
    client = redis.Redis.from_url(url)
    lines = ["| | median | 2nd longest of 15 | processor time, in Python and in Redis |"]
    lines.append("|---|---:|---:|---:|")
    for name, call in (("snapshot", queue.snapshot), ("demand", queue.demand)):
        lines.append(measured(f"`queue.{name}()`", call, client, os.getpid()))
    command = [sys.executable, "-m", "fairlane", "serve", "--queue", NAME, "--port", "0"]
    environment = {**os.environ, "FAIRLANE_REDIS": url}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as serving:
        try:
            address = (serving.stdout or sys.stdin.buffer).readline().decode().strip()
            pid = serving.pid
            lines += [
                measured(f"`GET {path}`", _getter(address + path), client, pid) for path in CALLS
            ]
            first = "`GET /v1/live`, until its first event"
            lines.append(measured(first, _first(address), client, pid))
            port = int(address.rpartition(":")[2])
            lines += [
                "",
                "| viewers | looks | commands on Redis | events sent |",
                "|---:|---:|---:|---:|",
            ]
            for viewers in (1, 200):
                looks, commands, events = asyncio.run(watch(port, viewers, client))
                lines.append(f"| {viewers} | {looks:.1f}/s | {commands:,.0f}/s | {events:,.0f}/s |")
        finally:
            serving.terminate()
    return lines


def _getter(address: str) -> Callable[[], object]:
    def get() -> object:
        with urllib.request.urlopen(address, timeout=30) as answer:  # noqa: S310
            return answer.read()

    return get


def _first(address: str) -> Callable[[], object]:
    """Returns a call that reads the first event, as a page does when it opens.

    Another viewer watches meanwhile, as that of the call before.
    """
    held = urllib.request.urlopen(f"{address}/v1/live", timeout=30)  # noqa: S310

    def read() -> object:
        with urllib.request.urlopen(f"{address}/v1/live", timeout=30) as answer:  # noqa: S310
            return next(line for line in answer if line.startswith(b"data")), held

    return read


def main() -> None:
    """Measures, and writes the page."""
    with support.server() as url:
        lines = measure(url)
    intro = (
        f"A queue of {REQUESTS:,} unfinished requests over {LANES} priorities, and {WORKERS:,} "
        "workers with a heartbeat. The goal is a response within 100 ms. While there are viewers, "
        "one poller of `fairlane serve` reads once a second, for all of them. Walks for the demand "
        "go on for a minute after the last call, so the commands of some are counted."
    )
    busy = os.getloadavg()[1]
    if busy > 2 * len(support.CORES):
        shared = f"{len(support.CORES)} cores were shared by about {busy:.0f} runnable processes"
        lines += ["", f"These times are from a machine whose {shared},"]
        lines.append("so they are many times those of an idle one.")
        lines.append("The processor time and the ratio of viewers do not depend on it.")
    support.write("dashboard", "The live view of a large queue", [intro, "", *lines])


if __name__ == "__main__":
    main()
