"""Measures what limits by key cost Redis, and how soon the next call of a full key starts.

`python -m bench.fairness.keys [calls [keys]]`: single calls with no key, with keys that have
room, and with keys for which 20 calls wait. The microseconds are processor time of the server
(`INFO cpu`), which other programs change little; `INFO commandstats` counts the commands.
"""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import redis
from bench.fairness import at_work
from bench.harness import support

from fairlane import Queue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bench.fairness.at_work import Log

CALLS = 20_000
KEYS = int(sys.argv[2]) if len(sys.argv) > 2 else 10_000
EACH = 20  # calls of a key, and of a submission
BESIDE = 100_000  # calls that wait for a full key
UNITS = 8
MOST = 10_000  # the limit of a key that has room
WARM = 0.2  # of the calls, which are not counted
PATIENCE_S = 600.0
CALL_MS = 5
STARTS = 1_000
Limits = dict[str, int]


class Cost(NamedTuple):
    """What Redis spends on one call: microseconds of its processor, and commands in scripts."""

    us: float
    commands: float


def one_key(_: int) -> Limits:
    return {"api": MOST}


def two_keys(number: int) -> Limits:
    return {"api": MOST, f"customer-{number % KEYS}": MOST}


def many_keys(number: int) -> Limits:
    return {f"customer-{number % KEYS}": MOST}


def full_keys(number: int) -> Limits:
    return {f"customer-{number % KEYS}": 1}


# What is measured -> the limits of its nth submission.
CASES: dict[str, Callable[[int], Limits]] = {
    "no key": lambda _: {},
    "one key for all, with room": one_key,
    f"one of {KEYS:,} keys, with room": many_keys,
    "two keys, with room": two_keys,
    f"one of {KEYS:,} keys, limit 1, {EACH} calls wait for each": full_keys,
}


@contextmanager
def spent(client: redis.Redis, calls: Callable[[], int]) -> Iterator[list[Cost]]:
    """Yields a list, to which it adds what Redis spent meanwhile on each call."""
    found: list[Cost] = []
    before, began = _spent(client), calls()
    yield found
    after, count = _spent(client), max(1, calls() - began)
    found.append(Cost((after.us - before.us) / count, (after.commands - before.commands) / count))


def _spent(client: redis.Redis) -> Cost:
    stats: dict[str, Any] = client.info("commandstats")
    commands = sum(one["calls"] for name, one in stats.items() if name not in OUTER)
    cpu: dict[str, Any] = client.info("cpu")
    return Cost(1e6 * (cpu["used_cpu_user"] + cpu["used_cpu_sys"]), commands)


OUTER = {f"cmdstat_{name}" for name in ("evalsha", "info", "ping", "client|setinfo", "hello")}


