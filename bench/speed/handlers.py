"""Measures drains with sync and async handlers that sleep, at several concurrencies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench.harness.bench import Bench, Case, Row
from bench.speed.drain import stretches

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.harness.registry import Peer

TITLE = "Handlers of 1 ms and 10 ms"
STORY = (
    "The handler of one worker process sleeps: by time.sleep in threads, by asyncio.sleep or "
    "setTimeout in tasks. Peers with results store them. The values are five stretches of one "
    "drain, from 10 % to 95 % of the calls. *Handlers busy* is the average number of running "
    "handlers. RQ's concurrency is the number of its processes. An asyncio worker calls a "
    "blocking handler in its threads."
)
METRICS = (
    ("rate", "per second", ",.0f", "high"),
    ("busy", "handlers busy", ".1f", "high"),
)
PLOT = "busy"
PLOT_POINTS = "10 ms, 1"  # 1, 16 and 100 concurrent
SECONDS = 0.6
COUNTS = (1, 16, 100)
LENGTHS_MS = (1, 10)


def points(peer: Peer) -> Iterator[tuple[str, int, int]]:
    for mode in sorted(peer.modes, reverse=True):
        for ms in LENGTHS_MS:
            for count in COUNTS:
                yield mode, ms, count


def _cases(bench: Bench) -> Iterator[Case]:
    for peer in bench.peers:
        for mode, ms, count in points(peer):
            if peer.is_limit:
                continue
            most = min(count * 1000 / ms, peer.rate)
            spec = {
                "n": bench.size(most, SECONDS, 4 * count),
                "handler": "sleep",
                "ms": ms,
                "concurrency": count,
                "mode": mode,
                "results": peer.results,
            }
            yield Case(peer, peer.title, spec, f"{mode}, {ms} ms, {count} concurrent")


def measure(bench: Bench) -> list[Row]:
    def once(case: Case) -> dict[str, Any]:
        return stretches(bench.ask(case.peer, action="drain", fill=True, **case.spec))

    few = [case for case in _cases(bench) if case.spec["concurrency"] <= case.peer.most]
    many = [case for case in _cases(bench) if case.spec["concurrency"] > case.peer.most]
    rows = bench.measure(few, once, runs=1)
    return rows + [
        Row(
            case.peer.name,
            case.label,
            case.point,
            note=f"supports a concurrency of {case.peer.most} at most",
        )
        for case in many
    ]
