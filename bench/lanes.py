"""Does it cost more when requests of all 100 priorities wait?"""

from __future__ import annotations

from typing import Any

from drain import rate
from harness import Bench, Case, Row

TITLE = "One lane and a hundred"
STORY = (
    "100 requests of equal size, all of one priority or one of each; one worker process drains "
    "them. Fairlane only: no other has 100 priorities."
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
