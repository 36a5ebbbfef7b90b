"""What an app runs around its tasks: start and end of a process, middleware, dead calls."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from fairlane.errors import InvalidArgument, type_of

if TYPE_CHECKING:
    from fairlane.worker.handlers import Context

__fairlane_caller__ = True  # its frames are left out of a task's traceback
_LOOK_S = 0.2  # between looks whether a call's result is still wanted
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

    def run(self, called: Awaitable[T], context: Context | None = None) -> T:
        """Runs a coroutine to its end and returns its result; raises what the coroutine raises.

        The coroutine is cancelled soon after the context reports that its result is not wanted. A
        call from within this loop has a loop of its own, because it would wait for itself.
        """
        if threading.current_thread() is self._thread:
            nested = ProcessLoop()
            try:
                return nested.run(called, context)
            finally:
                nested.close()
        done = asyncio.run_coroutine_threadsafe(_outcome(called), self._running())
        while True:
            try:
                value, error = done.result(None if context is None else _LOOK_S)
            except TimeoutError:
                if context is not None and context.cancelled:
                    done.cancel()
                continue
            except CancelledError:
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


async def _outcome(called: Awaitable[T]) -> tuple[T | None, BaseException | None]:
    """Returns an error as a value, so that its traceback begins with the coroutine's frames."""
    try:
        return await called, None
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001  raised again by the caller
        return None, error


def _name(function: Any) -> str:
    return getattr(function, "__qualname__", repr(function))
