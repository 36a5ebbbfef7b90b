"""Measures how many sub-requests a worker finishes in a second while all its units work."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

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
