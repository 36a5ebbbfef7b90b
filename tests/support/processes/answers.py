"""A worker that only answers orders, for tests of those who ask."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fairlane.operations import orders
from tests.support.processes.beats import beating
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fairlane.operations.orders import WorkerOrder
    from fairlane.queue import Queue


def call_of(request_id: str, **changed: Any) -> dict[str, Any]:
    """Returns a call as a worker's answer has it."""
    given: dict[str, Any] = {
        "id": request_id, "index": 7, "count": 1, "task": "resize", "call": "resize(size=3)",
        "permit": 0, "fence": 9,
        "attempt": 1, "attempts": 5, "ran_ms": 90_000, "limit_ms": None, "process": 41,
        "thread": 42, "beside": 0, "lines": ['  File "/app/mine.py", line 7 in resize'],
        "problem": None,
    }  # fmt: skip
    return given | changed


@contextmanager
def answering(
    queue: Queue, worker: str, answer: Callable[[WorkerOrder], dict[str, Any]]
) -> Iterator[list[WorkerOrder]]:
    """Beats as a worker, and answers each order; yields the orders."""
    seen: list[WorkerOrder] = []
    is_over = threading.Event()

    def look() -> bool:
        for name, order in queue.driver.run(orders.read_orders(queue.name, worker)).items():
            assert order is not None
            seen.append(order)
            text = json.dumps(answer(order))
            queue.driver.run(_sent(orders.answer_call(queue.name, worker, name, text)))
        return is_over.is_set()

    thread = threading.Thread(target=lambda: wait_until(look, why="the test is over"))
    with beating(queue, worker):
        thread.start()
        try:
            yield seen
        finally:
            is_over.set()
            thread.join()


async def _sent(call: Any) -> None:
    await call
