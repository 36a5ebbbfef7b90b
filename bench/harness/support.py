"""Starts a server on a core of its own, repeats measures, and writes the table."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import redis

from fairlane.embedded import find_server
from fairlane.embedded.server import ServerBinary, identify

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fairlane import Request, Worker

PORT = int(os.environ.get("FAIRLANE_BENCH_PORT") or 7390)
SERVER = "FAIRLANE_BENCH_SERVER"  # the variable that names the server program
ROOT = Path(__file__).resolve().parents[2]
PUBLISHED = ROOT / "docs" / "benchmarks"
OUT = Path(os.environ.get("FAIRLANE_BENCH_OUT") or PUBLISHED)
CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]


class UnfitServer(Exception):
    """Reports that the server program cannot run here; the message names the remedy."""


def program() -> ServerBinary:
    """Returns the server program to measure on: the named one, else the newest on this machine.

    Raises UnfitServer if the named one is no server, or older than Fairlane needs.
    """
    named = os.environ.get(SERVER)
    if not named:
        return find_server()
    binary = identify(Path(named))
    if binary is None:
        raise UnfitServer(f"{named} is no server of Redis 7.0, Valkey 7.2 or newer: name another")
    return binary


def importing() -> dict[str, str]:
    """Returns the environment of a process that imports a handler from `bench`."""
    return os.environ | {"PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}


def pin(pid: int, core: int) -> None:
    """Pins a process to one core if the system supports that."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(pid, {core})


@contextmanager
def server() -> Iterator[str]:
    """Runs a server without persistence on the first core, and this process on the last one.

    Raises UnfitServer if another server has the port, because every measurement empties its server.
    """
    with tempfile.TemporaryDirectory() as folder:
        binary = program()
        command = [str(binary.path), "--bind", "127.0.0.1", "--port", str(PORT)]
        command += ["--save", "", "--dir", folder]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            pin(process.pid, CORES[0])
            pin(0, CORES[-1])
            client = redis.Redis(
                port=PORT, retry=redis.retry.Retry(redis.backoff.ConstantBackoff(0.05), 100)
            )
            if client.info("server")["process_id"] != process.pid:
                raise UnfitServer(
                    f"port {PORT} is in use by another server:"
                    " stop it, or name another port with FAIRLANE_BENCH_PORT"
                )
            yield f"redis://127.0.0.1:{PORT}"
        finally:
            process.terminate()
            process.wait()


def drained(request: Request, worker: Worker) -> tuple[float, float]:
    """Returns how a worker drains a request: the rate, from the first result to the end.

    The second number is the worker's processor time in microseconds for each sub-request.
    """
    client = redis.Redis.from_url(request.queue.driver.url)
    pid = os.fork()
    if pid == 0:
        worker.run(until_idle=True)
        os._exit(0)
    while not client.exists(f"out:{{{request.id}}}"):  # until the first result
        pass
    before, begun = time.perf_counter(), request.progress()
    request.wait()
    took = time.perf_counter() - before
    _, _, used = os.wait4(pid, 0)  # with the processes that it has waited for
    cpu_us = 1e6 * (used.ru_utime + used.ru_stime) / begun.total
    return (begun.total - begun.done) / took, cpu_us


def median_of(runs: int, measures: dict[str, Callable[[], float]]) -> dict[str, list[float]]:
    """Runs all measures in turn, `runs` times, so that a slow moment affects all of them."""
    found: dict[str, list[float]] = {name: [] for name in measures}
    for run in range(runs):
        for name, measure in measures.items():
            found[name].append(measure())
            print(f"run {run + 1}/{runs}  {name}: {found[name][-1]:,.0f}", file=sys.stderr)
    return found


APART = "server on one, client and worker on the other"


def machine(cores: str = APART) -> str:
    """Returns one line: the processor, the use of its cores, and the versions."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = info.read_text().splitlines()
        names = [line.split(":", 1)[1].strip() for line in lines if "model name" in line]
        model = names[0] if names else model
    binary = program()
    version = ".".join(map(str, binary.version))
    return (
        f"{model}, {len(CORES)} cores ({cores}); "
        f"Python {platform.python_version()}, redis-py {redis.__version__}, "
        f"{binary.flavour} {version}"
    )


def write(name: str, title: str, lines: list[str], cores: str = APART) -> None:
    """Prints the table and writes it into docs/benchmarks/."""
    text = "\n".join([f"# {title}", "", machine(cores), "", *lines, ""])
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / f"{name}.md").write_text(text)
    print(text)


def median(values: list[float]) -> float:
    """Returns the median."""
    return statistics.median(values)
