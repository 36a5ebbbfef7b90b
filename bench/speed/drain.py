"""Measures how fast one worker process drains no-ops, with and without stored results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench.harness.bench import Bench, Case, Failed, Row
from bench.harness.registry import fairlane_and
from bench.pages.figures import steady
from bench.speed.submit import per_one

if TYPE_CHECKING:
    from collections.abc import Iterator

TITLE = "Draining no-ops"
STORY = (
    "The handler of one worker process returns its body of 100 bytes. The time starts with the "
    "first handler call. It ends when Redis holds no waiting call, and all results if the peer "
    "stores results."
)
METRICS = (
    ("rate", "per second", ",.0f", "high"),
    ("commands", "commands each", ".2f", "low"),
    ("reads", "round trips each", ".3f", "low"),
    ("cpu_us", "Redis µs each", ".1f", "low"),
)
PLOT = "rate"
BASE = "results stored"
# The rough rate of each variant, as a share of the rate with slices of 20 ms.
_SHARE = {"": 1.0, "count1": 0.03, "single": 0.03, "script": 0.06}


def _cases(bench: Bench) -> Iterator[Case]:
    for peer, label, variant in fairlane_and(bench.peers, "count1", "single", "script"):
        spec = {"n": bench.size(peer.rate * _SHARE[variant]), "variant": variant}
        if peer.results:
            yield Case(peer, label, spec, "results stored")
        else:
            yield Case(peer, label, {**spec, "results": False}, "no results")
        if peer.results and peer.packages:
            yield Case(peer, label, {**spec, "results": False}, "no results")


def measure(bench: Bench) -> list[Row]:
    def once(case: Case) -> dict[str, Any]:
        submitted = bench.ask(case.peer, action="submit", **case.spec)
        if submitted["n"] < case.spec["n"]:
            raise Failed(f"{submitted['n']} arrived of {case.spec['n']}")
        answer = bench.ask(case.peer, action="drain", flush=False, **case.spec)
        return {"rate": rate(answer), **per_one(answer, answer["n"])}

    return bench.measure(_cases(bench), once)


def rate(answer: dict[str, Any]) -> float:
    """Returns the sub-requests per second from start to end."""
    return answer["n"] / (answer["end"] - answer["first"])


def stretches(answer: dict[str, Any]) -> dict[str, Any]:
    """Returns the rates of five stretches of a drain, and how many handlers were busy in them."""
    rates, busy = steady(answer["seen"])
    if not rates:
        return {"rate": rate(answer)}
    return {"rate": rates, "busy": busy}
