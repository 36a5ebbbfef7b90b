"""Finds a handler by its name, inspects it once, and calls it as its signature requires."""

from __future__ import annotations

import asyncio
import base64
import difflib
import functools
import importlib
import inspect
import logging
import math
import os
import signal
import sys
import threading
import traceback
import typing
import weakref
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fairlane import settings
from fairlane.common.fingerprint import FOREIGN
from fairlane.common.text import as_json
from fairlane.drivers.aio import AsyncDriver
from fairlane.drivers.sync import SyncDriver
from fairlane.errors import HandlerNotFound, InvalidArgument, type_of
from fairlane.operations.flow_branches import Choices, Fan, Next, StepPlace, packed
from fairlane.operations.flow_hand_over import read_choices, run_of
from fairlane.operations.flow_shared import forget_callers
from fairlane.protocol.request_hash import read
from fairlane.worker import termination
from fairlane.worker.errors import is_seconds

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from fairlane.aio.flows import AsyncSharedState
    from fairlane.flows import SharedState


# ------------------------------------------------------------------ handlers
# Finds a handler by its name, inspects it once, and calls it as its signature requires.


Handler = Callable[..., Any]
_log = logging.getLogger("fairlane.worker")
F = TypeVar("F", bound=Handler)
_BODY_AND_CONTEXT = 2
_PARTS = 2**63
_BY_PLACE = {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}


class _NoRecord:
    """Stands in for a lease where there is none."""

    deadline = math.inf
    is_stopped = False

    def report(self, index: int, done: int, total: int) -> None:
        """Keeps nothing."""


@dataclass(frozen=True, slots=True)
class Lifespan:
    """What runs once in each process of a worker: before its first call, and after its last.

    The process of an async handler calls `astart` and `astop` in its event loop, any other process
    calls `start` and `stop`.
    """

    start: Callable[[], None]
    stop: Callable[[], None]
    astart: Callable[[], Awaitable[None]]
    astop: Callable[[], Awaitable[None]]


@dataclass(slots=True)
class Context:
    """What a handler can read about its sub-request and its lease.

    `id` of the request, `index` of the sub-request in the input, `attempt` from 1 to `attempts`,
    `fence` (grows; pass it to systems that must refuse a worker that was paused for too long). A
    batch handler's context describes the first of its sub-requests.
    """

    id: str
    index: int
    attempt: int
    fence: int
    _record: Any
    _entries: Any = ()
    attempts: int = 1

    @classmethod
    def local(cls) -> Context:
        """Returns the context of a call outside of a worker: no request, and no end of a lease."""
        return cls("", 0, 1, 0, _NoRecord())

    @property
    def indexes(self) -> list[int]:
        """Returns the index of each sub-request of this call; a batch handler has several."""
        return [int(entry[0].partition(b"-")[2]) for entry in self._entries] or [self.index]

    @property
    def flow(self) -> FlowStep:
        """Returns the step of a flow that this call belongs to, with the state that steps share."""
        return FlowStep(self.id)

    @property
    def deadline(self) -> float:
        """Returns when the lease ends unless it is extended, in seconds of time.monotonic()."""
        return float(self._record.deadline)

    @property
    def cancelled(self) -> bool:
        """Returns True if the result is not wanted: the request is cancelled or the lease lost."""
        return bool(self._record.is_stopped)

    def progress(self, done: int, total: int) -> None:
        """Reports that `done` of `total` parts of this call are done, for `fairlane status ID`.

        It costs no call to Redis: the next heartbeat of the worker has it. Raises InvalidArgument.
        """
        for value in (done, total):
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _PARTS:
                raise InvalidArgument(f"progress of {value!r} parts is not valid: write 0 or more")
        self._record.report(self.index, done, total)


@dataclass(frozen=True, slots=True)
class Shape:
    """How a handler must be called."""

    call: Handler
    is_async: bool
    is_batch: bool
    wants_context: bool
    time_limit_s: float = 0.0  # of one call; 0 = none
    lifespan: Lifespan | None = None
    task_of: Callable[[bytes], str] | None = None  # the name of the task that a body calls
    trace_of: Callable[[bytes], str] | None = None  # the trace of a body that has its own
    hide: Callable[[bytes, str], str] | None = None  # takes hidden values out of an error's text

    def limited(self, seconds: float | None) -> Shape:
        """Returns the same handler with this limit, if it is smaller than the handler's own.

        Raises InvalidArgument.
        """
        if seconds is None:
            return self
        limit_s = check_time_limit(seconds)
        return replace(self, time_limit_s=min(limit_s, self.time_limit_s or limit_s))


