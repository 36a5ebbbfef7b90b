"""Measures how long an urgent request waits for a busy worker among 200,000 sub-requests.

`python -m bench.waits.urgent [waiting] [samples]`
"""

from __future__ import annotations

import os
import signal
import sys
import time

import redis
from bench.harness import support

from fairlane import Queue, Worker

WAITING = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000
SAMPLES = int(sys.argv[2]) if len(sys.argv) > 2 else 30


def handler(body: bytes) -> bytes:
    """Returns the start of the handler for an urgent body; takes 0.1 ms for another one."""
    if body == b"urgent":
        return b"%f" % time.monotonic()
    end = time.perf_counter() + 0.0001
    while time.perf_counter() < end:
        pass
    return b""


def main() -> None:
    with support.server() as url, Queue.from_url(url) as queue:
        redis.Redis.from_url(url).flushall()
        bulk = queue.submit_request((b"bulk" for _ in range(WAITING)), priority=50, limit=3)
        worker = os.fork()
        if worker == 0:
            Worker(queue, handler).run()
            os._exit(0)
        while bulk.progress().done < 2000:
            pass
        waits = []
        for _ in range(SAMPLES):
            before = time.monotonic()
            request = queue.submit_request([b"urgent"], priority=0, limit=1)
            submitted = time.monotonic()
            started = float(next(request.results()).body or b"nan")
            waits.append(((started - submitted) * 1000, (started - before) * 1000))
        left = bulk.progress().left
        bulk.cancel()
        os.kill(worker, signal.SIGTERM)
        os.waitpid(worker, 0)
    after, whole = sorted(row[0] for row in waits), sorted(row[1] for row in waits)
    story = (
        f"A client submits {SAMPLES} requests of one sub-request at priority 0, one after the "
        f"other, while {left:,} to {WAITING:,} sub-requests wait at priority 50. One worker "
        "process has slices of 20 ms, and its handler takes 0.1 ms for a body of the bulk."
    )
    lines = [
        story,
        "",
        "| until its handler starts | median ms | worst ms |",
        "|---|---:|---:|",
        f"| from the call of submit_request | {whole[len(whole) // 2]:.1f} | {whole[-1]:.1f} |",
        f"| from its return | {after[len(after) // 2]:.1f} | {after[-1]:.1f} |",
    ]
    support.write("urgent", "An urgent request among many", lines)


if __name__ == "__main__":
    main()
