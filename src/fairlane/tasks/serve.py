"""Workers of apps: loads the apps, makes a worker for each queue, and runs them in one program."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import signal
import threading
import warnings
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, Unpack

import msgspec
from msgspec import UNSET
from msgspec.structs import asdict

from fairlane import settings
from fairlane.common.text import join_names
from fairlane.errors import FairlaneError, HandlerNotFound, InvalidArgument, type_of
from fairlane.operations.call_words import hide_values
from fairlane.queue import Queue
from fairlane.tasks.app import (
    App,
    Hooks,
    ProcessLoop,
    TaskCall,
    merged_tasks,
    register_schedules,
    schedules_of,
)
from fairlane.tasks.codec import JSON, MSGPACK, UNENCODABLE, VERSION, Codec, NotCarried, why_not
from fairlane.tasks.registered_limits import RegisteredLimits
from fairlane.tasks.task import Task
from fairlane.worker import termination
from fairlane.worker.errors import GiveBack, Reject
from fairlane.worker.handlers import Context, Lifespan, load_object
from fairlane.worker.supervisor import Worker

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from fairlane.drivers.sync import SyncDriver
    from fairlane.tasks.codec import TaskBody
    from fairlane.tasks.signature import TaskSignature


# ------------------------------------------------------------------ calls
# The handler of a worker that has tasks: decodes each body, calls its task, encodes the result.


_log = logging.getLogger("fairlane.worker")
__fairlane_caller__ = (
    True  # its frames are left out of a task's traceback: see worker/error_texts.py
)
# Bytes that begin no text in UTF-8 and no array in MessagePack.
_NO_TEXT = {*range(0x80, 0x90), *range(0xA0, 0xC2), *range(0xF5, 0x100)}
_NAMED_MOST = 100  # kinds of impossible calls that a process logs at most
UNKNOWN_AFTER_S = 10.0  # after so long a worker may take the call of an unknown task again
UNKNOWN_MOST_DAYS = 3  # then the call is dead: 3 days cover a weekend


@dataclass(frozen=True, slots=True)
class _Callee:
    """A task as a worker calls it."""

    signature: TaskSignature
    function: Callable[..., Any]
    is_async: bool
    hooks: Hooks
    has_hooks: bool
    is_bare: bool  # it takes only its arguments: no context, no hook, and no loop
    redact: tuple[str, ...]  # fields that views and logs hide

    @classmethod
    def of(cls, task: Task[..., Any, Any]) -> _Callee:
        """Returns the callee of a task."""
        signature, hooks = task.signature, task.app.hooks
        is_async = asyncio.iscoroutinefunction(task.function)
        has_hooks = bool(hooks.around or hooks.dead)
        is_bare = signature.takes_names and not has_hooks and not is_async
        redact = tuple(task.options.get("redact", ()))
        return cls(signature, task.function, is_async, hooks, has_hooks, is_bare, redact)


class _BodyReader(NamedTuple):
    """Decodes the bodies of one task in one encoding."""

    callee: _Callee
    codec: Codec
    decode: Callable[[bytes], Any]

    @classmethod
    def of(cls, callee: _Callee, codec: Codec) -> _BodyReader:
        """Returns the reader of a task's bodies."""
        return cls(callee, codec, callee.signature.decoders[codec.name])