def batch_handler(function: F) -> F:
    """Marks a handler that takes a whole slice: a list of bodies, for a list of results."""
    function.fairlane_batch = True  # type: ignore[attr-defined]
    return function


def time_limit(seconds: float) -> Callable[[F], F]:
    """Marks a handler with the longest time of one call, above 0 and at most a day.

    A call that takes longer is ended and fails with the reason `timeout`: an async handler is
    cancelled, and the process of a sync handler is killed. Raises InvalidArgument.
    """
    limit_s = check_time_limit(seconds)

    def mark(function: F) -> F:
        function.fairlane_time_limit_s = limit_s  # type: ignore[attr-defined]
        return function

    return mark


def check_time_limit(seconds: float) -> float:
    """Returns a time limit in seconds, above 0 and at most a day. Raises InvalidArgument."""
    if not is_seconds(seconds) or not seconds:
        raise InvalidArgument(
            f"time limit {seconds!r} is not valid: "
            "seconds are expected, more than 0 and at most 86,400"
        )
    return float(seconds)


def shape_of(handler: Handler) -> Shape:
    """Inspects a handler. Raises HandlerNotFound if it can't be called with a body."""
    if isinstance(handler, str):
        raise HandlerNotFound(
            f"handler {handler!r} is a text: import the function and pass it, or run "
            f"rq-worker --handler {handler}"
        )
    if remedy := getattr(type(handler), "fairlane_remedy", ""):
        raise HandlerNotFound(f"handler {_name(handler)} is {type_of(handler)}: {remedy}")
    if not callable(handler):
        raise HandlerNotFound(f"handler {handler!r} is {type_of(handler)}, not something to call")
    called = _called(handler)
    if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
        raise HandlerNotFound(
            f"handler {_name(handler)} is a generator function: "
            "a handler returns its result, it does not yield it"
        )
    try:
        parameters = list(inspect.signature(handler).parameters.values())
    except (TypeError, ValueError):  # some built-ins have no signature: they get the body alone
        return Shape(handler, is_async=False, is_batch=False, wants_context=False)
    first, wants_context = _fit(handler, parameters)
    is_batch = any(getattr(marked, "fairlane_batch", False) for marked in (handler, called))
    limits = [getattr(marked, "fairlane_time_limit_s", 0.0) for marked in (handler, called)]
    return Shape(
        handler,
        inspect.iscoroutinefunction(called),
        is_batch or _takes_list(first),
        wants_context,
        limits[0] or limits[1],
        getattr(handler, "fairlane_lifespan", None),
        getattr(handler, "fairlane_task_of", None),
        getattr(handler, "fairlane_trace_of", None),
        getattr(handler, "fairlane_hide", None),
    )


def _fit(handler: Handler, parameters: list[inspect.Parameter]) -> tuple[inspect.Parameter, bool]:
    """Returns the parameter that takes the body, and whether another takes the context."""
    by_place = [one for one in parameters if one.kind in _BY_PLACE]
    required = [one for one in by_place if one.default is one.empty]
    takers = by_place or [one for one in parameters if one.kind is one.VAR_POSITIONAL]
    if not takers or len(required) > _BODY_AND_CONTEXT:
        raise HandlerNotFound(
            f"handler {_name(handler)} takes {len(required)} arguments: "
            "(body) or (body, context) is expected"
        )
    for one in parameters:
        if one.kind is one.KEYWORD_ONLY and one.default is one.empty:
            raise HandlerNotFound(
                f"handler {_name(handler)} needs the keyword argument {one.name}: "
                "(body) or (body, context) is expected"
            )
    wants_context = len(by_place) > 1 and (
        len(required) == _BODY_AND_CONTEXT or by_place[1].name == "context"
    )
    return takers[0], wants_context


