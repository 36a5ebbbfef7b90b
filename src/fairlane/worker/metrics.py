"""Collects what the units of one process measure, for the queue's statistics."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING

from fairlane.common import clock
from fairlane.operations.lease import tally
from fairlane.operations.tokens import charge

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fairlane.model import Slice
    from fairlane.protocol.steps import Call
    from fairlane.worker.log.failures import Failures

EVERY_S = 1.0


class Metrics:
    """The measurements of one process, shared by its threads: value -> how often it came.

    Failures that could not be reported yet are sent along.
    """

    def __init__(self, queue: str, failures: Failures | None = None) -> None:
        self._queue = queue
        self._failures = failures
        self._lock = threading.Lock()
        self._found: dict[int, tuple[Counter[int], Counter[int], Counter[str]]] = {}
        self._costs: dict[tuple[int, str], list[float]] = {}  # lane and turn -> turns, seconds
        self._sent = clock.mono_s()

    def add(
        self,
        priority: int,
        waited_ms: Iterable[int],
        ran_us: Iterable[int],
        failed: int = 0,
        timeouts: int = 0,
    ) -> None:
        """Adds what was measured of one settled part of a slice."""
        with self._lock:
            found = self._found.get(priority)
            if found is None:
                found = self._found[priority] = (Counter(), Counter(), Counter())
            found[0].update(waited_ms)
            found[1].update(ran_us)
            if failed:
                found[2]["failed"] += failed
            if timeouts:
                found[2]["timeouts"] += timeouts

    def add_cost(self, taken: Slice, ends: bool, seconds: float) -> None:
        """Adds what a part of a slice cost whose request names a tenant; `ends`: the last part."""
        with self._lock:
            cost = self._costs.setdefault((taken.priority, taken.turn), [0, 0.0])
            cost[0] += ends
            cost[1] += seconds

    def due(self) -> list[Call]:
        """Returns the calls that send what was collected, once a second; none if it is idle."""
        if self._failures is not None:
            self._failures.flush()
        if not self._found or clock.mono_s() - self._sent < EVERY_S:
            return []
        return self.rest()

    def rest(self) -> list[Call]:
        """Returns the calls that send all of it now."""
        with self._lock:
            found, self._found = self._found, {}
            costs, self._costs = self._costs, {}
            self._sent = clock.mono_s()
        rows = [
            (lane, turn, int(count), round(seconds * 10_000))
            for (lane, turn), (count, seconds) in costs.items()
            if count
        ]
        return [
            *(
                call
                for priority, (waited, ran, counts) in found.items()
                for call in tally(self._queue, priority, waited, ran, counts)
            ),
            *charge(self._queue, rows),
        ]
