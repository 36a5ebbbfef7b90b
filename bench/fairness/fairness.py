"""Measures how requests of one priority and different sizes share the workers."""

from __future__ import annotations

from typing import Any

from bench.harness.bench import Bench, Case, Failed, Row
from bench.pages.figures import jain

TITLE = "Fairness between requests"
STORY = (
    "20 requests of one priority have equal limits and 2,000 down to 270 sub-requests of 1 ms. A "
    "client submits them in that order, and 8 handlers run concurrently. The figure is Jain's "
    "index of the worker time of each request until the first request has ended, or until one is "
    "half done. 1 means equal worker time, and 0.05 means that one request had all of it. Peers "
    "have no requests, so the settings name the best substitute. That is a queue for each request "
    "in the workers' configuration, or else one queue, first come, first served."
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