def _called(handler: Handler) -> Handler:
    """Returns the function that runs in the end: behind a partial, or an object's __call__."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    if inspect.isroutine(handler) or isinstance(handler, type):
        return handler
    return typing.cast("Handler", getattr(handler, "__call__", handler))  # noqa: B004


def _takes_list(first: inspect.Parameter) -> bool:
    note = first.annotation
    if isinstance(note, str):
        text = note.replace(" ", "")
        return text == "list" or text.startswith(("list[", "List[", "typing.List["))
    return typing.get_origin(note) is list or note is list


def _name(handler: Handler) -> str:
    return getattr(handler, "__qualname__", repr(handler))


def load(name: str) -> Handler:
    """Returns the handler `module:function`, found on sys.path. Raises HandlerNotFound."""
    found = load_object("handler", name, "function")
    shape_of(found)
    return typing.cast("Handler", found)


def load_object(what: str, name: str, wanted: str) -> Any:
    """Returns the object `module:name` that a person named, found on sys.path.

    `what` and `wanted` are for errors: a handler is written `module:function`. Raises
    HandlerNotFound.
    """
    module_name, _, path = name.partition(":")
    if not module_name or not path:
        raise HandlerNotFound(f"{what} {name!r} is not valid: write module:{wanted}")
    if module_name.endswith(".py"):
        module = module_name.removesuffix(".py").removeprefix("./").replace("/", ".")
        raise HandlerNotFound(f"{what} {name!r} names a file: write {module}:{path}")
    try:
        found: Any = _imported(what, name, module_name)
    except KeyboardInterrupt:  # a person's
        raise
    except BaseException as error:  # whatever the module raises, also a script's end
        raise HandlerNotFound(
            f"{what} {name!r} cannot be imported: {type(error).__name__}: {error}"
            + (_searched(module_name, error) or _place(error))
        ) from error
    for part in path.split("."):
        if not hasattr(found, part):
            close = difflib.get_close_matches(part, dir(found), n=1)
            hint = _hidden(module_name) or (f"; did you mean {close[0]}?" if close else "")
            raise HandlerNotFound(
                f"{what} {name!r} cannot be imported: {module_name} has no {path}{hint}"
            )
        found = getattr(found, part)
    return found


def _imported(what: str, name: str, module_name: str) -> Any:
    """Imports a module; warns of threads that it starts, because a fork does not have them."""
    before = set(threading.enumerate())
    with termination.noting_exit_hooks():
        module = importlib.import_module(module_name)
    if started := [thread.name for thread in threading.enumerate() if thread not in before]:
        _log.warning(
            "%s %r starts threads when it is imported (%s): they do not run in a worker's "
            "processes, so start them in on_startup",
            what,
            name,
            ", ".join(started),
        )
    return module


def _searched(module_name: str, error: BaseException) -> str:
    """Returns which folders do not have the module; "" if an import within it failed."""
    here = os.getcwd()  # noqa: PTH109  sys.path holds text
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if not missing or here not in sys.path or not f"{module_name}.".startswith(f"{missing}."):
        return ""
    return f": it is neither in the current folder, {here}, nor elsewhere on Python's path"


def _hidden(module_name: str) -> str:
    """Returns that another module was imported in place of the user's file; "" if none was."""
    file = Path(*module_name.split(".")).with_suffix(".py")
    loaded = getattr(sys.modules.get(module_name), "__file__", None)
    if not file.is_file() or (loaded is not None and Path(loaded).resolve() == file.resolve()):
        return ""
    other = f" ({loaded})" if loaded else ""
    return (
        f": your file {file} is hidden by another module {module_name}{other}, which Python found "
        "first: rename your file"
    )


def _place(error: BaseException) -> str:
    """Returns the user's file and line at which an import failed; "" if no module did.

    A SyntaxError names its own.
    """
    frames = traceback.extract_tb(error.__traceback__)
    ours = str(Path(__file__).parents[1])
    own = [
        one
        for one in frames
        if not FOREIGN.search(one.filename) and not one.filename.startswith(ours)
    ]
    frame = own[-1] if own else frames[-1] if frames else None
    if frame is None or isinstance(error, SyntaxError) or frame.filename == importlib.__file__:
        return ""
    return f" ({frame.filename}:{frame.lineno})"


def print_json(body: bytes, context: Context) -> bytes:
    """Prints the sub-request as an object, one line of JSON, and returns it: the default handler.

    Keys: request, index, attempt, and body (or body_base64 if it is not UTF-8).
    """
    shown: dict[str, Any] = {
        "request": context.id,
        "index": context.index,
        "attempt": context.attempt,
    }
    try:
        shown["body"] = body.decode()
    except UnicodeDecodeError:
        shown["body_base64"] = base64.b64encode(body).decode()
    line = as_json(shown).encode() + b"\n"
    try:
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
    except BrokenPipeError:  # the reader has gone: no failure of this sub-request
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        os.kill(os.getppid(), signal.SIGTERM)  # the worker drains
    return line[:-1]


