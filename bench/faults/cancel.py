"""Measures how long Redis is busy with one call that ends a request of 1,000,000 sub-requests.

`python -m bench.faults.cancel [sub-requests [runs]]`
"""

from __future__ import annotations

import statistics
import sys
from typing import TYPE_CHECKING

import redis
from bench.harness import support

from fairlane import Change, Queue
from fairlane.protocol import keys

if TYPE_CHECKING:
    from collections.abc import Iterator

SIZE = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
RUNS = int(sys.argv[2]) if len(sys.argv) > 2 else 5


def slowest_ms(client: redis.Redis) -> float:
    """Returns the longest script call in the log of slow commands, and empties that log."""
    found = [
        one["duration"] for one in client.slowlog_get(10_000) if one["command"].startswith(b"EVAL")
    ]
    client.slowlog_reset()
    return max(found, default=0) / 1000


def run(queue: Queue, client: redis.Redis) -> Iterator[tuple[str, float]]:
    """Yields what was done, and the longest script call of it in ms."""
    request = queue.submit_request((b"%0100d" % i for i in range(SIZE)), id="big", limit=3)
    slowest_ms(client)
    request.cancel()
    yield "cancel it while all of them wait", slowest_ms(client)
    queue.change(queue.select(Change.delete(), ["big"]))
    yield "delete it after that", slowest_ms(client)
    request = queue.submit_request((b"%0100d" % i for i in range(SIZE)), id="big", limit=3)
    fill_results(client)
    request.cancel()
    slowest_ms(client)
    queue.change(queue.select(Change.delete(), ["big"]))
    yield "delete it with as many results", slowest_ms(client)


def fill_results(client: redis.Redis) -> None:
    """Writes results as `complete` does: one entry for each slice of a thousand."""
    entry: list[object] = ["w", "host:1"]
    for index in range(1000):
        entry += [f"{index}:d:1:0:0", b"%0100d" % index]
    with client.pipeline(transaction=False) as batch:
        for _ in range(SIZE // 1000):
            batch.execute_command("XADD", keys.results("big"), "*", *entry)
        batch.execute()


def main() -> None:
    found: dict[str, list[float]] = {}
    with support.server() as url, redis.Redis.from_url(url) as client:
        client.config_set("slowlog-log-slower-than", 0)
        client.config_set("slowlog-max-len", 10_000)
        with Queue.from_url(url, name="bench") as queue:
            for _ in range(RUNS):
                client.flushall()
                queue.submit_request([b"first"] * 20, id="first").cancel()  # loads the scripts
                queue.change(queue.select(Change.delete(), ["first"]))
                for what, ms in run(queue, client):
                    found.setdefault(what, []).append(ms)
    lines = [
        f"A request has {SIZE:,} sub-requests of 100 bytes; {RUNS} runs. Redis does nothing else",
        "during a script call, so all others wait for that long. UNLINK frees memory meanwhile.",
        "",
        "| | longest script call, ms: median | worst |",
        "|---|---:|---:|",
        *(
            f"| {what} | {statistics.median(times):.2f} | {max(times):.2f} |"
            for what, times in found.items()
        ),
    ]
    support.write("cancel", "Cancel and delete of a large request", lines)


if __name__ == "__main__":
    main()
