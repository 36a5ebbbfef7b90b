"""A child process: runs the units, threads for a sync handler, tasks for an async one."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import ctypes
import faulthandler
import fcntl
import logging
import os
import re
import signal
import sys
import tempfile
import threading
import warnings
from contextlib import suppress
from dataclasses import dataclass, field
from heapq import heappop, heappush
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from fairlane import settings
from fairlane.common import clock
from fairlane.drivers.aio import AsyncDriver
from fairlane.drivers.sync import SyncDriver
from fairlane.errors import FairlaneError
from fairlane.operations.workers import promote
from fairlane.tracing import flush
from fairlane.worker import termination
from fairlane.worker.calls import Runner
from fairlane.worker.handlers import connect_handlers
from fairlane.worker.log import Repeats
from fairlane.worker.measures import Metrics
from fairlane.worker.settle import serve
from fairlane.worker.unit import Sizer, Unit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fairlane.worker.board import LeaseRecord
    from fairlane.worker.handlers import Shape
    from fairlane.worker.log import Failures


# ------------------------------------------------------------------ stack dump
# Reads the Python stacks of a process that crashed or had to be killed.
#
# The process writes its stacks in a signal handler in C that needs neither the interpreter nor its
# lock. So this works even if a handler hangs in foreign code. The file is in memory; the
# supervisor reads it.


# A signal that other programs rarely use; only Linux has real-time signals.
_SIGNAL = signal.SIGRTMIN + 9 if hasattr(signal, "SIGRTMIN") else signal.SIGUSR2
_MOST = 1 << 16  # bytes of a file that are looked at
_LINES = 30  # of one stack
_CUT = "  ..."  # stands for the rest of a stack of more than a hundred calls
_NEXT = re.compile(r"(?:Current t|T)hread 0x([0-9a-f]+)\b.*")
_FRAME = re.compile(r'File "(.+)", line (\d+) in (.+)')
_PACKAGE = f'File "{Path(__file__).parents[1]}{os.sep}'
_STEP = f'{os.sep}asyncio{os.sep}events.py"'  # runs a step of an async call
_RUNNER = f'File "{Path(__file__).with_name("calls.py")}"'


def make() -> int:
    """Returns a file for one process's stacks; -1 if none can be made."""
    try:
        if hasattr(os, "memfd_create"):
            made = os.memfd_create("fairlane-stacks")
        else:
            with tempfile.TemporaryFile() as file:
                made = os.dup(file.fileno())
        fcntl.fcntl(made, fcntl.F_SETFL, os.O_APPEND)
    except OSError:
        return -1
    return made


def close_stacks(file: int) -> None:
    """Closes the file of a process that is gone."""
    if file >= 0:
        os.close(file)


def prepare(file: int) -> None:
    """Makes this process write its stacks when it gets the signal, and when it crashes."""
    if file < 0:
        return
    faulthandler.register(_SIGNAL, file=file, all_threads=True)
    if not faulthandler.is_enabled():  # else the handler's author wants crash reports elsewhere
        faulthandler.enable(file=file, all_threads=True)


def ask(pid: int, file: int) -> None:
    """Makes a process write its stacks anew; the signal ends a process that did not `prepare`."""
    if file >= 0:
        os.ftruncate(file, 0)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, _SIGNAL)


def size(file: int) -> int:
    """Returns how many bytes were written."""
    return os.fstat(file).st_size if file >= 0 else 0


def read(file: int) -> str:
    """Returns all that was written."""
    if file < 0:
        return ""
    return os.pread(file, _MOST, 0).decode(errors="backslashreplace")


def crash_of(text: str) -> list[str]:
    """Returns the handler's lines of the thread that crashed, the innermost call first."""
    _, is_crash, rest = text.rpartition("Fatal Python error: ")
    found = re.search(r"^Current thread 0x([0-9a-f]+)", rest, re.MULTILINE)
    if not is_crash or not found:
        return []
    thread = int(found[1], 16)
    return stack_of(rest, thread) or stack_of(rest, thread, until=_STEP)


