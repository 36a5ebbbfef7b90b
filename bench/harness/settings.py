"""Compares concurrencies of each peer: the evidence for the settings in registry.py."""

from __future__ import annotations

from typing import Any

from bench.harness.bench import Bench, Case, Row
from bench.speed.drain import rate

TITLE = "Settings of the peers"
STORY = (
    "One worker process drains no-ops at several concurrencies. A full run leaves this workload "
    "out. Run it when a peer has a new version, and put the best setting into "
    "bench/harness/registry.py."
)
METRICS = (("rate", "per second", ",.0f", "high"),)
PLOT = ""


def measure(bench: Bench) -> list[Row]:
    def once(case: Case) -> dict[str, Any]:
        return {"rate": rate(bench.ask(case.peer, action="drain", fill=True, **case.spec))}

    cases = [
        Case(
            peer,
            peer.title,
            {"n": bench.size(peer.rate), "concurrency": count, "results": peer.results},
            f"{count} concurrent",
        )
        for peer in bench.peers
        for count in peer.tries
    ]
    return bench.measure(cases, once)
