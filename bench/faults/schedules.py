"""Checks that each tick of many schedules submits exactly one request while workers are killed.

`python -m bench.faults.schedules [schedules] [seconds] [seconds between ticks]`: 1,000 schedules
for one minute, with a tick each 10 seconds. All schedules are due in the same second. Three
workers run, and each 5 seconds one of them is killed and started again, the leader among them in
its turn.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import redis
from bench.harness import support

from fairlane import Queue
from fairlane.operations.schedules import request_id
from fairlane.protocol import keys

if TYPE_CHECKING:
    from collections.abc import Iterator

WORKERS = 3
KILL_EVERY_S = 5.0
SETTLE_S = 60.0  # how long the last requests may take


class Fleet:
    """Runs workers of the queue; `kill_one` kills the next one and starts another in its place."""

    def __init__(self, url: str, log: Any) -> None:
        self._url, self._log = url, log
        self._workers = [self._start() for _ in range(WORKERS)]
        self._turns = cycle(range(WORKERS))
        self.killed = 0

    def _start(self) -> subprocess.Popen[bytes]:
        script = str(Path(sys.executable).with_name("rq-worker"))
        command = [script, "--redis", self._url, "--id", "127.0.0.1:0"]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=self._log)

    def kill_one(self) -> None:
        """Kills a worker without a warning."""
        place = next(self._turns)
        self._workers[place].kill()
        self._workers[place].wait(20)
        self._workers[place] = self._start()
        self.killed += 1

    def end(self) -> None:
        """Ends all workers."""
        for worker in self._workers:
            worker.terminate()
        for worker in self._workers:
            worker.wait(60)


@contextmanager
def fleet(url: str) -> Iterator[Fleet]:
    """Runs workers, and ends them at the end."""
    with tempfile.TemporaryFile() as log:
        made = Fleet(url, log)
        try:
            yield made
        finally:
            made.end()


def wait_until(condition: Any) -> None:
    """Waits until the condition holds, for a minute at most."""
    ends = time.monotonic() + SETTLE_S
    while not condition() and time.monotonic() < ends:
        time.sleep(0.1)


def next_ticks(client: Any) -> list[int]:
    """Returns the next ticks of all schedules, in ms."""
    ticks = client.zrange(keys.schedules("req")[1], 0, -1, withscores=True)
    return [int(tick) for _, tick in ticks]


def pause_all(client: Any) -> list[int]:
    """Pauses all schedules in one step, and returns what their next ticks were, in ms."""
    _, key = keys.schedules("req")
    with client.pipeline(transaction=True) as batch:
        batch.zrange(key, 0, -1, withscores=True).delete(key)
        ticks, _ = batch.execute()
    return [int(tick) for _, tick in ticks]


def measure(url: str, schedules: int, seconds: int, every_s: int) -> list[str]:
    """Runs the schedules for so long; returns what was found."""
    client: Any = redis.Redis.from_url(url)
    client.flushall()
    queue = Queue.from_url(url)
    names = [f"s{number}" for number in range(schedules)]
    for name in names:
        queue.schedules.add(name, cron=f"*/{every_s} * * * * *", bodies=[b"x"], missed="all")
    client.zadd(keys.schedules("req")[1], dict.fromkeys(names, max(next_ticks(client))))
    first = max(next_ticks(client))
    with fleet(url) as workers:
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            time.sleep(KILL_EVERY_S)
            workers.kill_one()
        # All schedules have submitted the same ticks, and are paused before the next one.
        wait_until(lambda: min(next_ticks(client)) > 1000 * (time.time() + every_s / 2))
        after = pause_all(client)
        wait_until(lambda: not client.zcard(keys.active("req")))
    endings = Counter((one.id, one.state) for one in queue.completions("0", follow=False))
    expected = {
        request_id("req", name, tick)
        for name in names
        for tick in range(first, max(after), 1000 * every_s)
    }
    head = f"{schedules:,} schedules, {(max(after) - first) // 1000 // every_s} ticks each"
    return [f"{head}, {WORKERS} workers, {workers.killed} killed", *judge(endings, expected)]


def judge(endings: Counter[tuple[str, str]], expected: set[str]) -> Iterator[str]:
    """Yields what is right and what is wrong, a line each."""
    done = {request for request, state in endings if state == "done"}
    yield f"requests done: {len(done):,} of {len(expected):,}"
    yield f"ticks without a request: {len(expected - done):,}"
    yield f"requests without a tick: {len({one for one, _ in endings} - expected):,}"
    yield f"requests that ended twice: {sum(times > 1 for times in endings.values()):,}"


def main(schedules: int = 1000, seconds: int = 60, every_s: int = 10) -> None:
    """Measures on a server of its own, and writes the page."""
    with support.server() as url:
        head, *found = measure(url, schedules, seconds, every_s)
    lines = [
        f"{head}. All schedules are due in the same second, and each {KILL_EVERY_S:g} s one worker",
        "is killed and started again, the leader among them in its turn. All requests are counted",
        "by their id, which names the schedule and the tick.",
        "",
        *(f"- {line}" for line in found),
    ]
    support.write("schedules", "One request for each tick of a schedule", lines)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
