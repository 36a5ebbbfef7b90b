"""Streams many sub-requests through a small Redis: a check, not a measure.

`python -m bench.memory.stream_through [sub-requests] [megabytes]`: 10,000,000 through 100 MB. The
queue is bounded, so the producer waits for the worker. Each request has 100,000 sub-requests,
whose results are not kept after its end.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import redis
from bench.harness import support

from fairlane import Queue

if TYPE_CHECKING:
    from collections.abc import Iterator

EACH = 100_000  # sub-requests of one request
BOUND = 200_000  # sub-requests that wait


def bodies(first: int, count: int) -> Iterator[bytes]:
    """Yields bodies of about 20 bytes."""
    for number in range(first, first + count):
        yield b"sub-request %9d" % number


def measure(url: str, total: int, megabytes: int) -> None:
    """Streams all of them, and prints what was counted."""
    client = redis.Redis.from_url(url)
    client.config_set("maxmemory", f"{megabytes}mb")
    program = str(Path(sys.executable).with_name("rq-worker"))
    words = [program, "--redis", url, "--id", "127.0.0.1:0", "--processes", "1"]
    worker = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    began, most = time.monotonic(), 0
    done = dead = 0
    try:
        with Queue.from_url(url) as queue:
            queue.set_max_waiting(BOUND)
            for first in range(0, total, EACH):
                name = f"part-{first // EACH}"
                queue.submit_request(
                    bodies(first, min(EACH, total - first)), id=name, limit=8, retain=0,
                    max_wait=600,
                )  # fmt: skip
                most = max(most, client.info("memory")["used_memory"])
            expected = -(-total // EACH)
            while len(endings := list(queue.completions("0", follow=False))) < expected:
                time.sleep(0.5)
            done = sum(one.done for one in endings)
            dead = sum(one.dead for one in endings)
    finally:
        worker.terminate()
        worker.wait(60)
    seconds = time.monotonic() - began
    print(
        f"{done:,} of {total:,} done, {dead:,} dead, in {seconds:,.0f} s "
        f"({total / seconds:,.0f}/s); "
        f"most memory of Redis {most / 1e6:.0f} MB of {megabytes} MB"
    )


def main() -> None:
    """Starts a server of its own."""
    total = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000_000
    megabytes = int(sys.argv[2]) if len(sys.argv) > 2 else 100
    with support.server() as url:
        measure(url, total, megabytes)


if __name__ == "__main__":
    main()
