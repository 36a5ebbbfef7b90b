"""Requests of one priority, big ones beside small ones: who gets the workers?"""

from __future__ import annotations

from typing import Any

from figures import jain
from harness import Bench, Case, Failed, Row

TITLE = "Fairness between requests"
STORY = (
    "20 requests of one priority with equal limits, from 2,000 sub-requests of 1 ms down to 270, "
    "submitted in that order; 8 handlers at once. Jain's index of the worker time each got until "
    "the first of them has ended (and until one was half done): 1 = all the same, 0.05 = one had "
    "everything. A peer has no requests: the best it has is named (a queue for each, known to the "
    "workers beforehand; else one queue, first come, first served)."
)
METRICS = (
    ("end", "Jain, until one ended", ".3f", "high"),
    ("half", "until one was half done", ".3f", "high"),
)
PLOT = "end"
REQUESTS = 20
UNITS = 8


def sizes(scale: float) -> list[int]:
    return [max(40, int(2_000 * scale * 0.9**number)) for number in range(REQUESTS)]


def measure(bench: Bench) -> list[Row]:
    def once(case: Case) -> dict[str, Any]:
        answer = bench.ask(case.peer, action="fairness", handler="tagged", **case.spec)
        shares = {
            name: jain(answer["records"], case.spec["sizes"], until)
            for name, until in (("end", 1.0), ("half", 0.5))
        }
        if shares["end"] is None:
            raise Failed("none of the requests ended")
        return shares

    spec = {"sizes": sizes(bench.scale), "ms": 1, "concurrency": UNITS, "results": False}
    cases = [
        Case(peer, peer.title, spec, setting=peer.shares or "one queue, first come, first served")
        for peer in bench.peers
        if not peer.is_limit
    ]
    return bench.measure(cases, once)