# ------------------------------------------------------------------ flow step
# The step of a flow that a handler runs: the state that it shares with the other steps.
#
# A handler's process makes one connection of its own for that, when the first handler asks for it.


_KNOWN_MOST = 1_000  # steps whose places a process remembers


class _Connections:
    """The drivers of this process, each made when it is first used."""

    url = ""
    _sync: SyncDriver | None = None

    def __init__(self) -> None:
        loops: MutableMapping[asyncio.AbstractEventLoop, AsyncDriver] = weakref.WeakKeyDictionary()
        self._loops = loops
        self.places: dict[str, StepPlace] = {}
        self.choices: dict[str, tuple[StepPlace, Choices]] = {}

    def forget(self) -> None:
        """Leaves the drivers to the process that was forked."""
        self._sync = None
        self._loops.clear()
        forget_callers()

    def blocking(self) -> SyncDriver:
        """Returns the driver for sync handlers; any thread may use it."""
        if self._sync is None:
            self._sync = SyncDriver(self.url, patience_s=settings.PATIENCE_S)
        return self._sync

    def of_loop(self) -> AsyncDriver:
        """Returns the driver for the tasks of the running event loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._loops:
            self._loops[loop] = AsyncDriver(self.url, patience_s=settings.PATIENCE_S)
        return self._loops[loop]


_connections = _Connections()
os.register_at_fork(after_in_child=_connections.forget)


def connect_handlers(url: str) -> None:
    """Sets the Redis of the handlers of this process."""
    _connections.url = url


def chosen(result: Next | Fan, request_id: str) -> tuple[bytes, bytes]:
    """Returns a result that names the next step, or its children, as `out` has it.

    It looks at Redis once for each step, and again before it refuses anything. Raises
    InvalidArgument if the flow does not declare the choice, and RedisError.
    """
    found = _connections.choices.get(request_id)
    if found is not None:
        try:  # another flow may have the id by now
            return _checked(result, *found)
        except InvalidArgument:
            pass
    what = f"the handler returned {result!r}, and"
    if not _connections.url:
        raise InvalidArgument(f"{what} a call outside of a worker is no step of a flow")
    found = _connections.blocking().run(read_choices(request_id))
    if found is None:
        raise InvalidArgument(
            f"{what} request {request_id} is no step of a flow: return bytes, str or None"
        )
    if len(_connections.choices) >= _KNOWN_MOST:
        _connections.choices.clear()
    _connections.choices[request_id] = found
    return _checked(result, *found)


def _checked(result: Next | Fan, place: StepPlace, choices: Choices) -> tuple[bytes, bytes]:
    choices.check(result, place.step, place.flow)
    return packed(result, choices.steps)


class FlowStep:
    """The step of a flow that a handler runs: `context.flow`.

    `shared` is the state that all steps of the run share; async handlers use `ashared`.
    """

    def __init__(self, request_id: str) -> None:
        self._id, self.run = request_id, run_of(request_id)

    @cached_property
    def shared(self) -> SharedState:
        """Returns the shared state for sync handlers."""
        from fairlane.flows import SharedState

        self._check()
        return SharedState(_connections.blocking(), self.run)

    @cached_property
    def ashared(self) -> AsyncSharedState:
        """Returns the shared state for async handlers."""
        from fairlane.aio.flows import AsyncSharedState

        self._check()
        return AsyncSharedState(_connections.of_loop(), self.run)

    @property
    def name(self) -> str:
        """Returns the name of the flow, after one look at Redis for each step."""
        return self._place().flow

    @property
    def step(self) -> str:
        """Returns the name of the step, after one look at Redis for each step."""
        return self._place().step

    def _place(self) -> StepPlace:
        self._check()
        found = _connections.places.get(self._id)
        if found is None:
            (text,) = _connections.blocking().run(read(self._id, "flow"))
            found = StepPlace.parse(text)
            if found is None:
                raise InvalidArgument(
                    f"request {self._id} is no step of a flow: only a flow has these"
                )
            if len(_connections.places) >= _KNOWN_MOST:
                _connections.places.clear()
            _connections.places[self._id] = found
        return found

    def _check(self) -> None:
        """Raises InvalidArgument outside of a worker."""
        if not self.run or not _connections.url:
            what = f"request {self._id}" if self._id else "a call outside of a worker"
            raise InvalidArgument(f"{what} is no step of a flow: it shares no state with others")

    def __repr__(self) -> str:
        return f"<FlowStep of {self.run}>"
