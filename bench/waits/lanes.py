"""Compares a drain of requests of one priority with one of all 100 priorities."""

from __future__ import annotations

from typing import Any

from bench.harness.bench import Bench, Case, Row
from bench.speed.drain import rate

TITLE = "One lane and a hundred"
STORY = (
    "One worker process drains 100 requests of equal size. Either all have the same priority, or "
    "each has a priority of its own. Only Fairlane takes part, because no peer has 100 priorities."
)
METRICS = (("rate", "per second", ",.0f", "high"),)
PLOT = ""
REQUESTS = 100


def measure(bench: Bench) -> list[Row]:
    def once(case: Case) -> dict[str, Any]:
        return {"rate": rate(bench.ask(case.peer, action="drain", fill=True, **case.spec))}

    each = bench.size(2_000, 1, 50)
    cases = [
        Case(
            peer,
            peer.title,
            {"n": each * REQUESTS, "size": each, "lanes": lanes},
            f"{lanes} {'lane' if lanes == 1 else 'lanes'}",
        )
        for peer in bench.peers
        if peer.name == "fairlane"
        for lanes in (1, REQUESTS)
    ]
    return bench.measure(cases, once)
