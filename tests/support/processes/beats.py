"""Registers workers that only send heartbeats, as a running worker does."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

from fairlane.operations import workers
from fairlane.protocol import keys

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis

    from fairlane.queue import Queue

STARTED = "1700000000000"
_EVERY_S = 1.0
HOLDS = "3 leases; mine#0 4 30/100"


def beat(queue: Queue, name: str, holds: str = HOLDS) -> None:
    """Registers a worker that has just sent its first heartbeat."""
    place = "machine 4711-boot net:[1]"
    queue.driver.run(workers.register_worker(queue.name, name, place, 17, STARTED))
    queue.driver.run(workers.heartbeat(queue.name, name, STARTED, holds))


@contextlib.contextmanager
def beating(queue: Queue, name: str, holds: str = HOLDS) -> Iterator[None]:
    """Registers a worker that sends heartbeats until the block ends, however long that takes."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(_EVERY_S):
            beat(queue, name, holds)

    beat(queue, name, holds)
    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def make_older(client: redis.Redis, queue: Queue, name: str, by_ms: int) -> None:
    """Moves the last heartbeat of a worker into the past."""
    client.zincrby(keys.workers(queue.name), -by_ms, name)
