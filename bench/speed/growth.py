"""Measures how the cost depends on the number of waiting sub-requests, 10^4 to 10^7."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench.harness.bench import Bench, Case, Row
from bench.speed.drain import stretches

if TYPE_CHECKING:
    from collections.abc import Iterator

TITLE = "Cost as the backlog grows"
STORY = (
    "The table shows how many no-ops wait, and one worker process drains a part of them. The "
    "values are five stretches of one drain. A peer skips a level that takes too long to submit."
)
METRICS = (
    ("rate", "per second", ",.0f", "high"),
    ("cpu_us", "Redis µs each", ".1f", "low"),
)
PLOT = "rate"
LEVELS = (10_000, 100_000, 1_000_000, 10_000_000)
_FILL_S = {"fairlane": 60.0, "raw": 15.0}
_PEER_FILL_S = 6.0


def _cases(bench: Bench) -> Iterator[Case]:
    for peer in bench.peers:
        for level in LEVELS:
            waiting = int(level * bench.scale)
            if waiting / peer.bulk > _FILL_S.get(peer.name, _PEER_FILL_S):
                continue
            part = min(int(waiting * 0.8), bench.size(peer.rate, 0.8))
            spec = {"n": waiting, "results": peer.results}
            yield Case(peer, peer.title, {**spec, "part": part}, f"{waiting:,} waiting")


def measure(bench: Bench) -> list[Row]:
    def once(case: Case) -> dict[str, Any]:
        spec = {name: value for name, value in case.spec.items() if name != "part"}
        bench.ask(case.peer, action="submit", **spec)
        spec["n"] = case.spec["part"]
        answer = bench.ask(case.peer, action="drain", flush=False, partly=True, **spec)
        return {**stretches(answer), "cpu_us": answer["cpu_s"] * 1e6 / answer["n"]}

    return bench.measure(_cases(bench), once, runs=1)
