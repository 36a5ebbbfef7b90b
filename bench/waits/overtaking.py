"""Measures how long an urgent call waits while others keep the only worker busy."""

from __future__ import annotations

from typing import Any

from bench.harness.bench import Bench, Case, Failed, Row
from bench.pages.figures import percentile, waits

TITLE = "An urgent request among many"
STORY = (
    "One worker process with one handler is busy with sub-requests that take 0.1 ms of processor "
    "time. 200,000 of them wait, or as many as the peer submits in 8 s. A value is the time from "
    "the submission of an urgent call until its handler starts, for 20 urgent calls. Each peer "
    "uses the best priority that it documents. A peer without priorities serves first come, first "
    "served, so its measurement has one urgent call and takes 10 s at most."
)
METRICS = (
    ("waiting", "waiting", ",.0f", ""),
    ("p50", "p50 ms", ".1f", "low"),
    ("worst", "worst ms", ".1f", "low"),
)
PLOT = "p50"
WAITING = 200_000
_CAP_S = 10.0


def measure(bench: Bench) -> list[Row]:
    def once(case: Case) -> dict[str, Any]:
        answer = bench.ask(case.peer, action="urgent", handler="urgent", **case.spec)
        found = waits(answer)["start"]
        if not found:
            raise Failed(f"not started within {_CAP_S:.0f} s among {answer['waiting']:,} waiting")
        return {"waiting": answer["waiting"], "p50": percentile(found, 0.5), "worst": max(found)}

    spec = {
        "n": bench.size(WAITING, 1, 2_000),
        "fill_s": max(1.0, 8.0 * bench.scale),
        "cap_s": _CAP_S,
        "concurrency": 1,
        "results": False,
    }
    cases = [
        Case(
            peer,
            peer.title,
            {**spec, "samples": 20 if peer.priority else 1},
            setting=peer.priority or "none: first come, first served",
        )
        for peer in bench.peers
        if not peer.is_limit
    ]
    return bench.measure(cases, once, runs=1)
