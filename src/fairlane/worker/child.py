"""A child process: runs the units, threads for a sync handler, tasks for an async one."""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import logging
import os
import signal
import sys
import threading
import warnings
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any, NoReturn

from fairlane import aio, operations, settings
from fairlane.common import clock
from fairlane.drivers.aio import AsyncDriver
from fairlane.drivers.sync import SyncDriver
from fairlane.errors import FairlaneError
from fairlane.operations.lease import exchange_unit
from fairlane.tracing import flush
from fairlane.worker import termination
from fairlane.worker.calls import Runner
from fairlane.worker.feeder import Feeder
from fairlane.worker.handlers import connect_handlers
from fairlane.worker.log import Repeats, between_lines
from fairlane.worker.measures import Metrics
from fairlane.worker.promoter import Promoter
from fairlane.worker.settle import serve
from fairlane.worker.stack_dump import prepare, prepare_tasks
from fairlane.worker.unit import Sizer, Unit

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlane.worker.board import LeaseRecord
    from fairlane.worker.handlers import Shape
    from fairlane.worker.log import Failures


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
    release: str = ""  # of the users' code
    stacks: int = -1  # the file for the stacks of this process
    repeats: Repeats = field(default_factory=Repeats, repr=False, compare=False)

    @property
    def records(self) -> tuple[LeaseRecord, ...]:
        """Returns all records on which this child may have leases, the units' own first."""
        return self.own + self.spare

    def runner(self, record: LeaseRecord) -> Runner:
        """Returns the runner of the unit with this record, which this thread will run."""
        record.note_thread()
        return Runner(self.shape, record, self.failures, self.queue)

    def units(self) -> list[Unit]:
        """Returns the units of this child; they share what they learn about requests."""
        has_tasks = self.shape.task_of is not None
        measures = Metrics(self.queue, self.failures, has_tasks=has_tasks, release=self.release)
        sizer = Sizer(self.slice_ms, self.tokens)
        count = len(self.own)
        promoter = Promoter(self.url, self.queue, lambda: tuple(self.own[0].shards) or (0,))
        is_alone = count == 1 and self.tokens > 1
        sender = exchange_unit(self.queue, self.worker, self.started, self.own[0].unit)
        feeder = Feeder(sender, sizer) if count > 1 else None
        return [
            Unit(
                self.queue, self.worker, self.started, record, sizer, measures,
                tuple(spare for spare in self.spare if spare.owner == record.unit),
                is_alone, feeder, on_delay=promoter.after,
            )
            for record in self.own
        ]  # fmt: skip


def start(assignment: Assignment, close: Callable[[], None], file: int) -> tuple[int, int]:
    """Forks a child that works until the board drains: (its pid, the pipe that ties it to us).

    In the child, `close` closes what belongs to the parent. `file` is for the child's stacks.
    """
    import_lazy_modules()
    termination.flush_before_fork()
    ours, theirs = os.pipe()
    parent = os.getpid()
    # The threads of this process hold nothing at that moment that a child uses.
    with between_lines(), warnings.catch_warnings():
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
        assignment = replace(assignment, stacks=file)
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


@cache
def import_lazy_modules() -> None:
    """Imports what the methods of a queue import when they are called.

    A handler may call them when the files are already another release's.
    """
    for package in (operations, aio):
        for found in iter_modules(package.__path__, f"{package.__name__}."):
            import_module(found.name)
    for name in ("flows", "schedules", "taken"):
        import_module(f"fairlane.{name}")


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
        _serve(assignment, units[0], units)
    else:
        threads = [
            threading.Thread(  # each has the context variables that the start has set
                target=contextvars.copy_context().run,
                args=(_serve, assignment, unit, units),
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


def gives_up(units: list[Unit]) -> bool:
    """Returns True if a call of a unit need not be repeated: the worker drains, and holds nothing.

    The leases of all units of the process count, because one of them settles those of others.
    """
    return units[0].record.is_draining and not any(unit.is_holding for unit in units)


def _serve(assignment: Assignment, unit: Unit, units: list[Unit]) -> None:
    record = unit.record
    driver = SyncDriver(
        assignment.url,
        patience_s=settings.CALL_PATIENCE_S,
        give_up=partial(gives_up, units),
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
    patience_s = settings.CALL_PATIENCE_S
    driver = AsyncDriver(assignment.url, patience_s=patience_s, give_up=partial(gives_up, units))
    driver.on_cut = units[0].record.note_connection_loss

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

    prepare_tasks(assignment.stacks, lambda: [runner.show_task() for runner in runners])
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
