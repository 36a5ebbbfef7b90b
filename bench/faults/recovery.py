"""Measures how soon lost work is found among many waiting requests, and the cost of the search.

`python -m bench.faults.recovery [waiting ...]`. Four workers hold one sub-request each that does
not end, so all other requests wait. Then leases expire that no worker extends, the measurement
removes tokens of urgent requests from their lane, and it kills a worker.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import redis
from bench.harness import support

from fairlane import Queue
from fairlane.operations import lease as leases
from fairlane.operations import tokens
from fairlane.protocol import keys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SIZES = (100, 10_000, 100_000)
WORKERS = 4
SAMPLES = 5
LEASE_MS = 1_000
_CAP_S = float(os.environ.get("FAIRLANE_BENCH_CAP_S", "120"))
_BULK, _HELD, _VICTIM = 50, 0, 99  # priorities
_PAUSE_S = 0.02


NOTES = [
    "After a kill, a fixed number of script calls belongs to the dead worker: an audit follows,",
    "which checks 400 requests at most. The others check waiting requests, up to 300 a second.",
]


def hold(body: bytes) -> bytes:
    """Holds `body` and never returns."""
    while body:
        time.sleep(60)
    return body


@contextmanager
def fleet(url: str) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Starts four workers, which hold a sub-request each."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        with log.open("wb") as out:
            script = Path(sys.executable).with_name("rq-worker")
            command = [
                str(script),
                "--redis",
                url,
                "--id",
                "127.0.0.1:0",
                "--handler",
                "bench.faults.recovery:hold",
            ]
            env = support.importing()
            made = [
                subprocess.Popen(command, stdout=out, stderr=out, env=env, start_new_session=True)
                for _ in range(WORKERS)
            ]
            try:
                yield made
            finally:
                for process in made:
                    process.send_signal(signal.SIGTERM)
                time.sleep(0.5)
                for process in made:
                    process.send_signal(signal.SIGTERM)  # a second one ends it immediately
                    process.wait(20)


def seconds_until(condition: Callable[[], object]) -> float:
    """Returns the seconds until the condition holds, or the cap if it does not hold by then."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > _CAP_S:
            return _CAP_S
        time.sleep(_PAUSE_S)
    return time.monotonic() - began


class Lab:
    """Measures a queue in which `waiting` requests wait while workers hold four others."""

    def __init__(self, url: str, waiting: int) -> None:
        self.client: Any = redis.Redis.from_url(url)
        self.queue = Queue.from_url(url)
        self.client.flushall()
        self.queue.submit_many([[b"held"]] * WORKERS, priority=_HELD, limit=1)
        self.waiting = waiting

    def fill(self) -> None:
        """Waits until workers hold the first requests, then submits those that wait."""
        lane = keys.lane("req", _HELD)
        seconds_until(lambda: not self.client.llen(lane))
        self.queue.submit_many(([b"bulk"] for _ in range(self.waiting)), priority=_BULK, limit=1)
        # Within a minute the leader checks each waiting request once.
        due = time.monotonic() + min(60.0, 10 + self.waiting / 2000)
        while time.monotonic() < due:
            time.sleep(1)

    def expired_lease(self) -> float:
        """Returns the seconds from the end of a lease of one second until it is taken back."""
        request = self.queue.submit_request(
            [b"x"], priority=_VICTIM, limit=1, lease=LEASE_MS / 1000
        )
        lane = keys.lane("req", _VICTIM)
        token = tokens.parse(self.client.rpop(lane) or b"")
        if token is None:
            raise RuntimeError("a request was submitted, and its lane has no token")
        self.queue.driver.run(leases.acquire(token, "gone:1", "1", 1))
        passed = seconds_until(lambda: not self.client.exists(keys.leases(request.id)))
        request.cancel()
        self.client.delete(lane)
        return passed - LEASE_MS / 1000

    def lost_token(self) -> float:
        """Returns the seconds from the loss of a request's only token until it has another one."""
        request = self.queue.submit_request([b"x"], priority=_HELD, limit=1)
        lane = keys.lane("req", _HELD)
        self.client.rpop(lane)
        passed = seconds_until(lambda: self.client.llen(lane))
        request.cancel()
        self.client.delete(lane)
        return passed

    def calls(self) -> int:
        """Returns the number of script calls so far."""
        return int(self.client.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0))

    def cpu_s(self) -> float:
        """Returns the CPU seconds of the server so far."""
        cpu = self.client.info("cpu")
        return float(cpu["used_cpu_user"] + cpu["used_cpu_sys"])

    def at_rest(self, seconds: float = 30.0) -> tuple[float, float]:
        """Returns the percentage of one core that the server uses, and script calls a second."""
        began, cpu, calls = time.monotonic(), self.cpu_s(), self.calls()
        time.sleep(seconds)
        passed = time.monotonic() - began
        return 100 * (self.cpu_s() - cpu) / passed, (self.calls() - calls) / passed

    def death(self, process: subprocess.Popen[bytes], rate: float) -> tuple[float, float, float]:
        """Kills a worker; returns the seconds until its lease and a token are back, and the calls.

        The token is lost at the kill. The calls do not count `rate`, the calls a second at rest.
        """
        held = self._held()
        request = self.queue.submit_request([b"x"], priority=_HELD, limit=1)
        lane = keys.lane("req", _HELD)
        self.client.rpop(lane)
        before, began = self.calls(), time.monotonic()
        os.killpg(process.pid, signal.SIGKILL)
        lease = seconds_until(lambda: len(self._held()) < len(held) or self.client.llen(lane) > 1)
        found = lease + seconds_until(lambda: self._has_token(request.id))
        time.sleep(max(0.0, 10 - (time.monotonic() - began)))
        more = self.calls() - before - rate * (time.monotonic() - began)
        return lease, found, max(0.0, more)

    def _held(self) -> list[bytes]:
        found: list[bytes] = [*self.client.scan_iter(match="lease:{*}", count=10_000)]
        return found

    def _has_token(self, request_id: str) -> bool:
        waiting = self.client.lrange(keys.lane("req", _HELD), 0, -1)
        return any(token.startswith(request_id.encode()) for token in waiting)