def own_frame(lines: list[str]) -> str:
    """Returns the innermost call in the handler's own file, as `file.py:60 name`, or "".

    `lines` are those of the handler's thread: the outermost is the handler itself.
    """
    frames = [found.groups() for line in lines if (found := _FRAME.search(line))]
    for path, number, name in frames:
        if path == frames[-1][0]:
            return f"{Path(path).name}:{number} {name}"
    return ""


def stack_of(text: str, thread: int, until: str = _RUNNER) -> list[str]:
    """Returns the handler's lines of one thread, the innermost call first; [] if it ran none.

    They end at the line that has `until`.
    """
    lines: list[str] = []
    is_ours = False
    for line in text.splitlines():
        begins = _NEXT.match(line)
        if begins:
            is_ours = int(begins[1], 16) == thread
        elif is_ours and (until in line or line == _CUT):
            while lines and _PACKAGE in lines[-1]:  # it called the task, and is not the user's code
                lines.pop()
            return lines[:_LINES]
        elif is_ours and line.startswith("  "):
            lines.append(line)
    return []


# ------------------------------------------------------------------ promoter
# Moves tokens to their lanes when they are due, for the short delays of one process.
#
# The leading worker promotes what is due when a heartbeat reports it, which may be a second late.
# A retry after 100 ms, or a request with a rate, cannot wait so long. So the process that delayed
# a token promotes it, too. Its thread starts with the first short delay. If it fails, or the
# process ends, the leader is still there.


_LONGEST_MS = 1.5 * settings.BEAT_MS  # the leader is in time for longer delays
_AGAIN_S = 0.002  # after a promotion that came too early: the delay counts from the insertion
_LAST_S = 0.5  # the longest pause before another try
_NEVER = float("inf")


class Promoter:
    """Promotes the tokens that this process has delayed. `shards` returns those of the queue."""

    def __init__(self, url: str, queue: str, shards: Callable[[], Sequence[int]]) -> None:
        self._url, self._queue, self._shards = url, queue, shards
        self._due: list[tuple[float, float]] = []  # a heap: s of clock.mono_s, pause after a try
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def after(self, delay_ms: float) -> None:
        """Notes that a token was delayed for so long."""
        if delay_ms > _LONGEST_MS:
            return
        with self._changed:
            heappush(self._due, (clock.mono_s() + delay_ms / 1000, _AGAIN_S))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="promoter", daemon=True)
                self._thread.start()
            self._changed.notify()

    def _run(self) -> None:
        driver = SyncDriver(self._url, patience_s=0)
        while True:
            pauses = self._wait()
            try:
                moved = driver.run(promote(self._queue, self._shards()))
            except FairlaneError:  # the leader reports an outage
                clock.sleep(settings.BEAT_MS / 1000)
            else:
                self._try_again(pauses[moved:])

    def _wait(self) -> list[float]:
        """Waits until a token is due; removes all that are due, and returns their pauses."""
        with self._changed:
            while (first := self._due[0][0] if self._due else _NEVER) > clock.mono_s():
                self._changed.wait(None if first == _NEVER else first - clock.mono_s())
            now, pauses = clock.mono_s(), list[float]()
            while self._due and self._due[0][0] <= now:
                pauses.append(heappop(self._due)[1])
            return pauses

    def _try_again(self, pauses: Sequence[float]) -> None:
        """Notes tokens that were not found: the insertion was late, or another process moved them.

        On a busy machine an insertion may be late by much more than a pause, so the pauses grow.
        """
        with self._changed:
            for pause in pauses:
                if pause <= _LAST_S:
                    heappush(self._due, (clock.mono_s() + pause, 2 * pause))


# Both drivers are imported here, before the fork: later the files may be another release's.

_log = logging.getLogger("fairlane.worker")
_PR_SET_PDEATHSIG = 1
_PATIENT_S = 0.1
_LOOK_S = 0.2  # between looks for calls that are to be cancelled
_SWITCH_S = 0.001  # the thread that talks to Redis has little to do, but must not wait long


