"""An app: a queue's name, and the tasks and hooks that are registered for it."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import os
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Literal,
    NamedTuple,
    ParamSpec,
    Protocol,
    TypeVar,
    Unpack,
    overload,
)

from fairlane import aio, settings
from fairlane.common.context_variables import run_in
from fairlane.common.task_names import check_task
from fairlane.common.text import plural
from fairlane.errors import InvalidArgument, type_of
from fairlane.operations.schedules import (
    DEFAULT_MISSED,
    Definition,
    Missed,
    check_schedule_name,
    define,
    register,
)
from fairlane.options import read_option
from fairlane.protocol.keys import check_name
from fairlane.queue import Queue
from fairlane.tasks.codec import codec_named
from fairlane.tasks.options import hiding, of_request, task_options
from fairlane.tasks.signature import TaskSignature
from fairlane.tasks.task import Task

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from contextvars import Context as Variables

    from fairlane.drivers.sync import SyncDriver
    from fairlane.option_types import TaskOptions
    from fairlane.worker.handlers import Context


# ------------------------------------------------------------------ hooks
# What an app runs around its tasks: start and end of a process, middleware, dead calls.


__fairlane_caller__ = True  # its frames are left out of a task's traceback
_LOOK_S = 0.2  # between looks whether a call's result is still wanted
_CANCEL_S = 1.5  # for a coroutine that was cancelled to end
# ------------------------------------------------------------------ schedules
# Tasks on a schedule: what App.cron registers, and what a worker of the app writes to Redis.


T = TypeVar("T")
Hook = Callable[[], Any]  # may be async
DeadHook = Callable[["TaskCall", BaseException], Any]  # may be async


@dataclass(slots=True)
class TaskCall:
    """One call of a task in a worker: the task's name, its arguments by name, its context."""

    task: str
    arguments: dict[str, Any]
    context: Context


Middleware = Callable[[TaskCall], Iterator[None]] | Callable[[TaskCall], AsyncIterator[None]]


@dataclass(slots=True)
class Hooks:
    """The hooks of one app, in the order of their registration."""

    startup: list[Hook] = field(default_factory=list)
    shutdown: list[Hook] = field(default_factory=list)
    around: list[Callable[[TaskCall], Any]] = field(default_factory=list)
    dead: list[DeadHook] = field(default_factory=list)

    def add_middleware(self, function: Middleware) -> None:
        """Adds a generator function that yields once. Raises InvalidArgument."""
        if inspect.isgeneratorfunction(function):
            self.around.append(contextlib.contextmanager(function))
        elif inspect.isasyncgenfunction(function):
            self.around.append(contextlib.asynccontextmanager(function))
        else:
            raise InvalidArgument(
                f"middleware {_name(function)} is not valid: a generator function is expected, "
                "with one yield, where the call runs"
            )

    @staticmethod
    def check(what: str, hook: Any) -> None:
        """Raises InvalidArgument unless a hook is something to call."""
        if not callable(hook):
            raise InvalidArgument(f"{what} is {type_of(hook)}: a function is expected")


class ProcessLoop:
    """An event loop on a thread of its own, for async functions in a worker of sync tasks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(
        self, called: Coroutine[Any, Any, T], variables: Variables, context: Context | None = None
    ) -> T:
        """Runs a coroutine in these context variables; returns its result, or raises its error.

        The coroutine is cancelled soon after the context reports that its result is not wanted. A
        call from within this loop has a loop of its own, because it would wait for itself.
        """
        if threading.current_thread() is self._thread:
            nested = ProcessLoop()
            try:
                return nested.run(called, variables, context)
            finally:
                nested.close()
        ended = threading.Event()
        done = asyncio.run_coroutine_threadsafe(_outcome(called, variables, ended), self._running())
        while True:
            try:
                value, error = done.result(None if context is None else _LOOK_S)
            except TimeoutError:
                if context is not None and context.cancelled:
                    done.cancel()
                continue
            except CancelledError:
                ended.wait(_CANCEL_S)  # because two threads cannot use its variables together
                raise asyncio.CancelledError from None
            if error is not None:
                raise error
            return value  # type: ignore[return-value]

    def close(self) -> None:
        """Ends the thread and the loop; another call starts them anew."""
        with self._lock:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._loop.run_forever, name="fairlane-tasks", daemon=True
                )
                self._thread.start()
            return self._loop


async def _outcome(
    called: Coroutine[Any, Any, T], variables: Variables, ended: threading.Event
) -> tuple[T | None, BaseException | None]:
    """Returns an error as a value, so that its traceback begins with the coroutine's frames."""
    try:
        return await run_in(variables, called), None
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001  raised again by the caller
        return None, error
    finally:
        ended.set()


