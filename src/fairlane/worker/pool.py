"""Starts the processes of a supervisor, and starts each again when it dies."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fairlane.common import clock
from fairlane.common.text import exact
from fairlane.worker import stack_dump
from fairlane.worker.child import Assignment, start

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fairlane.worker.board import Held, LeaseRecord, Running
    from fairlane.worker.stack_dump import StackDump


_log = logging.getLogger("fairlane.worker")
_STEADY_S = 10.0  # a process that lived this long starts again immediately
_SLOWEST_S = 5.0  # others after a growing pause, because a body may kill each process it gets
_NAMED_MOST = 3  # leases that are named when a process dies
# Logged when several leases were held.
ALONE = f"no attempt is charged, and one of its units works alone for {exact(_STEADY_S)} s"


@dataclass(slots=True)
class ChildProcess:
    """One process."""

    pid: int
    index: int  # the number of its assignment
    records: tuple[LeaseRecord, ...]
    pipe: int
    stacks: int
    born: float
    asked: list[Running] = field(default_factory=list)  # calls whose stacks it was asked for
    dump: StackDump | None = None  # ... and what it has written
    late: list[Running] = field(default_factory=list)  # calls for which it was killed
    is_asked: bool = False  # its stacks are being shown
    killed: Any = None  # the order of a person for which it was killed
    unwanted: list[Held] = field(default_factory=list)  # cancelled leases for which it was killed
    how: str = ""  # its end, as `signal 9 (SIGKILL)`, with the place in the code if known

    @property
    def is_ending(self) -> bool:
        """Returns True if it was killed by this worker, but is not collected yet."""
        return bool(self.late or self.unwanted or self.killed is not None)


class ProcessPool:
    """One process per assignment."""

    def __init__(self, assignments: list[Assignment], close: list[Callable[[], None]]) -> None:
        self._assignments = assignments
        self._close = close
        self.running: dict[int, ChildProcess] = {}  # by pid
        self._due: dict[int, float] = {}  # assignment -> when to start it again
        self._pause = [0.0] * len(assignments)
        self._alone: dict[int, float] = {}  # assignment -> when its other units may begin
        self.restarts = self.crashes = 0

    def start(self) -> None:
        """Starts every assignment."""
        for index in range(len(self._assignments)):
            self._start(index)

    def alone(self, records: tuple[LeaseRecord, ...]) -> None:
        """Lets one unit begin after a process died with several leases, and the others later.

        The cause is unknown. A body that kills must soon be alone in its process, to be charged.
        """
        own = [assignment.records for assignment in self._assignments]
        index = own.index(records)
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
            stack_dump.close_stacks(file)
            raise
        self.running[pid] = ChildProcess(pid, index, assignment.records, pipe, file, clock.mono_s())

    def _let_go(self) -> None:
        """Closes, in a child, the parent's sockets and the pipes that tie its siblings."""
        for close in self._close:
            close()
        for child in self.running.values():
            os.close(child.pipe)
            stack_dump.close_stacks(child.stacks)

    def collect(self, *, restart: bool) -> Iterator[ChildProcess]:
        """Yields each process that has died; starts it again when that is due."""
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
        except OSError as error:  # no process, memory or file is free: it is tried again later
            _log.error("could not start a process again: %s", error)
            self._due[index] = clock.mono_s() + _SLOWEST_S
        else:
            del self._due[index]
            self.restarts += 1

    def _ended(self, pid: int, status: int, *, restart: bool) -> Iterator[ChildProcess]:
        child = self.running.pop(pid)
        os.close(child.pipe)
        if status or restart:
            kill_group(pid)
        if not child.is_ending:  # the signal for its stacks may have ended it before the kill
            running = [call for record in child.records if (call := record.running())]
            still = {(call.unit, *call.identity) for call in running}
            child.late = [call for call in child.asked if (call.unit, *call.identity) in still]
        lived = clock.mono_s() - child.born
        if restart:
            if child.is_ending or lived > _STEADY_S:
                self._pause[child.index] = 0.0
            else:
                self._pause[child.index] = min(_SLOWEST_S, max(0.1, self._pause[child.index] * 2))
            self._due[child.index] = clock.mono_s() + self._pause[child.index]
        try:
            if child.is_ending:
                yield child
            elif status or restart or any(record.is_holding for record in child.records):
                self.crashes += 1
                child.how = _how(status) + _where(child)
                _log_crash(child, status)
                yield child
            elif any(record.pending_acquire() for record in child.records):
                yield child  # it drained while Redis was away
        finally:
            stack_dump.close_stacks(child.stacks)

    @property
    def is_over(self) -> bool:
        """Returns True if nothing runs and nothing will be started again."""
        return not self.running and not self._due

    def kill(self) -> None:
        """Kills every process and waits until it is gone."""
        self._due.clear()
        for pid in list(self.running):
            kill(pid)
        for pid in list(self.running):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
            child = self.running.pop(pid)
            os.close(child.pipe)
            stack_dump.close_stacks(child.stacks)


def kill(pid: int) -> None:
    """Kills a process and the programs that its handlers started; a no-op if it is gone."""
    kill_group(pid)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def kill_group(pid: int) -> None:
    """Kills the rest of the group that a process led."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _where(child: ChildProcess) -> str:
    """Returns where in the handler's code a process crashed, if the process wrote that."""
    where = stack_dump.own_frame(stack_dump.crash_of(stack_dump.read(child.stacks)))
    return f", at {where}" if where else ""


def _log_crash(child: ChildProcess, status: int) -> None:
    """Logs how a process ended, during which work, and where in the code."""
    all_held = [held for record in child.records if (held := record.held())]
    running = [held for held in all_held if held.has_its_turn]
    names = [held.what for held in running]
    what = f" in {listed(names)}" if names else ""
    end = f", {ALONE}" if len(names) > 1 else ""
    fields: dict[str, Any] = {"child_pid": child.pid, "ended": _how(status)}
    if len(running) == 1 and running[0].attempts:
        attempt, attempts = running[0].attempt, running[0].attempts
        what += f" at attempt {attempt} of {attempts}"
        end = ", and the sub-request is dead" if attempt >= attempts else ""
        fields |= {"request": running[0].request_id, "index": running[0].index}
        fields |= {"attempt": attempt, "attempts": attempts, "dead": attempt >= attempts}
    _log.error(
        "process %d of the worker ended by %s%s%s; its work is taken back%s",
        child.pid,
        _how(status),
        what,
        _where(child),
        end,
        extra=fields,
    )


def listed(names: list[str]) -> str:
    """Returns the first names, and how many more there are."""
    more = len(names) - _NAMED_MOST
    return ", ".join(names[:_NAMED_MOST]) + (f" and {more} more" if more > 0 else "")


def _how(status: int) -> str:
    """Returns a wait status in words, as `signal 9 (SIGKILL)` or `exit 1`."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        with contextlib.suppress(ValueError):  # a real-time signal has no name
            return f"signal {number} ({signal.Signals(number).name})"
        return f"signal {number}"
    return f"exit {os.waitstatus_to_exitcode(status)}"