@dataclass(frozen=True, slots=True)
class Assignment:
    """The work and the records that a child gets before the fork."""

    url: str = field(repr=False)  # with its password
    queue: str
    worker: str
    started: str
    shape: Shape
    slice_ms: float
    own: tuple[LeaseRecord, ...]  # one for each unit
    spare: tuple[LeaseRecord, ...] = ()  # for their further leases
    tokens: int = 1  # the most leases of a unit
    failures: Failures | None = None
    repeats: Repeats = field(default_factory=Repeats, repr=False, compare=False)

    @property
    def records(self) -> tuple[LeaseRecord, ...]:
        """Returns all records on which this child may have leases, the units' own first."""
        return self.own + self.spare

    def runner(self, record: LeaseRecord) -> Runner:
        """Returns the runner of the unit with this record."""
        return Runner(self.shape, record, self.failures, self.queue)

    def units(self) -> list[Unit]:
        """Returns the units of this child; they share what they learn about requests."""
        sizer, measures = Sizer(self.slice_ms, self.tokens), Metrics(self.queue, self.failures)
        count = len(self.own)
        promoter = Promoter(self.url, self.queue, lambda: tuple(self.own[0].shards) or (0,))
        is_alone = count == 1 and self.tokens > 1
        return [
            Unit(
                self.queue, self.worker, self.started, record, sizer, measures,
                tuple(spare for spare in self.spare if spare.owner == record.unit),
                is_alone, on_delay=promoter.after,
            )
            for record in self.own
        ]  # fmt: skip


def start(assignment: Assignment, close: Callable[[], None], file: int) -> tuple[int, int]:
    """Forks a child that works until the board drains: (its pid, the pipe that ties it to us).

    In the child, `close` closes what belongs to the parent. `file` is for the child's stacks.
    """
    termination.flush_before_fork()
    ours, theirs = os.pipe()
    parent = os.getpid()
    with warnings.catch_warnings():  # the maintenance thread holds nothing that a child uses
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid:
        _lead_group(pid)
        os.close(ours)
        return pid, theirs
    code = 1
    try:
        os.close(theirs)
        _lead_group(0)
        _tie(parent, ours)
        close()
        prepare(file)
        termination.restore_in_forks()
        termination.watch_forks()
        termination.begin_process()
        _main(assignment)
        code = 0
        termination.run_exit_hooks()
    except BaseException:  # noqa: BLE001  logged, and then the process ends
        _log.exception("a process of worker %s failed", assignment.worker)
    finally:
        termination.leave(
            code
        )  # no test runner and no exit hook of the parent's program may run here


def _lead_group(pid: int) -> None:
    """Makes a child the leader of a process group, so that its handlers' programs end with it.

    The supervisor ends the group. If the supervisor is killed, its processes die, but the programs
    that they started stay. A terminal's Ctrl-C goes only to the supervisor, which decides. A
    handler that reads from the terminal gets an error, instead of being stopped for ever.
    """
    with suppress(OSError):  # parent and child both do this: the other one was faster
        os.setpgid(pid, pid)
    if not pid:
        for number in (signal.SIGTTIN, signal.SIGTTOU):
            signal.signal(number, signal.SIG_IGN)


def _tie(parent: int, pipe: int) -> None:
    """Makes this process die with its parent, because no handler may outlive a killed worker.

    Linux kills it when the parent dies; on other systems a thread detects that the pipe closes.
    """
    termination.leave_to_parent()
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    else:
        threading.Thread(target=_watch, args=(pipe,), daemon=True).start()
    if os.getppid() != parent:  # the parent died before we were tied to it
        os._exit(1)


def _watch(pipe: int) -> None:
    os.read(pipe, 1)
    os._exit(1)


def _main(assignment: Assignment) -> None:
    connect_handlers(assignment.url)
    if assignment.shape.is_async:
        asyncio.run(_serve_async(assignment, assignment.units()))
        return
    lifespan = assignment.shape.lifespan
    if lifespan is not None:
        lifespan.start()
    _serve_all(assignment, assignment.units())
    if lifespan is not None:
        lifespan.stop()
    _report_last(assignment)


