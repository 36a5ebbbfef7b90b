"""Provides a page of memory that a peer's workers write and the measuring process reads.

The page exists before the workers are forked. So the count of a handler call is one number in
memory, and costs no Redis and no pipe.
"""

from __future__ import annotations

import fcntl
import itertools
import mmap
import os
import tempfile
import threading
import time
from typing import NamedTuple

PROCESSES = 160
_WIDTH = 4  # cells of a process: count, first, busy, records
_COUNT, _FIRST, _BUSY, _RECORDS = range(_WIDTH)
_RECORD = 3  # cells of a record: tag, start, end


class Record(NamedTuple):
    tag: int
    start: float
    end: float


class Board:
    """Holds the counts of each process, and up to `records` records of its calls."""

    def __init__(self, records: int = 0) -> None:
        self._records = records
        cells = 1 + PROCESSES * (_WIDTH + records * _RECORD)
        self.cells = memoryview(mmap.mmap(-1, cells * 8)).cast("d")
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  stays open as long as the board
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """Forgets the place, because a forked process claims its own place at its first call."""
        self._base = -1
        self._calls = itertools.count(1)
        self._places = itertools.count()
        self._lock = threading.Lock()

    def _claim(self) -> int:
        with self._lock:
            if self._base < 0:
                fcntl.flock(self._file, fcntl.LOCK_EX)
                place = int(self.cells[0])
                self.cells[0] = place + 1
                fcntl.flock(self._file, fcntl.LOCK_UN)
                if place >= PROCESSES:
                    raise RuntimeError("more processes than the board has places for")
                self.cells[1 + place * _WIDTH + _FIRST] = time.monotonic()
                self._base = 1 + place * _WIDTH
        return self._base

    # ------------------------------------------------------------------ the handler's side

    def touch(self) -> None:
        """Counts a call. Two threads may lose a count, which the measuring process allows for."""
        base = self._base
        if base < 0:
            base = self._claim()
        self.cells[base] = next(self._calls)

    def worked(self, start: float) -> None:
        """Counts a call that began at `start` and ends now."""
        self.touch()
        with self._lock:
            self.cells[self._base + _BUSY] += time.monotonic() - start

    def record(self, tag: int, start: float, end: float) -> None:
        self.touch()
        place = next(self._places)
        if place >= self._records:
            return
        process = (self._base - 1) // _WIDTH
        at = 1 + PROCESSES * _WIDTH + (process * self._records + place) * _RECORD
        self.cells[at], self.cells[at + 1], self.cells[at + 2] = tag, start, end
        self.cells[self._base + _RECORDS] = place + 1

    # ------------------------------------------------------------------ the reader's side

    def _of_all(self, which: int) -> list[float]:
        used = int(self.cells[0])
        return list(self.cells[1 + which : 1 + used * _WIDTH : _WIDTH])

    def count(self) -> int:
        return int(sum(self._of_all(_COUNT)))

    def busy(self) -> float:
        return sum(self._of_all(_BUSY))

    def first(self) -> float:
        """Returns the time of the first handler call, in seconds of the monotonic clock."""
        return min(self._of_all(_FIRST))

    def recorded(self) -> int:
        return int(sum(self._of_all(_RECORDS)))

    def records(self) -> list[Record]:
        """Returns all records, sorted by their start."""
        found = []
        for process, count in enumerate(self._of_all(_RECORDS)):
            at = 1 + PROCESSES * _WIDTH + process * self._records * _RECORD
            cells = self.cells[at : at + int(count) * _RECORD]
            found += [Record(int(cells[i]), *cells[i + 1 : i + 3]) for i in range(0, len(cells), 3)]
        return sorted(found, key=lambda record: record.start)
