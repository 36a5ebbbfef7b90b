"""Measures how busy 100 concurrent handlers are, and what a call costs, with requests of one.

`python -m bench.speed.busy [other tree] [runs]`: another checkout of Fairlane takes its turns in
the same run.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import redis
from bench.harness import support

from fairlane import Queue

WIDTH = 100  # concurrent handlers
CALLS = {1: 12_000, 10: 8_000}  # by the ms of a handler
FROM, TO = 0.12, 0.88  # of the calls: this part is measured
HANDLERS = {"tasks": "pause_async", "threads": "pause"}
MS = "BUSY_MS"  # the variable that has the ms of a handler
BODY = b"x" * 100
_WORK = "import sys; from fairlane.cli import worker_main; sys.exit(worker_main())"


async def pause_async(body: bytes) -> bytes:
    """Sleeps in an event loop."""
    import asyncio

    await asyncio.sleep(int(os.environ[MS]) / 1000)
    return body


def pause(body: bytes) -> bytes:
    """Sleeps in a thread."""
    time.sleep(int(os.environ[MS]) / 1000)
    return body


class Cost(NamedTuple):
    """What was measured: calls a second, CPU in microseconds a call, and handlers busy."""

    rate: float
    server_us: float
    worker_us: float
    busy: float


def _cpu_of(pid: int) -> float:
    """Returns the processor time of a process with its children, in seconds."""
    total = 0.0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(stat.parent.name) == pid or int(fields[1]) == pid:
            total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def measure(url: str, tree: Path, handler: str, ms: int) -> Cost:
    """Drains requests of one by a worker of this tree."""
    client = redis.Redis.from_url(url)
    client.flushall()
    count = CALLS[ms]
    with Queue.from_url(url) as queue:
        queue.submit_many([[BODY] for _ in range(count)], limit=1)
    env = os.environ | {"PYTHONPATH": f"{tree / 'src'}:{support.ROOT}", MS: str(ms)}
    command = [sys.executable, "-c", _WORK, "--redis", url, "--handler"]
    command += [f"bench.speed.busy:{HANDLERS[handler]}", "--concurrency", str(WIDTH)]
    quiet = subprocess.DEVNULL
    worker = subprocess.Popen([*command, "--until-idle"], env=env, stdout=quiet, stderr=quiet)

    def look() -> tuple[int, float, float, float]:
        found = client.info("cpu")
        used = found["used_cpu_user"] + found["used_cpu_sys"]
        return client.zcard("{req}:active"), used, _cpu_of(worker.pid), time.perf_counter()

    def reach(left: float) -> None:
        while client.zcard("{req}:active") > left and worker.poll() is None:
            time.sleep(0.01)

    reach(count * (1 - FROM))
    before = look()
    reach(count * (1 - TO))
    after = look()
    worker.wait()
    calls, seconds = before[0] - after[0], after[3] - before[3]
    rate = calls / seconds
    costs = [1e6 * (late - early) / calls for early, late in zip(before, after, strict=True)]
    return Cost(rate, costs[1], costs[2], rate * ms / 1000)


def main() -> None:
    other = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else None
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    trees = {"this tree": support.ROOT} | ({"the other tree": other} if other else {})
    cases = [(handler, ms, name) for handler in HANDLERS for ms in CALLS for name in trees]
    found: dict[tuple[str, int, str], list[Cost]] = {case: [] for case in cases}
    with support.server() as url:
        for _ in range(runs):
            for handler, ms, name in cases:
                cost = measure(url, trees[name], handler, ms)
                found[handler, ms, name].append(cost)
                print(handler, ms, name, *(f"{one:,.0f}" for one in cost), file=sys.stderr)
    story = (
        f"One worker process with {WIDTH} handlers that sleep; requests of one sub-request. Each "
        f"value is the median of {runs} runs. µs are processor time of a call."
    )
    lines = [
        story,
        "",
        "| handlers | ms | | per second | server µs | worker µs | busy |",
        "|---|---:|---|---:|---:|---:|---:|",
    ]
    for (handler, ms, name), costs in found.items():
        middle = [support.median([*values]) for values in zip(*costs, strict=True)]
        cells = " | ".join(f"{value:,.0f}" for value in middle)
        lines.append(f"| {handler} | {ms} | {name} | {cells} |")
    support.write("busy", "Busy handlers", lines)


if __name__ == "__main__":
    main()
