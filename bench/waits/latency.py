"""Measures an idle worker: the time until the handler starts, and until the result arrives."""

from __future__ import annotations

from typing import Any

from bench.harness.bench import Bench, Case, Failed, Row
from bench.pages.figures import percentile, waits

TITLE = "Latency of an idle worker"
STORY = (
    "A client submits one call at a time, 10 ms apart, to one idle worker process, over TCP on one "
    "machine. The result is known when the peer's own call that waits for it returns. Most peers "
    "send a notification. arq polls every 10 ms, and taskiq and ChasquiMQ every 0.5 ms. Sidekiq "
    "and FastQ have no results."
)
METRICS = (
    ("start_p50", "start p50 ms", ".2f", "low"),
    ("start_p99", "start p99 ms", ".2f", "low"),
    ("known_p50", "known p50 ms", ".2f", "low"),
    ("known_p99", "known p99 ms", ".2f", "low"),
)
PLOT = "known_p50"
SAMPLES = 60


def measure(bench: Bench) -> list[Row]:
    def once(case: Case) -> dict[str, Any]:
        answer = bench.ask(case.peer, action="latency", handler="stamp", **case.spec)
        found = waits(answer)
        if not found["start"]:
            raise Failed("the handler was not called")
        shown = {
            f"{name}_p{share}": percentile(values, share / 100)
            for name, values in found.items()
            for share in (50, 99)
        }
        return {name: value for name, value in shown.items() if value is not None}

    samples = bench.size(SAMPLES, 1, 10)
    cases = [Case(peer, peer.title, {"samples": samples}) for peer in bench.peers]
    return bench.measure(cases, once)