class TaskCalls:
    """The tasks of apps that share a queue, as one handler.

    If every task is async, the handler is async. Otherwise async tasks run on an event loop in a
    thread of the process, and each unit waits for its own call. Raises InvalidArgument.
    """

    def __init__(self, apps: Sequence[App]) -> None:
        self.apps = list(apps)
        self.queue = _one_queue(self.apps)
        self._tasks = {name: _Callee.of(task) for name, task in merged_tasks(self.apps).items()}
        self._waits = any(app.unknown_tasks == "wait" for app in self.apps)
        # Most bodies call the same task as the body before them, so one step decodes them.
        self._guess = _BodyReader.of(next(iter(self._tasks.values())), JSON)
        self._unfit_calls: set[str] = set()  # those that are in the log
        self._loop = ProcessLoop()

    @property
    def is_async(self) -> bool:
        """Returns True if every task is async."""
        return bool(self._tasks) and all(one.is_async for one in self._tasks.values())

    def handler(self, *, is_async: bool | None = None) -> Any:
        """Returns the function that a Worker calls for each sub-request.

        If `is_async` is False, the function is sync even if every task is async.
        """

        async def acall(body: bytes, context: Context) -> bytes | None:
            return await self._acall(body, context)

        def call(body: bytes, context: Context) -> bytes | None:
            return self._call(body, context)

        def bare(body: bytes) -> bytes | None:
            callee, codec, arguments = decoded(body)
            value = callee.function(**arguments)
            return _encoded(callee, codec, value)

        decoded = self._decoded
        is_bare = all(one.is_bare for one in self._tasks.values())
        chosen = self.is_async if is_async is None else is_async
        found: Any = acall if chosen else bare if is_bare else call
        found.fairlane_task_of = self._task_of
        found.fairlane_hide = self._hide
        found.fairlane_trace_of = self._trace_of
        found.fairlane_lifespan = Lifespan(self._start, self._stop, self._astart, self._astop)
        return found

    def _task_of(self, body: bytes) -> str:
        """Returns the name of the task that a body calls; "" if it calls none of these."""
        parts = _parts_of(body)
        return parts.task if parts is not None and parts.task in self._tasks else ""

    def _hide(self, body: bytes, text: str) -> str:
        """Returns the text of an error without the values of arguments that its task hides."""
        parts = _parts_of(body)
        callee = None if parts is None else self._tasks.get(parts.task)
        if callee is None or not callee.redact:
            return text
        return hide_values(text, body, callee.redact)

    def _trace_of(self, body: bytes) -> str:
        """Returns the trace in the body of a call; "" if it has none."""
        parts = _parts_of(body)
        return "" if parts is None else parts.trace

    # One call.

    def _call(self, body: bytes, context: Context) -> bytes | None:
        callee, codec, arguments = self._decoded(body)
        args, kwargs = callee.signature.place(arguments, context)
        if not callee.has_hooks and not callee.is_async:
            return _encoded(callee, codec, callee.function(*args, **kwargs))
        call = TaskCall(callee.signature.task, arguments, context)
        # The parts of the call share its variables, in this thread and on the loop.
        run, variables = self._loop.run, contextvars.copy_context()
        try:
            with ExitStack() as stack:
                for around in callee.hooks.around:
                    stack.enter_context(_Around(around(call), run, variables))
                value = variables.run(callee.function, *args, **kwargs)
                if callee.is_async:
                    value = run(value, variables, context)
            return _encoded(callee, codec, value)
        except BaseException as error:
            for hook in _dead_hooks(callee, context, error):
                _finish(run, variables, hook, call, error)
            raise

    async def _acall(self, body: bytes, context: Context) -> bytes | None:
        callee, codec, arguments = self._decoded(body)
        args, kwargs = callee.signature.place(arguments, context)
        if not callee.has_hooks:
            return _encoded(callee, codec, await callee.function(*args, **kwargs))
        call = TaskCall(callee.signature.task, arguments, context)
        try:
            async with AsyncExitStack() as stack:
                for around in callee.hooks.around:
                    manager = around(call)
                    if hasattr(manager, "__aenter__"):
                        await stack.enter_async_context(manager)
                    else:
                        stack.enter_context(manager)
                value = await callee.function(*args, **kwargs)
            return _encoded(callee, codec, value)
        except BaseException as error:
            for hook in _dead_hooks(callee, context, error):
                await _afinish(hook, call, error)
            raise

    def _decoded(self, body: bytes) -> tuple[_Callee, Codec, dict[str, Any]]:
        """Returns the task, the codec and the arguments of a body. Raises Reject or GiveBack."""
        guess = self._guess
        try:
            given = asdict(guess.decode(body).arguments)
        except msgspec.MsgspecError:
            self._guess = guess = self._reader_of(body)
            try:
                given = asdict(guess.decode(body).arguments)
            except msgspec.MsgspecError as error:
                task, why = guess.callee.signature.task, _in_words(error)
                what = f"task {task} cannot take its arguments: {why}"
                remedy = "submit it with arguments that it takes"
                raise self._unfit(what, "takes them", remedy) from None
        if guess.callee.signature.has_defaults:
            given = {name: value for name, value in given.items() if value is not UNSET}
        return guess.callee, guess.codec, given

    def _reader_of(self, body: bytes) -> _BodyReader:
        """Returns the reader of a body. Raises Reject or GiveBack."""
        codec = JSON if body[:1] == b"[" else MSGPACK
        try:
            parts = codec.decode_body(body)
        except msgspec.MsgspecError as error:
            if _is_newer(body):
                what = "no worker can read the format of this call"
                raise self._unfit(what, "can", "start a worker that can") from None
            raise Reject(f"the body is no call of a task{_why(body, error)}") from None
        if parts.version > VERSION or parts.task not in self._tasks:
            raise self._no_task(parts.task, parts.version)
        return _BodyReader.of(self._tasks[parts.task], codec)

    def _no_task(self, name: str, version: int) -> Exception:
        """Returns the error for a task that this worker lacks, or whose body is too new."""
        what = f"no worker has had the task {name}"
        if version > VERSION:
            what = f"no worker can read format {version} of the call of task {name}"
        return self._unfit(what, "has it", "start a worker that has it, and requeue the dead")

    def _unfit(self, what: str, does: str, remedy: str) -> Exception:
        """Returns the error for a call that this worker cannot make, but a newer one might."""
        if not self._waits:
            return Reject(f"{what}: {remedy}")
        text = f"{what}: it waits for a worker that {does}"
        if what not in self._unfit_calls and len(self._unfit_calls) < _NAMED_MOST:
            self._unfit_calls.add(what)
            _log.warning("queue %s: %s; this one has %s", self.queue, text, self._names())
        at_last = f"workers gave it back for {UNKNOWN_MOST_DAYS} days, because {what}: {remedy}"
        return GiveBack(text, UNKNOWN_AFTER_S, UNKNOWN_MOST_DAYS * 86_400.0, at_last)

    def _names(self) -> str:
        return ", ".join(sorted(self._tasks)) or "none"

    # The process.

    def _start(self) -> None:
        for app in self.apps:
            for hook in app.hooks.startup:
                if asyncio.iscoroutine(done := hook()):
                    # The hook ran in its own context, and the calls need what it has set.
                    for variable, value in self._loop.run(
                        _with_context(done), contextvars.copy_context()
                    ).items():
                        variable.set(value)

    def _stop(self) -> None:
        for app in reversed(self.apps):
            for hook in app.hooks.shutdown:
                _finish(self._loop.run, contextvars.copy_context(), hook)
        self._loop.close()

    async def _astart(self) -> None:
        for app in self.apps:
            for hook in app.hooks.startup:
                if asyncio.iscoroutine(done := hook()):
                    await done

    async def _astop(self) -> None:
        for app in reversed(self.apps):
            for hook in app.hooks.shutdown:
                await _afinish(hook)