def _name(function: Any) -> str:
    return getattr(function, "__qualname__", repr(function))


AnyTask = TypeVar("AnyTask", bound=Task[..., Any, Any])
_log = logging.getLogger("fairlane.worker")


def scheduler(
    app: App,
    name: str | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None,
    given: dict[str, Any],
) -> Callable[[AnyTask], AnyTask]:
    """Returns the decorator of App.cron; `given` are the arguments of `define`."""
    define(bodies=[b"-"], **given)  # a wrong line is refused before its task is known
    if not isinstance(args, (tuple, list)):
        raise InvalidArgument(
            f"args {args!r} of cron is not valid: a tuple such as (5,) is expected"
        )
    if not isinstance(kwargs, (dict, type(None))):
        raise InvalidArgument(
            f"kwargs {kwargs!r} of cron is not valid: a dict such as {{'size': 5}} is expected"
        )

    def decorate(task: AnyTask) -> AnyTask:
        if not isinstance(task, Task):
            raise InvalidArgument(
                f"cron is given {type_of(task)}: write @app.cron(...) above @app.task"
            )
        if task.app is not app:
            raise InvalidArgument(
                f"task {task.name} is of app {task.app.name}: register it there, not at {app.name}"
            )
        own = check_schedule_name(app.name, task.name if name is None else name)
        if own in app.schedules:
            raise InvalidArgument(f"schedule {own} is registered already: choose another name=")
        body, found = task.encode_with_options(*args, **(kwargs or {}))
        options = of_request(found)
        app.schedules[own] = define(bodies=[body], app=True, **given, **options)
        return task

    return decorate


def schedules_of(apps: Iterable[App]) -> dict[str, Definition]:
    """Returns the schedules of apps of one queue. Raises InvalidArgument: two have one name."""
    found: dict[str, Definition] = {}
    for app in apps:
        for name, definition in app.schedules.items():
            if name in found:
                raise InvalidArgument(
                    f"two apps of queue {app.name} have a schedule {name}: "
                    "give one of them another name="
                )
            found[name] = definition
    return found


def register_schedules(driver: SyncDriver, queue: str, wanted: dict[str, Definition]) -> None:
    """Writes the schedules of apps to Redis; logs those of apps that are not among them."""
    for name in driver.run(register(queue, wanted)):
        _log.warning(
            "schedule %s of queue %s goes on, but no app of this worker has it: "
            "fairlane schedule remove %s --queue %s removes it",
            *(name, queue, name, queue),
        )


P = ParamSpec("P")
R = TypeVar("R")
Awaited = Coroutine[Any, Any, R]
H = TypeVar("H", bound=Hook)
D = TypeVar("D", bound=DeadHook)
M = TypeVar("M", bound=Middleware)
_UNKNOWN = ("wait", "dead")


