"""Runs an operation in a second thread while the first thread runs the handler."""

from __future__ import annotations

import os
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from fairlane.protocol.steps import Handled

if TYPE_CHECKING:
    from collections.abc import Callable

_SENT_S = 0.02  # the longest wait for the first steps: Redis may be unreachable


class OneShotEvent:
    """Set once by one thread and awaited by another; cheaper than threading.Event."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def give(self) -> None:
        """Releases the waiting thread. A repeat is a no-op."""
        if self._lock.locked():
            self._lock.release()

    def wait(self, timeout_s: float = -1) -> bool:
        """Returns True if it was given within `timeout_s`; -1 = no limit.

        Only one call may wait successfully.
        """
        return self._lock.acquire(timeout=timeout_s)


class BackgroundRunner:
    """Runs one call at a time in a daemon thread, which starts with the first call."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._pid = 0

    def handle(
        self, handle: Callable[[], Any], run: Callable[[OneShotEvent, OneShotEvent], Any]
    ) -> Handled:
        """Calls `handle` in this thread and `run` in the other; returns the results of both.

        `run` gets two events. It gives the first when its first steps are sent: `handle` waits a
        moment for it, so that Redis is busy meanwhile. The second is given when `handle` returns.
        An error of `handle` is raised immediately; an error of `run` is part of the result.
        """
        sent, handled, done = OneShotEvent(), OneShotEvent(), OneShotEvent()
        result: list[Any] = [None, None]

        def call() -> None:
            try:
                result[0] = run(sent, handled)
            except BaseException as error:  # noqa: BLE001  raised in the thread of the caller
                result[1] = error
            sent.give()
            done.give()

        self._start()
        self._calls.put(call)
        sent.wait(_SENT_S)
        try:
            leases = handle()
        finally:
            handled.give()
        done.wait()
        return Handled(leases, result[0], result[1])

    def _start(self) -> None:
        if self._pid != os.getpid():  # a forked child has none of its parent's threads
            self._calls, self._pid = SimpleQueue(), os.getpid()
            threading.Thread(target=_work, args=(self._calls,), name="beside", daemon=True).start()


def _work(calls: SimpleQueue[Callable[[], None]]) -> None:
    while True:
        calls.get()()