def _serve_all(assignment: Assignment, units: list[Unit]) -> None:
    """Runs the units of a sync handler until each has drained."""
    if len(units) == 1:
        sys.setswitchinterval(_SWITCH_S)
        _serve(assignment, units[0])
    else:
        threads = [
            threading.Thread(  # each has the context variables that the start has set
                target=contextvars.copy_context().run,
                args=(_serve, assignment, unit),
                name=f"unit-{unit.record.unit}",
            )
            for unit in units
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def _report_last(assignment: Assignment) -> None:
    flush()
    if assignment.failures is not None:
        assignment.failures.flush_last()


def _serve(assignment: Assignment, unit: Unit) -> None:
    record = unit.record

    def gives_up() -> bool:
        return record.is_draining and not unit.is_holding

    driver = SyncDriver(
        assignment.url,
        patience_s=settings.CALL_PATIENCE_S,
        give_up=gives_up,
    )
    driver.on_cut = record.note_connection_loss
    runner = assignment.runner(record)

    while unit.record.is_waiting and not unit.record.is_draining:
        clock.sleep(_PATIENT_S)
    while not unit.record.is_draining:
        try:
            driver.run(serve(unit), handle=runner.run)
        except FairlaneError as error:
            assignment.repeats.failed(error)
            clock.sleep(1)
        except BaseException:  # noqa: BLE001  see there
            _fail(assignment)


def _fail(assignment: Assignment) -> NoReturn:
    """Ends the process after an error outside the handler, as a socket that a handler closed.

    The whole process ends while the unit's lease is on the board. So the lease is taken back and
    charged, and every unit starts anew in the next process.
    """
    try:
        _log.exception("a unit of worker %s failed", assignment.worker)
    finally:
        termination.leave(1)


async def _serve_async(assignment: Assignment, units: list[Unit]) -> None:
    first = units[0].record

    def gives_up() -> bool:
        return first.is_draining and not any(unit.is_holding for unit in units)

    patience_s = settings.CALL_PATIENCE_S
    driver = AsyncDriver(assignment.url, patience_s=patience_s, give_up=gives_up)
    driver.on_cut = first.note_connection_loss

    runners = [assignment.runner(unit.record) for unit in units]

    async def work(unit: Unit, runner: Runner) -> None:
        while unit.record.is_waiting and not unit.record.is_draining:  # noqa: ASYNC110
            await asyncio.sleep(_PATIENT_S)
        while not unit.record.is_draining:
            try:
                await driver.run(serve(unit), handle=runner.run_async)
            except FairlaneError as error:
                assignment.repeats.failed(error)
                await asyncio.sleep(1)
            except BaseException:  # noqa: BLE001  see there
                _fail(assignment)

    loop, lifespan = asyncio.get_running_loop(), assignment.shape.lifespan
    os.register_at_fork(after_in_child=lambda: _end_loop(loop))
    if lifespan is not None:
        await lifespan.astart()
    watch = asyncio.create_task(_cancel_unwanted(runners))
    await asyncio.gather(*map(work, units, runners))
    watch.cancel()
    if lifespan is not None:
        await lifespan.astop()
    await _end_tasks()
    _report_last(assignment)
    # asyncio would wait for threads that a handler may have left in a long call.
    termination.run_exit_hooks()
    termination.leave(0)


async def _cancel_unwanted(runners: list[Runner]) -> None:
    """Cancels calls whose results are not wanted, a moment after the board shows it."""
    while True:
        await asyncio.sleep(_LOOK_S)
        for runner in runners:
            runner.cancel_unwanted()


def _end_loop(loop: Any) -> None:
    """Makes the loop of a process that a handler forked end that process next.

    The other tasks and their sockets belong to the process that was forked.
    """
    loop.call_soon(termination.leave, 0)
    if ready := getattr(loop, "_ready", None):  # before all callbacks that are due already
        ready.rotate(1)


async def _end_tasks() -> None:
    """Cancels the tasks that handlers have left running, and waits a second for their end."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others, timeout=1)
