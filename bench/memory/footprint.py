"""Measures the memory of a waiting sub-request in Redis."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from bench.harness.bench import Bench, Case, Failed, Row

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis

TITLE = "Redis memory of a waiting sub-request"
STORY = (
    "Many bodies of 100 bytes wait. The figure is the growth of used_memory since the server was "
    "empty, for each body. Fairlane's figure depends on the size of the request. The peers have no "
    "requests. One run is enough, because no figure is a time."
)
METRICS = (("bytes", "bytes each", ",.0f", "low"),)
PLOT = "bytes"
BASE = "requests of 100,000"
SIZES = (1, 10, 1_000, 100_000)
_SECONDS = 2.0
_GONE_S = 5.0


def _cases(bench: Bench) -> Iterator[Case]:
    for peer in bench.peers:
        if peer.name != "fairlane":
            count = bench.size(peer.bulk, _SECONDS, 1_000)
            yield Case(peer, peer.title, {"n": min(100_000, count)}, "")
            continue
        for size in SIZES:
            wanted = {1: 5_000, 10: 20_000}.get(size, 100_000)
            count = max(size, bench.size(wanted, 1, 1_000))
            yield Case(peer, peer.title, {"n": count, "size": size}, f"requests of {size:,}")


def _used(client: redis.Redis) -> int:
    """Returns used_memory after the peer's connections are closed, because they have buffers."""
    until = time.monotonic() + _GONE_S
    while client.info("clients")["connected_clients"] > 1 and time.monotonic() < until:
        time.sleep(0.05)
    return client.info("memory")["used_memory"]


def measure(bench: Bench) -> list[Row]:
    def once(case: Case) -> dict[str, Any]:
        with bench.redis as client:
            few = {**case.spec, "n": 10}  # because the peer's scripts must not count
            bench.ask(case.peer, action="submit", **few)
            client.flushall()
            empty = _used(client)
            answer = bench.ask(case.peer, action="submit", **case.spec)
            full = _used(client)
        if not answer["n"]:
            raise Failed("nothing is waiting")
        return {"bytes": (full - empty) / case.spec["n"]}

    return bench.measure(_cases(bench), once, runs=1)