class TaskDecorator(Protocol):
    """Registers a function; what App.task returns when it is called with options."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[Context, P], Awaited[R]], /
    ) -> Task[P, R, Awaited[R]]: ...
    @overload
    def __call__(self, function: Callable[P, Awaited[R]], /) -> Task[P, R, Awaited[R]]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> Task[P, R, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R, R]: ...


class StandIn(NamedTuple):
    """Queues in place of those on Redis, for tests of a program; see fairlane.testing.eager."""

    queue: Any
    aio_queue: Any


class App:
    """The tasks of one queue. `name` is the queue's name.

    `url` is the Redis of the queue; None means FAIRLANE_REDIS, else the embedded server. Nothing
    connects before the first submission. `encoding` is "json" or "msgpack". `unknown_tasks` is what
    workers of this app do with a call that they cannot make, because they lack its task or its
    arguments do not fit: "wait" gives the sub-request back uncharged, until another worker can make
    the call, for three days at most, and "dead" makes it dead. `redact` are fields of arguments and
    results that views and logs hide, of every task. `release` names the version of your code, as
    2026.11.28: views show what workers of each release did, and which errors are new since the
    last one; the default is FAIRLANE_RELEASE. Raises InvalidArgument.
    """

    fairlane_remedy = "run rq-worker --app MODULE:APP"

    def __init__(
        self,
        name: str,
        url: str | None = None,
        *,
        encoding: Literal["json", "msgpack"] = "json",
        unknown_tasks: Literal["wait", "dead"] = "wait",
        redact: str | Iterable[str] = (),
        release: str | None = None,
    ) -> None:
        self.name = check_name("queue", name)
        self.release = settings.release(release)
        self.codec = codec_named(encoding)
        if unknown_tasks not in _UNKNOWN:
            raise InvalidArgument(
                f"unknown_tasks {unknown_tasks!r} is not valid: write {' or '.join(_UNKNOWN)}"
            )
        self.unknown_tasks = unknown_tasks
        self.redact: tuple[str, ...] = read_option("redact", redact)
        self.url = url
        self.tasks: dict[str, Task[..., Any, Any]] = {}
        self.schedules: dict[str, Definition] = {}
        self.hooks = Hooks()
        self._lock = threading.Lock()
        self.stand_in: StandIn | None = None
        self._queue: Queue | None = None
        self._pid = 0
        self._loops: weakref.WeakKeyDictionary[AbstractEventLoop, aio.Queue]
        self._loops = weakref.WeakKeyDictionary()

    # Registration.

    @overload
    def task(
        self, function: Callable[Concatenate[Context, P], Awaited[R]], /
    ) -> Task[P, R, Awaited[R]]: ...
    @overload
    def task(self, function: Callable[P, Awaited[R]], /) -> Task[P, R, Awaited[R]]: ...
    @overload
    def task(self, function: Callable[Concatenate[Context, P], R], /) -> Task[P, R, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R, R]: ...
    @overload
    def task(self, *, name: str | None = None, **options: Unpack[TaskOptions]) -> TaskDecorator: ...
    def task(  # type: ignore[misc]  # the options are typed in the overload above
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        **options: Any,
    ) -> Any:
        """Registers a function, sync or async, and returns its Task.

        `name` is the task's name in the queue; the function's own by default. The options are those
        of TaskOptions. Raises InvalidArgument, for a task that is registered already, too.
        """
        if function is not None:
            return self._register(function, name, {})
        return lambda function: self._register(function, name, options)

    def _register(
        self, function: Callable[..., Any], name: str | None, options: dict[str, Any]
    ) -> Task[..., Any, Any]:
        called = getattr(function, "__name__", None)
        if not inspect.isfunction(function) or called is None:
            raise InvalidArgument(f"task {function!r} is {type_of(function)}: write a function")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise InvalidArgument(
                f"task {called} is a generator function: a task returns its result"
            )
        name = called if name is None else name
        check_task(name)
        if name in self.tasks:
            raise InvalidArgument(
                f"task {name} is registered already, in module "
                f"{self.tasks[name].function.__module__}: choose another name="
            )
        signature = TaskSignature(name, function)
        found, keys = task_options(signature, options)
        chosen = hiding(found, self.redact)
        task: Task[..., Any, Any] = Task(self, function, signature, chosen, keys)
        self.tasks[name] = task
        return task

    def cron(
        self,
        line: str,
        /,
        *,
        tz: str = "UTC",
        name: str | None = None,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        missed: Missed = DEFAULT_MISSED,
        most: int = settings.MISSED_MOST,
    ) -> Callable[[AnyTask], AnyTask]:
        """Returns a decorator that makes a task recur: `@app.cron("0 7 * * mon-fri")`.

        Workers of this app add the schedule when they start. Each tick submits one call, with
        `args` and `kwargs`, and with the task's options. `name` is the schedule's name, by default
        that of the task. `tz`, `missed` and `most` as in Queue.schedules.add. Raises
        InvalidArgument and ArgumentsRefused.
        """
        given = {"cron": line, "tz": tz, "missed": missed, "most": most}
        return scheduler(self, name, args, kwargs, given)

    def on_startup(self, hook: H) -> H:
        """Registers a function that runs once in each process of a worker, before its first call.

        It may be async. If it raises, the process ends and starts again after a pause.
        """
        self.hooks.check("on_startup", hook)
        self.hooks.startup.append(hook)
        return hook

    def on_shutdown(self, hook: H) -> H:
        """Registers a function that runs when a process of a worker has drained; it may be async.

        It does not run in a process that is killed.
        """
        self.hooks.check("on_shutdown", hook)
        self.hooks.shutdown.insert(0, hook)
        return hook

    def middleware(self, function: M) -> M:
        """Registers a generator function, sync or async, that runs around each call of a task.

        It takes a TaskCall and yields once: there the call runs, and there its error is raised. The
        first one registered is the outermost.
        """
        self.hooks.add_middleware(function)
        return function

    def on_dead(self, hook: D) -> D:
        """Registers a function that takes a TaskCall and the error of its last attempt.

        It may be async. It runs in the worker that ran the last attempt, before the sub-request is
        dead. It does not run for a process that died, or for a time limit or deadline.
        """
        self.hooks.check("on_dead", hook)
        self.hooks.dead.append(hook)
        return hook

    # Connections.

    @property
    def queue(self) -> Queue:
        """Returns this process's queue for the blocking API."""
        if self.stand_in is not None:
            return self.stand_in.queue  # type: ignore[no-any-return]
        with self._lock:
            if self._queue is None or self._pid != os.getpid():  # a fork has its own connections
                self._queue, self._pid = Queue.from_url(self.url, name=self.name), os.getpid()
            return self._queue

    @property
    def aio_queue(self) -> aio.Queue:
        """Returns the queue of the event loop that runs now."""
        if self.stand_in is not None:
            return self.stand_in.aio_queue  # type: ignore[no-any-return]
        loop = asyncio.get_running_loop()
        found = self._loops.get(loop)
        if found is None:
            found = self._loops[loop] = aio.Queue.from_url(self.url, name=self.name)
        return found

    def connect_to(self, url: str | None) -> None:
        """Uses another Redis from now on, see App; an event loop must call aclose before."""
        self.close()
        with self._lock:
            self.url, self._queue = url, None
        self._loops.clear()

    def close(self) -> None:
        """Closes the idle connections of the blocking API."""
        with self._lock:
            if self._queue is not None:
                self._queue.close()

    async def aclose(self) -> None:
        """Closes the idle connections of the event loop that runs now."""
        found = self._loops.pop(asyncio.get_running_loop(), None)
        if found is not None:
            await found.close()

    def __repr__(self) -> str:
        return f"<App {self.name}: {plural(len(self.tasks), 'task')}>"


def check_apps(where: str, apps: Iterable[object]) -> None:
    """Raises InvalidArgument, which names `where`, unless all of these are apps."""
    for app in apps:
        if not isinstance(app, App):
            raise InvalidArgument(f"{where} of {app!r} is not valid: pass an App")


def merged_tasks(apps: list[App]) -> dict[str, Task[..., Any, Any]]:
    """Returns the tasks of apps of one queue by their names.

    Raises InvalidArgument if two apps have a task of one name.
    """
    found: dict[str, Task[..., Any, Any]] = {}
    for app in apps:
        for name, task in app.tasks.items():
            if name in found:
                modules = sorted({found[name].function.__module__, task.function.__module__})
                raise InvalidArgument(
                    f"two apps of queue {app.name} have a task {name} "
                    f"({' and '.join(modules)}): give one of them another name="
                )
            found[name] = task
    return found