def longest(values: list[float]) -> str:
    """Returns the longest of these times as text."""
    most = max(values)
    return f"> {most:.0f} s" if most >= _CAP_S else f"{most:.1f} s"


def measure(url: str, waiting: int) -> list[str]:
    """Measures one size; returns its column of the table."""
    lab = Lab(url, waiting)
    with fleet(url) as workers:
        lab.fill()
        cpu, rate = lab.at_rest()
        print(f"{waiting:,} waiting: at rest {cpu:.1f} % CPU, {rate:.0f} calls/s", file=sys.stderr)
        expired = [lab.expired_lease() for _ in range(SAMPLES)]
        print(f"{waiting:,} waiting: expired leases {expired}", file=sys.stderr)
        lost = [lab.lost_token() for _ in range(SAMPLES)]
        print(f"{waiting:,} waiting: lost tokens {lost}", file=sys.stderr)
        lease, found, calls = lab.death(workers.pop(), rate)
        print(f"{waiting:,} waiting: a death {lease}, {found}, {calls}", file=sys.stderr)
    return [
        *(longest(expired), longest(lost), longest([lease]), longest([found])),
        *(f"{calls:,.0f}", f"{cpu:.1f} %", f"{rate:,.0f}"),
    ]


def main() -> None:
    """Measures all sizes on the same server, one after the other."""
    sizes = [int(given) for given in sys.argv[1:]] or SIZES
    with support.server() as url:
        columns = [measure(url, size) for size in sizes]
    names = [
        f"a lease of {LEASE_MS / 1000:.0f} s that no worker extends is taken back, after its end",
        "a lost token of an urgent request is minted again",
        "a killed worker's lease is taken back",
        "... and a token of an urgent request, lost at that moment, is minted again",
        "script calls in the 10 s after the kill, beyond those at rest",
        "CPU of Redis at rest, of one core",
        "script calls a second at rest",
    ]
    story = (
        f"Requests of one sub-request wait, and {WORKERS} workers hold one each. The first two "
        f"rows show the longest of {SAMPLES} times."
    )
    lines = [
        story,
        "",
        "| waiting requests | " + " | ".join(f"{size:,}" for size in sizes) + " |",
        "|---|" + "---:|" * len(sizes),
        *(
            f"| {name} | " + " | ".join(column[row] for column in columns) + " |"
            for row, name in enumerate(names)
        ),
        "",
        *NOTES,
    ]
    support.write("recovery", "Lost work among many waiting requests", lines)


if __name__ == "__main__":
    main()
