"""Compares Executor.map with ProcessPoolExecutor.map and dask's map on the same work, in one run.

`python -m bench.speed.executor [runs] [percent of the calls]`
"""

from __future__ import annotations

import concurrent.futures
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import redis
from bench.harness import envs, support
from bench.harness.registry import Peer
from bench.peers.cpu_work import PRIMES, count_primes

from fairlane import App, Executor
from fairlane.tasks.serve import workers_of

if TYPE_CHECKING:
    from collections.abc import Callable

RUNS = int(sys.argv[1]) if len(sys.argv) > 1 else 5
PERCENT = int(sys.argv[2]) if len(sys.argv) > 2 else 100
CALLS = {7_000: 6 * PERCENT, 200: 300 * PERCENT}  # by the work of one call
PROCESSES = 2
DASK = Peer(
    name="dask", title="dask", script="dask_map.py", setting="one thread a process",
    packages=("distributed==2026.8.0", "dask==2026.8.0"),
)  # fmt: skip


def checked(found: list[int], most: int) -> None:
    if set(found) != {PRIMES[most]}:
        raise SystemExit("a result is wrong")


def of_pool(most: int, chunksize: int) -> float:
    calls = CALLS[most]
    with concurrent.futures.ProcessPoolExecutor(PROCESSES) as pool:
        list(pool.map(count_primes, [most] * PROCESSES))
        before = time.perf_counter()
        checked(list(pool.map(count_primes, [most] * calls, chunksize=chunksize)), most)
        return calls / (time.perf_counter() - before)


def of_fairlane(url: str, most: int) -> float:
    redis.Redis.from_url(url).flushall()
    calls, app = CALLS[most], App("executor", url)
    task = app.task(count_primes)
    pid = os.fork()
    if pid == 0:
        os._exit(workers_of([app], processes=PROCESSES)[0].run())
    try:
        with Executor(app, max_workers=PROCESSES) as executor:
            list(executor.map(task, [most] * PROCESSES))
            before = time.perf_counter()
            checked(list(executor.map(task, [most] * calls)), most)
            return calls / (time.perf_counter() - before)
    finally:
        app.close()
        os.kill(pid, signal.SIGTERM)
        os.waitpid(pid, 0)


def of_dask(env: envs.Env, most: int) -> float:
    words = [*env.command, str(CALLS[most]), str(most), str(PROCESSES)]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=600)
    return float(done.stdout)


def main() -> None:
    measures: dict[str, Callable[[], float]] = {}
    with support.server() as url:
        if hasattr(os, "sched_setaffinity"):  # each worker process may have a core
            os.sched_setaffinity(0, support.CORES)
        try:
            env = envs.prepare(DASK, support.program())
        except envs.Missing as reason:
            env = None
            print(f"dask is missing: {reason}", file=sys.stderr)
        for most in CALLS:
            measures[f"Executor.map {most}"] = lambda most=most: of_fairlane(url, most)
            for size in (1, 50):
                measures[f"ProcessPoolExecutor.map, chunksize={size} {most}"] = (
                    lambda most=most, size=size: of_pool(most, size)
                )
            if env is not None:
                measures[f"dask.distributed Client.map {most}"] = lambda most=most: of_dask(
                    env, most
                )
        rates = support.median_of(RUNS, measures)
    version = "" if env is None else f" dask {env.version}."
    support.write(
        "executor", "Executor.map beside other executors", _table(rates, version), "all shared"
    )


def _table(rates: dict[str, list[float]], version: str) -> list[str]:
    lines = [
        f"A CPU-bound function in pure Python, {PROCESSES} processes each. Medians of {RUNS} runs;",
        f"the start of the processes is not counted.{version} Fairlane's calls and results go",
        "through Redis and survive a killed process; the others' do not.",
        "",
        "| calls | what | per second | lowest | highest | ÷ Executor.map |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for name, values in rates.items():
        what, _, most = name.rpartition(" ")
        base = support.median(rates[f"Executor.map {most}"])
        middle = support.median(values)
        each = "5 ms" if most == "7000" else "0.1 ms"
        lines.append(
            f"| {CALLS[int(most)]:,} of {each} | {what} | {middle:,.0f} | {min(values):,.0f} "
            f"| {max(values):,.0f} | {middle / base:.2f} |"
        )
    return lines


if __name__ == "__main__":
    main()
