"""The supervisor's processes: started, watched, started again when one dies."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fairlane.common import clock
from fairlane.worker.process import stack_dump
from fairlane.worker.process.child import Assignment, start

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fairlane.worker.held import Running
    from fairlane.worker.lease_board import LeaseRecord

_log = logging.getLogger("fairlane.worker")
_STEADY_S = 10.0  # a process that lived this long starts again at once
_SLOWEST_S = 5.0  # others after a growing pause: a body that kills must not kill too fast
_TOLD_MOST = 3  # leases that are named when a process dies
# What is said when several leases were held.
ALONE = f"nobody is charged, and one of its units works alone for {_STEADY_S:g} s"


@dataclass(slots=True)
class Child:
    """One process."""

    pid: int
    index: int  # of its assignment
    records: tuple[LeaseRecord, ...]
    pipe: int
    stacks: int
    born: float
    asked: list[Running] = field(default_factory=list)  # calls for which it was asked where it is
    late: list[Running] = field(default_factory=list)  # it was killed for these calls
    how: str = ""  # it ended, as `signal 9 (SIGKILL)`, with the place in the code if it is known


class ProcessPool:
    """One process per assignment."""

    def __init__(self, assignments: list[Assignment], close: list[Callable[[], None]]) -> None:
        self._assignments = assignments
        self._close = close
        self.running: dict[int, Child] = {}  # by pid
        self._due: dict[int, float] = {}  # assignment -> when to start it again
        self._pause = [0.0] * len(assignments)
        self._alone: dict[int, float] = {}  # assignment -> when its other units may begin
        self.restarts = self.crashes = 0

    def start(self) -> None:
        """Starts every assignment."""
        for index in range(len(self._assignments)):
            self._start(index)

    def alone(self, records: tuple[LeaseRecord, ...]) -> None:
        """A process died with several leases, and nobody knows which is to blame.

        One unit begins, the others when it has lived for a while: so the body that kills is soon
        alone, and charged.
        """
        index = next(i for i, one in enumerate(self._assignments) if one.records == records)
        for record in self._assignments[index].own[1:]:
            record.wait(begin=False)
        self._alone[index] = clock.mono_s() + _STEADY_S

    def _start(self, index: int) -> None:
        if index in self._alone:
            self._alone[index] = clock.mono_s() + _STEADY_S
        assignment = self._assignments[index]
        file = stack_dump.make()
        try:
            pid, pipe = start(assignment, self._let_go, file)
        except OSError:
            stack_dump.close(file)
            raise
        self.running[pid] = Child(pid, index, assignment.records, pipe, file, clock.mono_s())

    def _let_go(self) -> None:
        """In a child: the parent's sockets and the pipes that tie its siblings."""
        for close in self._close:
            close()
        for child in self.running.values():
            os.close(child.pipe)
            stack_dump.close(child.stacks)

    def collect(self, *, restart: bool) -> Iterator[Child]:
        """Yields each process that has died; starts it again when due."""
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
                for record in self._assignments[index].own:
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

    def _ended(self, pid: int, status: int, *, restart: bool) -> Iterator[Child]:
        child = self.running.pop(pid)
        os.close(child.pipe)
        if status or restart:
            kill_group(pid)
        if not child.late:  # the question may be what ended it, before it could be killed
            running = [record.running() for record in child.records]
            child.late = [call for call in child.asked if call in running]
        lived = clock.mono_s() - child.born
        if restart:
            if child.late or lived > _STEADY_S:
                self._pause[child.index] = 0.0
            else:
                self._pause[child.index] = min(_SLOWEST_S, max(0.1, self._pause[child.index] * 2))
            self._due[child.index] = clock.mono_s() + self._pause[child.index]
        try:
            if child.late:
                yield child
            elif status or restart or any(record.is_holding for record in child.records):
                self.crashes += 1
                child.how = _how(status) + _where(child)
                _tell(child, status)
                yield child
            elif any(record.pending_acquire() for record in child.records):
                yield child  # it drained while Redis was away
        finally:
            stack_dump.close(child.stacks)

    @property
    def is_over(self) -> bool:
        """True when nothing runs and nothing will be started again."""
        return not self.running and not self._due

    def kill(self) -> None:
        """Ends every process at once and waits until it is gone."""
        self._due.clear()
        for pid in list(self.running):
            kill(pid)
        for pid in list(self.running):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
            child = self.running.pop(pid)
            os.close(child.pipe)
            stack_dump.close(child.stacks)


def kill(pid: int) -> None:
    """Ends a process at once, with the programs its handlers started; no matter if it is gone."""
    kill_group(pid)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def kill_group(pid: int) -> None:
    """Ends what is left of a process's group, of which it was the first."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _where(child: Child) -> str:
    """Returns where in the handler's code a process crashed, if it could write that."""
    where = stack_dump.own_frame(stack_dump.crash_of(stack_dump.read(child.stacks)))
    return f", at {where}" if where else ""


def _tell(child: Child, status: int) -> None:
    """Logs how a process ended, in what, and where."""
    all_held = [one for record in child.records if (one := record.held())]
    running = [one for one in all_held if one.has_its_turn]
    held = [one.what for one in running]
    what = f" in {listed(held)}" if held else ""
    end = f", {ALONE}" if len(held) > 1 else ""
    if len(running) == 1 and running[0].attempts:
        attempt, attempts = running[0].attempt, running[0].attempts
        what += f" at attempt {attempt} of {attempts}"
        end = ", and the sub-request is dead" if attempt >= attempts else ""
    _log.error(
        "process %d of the worker ended by %s%s%s; its work is taken back%s",
        child.pid,
        _how(status),
        what,
        _where(child),
        end,
    )


def listed(names: list[str]) -> str:
    """Some of what died, by name."""
    more = len(names) - _TOLD_MOST
    return ", ".join(names[:_TOLD_MOST]) + (f" and {more} more" if more > 0 else "")


def _how(status: int) -> str:
    """A wait status in words, as `signal 9 (SIGKILL)` or `exit 1`."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        with contextlib.suppress(ValueError):  # a real-time signal has no name
            return f"signal {number} ({signal.Signals(number).name})"
        return f"signal {number}"
    return f"exit {os.waitstatus_to_exitcode(status)}"