def submit(queue: Queue, count: int, limits: Callable[[int], Limits], **options: Any) -> None:
    """Submits calls, EACH of them with the same keys in one round trip."""
    for number in range(count // EACH):
        queue.submit_many([[b"x 0"]] * EACH, limit=1, limits=limits(number), **options)


def submit_alone(queue: Queue, count: int, limits: Callable[[int], Limits]) -> None:
    """Submits calls, each in a round trip of its own."""
    for number in range(count):
        queue.submit_request([b"x 0"], limit=1, limits=limits(number))


def wait_for(log: Log, count: int) -> None:
    """Waits until so many calls have ended."""
    ends = time.monotonic() + PATIENCE_S
    while log.count() < count:
        if time.monotonic() > ends:
            raise TimeoutError(f"{log.count():,} of {count:,} calls have ended")
        time.sleep(0.05)


def drain(url: str, client: redis.Redis, count: int) -> Cost:
    """Works on so many calls; returns what Redis spent on each, without those at the beginning."""
    with at_work.workers(url, concurrency=UNITS) as log:
        wait_for(log, int(WARM * count))
        with spent(client, log.count) as found:
            wait_for(log, int(0.95 * count))
    return found[0]


def cost_of(limits: Callable[[int], Limits], count: int) -> tuple[Cost, Cost, Cost]:
    """Returns what a call costs: submitted with others, submitted alone, settled with its next."""
    is_full = limits is full_keys
    total = KEYS * EACH if is_full else count
    with support.server() as url, Queue.from_url(url) as queue, _client(url) as client:
        with spent(client, lambda: _active(client)) as together:
            submit(queue, total, limits)
        settled = drain(url, client, count)
    with support.server() as url, Queue.from_url(url) as queue, _client(url) as client:
        submit(queue, min(total, KEYS), limits)
        with spent(client, lambda: _active(client)) as alone:
            submit_alone(queue, 2_000, limits)
    return together[0], alone[0], settled


def cost_beside(waiting: int, count: int) -> Cost:
    """Returns what a call without keys costs while others wait in a more urgent lane."""
    with support.server() as url, Queue.from_url(url) as queue, _client(url) as client:
        if waiting:
            submit(queue, waiting, lambda _: {"full": 1}, priority=0)
            queue.take(1, visible_for=3_600)
        submit(queue, count, lambda _: {}, priority=50)
        return drain(url, client, count)


def starts(waiting: int) -> list[float]:
    """Returns the ms from the end of each call of a full key to the start of the next one."""
    with support.server() as url, Queue.from_url(url) as queue:
        body = f"x {CALL_MS}".encode()
        for _ in range(waiting // EACH):
            queue.submit_many([[body]] * EACH, limit=1, limits={"full": 1})
        with at_work.workers(url, count=2, concurrency=2) as log:
            wait_for(log, STARTS)
            calls = log.calls()[100:]
    return [1000 * (after.began - one.ended) for one, after in pairwise(calls)]


@contextmanager
def _client(url: str) -> Iterator[redis.Redis]:
    client = redis.Redis.from_url(url, decode_responses=True, socket_timeout=None)
    try:
        yield client
    finally:
        client.close()


def _active(client: redis.Redis) -> int:
    return int(client.zcard("{req}:active"))  # type: ignore[arg-type]


def main() -> None:
    """Measures, and writes the page."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else CALLS
    rows, beside, woken = [], [], []
    for name, limits in CASES.items():
        costs = cost_of(limits, count)
        rows.append(f"| {name} | " + " | ".join(_shown(one) for one in costs) + " |")
        print(rows[-1], file=sys.stderr)
    for waiting in (0, BESIDE):
        beside.append(f"| {waiting:,} | {_shown(cost_beside(waiting, count))} |")
        print(beside[-1], file=sys.stderr)
    for waiting in (2 * STARTS, BESIDE):
        found = sorted(starts(waiting))
        middle, high = found[len(found) // 2], found[int(0.99 * len(found))]
        woken.append(f"| {waiting:,} | {middle:.2f} ms | {high:.2f} ms |")
        print(woken[-1], file=sys.stderr)
    lines = [
        "What Redis spends on one call: microseconds of its processor, and commands in scripts.",
        f"{count:,} calls of one sub-request each. {EACH} of a key are submitted in a round trip,",
        f"or each in its own. A worker with {UNITS} units settles each, and takes the next one in",
        "the same script.",
        "",
        f"| | submitted, {EACH} together | submitted alone | settled, and the next one taken |",
        "|---|---:|---:|---:|",
        *rows,
        "",
        "## Other work beside a full key",
        "",
        "Calls without a key, of a later lane than those that wait for the key.",
        "",
        "| wait for the full key | settled, and the next one taken |",
        "|---:|---:|",
        *beside,
        "",
        "## From the end of a call to the next start",
        "",
        f"Calls of {CALL_MS} ms of one key with the limit 1, and two workers of two units each, by",
        "the handlers' clocks: the settlement, the next lease and the way to the handler.",
        "",
        "| calls that wait | 50 % | 99 % |",
        "|---:|---:|---:|",
        *woken,
    ]
    support.write("keys", "What limits by key cost", lines)


def _shown(cost: Cost) -> str:
    return f"{cost.us:.1f} µs, {cost.commands:.1f}"


if __name__ == "__main__":
    main()
