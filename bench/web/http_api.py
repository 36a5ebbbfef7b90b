"""Measures the HTTP API: calls in a second, beside the same calls of the library, and viewers.

`python -m bench.web.http_api [runs] [calls]`: clients with a connection each post requests of one
sub-request, and take and settle them. The library does the same in one thread, and redis-py alone
pushes and pops a list. Then viewers follow the endings: the commands that Redis gets meanwhile are
counted, and 10,000 viewers come and go.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import redis
from bench.harness import support

from fairlane import Queue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

RUNS, CALLS, CLIENTS = 3, 1_000, 8
VIEWERS, PASSING, IDLE_S = 200, 10_000, 5.0


class Client:
    """One connection that stays open."""

    def __init__(self, url: str) -> None:
        place = urlsplit(url)
        self._line = socket.create_connection((place.hostname, place.port))
        self._line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self._line.makefile("rb")

    def call(self, path: str, content: bytes) -> bytes:
        """Posts JSON and returns the answer's content."""
        head = (
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(content)}\r\n\r\n"
        )
        self._line.sendall(head.encode() + content)
        status, length = self._file.readline(), 0
        while (line := self._file.readline()) != b"\r\n":
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        if status.split()[1][:1] != b"2":
            raise SystemExit(f"{path}: {status!r} {self._file.read(length)!r}")
        return self._file.read(length)

    def view(self) -> None:
        """Begins to follow the endings; returns when the answer has begun."""
        self._line.sendall(b"GET /v1/completions HTTP/1.1\r\nHost: localhost\r\n\r\n")
        self._file.readline()

    def close(self) -> None:
        """Closes the connection."""
        self._file.close()
        self._line.close()


@contextmanager
def serving(url: str) -> Iterator[tuple[str, int]]:
    """Runs `fairlane serve`; yields its address and its process id."""
    program = str(Path(sys.executable).with_name("fairlane"))
    with tempfile.TemporaryDirectory() as home:
        process = subprocess.Popen(
            [program, "serve", "--redis", url, "--port", "0"],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env={**os.environ, "FAIRLANE_HOME": home},
        )  # fmt: skip
        try:
            address = process.stdout.readline() if process.stdout else ""
            yield address.strip(), process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate()


def post(client: Client) -> None:
    """Posts a request of one sub-request."""
    client.call("/v1/requests", b'{"bodies": ["hello"]}')


def take(client: Client) -> None:
    """Takes one and settles it."""
    (taken,) = json.loads(client.call("/v1/take", b"{}"))["taken"]
    client.call(f"/v1/taken/{taken['receipt']}/done", b'{"result": "ok"}')


def by_http(address: str, each: Callable[[Client], None], calls: int, clients: int) -> float:
    """Returns how often a second the clients do this together."""
    with ExitStack() as stack:
        lines = [Client(address) for _ in range(clients)]
        for line in lines:
            stack.callback(line.close)

        def repeat(line: Client) -> None:
            for _ in range(calls // clients):
                each(line)

        before = time.perf_counter()
        with ThreadPoolExecutor(clients) as pool:
            list(pool.map(repeat, lines))
        return calls // clients * clients / (time.perf_counter() - before)


def rate_of(calls: int, each: Callable[[], object]) -> float:
    """Returns how often a second this can be done in one thread."""
    before = time.perf_counter()
    for _ in range(calls):
        each()
    return calls / (time.perf_counter() - before)


def once(url: str, address: str, calls: int) -> dict[str, float]:
    """Measures each rate once; what is submitted is taken by the next one."""
    raw = redis.Redis.from_url(url)
    with Queue.from_url(url) as queue:

        def take_one() -> None:
            (taken,) = queue.take()
            taken.done(b"ok")

        return {
            f"POST /v1/requests, {CLIENTS} clients": by_http(address, post, calls, CLIENTS),
            f"take + done, {CLIENTS} clients": by_http(address, take, calls, CLIENTS),
            "POST /v1/requests, 1 client": by_http(address, post, calls, 1),
            "take + done, 1 client": by_http(address, take, calls, 1),
            "Queue.post, one thread": rate_of(calls, lambda: queue.post(b"hello")),
            "Queue.take + done, one thread": rate_of(calls, take_one),
            "redis-py LPUSH, one thread": rate_of(calls, lambda: raw.lpush("list", b"hello")),
            "redis-py RPOP, one thread": rate_of(calls, lambda: raw.rpop("list")),
        }


def commands_of(url: str, address: str, viewers: int) -> float:
    """Returns how many commands a second Redis gets while so many viewers wait."""
    raw = redis.Redis.from_url(url)
    with ExitStack() as stack:
        for _ in range(viewers):
            line = Client(address)
            stack.callback(line.close)
            line.view()
        time.sleep(1.0)  # the first reads
        first, began = raw.info("stats")["total_commands_processed"], time.perf_counter()
        time.sleep(IDLE_S)
        last, ended = raw.info("stats")["total_commands_processed"], time.perf_counter()
    return (last - first - 1) / (ended - began)  # without INFO


def memory_of(pid: int) -> int:
    """Returns the resident memory of a process in KiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])


def pass_by(address: str, count: int) -> None:
    """Lets so many viewers come and go, 50 at a time."""

    def come_and_go(_: int) -> None:
        line = Client(address)
        line.view()
        line.close()

    with ThreadPoolExecutor(50) as pool:
        list(pool.map(come_and_go, range(count)))


def main() -> None:
    """Measures everything on one server, and writes the page."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else RUNS
    calls = int(sys.argv[2]) if len(sys.argv) > 2 else CALLS
    load = os.getloadavg()[0]
    with support.server() as url, serving(url) as (address, pid):
        found = [once(url, address, calls) for _ in range(runs)]
        commands = {count: commands_of(url, address, count) for count in (1, VIEWERS)}
        pass_by(address, PASSING // 10)  # what grows once has grown
        before = memory_of(pid)
        pass_by(address, PASSING)
        after = memory_of(pid)
    rows = [
        f"| {name} | {median(one[name] for one in found):,.0f} | "
        f"{min(one[name] for one in found):,.0f} .. {max(one[name] for one in found):,.0f} |"
        for name in found[0]
    ]
    lines = [
        (
            f"One `fairlane serve` process without tokens, which shares a core with its clients. "
            f"Each rate is of {calls:,} calls, the median of {runs} runs; `take + done` are two "
            "calls. The library and redis-py do the same in one thread of a program. The load "
            f"average before was {load:.0f}; above 1, other programs slow down all of them."
        ),
        "",
        "| | a second | runs |",
        "|---|---:|---:|",
        *rows,
        "",
        "Viewers of `/v1/completions` share one blocking call:",
        "",
        "| viewers | commands a second at Redis, while nothing ends |",
        "|---:|---:|",
        *(f"| {count} | {rate:.1f} |" for count, rate in commands.items()),
        "",
        (
            f"{PASSING:,} viewers came and went, 50 at a time: the server's memory was "
            f"{before:,} KiB before and {after:,} KiB after."
        ),
    ]
    support.write("http_api", "The HTTP API", lines)


if __name__ == "__main__":
    main()
