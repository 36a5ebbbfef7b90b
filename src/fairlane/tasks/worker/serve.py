"""Workers of apps: loads the apps, makes a worker for each queue, and runs them in one program."""

from __future__ import annotations

import logging
import os
import signal
import threading
import warnings
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from fairlane.errors import FairlaneError, HandlerNotFound, InvalidArgument, type_of
from fairlane.queue import Queue
from fairlane.tasks.app import App
from fairlane.tasks.schedules import register_schedules, schedules_of
from fairlane.tasks.task import Task
from fairlane.tasks.worker.calls import Calls
from fairlane.worker import termination
from fairlane.worker.handlers import load_object
from fairlane.worker.supervisor import Worker

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_log = logging.getLogger("fairlane.worker")
_INTERRUPTED = 130


class WorkerOptions(TypedDict, total=False):
    """The options of Worker that are the same for each queue."""

    concurrency: int
    processes: int
    slice_s: float
    tokens: int
    time_limit_s: float | None
    cancel_grace_s: float | None


def load_apps(names: Iterable[str]) -> list[App]:
    """Returns the apps `module:name` that a person named, each once. Raises HandlerNotFound."""
    found: list[App] = []
    for name in names:
        app = load_object("app", name, "app")
        if isinstance(app, Task):
            raise HandlerNotFound(f"app {name!r} is a task: name its app, not the task")
        if not isinstance(app, App):
            hint = "; --handler takes a function" if callable(app) else ""
            raise HandlerNotFound(
                f"app {name!r} is {type_of(app)}: a fairlane.App is expected{hint}"
            )
        if not any(app is other for other in found):
            found.append(app)
    return found


def workers_of(
    apps: list[App], url: str | None = None, *, id: str | None = None,  # noqa: A002  as Worker
    **options: Unpack[WorkerOptions],
) -> list[Worker]:  # fmt: skip
    """Returns a worker for each queue of these apps, which share it if they have one name.

    `url` is the Redis of all; None means that of the apps. The other queues' workers have the next
    ports after that of `id`. Raises InvalidArgument: an app has no task, two apps of a queue have
    one task's name or two Redis servers, and what Worker raises.
    """
    if not apps:
        raise InvalidArgument("no app is named: a worker needs one")
    workers = []
    for number, (queue, group) in enumerate(groupby(sorted(apps, key=_name), key=_name)):
        members = list(group)
        urls = {app.url for app in members} if url is None else {url}
        if len(urls) > 1:
            raise InvalidArgument(f"the apps of queue {queue} have two Redis URLs: name one")
        handler = Calls(members).handler()
        opened = Queue.from_url(urls.pop(), name=queue)
        for app in members:  # a task may submit others to its own app
            app.url = opened.driver.url
        own = None if id is None else _next_port(id, number)
        worker = Worker(opened, handler, id=own, **options)
        wanted = schedules_of(members)
        worker.on_registered = partial(register_schedules, queue=queue, wanted=wanted)
        workers.append(worker)
    return workers


def run_workers(workers: list[Worker], *, until_idle: bool = False) -> int:
    """Runs workers until a signal ends them, or, with `until_idle`, each queue is idle.

    Several workers have a process each, and this one passes signals on. Returns 0, or the exit code
    of the first worker that failed: then the others drain. Raises what Worker.run raises.
    """
    if len(workers) == 1:
        return workers[0].run(until_idle=until_idle)
    return _Group(workers, until_idle=until_idle).run()


class _Group:
    """The processes of several workers; each drains when this process is gone."""

    def __init__(self, workers: list[Worker], *, until_idle: bool) -> None:
        self._workers, self._until_idle = workers, until_idle
        self._end_of_parent, self._ours = os.pipe()  # no byte goes through it
        self._pids: set[int] = set()
        self._code = 0

    def run(self) -> int:
        """Starts the workers, passes signals on until each has ended, returns their exit code."""
        signals = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
        before = {number: signal.signal(number, self._pass_on) for number in signals}
        try:
            for worker in self._workers:
                self._pids.add(self._fork(worker, before))
            while self._pids:
                self._wait()
        finally:
            os.close(self._end_of_parent)
            os.close(self._ours)
            for number, handler in before.items():
                signal.signal(number, handler)
        return self._code

    def _wait(self) -> None:
        pid, status = os.wait()
        self._pids.discard(pid)
        code = os.waitstatus_to_exitcode(status)
        if code and not self._code:
            self._code = code if code > 0 else FairlaneError.exit_code
            self._pass_on(signal.SIGTERM)

    def _pass_on(self, number: int, _frame: object = None) -> None:
        for pid in self._pids:
            os.kill(pid, number)

    def _fork(self, worker: Worker, handlers: Mapping[signal.Signals, Any]) -> int:
        termination.flush_before_fork()
        with warnings.catch_warnings():  # a thread of this process holds nothing that the fork uses
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid:
            return pid
        code = FairlaneError.exit_code
        try:
            for number, handler in handlers.items():
                signal.signal(number, handler)
            os.close(self._ours)
            threading.Thread(target=self._drain_with_parent, args=(worker,), daemon=True).start()
            code = worker.run(until_idle=self._until_idle)
        except FairlaneError as error:
            _log.error("the worker of queue %s has ended: %s", worker.queue.name, error)
            code = error.exit_code
        except KeyboardInterrupt:  # before the worker has its own handlers
            code = _INTERRUPTED
        except BaseException:  # noqa: BLE001  logged, and then the process ends
            _log.exception("the worker of queue %s failed", worker.queue.name)
        finally:
            termination.leave(code)  # nothing of the parent's may run here

    def _drain_with_parent(self, worker: Worker) -> None:
        os.read(self._end_of_parent, 1)
        worker.stop()


def _name(app: App) -> str:
    return app.name


def _next_port(id: str, number: int) -> str:  # noqa: A002  as Worker
    host, _, port = id.rpartition(":")
    return f"{host}:{int(port) + number}" if number and port.isdigit() and port != "0" else id
