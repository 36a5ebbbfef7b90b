"""The supervisor's processes: started, watched, started again when one dies."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from typing import TYPE_CHECKING

from .. import clock
from .process import Assignment, start

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .board import Record

_log = logging.getLogger("fairlane.worker")
_STEADY_S = 10.0  # a process that lived this long starts again at once
_SLOWEST_S = 5.0  # others after a growing pause: a body that kills must not kill too fast


class Children:
    """One process per assignment."""

    def __init__(self, assignments: list[Assignment], close: list[Callable[[], None]]) -> None:
        self._assignments = assignments
        self._close = close
        self.running: dict[int, int] = {}  # pid -> index of its assignment
        self._pipes: dict[int, int] = {}
        self._born: dict[int, float] = {}
        self._due: dict[int, float] = {}  # assignment -> when to start it again
        self._pause = [0.0] * len(assignments)
        self._alone: dict[int, float] = {}  # assignment -> when its other units may begin
        self.restarts = 0

    def start(self) -> None:
        """Starts every assignment."""
        for index in range(len(self._assignments)):
            self._start(index)

    def alone(self, records: tuple[Record, ...]) -> None:
        """A process died with several leases, and nobody knows which is to blame.

        One unit begins, the others when it has lived for a while: so the body that kills is soon
        alone, and charged.
        """
        for record in records[1:]:
            record.wait(begin=False)
        index = next(i for i, one in enumerate(self._assignments) if one.records is records)
        self._alone[index] = clock.mono_s() + _STEADY_S

    def _start(self, index: int) -> None:
        if index in self._alone:
            self._alone[index] = clock.mono_s() + _STEADY_S
        pid, pipe = start(self._assignments[index], self._let_go)
        self.running[pid] = index
        self._pipes[pid] = pipe
        self._born[pid] = clock.mono_s()

    def _let_go(self) -> None:
        """In a child: the parent's sockets and the pipes that tie its siblings."""
        for close in self._close:
            close()
        for pipe in self._pipes.values():
            os.close(pipe)

    def collect(self, *, restart: bool) -> Iterator[tuple[Record, ...]]:
        """Yields the records of each process that has died by itself; starts it again when due."""
        for pid in list(self.running):
            try:
                ended, status = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                ended, status = pid, 0
            if ended:
                yield from self._ended(pid, status, restart=restart)
        if not restart:
            self._due.clear()
        for index, due in list(self._due.items()):
            if due <= clock.mono_s():
                self._again(index)
        for index, due in list(self._alone.items()):
            if due <= clock.mono_s():
                del self._alone[index]
                for record in self._assignments[index].records:
                    record.wait(begin=True)

    def _again(self, index: int) -> None:
        try:
            self._start(index)
        except OSError as error:  # no process, no memory, no file: it may be better later
            _log.error("could not start a process again: %s", error)
            self._due[index] = clock.mono_s() + _SLOWEST_S
        else:
            del self._due[index]
            self.restarts += 1

    def _ended(self, pid: int, status: int, *, restart: bool) -> Iterator[tuple[Record, ...]]:
        index = self.running.pop(pid)
        os.close(self._pipes.pop(pid))
        lived = clock.mono_s() - self._born.pop(pid)
        if restart:
            self._pause[index] = (
                0.0 if lived > _STEADY_S else min(_SLOWEST_S, max(0.1, self._pause[index] * 2))
            )
            self._due[index] = clock.mono_s() + self._pause[index]
        if status or restart:
            how = (
                f"signal {os.WTERMSIG(status)}"
                if os.WIFSIGNALED(status)
                else f"exit {os.waitstatus_to_exitcode(status)}"
            )
            _log.error("process %d of the worker ended by %s; its work is taken back", pid, how)
            yield self._assignments[index].records

    @property
    def is_over(self) -> bool:
        """True when nothing runs and nothing will be started again."""
        return not self.running and not self._due

    def kill(self) -> None:
        """Ends every process at once and waits until it is gone."""
        self._due.clear()
        for pid in list(self.running):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in list(self.running):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
            del self.running[pid]
            os.close(self._pipes.pop(pid))
