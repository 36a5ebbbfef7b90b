"""Compares tasks that do nothing with a handler of bytes that does nothing, in one run.

`python -m bench.speed.tasks [runs] [sub-requests]`
"""

from __future__ import annotations

import sys
from collections import defaultdict
from typing import TYPE_CHECKING

import redis
from bench.harness import support

from fairlane import App, Context, Queue, Worker
from fairlane.tasks.serve import workers_of

if TYPE_CHECKING:
    from collections.abc import Callable

RUNS = int(sys.argv[1]) if len(sys.argv) > 1 else 5
COUNT = int(sys.argv[2]) if len(sys.argv) > 2 else 100_000
TEXT = "x" * 100
GOAL = 0.15
BASE = "a handler of bytes"


def echo(body: bytes) -> bytes:
    return body


def typed(text: str) -> str:
    return text


def with_context(ctx: Context, text: str) -> str:  # noqa: ARG001  its cost is measured
    return text


def of_bytes(url: str) -> tuple[float, float]:
    redis.Redis.from_url(url).flushall()
    with Queue.from_url(url) as queue:
        request = queue.submit_request(TEXT for _ in range(COUNT))
        return support.drained(request, Worker(queue, echo))


def of_task(url: str, function: Callable[..., str], encoding: str) -> tuple[float, float]:
    redis.Redis.from_url(url).flushall()
    app = App("req", url, encoding=encoding)  # type: ignore[arg-type]
    batch = app.task(function).map(TEXT for _ in range(COUNT))
    found = support.drained(batch.request, workers_of([app])[0])
    if next(iter(batch)) != TEXT:
        raise SystemExit("the result is not the argument")
    app.close()
    return found


def main() -> None:
    cpu: dict[str, list[float]] = defaultdict(list)

    def rate(name: str, measure: Callable[[], tuple[float, float]]) -> Callable[[], float]:
        def once() -> float:
            found, cpu_us = measure()
            cpu[name].append(cpu_us)
            return found

        return once

    with support.server() as url:
        measures = {
            BASE: lambda: of_bytes(url),
            "a task": lambda: of_task(url, typed, "json"),
            "a task, MessagePack": lambda: of_task(url, typed, "msgpack"),
            "a task with its context": lambda: of_task(url, with_context, "json"),
        }
        rates = support.median_of(RUNS, {name: rate(name, m) for name, m in measures.items()})
    support.write("tasks", "Tasks beside a handler of bytes", _table(rates, cpu))


def _table(rates: dict[str, list[float]], cpu: dict[str, list[float]]) -> list[str]:
    lines = [
        f"One worker process returns {COUNT:,} texts of 100 bytes. All are medians of {RUNS} runs.",
        f"A task is to cost at most {GOAL:.0%} of the rate of a handler of bytes.",
        "The last two columns are the worker's processor time for each sub-request. Other load on",
        "the machine changes it less than the rate.",
        "",
        "| what | per second | lowest | highest | overhead | worker µs | overhead |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, values in rates.items():
        middle, us = support.median(values), support.median(cpu[name])
        slower = 1 - middle / support.median(rates[BASE])
        longer = us / support.median(cpu[BASE]) - 1
        ends = f"{min(values):,.0f} | {max(values):,.0f}"
        lines.append(
            f"| {name} | {middle:,.0f} | {ends} | {slower:.0%} | {us:.1f} | {longer:.0%} |"
        )
    return lines


if __name__ == "__main__":
    main()