async def _with_context(done: Awaitable[Any]) -> contextvars.Context:
    """Awaits a hook; returns the context variables as it leaves them."""
    await done
    return contextvars.copy_context()


class _Around:
    """A middleware, sync or async, in the context variables of its call."""

    def __init__(
        self, manager: Any, run: Callable[..., Any], variables: contextvars.Context
    ) -> None:
        self._manager, self._run, self._variables = manager, run, variables
        self._is_async = hasattr(manager, "__aenter__")

    def __enter__(self) -> None:
        if self._is_async:
            self._run(self._manager.__aenter__(), self._variables)
        else:
            self._variables.run(self._manager.__enter__)

    def __exit__(self, *error: object) -> Any:
        if self._is_async:
            return self._run(self._manager.__aexit__(*error), self._variables)
        return self._variables.run(self._manager.__exit__, *error)


def _one_queue(apps: list[App]) -> str:
    for app in apps:
        if not app.tasks:
            raise InvalidArgument(f"app {app.name} has no task: register one with @app.task")
    names = {app.name for app in apps}
    if len(names) != 1:
        raise InvalidArgument(f"apps of {len(names)} queues cannot share a handler")
    return names.pop()


def _is_newer(body: bytes) -> bool:
    """Returns True if the version or the encoding of a call is newer than this worker.

    A call is an array, whose first value is the version. If a body begins neither a text nor an
    array of MessagePack, this worker lacks its encoding.
    """
    for codec in (JSON, MSGPACK):
        try:
            version, *_ = codec.decoder(list[msgspec.Raw])(body)
            return bool(codec.decoder(int)(version) > VERSION)
        except (msgspec.MsgspecError, ValueError):
            continue
    return bool(body) and body[0] in _NO_TEXT


def _why(body: bytes, error: msgspec.MsgspecError) -> str:
    """Returns why a body is no call, and the remedy."""
    why = f" ({error})" if body[:1] in {b"[", b"\x93"} else ""
    return f"{why}: submit it with a task"


def _in_words(error: msgspec.MsgspecError) -> str:
    """Returns msgspec's sentence in the words of a call."""
    text = (
        str(error)
        .replace(" - at `$[2]`", "")
        .replace("`$[2].", "`")
        .replace("Object missing required field", "missing argument")
    )
    return text.replace("Object contains unknown field", "unknown argument")


def _parts_of(body: bytes) -> TaskBody | None:
    """Returns the parts of a body; None if it is no call of a task."""
    codec = JSON if body[:1] == b"[" else MSGPACK
    try:
        return codec.decode_body(body)
    except msgspec.MsgspecError:
        return None


