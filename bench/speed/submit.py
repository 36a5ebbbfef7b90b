"""Measures submission: in bulk, and with one call for each body."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench.harness.bench import Bench, Case, Failed, Row
from bench.harness.registry import fairlane_and

if TYPE_CHECKING:
    from collections.abc import Iterator

TITLE = "Submitting"
STORY = (
    "A client submits bodies of 100 bytes to an empty Redis. *In bulk* uses the peer's best call "
    "for many bodies. *One by one* uses a call for each body, which returns before the next one. "
    "A count in Redis confirms that all bodies arrived."
)
METRICS = (
    ("rate", "per second", ",.0f", "high"),
    ("commands", "commands each", ".2f", "low"),
    ("reads", "round trips each", ".3f", "low"),
    ("cpu_us", "Redis µs each", ".1f", "low"),
)
PLOT = "rate"


def _cases(bench: Bench) -> Iterator[Case]:
    for peer, label, variant in fairlane_and(bench.peers, "single"):
        # because a request for each body costs about as much as one by one
        rate = peer.bulk if not variant else peer.bulk / 20
        spec = {"n": bench.size(rate), "variant": variant}
        yield Case(peer, label, spec, "in bulk")
    for peer in bench.peers:
        spec = {"n": bench.size(peer.single, 0.5), "single": True}
        yield Case(peer, peer.title, spec, "one by one")


def measure(bench: Bench) -> list[Row]:
    def once(case: Case) -> dict[str, Any]:
        answer = bench.ask(case.peer, action="submit", **case.spec)
        if answer["n"] < case.spec["n"]:
            raise Failed(f"{answer['n']} arrived of {case.spec['n']}")
        return {"rate": answer["n"] / answer["seconds"], **per_one(answer, answer["n"])}

    return bench.measure(_cases(bench), once)


def per_one(answer: dict[str, Any], count: int) -> dict[str, float]:
    """Returns the cost of each call on the server."""
    return {
        "commands": answer["commands"] / count,
        "reads": answer["reads"] / count,
        "cpu_us": answer["cpu_s"] * 1e6 / count,
    }
