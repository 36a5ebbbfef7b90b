"""Measures one, two and four worker processes on all cores but the server's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench.harness.bench import Bench, Case, Row
from bench.speed.drain import stretches

if TYPE_CHECKING:
    from collections.abc import Iterator

TITLE = "Worker processes"
STORY = (
    "One, two and four worker processes drain no-ops on all cores but the server's, and store "
    "results if the peer supports that. The number of these cores is {worker_cores} here, and more "
    "processes share them. Fairlane's processes also run handlers that sleep for 10 ms, one at a "
    "time in each process, because these need no core of their own. The values are five stretches "
    "of one drain."
)
METRICS = (
    ("rate", "per second", ",.0f", "high"),
    ("busy", "handlers busy", ".1f", ""),
)
PLOT = "rate"
PLOT_POINTS = "no-op"
PROCESSES = (1, 2, 4)


def _cases(bench: Bench) -> Iterator[Case]:
    for peer in bench.peers:
        if peer.is_limit:
            continue
        for count in PROCESSES:
            spec = {"n": bench.size(peer.rate), "processes": count, "results": peer.results}
            yield Case(peer, peer.title, spec, f"no-op, {_processes(count)}")
    for peer in bench.peers:
        for count in (*PROCESSES, 8) if peer.name == "fairlane" else ():
            spec = {
                "n": bench.size(95 * count),
                "processes": count,
                "handler": "sleep",
                "ms": 10,
                "concurrency": 1,
            }
            yield Case(peer, peer.title, spec, f"10 ms, {_processes(count)}")


def _processes(count: int) -> str:
    return "1 process" if count == 1 else f"{count} processes"


def measure(bench: Bench) -> list[Row]:
    def once(case: Case) -> dict[str, Any]:
        answer = bench.ask(case.peer, action="drain", fill=True, spread=True, **case.spec)
        found = stretches(answer)
        return found if case.spec.get("ms") else {"rate": found["rate"]}

    return bench.measure(_cases(bench), once, runs=1)
