"""Runs Fairlane in the environment of the measurements.

Variants: "" has one big request and slices of 20 ms. "count1" has 128 permits and no slices.
"single" has a request for each sub-request, as peers have a job.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from actions import main
from peer import Peer

from fairlane import Queue, Worker
from fairlane.settings import SLICE_MS

if TYPE_CHECKING:
    from resp import Resp

_PERMITS = 128  # limit of the request if each lease covers one sub-request


class Fairlane(Peer):
    many_processes = True

    def open(self) -> None:
        self.queue = Queue.from_url(self.spec.url)

    @property
    def units(self) -> int:
        return self.spec.concurrency * self.spec.processes

    def put(self, bodies: list[str], tag: int = 0) -> None:
        del tag
        size, lanes = self.spec.size or len(bodies), self.spec.lanes
        limit = max(_PERMITS, self.units) if self.spec.variant == "count1" else self.units
        if self.spec.variant == "single":
            size = 1
        if size == 1 and lanes == 1 and hasattr(self.queue, "submit_many"):
            self.queue.submit_many([[body] for body in bodies], priority=50, limit=1)
            return
        for at in range(0, len(bodies), size):
            priority = at // size * 100 // max(1, len(bodies) // size) if lanes > 1 else 50
            self.queue.submit_request(
                bodies[at : at + size],
                priority=priority,
                limit=3 if self.spec.sizes else limit,
            )

    def put_single(self, body: str) -> None:
        self.queue.submit_request([body], priority=50, limit=1)

    def put_urgent(self, body: str) -> None:
        self.queue.submit_request([body], priority=0, limit=1)

    def ask(self) -> Any:
        return next(self.queue.submit_request([self.body], priority=5, limit=1).results()).body

    body = "x" * 100

    def work(self) -> None:
        handler = self.handler_async if self.spec.mode == "async" else self.handler
        Worker(
            Queue.from_url(self.spec.url),
            handler,
            concurrency=self.spec.concurrency,
            processes=self.spec.processes,
            slice_s=(0 if self.spec.variant == "count1" else SLICE_MS) / 1000,
        ).run()

    def left(self, redis: Resp) -> int:
        ids = redis("ZRANGE", "{req}:active", 0, 200)
        if len(ids) > 200:
            return redis("ZCARD", "{req}:active")
        return sum(int(redis("GET", f"counter:{{{one}}}") or 1) for one in ids)

    def settled(self, redis: Resp) -> bool:
        return not self.left(redis)  # exact, while a count of the results takes long

    def stored(self, redis: Resp) -> int | None:
        if self.spec.size or self.spec.variant == "single":
            return None
        ended = [entry[1] for entry in redis("XRANGE", "{req}:completed", "-", "+")]
        ids = [fields[fields.index("id") + 1] for fields in ended]
        with Queue.from_url(self.spec.url) as queue:
            return sum(
                sum(1 for result in queue.request(one).results() if result.body is not None)
                for one in ids
            )


if __name__ == "__main__":
    sys.exit(main(Fairlane))
