"""The handler of an app in a test: counts attempts, keeps errors, and lets an interrupt through."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fairlane.worker.errors import GiveBack
from fairlane.worker.handlers import Shape, shape_of

if TYPE_CHECKING:
    from fairlane.tasks.worker.calls import Calls
    from fairlane.worker.handlers import Context


class WatchedHandler:
    """Calls the tasks of apps in this process.

    A worker makes every exception an outcome of its call. In a test, Ctrl-C and what pytest raises
    are none: `check` raises them again.
    """

    def __init__(self, calls: Calls) -> None:
        self._handler = calls.handler(is_async=False)
        self._wants_context = shape_of(self._handler).wants_context
        self.attempts = 0
        self.first_error: BaseException | None = None
        self._interrupt: BaseException | None = None

    @property
    def shape(self) -> Shape:
        """Returns how a Runner calls it."""
        own = shape_of(self._handler)
        return replace(shape_of(self._call), task_of=own.task_of, trace_of=own.trace_of)

    def start(self) -> None:
        """Runs the hooks of a process's start."""
        self._handler.fairlane_lifespan.start()

    def stop(self) -> None:
        """Runs the hooks of a process's end."""
        self._handler.fairlane_lifespan.stop()

    def check(self) -> None:
        """Raises what was no outcome of a call."""
        interrupt, self._interrupt = self._interrupt, None
        if interrupt is not None:
            raise interrupt

    def _call(self, body: bytes, context: Context) -> Any:
        try:
            result = self._handler(body, context) if self._wants_context else self._handler(body)
        except GiveBack:  # it waits for a worker that has its task
            raise
        except BaseException as error:
            self.attempts += 1
            self.first_error = self.first_error or error
            if not isinstance(error, (Exception, SystemExit)):
                self._interrupt = error
            raise
        self.attempts += 1
        return result
