"""Records what handlers really did: when each execution began and ended, in each process.

A record is written by one system call before the handler continues, so it survives a kill -9
of its process. The moments are CLOCK_MONOTONIC's, which all processes of a machine share.
"""

from __future__ import annotations

import os
import struct
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER = "FAIRLANE_CHAOS_JOURNAL"
BEGAN, ENDED, RAISED, CANCELLED = 0, 1, 2, 3
_RECORD = struct.Struct("<IIQHHQ")  # request, index, fence, attempt, what, ns


class Writer:
    """The writer of one process; made anew after a fork."""

    def __init__(self) -> None:
        self._file = -1
        self._pid = 0
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._forked)

    def note(self, what: int, number: int, index: int, fence: int, attempt: int) -> None:
        if self._pid != os.getpid():
            self._open()
        record = _RECORD.pack(number, index, fence, attempt, what, time.monotonic_ns())
        os.write(self._file, record)

    def _open(self) -> None:
        with self._lock:
            if self._pid == os.getpid():
                return
            name = f"{os.getppid()}-{os.getpid()}-{time.monotonic_ns()}"
            path = Path(os.environ[FOLDER]) / name
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            self._pid = os.getpid()

    def _forked(self) -> None:
        self._lock = threading.Lock()


class Execution(NamedTuple):
    """One run of the handler over one body; `ended_ns` is when it was certainly still running."""

    place: int
    fence: int
    attempt: int
    began_ns: int
    ended_ns: int
    raised: bool
    cut: bool  # its process was killed in the middle
    supervisor: int
    pid: int
    cancelled: bool = False  # by its worker, which had lost the lease


@dataclass
class Journal:
    """All executions, by request."""

    by_request: dict[int, list[Execution]] = field(
        default_factory=lambda: defaultdict(list[Execution])
    )
    unexplained: int = 0  # begun, not ended, and its process was not killed

    @property
    def count(self) -> int:
        return sum(map(len, self.by_request.values()))


def read(folder: Path, deaths: dict[int, list[int]]) -> Journal:
    """Reads all records; `deaths`: process -> the moments (ns) it was killed."""
    journal = Journal()
    for path in sorted(folder.iterdir()):
        _read_one(path, journal, deaths)
    return journal


def _read_one(path: Path, journal: Journal, deaths: dict[int, list[int]]) -> None:
    supervisor, pid, opened = map(int, path.name.split("-"))
    running: dict[tuple[int, int, int], tuple[int, int]] = {}
    for number, index, fence, attempt, what, moment in _records(path):
        key = (number, index, fence)
        if what == BEGAN:
            running[key] = (attempt, moment)
            continue
        _, began = running.pop(key)
        journal.by_request[number].append(
            Execution(
                *(index, fence, attempt, began, moment, what == RAISED, False),
                *(supervisor, pid, what == CANCELLED),
            )
        )
    killed = [at for one in (supervisor, pid) for at in deaths.get(one, ()) if at >= opened]
    for (number, index, fence), (attempt, began) in running.items():
        ended = max(began, min(killed, default=began))
        journal.unexplained += not killed
        journal.by_request[number].append(
            Execution(index, fence, attempt, began, ended, False, True, supervisor, pid)
        )


def _records(path: Path) -> Iterator[tuple[int, ...]]:
    data = path.read_bytes()
    return _RECORD.iter_unpack(data[: len(data) - len(data) % _RECORD.size])


def written(folder: Path) -> int:
    """Returns about how many executions have ended by now."""
    with os.scandir(folder) as found:
        return sum(entry.stat().st_size for entry in found) // (2 * _RECORD.size)
