"""Runs FastQ: a C engine with blocking handlers. It has no bulk call and stores no results."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import fastq
from actions import main
from handlers import BODY
from peer import Peer

if TYPE_CHECKING:
    from collections.abc import Callable

    from resp import Resp

_LISTS = tuple(f"fastq:queue:q:{name}" for name in ("high", "normal", "low"))
_DONE = "fastq:queue:q:done"
_ERROR = 3  # log level
_POLL_S = 0.002


class Fastq(Peer):
    def connect(self) -> fastq.Queue:
        fastq.set_log_level(_ERROR)
        place = urlsplit(self.spec.url)
        return fastq.Queue("q", place.hostname, place.port)

    def open(self) -> None:
        self.queue = self.connect()
        self.asked = 0

    def put(self, bodies: list[str], tag: int = 0) -> None:
        del tag
        for body in bodies:
            self.queue.push(body)

    def put_urgent(self, body: str) -> None:
        self.queue.push(body, fastq.PRIORITY_HIGH)

    def ask(self) -> Any:
        """Submits one body; waits until its handler has returned, and returns no result."""
        self.asked += 1
        self.queue.push(BODY)
        while self.queue.stats()["done"] < self.asked:
            time.sleep(_POLL_S)

    def clocked_ask(self, now: Callable[[], float]) -> tuple[float, float | None]:
        before = now()
        self.ask()
        return before, None  # because no call waits for a job

    def work(self) -> None:
        handler = self.handler
        # One thread, because the threads of a Python worker share one connection.
        fastq.Worker(self.connect(), lambda job: handler(job["payload"]), 1).start()

    def left(self, redis: Resp) -> int:
        return sum(redis("LLEN", name) for name in _LISTS)

    def settled(self, redis: Resp) -> bool:
        """Returns whether every call is done, because a running call is in no list."""
        return redis("LLEN", _DONE) >= self.spec.n

    def stored(self, redis: Resp) -> int | None:
        del redis
        return None


if __name__ == "__main__":
    main(Fastq)
