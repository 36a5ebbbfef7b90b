"""Measures the units of a worker: what each does, and the pace of all of them."""

from __future__ import annotations

import threading
from collections import Counter, deque
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlane.common import clock
from fairlane.common.task_names import OTHER, START, task_of
from fairlane.operations.stats import MOST_TASKS, TaskMeasures, add_stats, add_task_stats
from fairlane.operations.tokens import charge_turns

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fairlane.model import Slice
    from fairlane.protocol.steps import Call
    from fairlane.worker.calls import Outcome
    from fairlane.worker.log import Failures


# ------------------------------------------------------------------ metrics
# Collects what the units of one process measure, for the queue's statistics.


EVERY_S = 1.0
_UNCHARGED = ("release", "unbegun")  # verdicts that are no failures


class Metrics:
    """The measurements of one process, shared by its threads: value -> how often it came.

    Failures that could not be reported yet are sent along. With `has_tasks` bodies are calls, of
    the users' code of this `release`.
    """

    def __init__(
        self, queue: str, failures: Failures | None = None, *,
        has_tasks: bool = False, release: str = "",
    ) -> None:  # fmt: skip
        self._queue, self._release = queue, release
        self._tasks: dict[str, TaskMeasures] | None = {} if has_tasks else None
        self._last: tuple[bytes, str] = (b"\0", "")  # how the body before began, and its task
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

    def add_tasks(self, taken: Slice, outcome: Outcome) -> None:
        """Adds what was measured of the tasks that a part of a slice calls."""
        if self._tasks is None:
            return
        first = max(0, outcome.position - len(outcome.ids) - len(outcome.verdicts))
        entries = taken.entries[first : outcome.position]
        tasks = {entry_id: self._task(body) for entry_id, (_, body) in entries}
        with self._lock:
            for entry_id, ran_us in zip(outcome.ids, outcome.ran_us, strict=True):
                self._of(tasks.get(entry_id, OTHER)).ran_us[ran_us] += 1
            for verdict in outcome.verdicts:
                if verdict.verdict not in _UNCHARGED:
                    self._of(tasks.get(verdict.entry_id, OTHER)).failed += 1

    def _of(self, task: str) -> TaskMeasures:
        assert self._tasks is not None  # noqa: S101  its caller has looked
        if task not in self._tasks and len(self._tasks) >= MOST_TASKS:
            task = OTHER
        return self._tasks.setdefault(task, TaskMeasures())

    def _task(self, body: bytes) -> str:
        """Returns the task that a body calls; most bodies begin as the one before."""
        begins, task = self._last
        if body.startswith(begins):
            return task
        task = task_of(body[:START])
        begins = b'[1,"%b"' % task.encode()  # as the codec of tasks writes it
        if task and body.startswith(begins):
            self._last = begins, task
        return task or OTHER

    def add_cost(self, taken: Slice, ends: bool, seconds: float) -> None:
        """Adds what a part of a slice cost whose request names a tenant; `ends`: the last part."""
        with self._lock:
            cost = self._costs.setdefault((taken.priority, taken.turn), [0, 0.0])
            cost[0] += ends
            cost[1] += seconds

    def due(self) -> list[Call[Any]]:
        """Returns the calls that send what was collected, once a second; none if it is idle."""
        if self._failures is not None:
            self._failures.flush()
        if not self._found or clock.mono_s() - self._sent < EVERY_S:
            return []
        return self.rest()

    def rest(self) -> list[Call[Any]]:
        """Returns the calls that send all of it now."""
        with self._lock:
            found, self._found = self._found, {}
            costs, self._costs = self._costs, {}
            tasks = self._tasks or {}
            if self._tasks is not None:
                self._tasks = {}
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
                for call in add_stats(self._queue, priority, waited, ran, counts)
            ),
            *add_task_stats(self._queue, tasks, self._release),
            *charge_turns(self._queue, rows),
        ]


# ------------------------------------------------------------------ pace
# Measures how many sub-requests a worker finishes in a second while all its units work.


_WINDOW_S = 60.0  # so much of the last time counts
_LONGEST_S = 3_600.0  # ... and up to so much, until enough sub-requests are finished
_ENOUGH = 10
_LEAST_S = 0.5  # between two samples


class _Sample(NamedTuple):
    """One stretch of time: its length, the units' time in it at work, what they finished."""

    seconds: float
    held_s: float  # by the leases that were held at its ends
    busy_s: float  # by the calls that returned in it
    settled: int


class Pace:
    """The pace of the last minute; of up to an hour if the calls are slow.

    The time of idle units shows nothing about the pace, so only the time at work counts. There are
    two measures of it, and each misses a part: samples miss short leases, and the sum of the calls
    misses the time between calls. The longer one counts.
    """

    def __init__(self, units: int) -> None:
        self._units = units
        self._samples: deque[_Sample] = deque()
        self._at_s: float | None = None
        self._held = self._settled = self._busy_us = 0

    def look(self, now_s: float, held: int, settled: int, busy_us: int) -> float:
        """Adds a sample, and returns how many sub-requests all units finish in a second.

        0.0 = nothing was finished. `settled` and `busy_us` are the counts since the start.
        """
        held = min(held, self._units)
        if self._at_s is None:
            self._note(now_s, held, settled, busy_us)
        elif (seconds := now_s - self._at_s) >= _LEAST_S:
            held_s = seconds * (held + self._held) / 2 / self._units
            busy_s = (busy_us - self._busy_us) / 1e6 / self._units
            self._samples.append(_Sample(seconds, held_s, busy_s, settled - self._settled))
            self._note(now_s, held, settled, busy_us)
            self._forget()
        return self._per_s()

    def _note(self, now_s: float, held: int, settled: int, busy_us: int) -> None:
        self._at_s, self._held = now_s, held
        self._settled, self._busy_us = settled, busy_us

    def _forget(self) -> None:
        """Drops the oldest samples as long as the others are enough."""
        whole = sum(one.seconds for one in self._samples)
        settled = sum(one.settled for one in self._samples)
        while self._samples:
            oldest = self._samples[0]
            is_enough = whole - oldest.seconds >= _WINDOW_S and settled - oldest.settled >= _ENOUGH
            if not is_enough and whole <= _LONGEST_S:
                return
            self._samples.popleft()
            whole, settled = whole - oldest.seconds, settled - oldest.settled

    def _per_s(self) -> float:
        settled = sum(one.settled for one in self._samples)
        held_s = sum(one.held_s for one in self._samples)
        busy_s = sum(one.busy_s for one in self._samples)
        seconds = min(sum(one.seconds for one in self._samples), max(held_s, busy_s))
        return settled / seconds if settled and seconds > 0 else 0.0