def _encoded(callee: _Callee, codec: Codec, value: Any) -> bytes | None:
    """Returns a result's bytes. Raises Reject if it cannot be encoded."""
    try:
        body = callee.signature.encode_result(codec, value)
    except NotCarried as error:
        what = "None" if value is None else type_of(value)
        raise Reject(
            f"task {callee.signature.task} returned {what}: its result{error.place} {error}"
        ) from None
    except UNENCODABLE as error:
        raise Reject(
            f"task {callee.signature.task} returned {type_of(value)}, "
            f"which cannot be encoded: {why_not(error)}"
        ) from None
    if body is not None and len(body) > settings.MAX_BODY:
        raise Reject(
            f"task {callee.signature.task} returned {type_of(value)} of {len(body):,} bytes: "
            f"the most is {settings.MAX_BODY:,}: store it and return its path or key"
        )
    return body


def _dead_hooks(callee: _Callee, context: Context, error: BaseException) -> list[Any]:
    """Returns the hooks to call after this error; none if there is another attempt."""
    if isinstance(error, (asyncio.CancelledError, GeneratorExit)):
        return []
    is_last = isinstance(error, Reject) or context.attempt >= context.attempts
    return callee.hooks.dead if is_last else []


def _finish(
    run: Callable[..., Any], variables: contextvars.Context, hook: Callable[..., Any], *args: Any
) -> None:
    """Calls a hook. Only logs its error, because that must not stop what follows."""
    try:
        if asyncio.iscoroutine(done := variables.run(hook, *args)):
            run(done, variables)
    except Exception:  # noqa: BLE001  logged
        _log.exception("hook %s failed", getattr(hook, "__qualname__", hook))


async def _afinish(hook: Callable[..., Any], *args: Any) -> None:
    """Does what _finish does, in an event loop."""
    try:
        if asyncio.iscoroutine(done := hook(*args)):
            await done
    except Exception:  # noqa: BLE001  logged
        _log.exception("hook %s failed", getattr(hook, "__qualname__", hook))


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
    """Returns a worker for each queue of these apps. Apps with one name share a queue.

    `url` is the Redis of all; None = each app's own. If `id` has a port, the workers after the
    first have the next ports. Raises InvalidArgument if an app has no task, or if two apps of a
    queue have tasks of one name, two releases or two Redis servers. Raises what Worker raises, too.
    """
    if not apps:
        raise InvalidArgument("no app is named: a worker needs one")
    workers = []
    for number, (queue, group) in enumerate(groupby(sorted(apps, key=_name), key=_name)):
        members = list(group)
        urls = {app.url for app in members} if url is None else {url}
        if len(urls) > 1:
            raise InvalidArgument(f"the apps of queue {queue} have two Redis URLs: name one")
        handler = TaskCalls(members).handler()
        opened = Queue.from_url(urls.pop(), name=queue)
        for app in members:  # a task may submit calls to its own app
            app.url = opened.driver.url
        own = None if id is None else _next_port(id, number)
        worker = Worker(opened, handler, id=own, release=_release_of(members), **options)
        _register_by(worker, members)
        workers.append(worker)
    return workers


def _release_of(apps: list[App]) -> str:
    """Returns the release of the apps of one queue. Raises InvalidArgument if they have two."""
    names = {app.release: None for app in apps if app.release}
    if len(names) > 1:
        raise InvalidArgument(
            f"the apps of queue {apps[0].name} have the releases {join_names(sorted(names))}: "
            "give them the same"
        )
    return next(iter(names), "")


def _register_by(worker: Worker, apps: list[App]) -> None:
    """Lets a worker write to Redis, when it registers, what these apps have declared there."""
    queue, wanted = worker.queue.name, schedules_of(apps)
    limits = RegisteredLimits(queue, [task.keys for task in merged_tasks(apps).values()])

    def register(driver: SyncDriver) -> None:
        register_schedules(driver, queue, wanted)
        limits.register(driver)

    worker.on_registered, worker.on_beat = register, limits.look


def run_workers(workers: list[Worker], *, until_idle: bool = False) -> int:
    """Runs workers until a signal ends them or, if `until_idle`, until each queue is idle.

    Several workers have a process each, and this one passes signals on. If a worker fails, the
    others drain. Returns 0, or the exit code of the first that failed. Raises as Worker.run does.
    """
    if len(workers) == 1:
        return workers[0].run(until_idle=until_idle)
    return _Group(workers, until_idle=until_idle).run()


class _Group:
    """The processes of several workers; each drains when this process is gone."""

    def __init__(self, workers: list[Worker], *, until_idle: bool) -> None:
        self._workers, self._until_idle = workers, until_idle
        self._end_of_parent, self._ours = os.pipe()  # no byte goes through this pipe
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
