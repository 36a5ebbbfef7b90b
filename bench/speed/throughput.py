"""Compares submission in bulk and draining with stored results to raw Redis, in one run.

`python -m bench.speed.throughput [runs] [sub-requests]`
"""

from __future__ import annotations

import sys
import time

import redis
from bench.harness import support

from fairlane import Queue, Worker

RUNS = int(sys.argv[1]) if len(sys.argv) > 1 else 5
COUNT = int(sys.argv[2]) if len(sys.argv) > 2 else 200_000
FEW = COUNT // 20  # for the slow measures
BODY = b"x" * 100


def echo(body: bytes) -> bytes:
    return body


def raw_xadd(url: str) -> float:
    client = redis.Redis.from_url(url)
    client.flushall()
    began = time.perf_counter()
    for _ in range(COUNT // 1000):
        pipe = client.pipeline(transaction=False)
        for _ in range(1000):
            pipe.execute_command("XADD", "s", "*", "b", BODY)
        pipe.execute()
    return COUNT / (time.perf_counter() - began)


def raw_read(url: str) -> float:
    """Reads the entries of raw_xadd by XREADGROUP COUNT 100 and XACK; returns the rate."""
    client = redis.Redis.from_url(url, protocol=2)
    client.xgroup_create("s", "g", "0")
    began, count = time.perf_counter(), 0
    while count < COUNT:
        read = client.execute_command(
            "XREADGROUP", "GROUP", "g", "c", "COUNT", 100, "STREAMS", "s", ">"
        )
        ids = [entry[0] for entry in read[0][1]]
        client.execute_command("XACK", "s", "g", *ids)
        count += len(ids)
    return COUNT / (time.perf_counter() - began)


def submit(url: str) -> float:
    redis.Redis.from_url(url).flushall()
    with Queue.from_url(url) as queue:
        began = time.perf_counter()
        queue.submit_request((BODY for _ in range(COUNT)), id="bulk")
        return COUNT / (time.perf_counter() - began)


def submit_one_by_one(url: str) -> float:
    redis.Redis.from_url(url).flushall()
    with Queue.from_url(url) as queue:
        began = time.perf_counter()
        for _ in range(FEW):
            queue.submit_request([BODY])
        return FEW / (time.perf_counter() - began)


def drain(url: str, count: int, slice_ms: float) -> float:
    """Returns the rate of one worker process from its first slice to the end of the request."""
    redis.Redis.from_url(url).flushall()
    with Queue.from_url(url) as queue:
        request = queue.submit_request((BODY for _ in range(count)), retain=3600)
        rate, _ = support.drained(request, Worker(queue, echo, slice_s=slice_ms / 1000))
        stored = sum(1 for result in request.results() if result.body == BODY)
        if stored != count:
            raise SystemExit(f"{stored} results for {count} sub-requests")
        return rate


def main() -> None:
    with support.server() as url:
        found = support.median_of(
            RUNS,
            {
                "raw XADD, pipeline of 1,000": lambda: raw_xadd(url),
                "raw XREADGROUP COUNT 100 + XACK": lambda: raw_read(url),
                "fairlane: submit in bulk": lambda: submit(url),
                "fairlane: submit one by one": lambda: submit_one_by_one(url),
                "fairlane: drain, results stored": lambda: drain(url, COUNT, 20),
                "fairlane: drain, slice 0 (COUNT 1)": lambda: drain(url, FEW, 0),
            },
        )
    add, read = (support.median(values) for values in list(found.values())[:2])
    lines = [
        f"The handler returns {COUNT:,} bodies of 100 bytes. All are medians of {RUNS} runs.",
        "",
        "| what | per second | lowest | highest | of raw XADD | of raw XREADGROUP |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, values in found.items():
        middle = support.median(values)
        lines.append(
            f"| {name} | {middle:,.0f} | {min(values):,.0f} | {max(values):,.0f} "
            f"| {middle / add:.2f} | {middle / read:.2f} |"
        )
    support.write("throughput", "Throughput", lines)


if __name__ == "__main__":
    main()
