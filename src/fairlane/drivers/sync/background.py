"""A second thread of a process, in which an operation runs while the first one handles."""

from __future__ import annotations

import os
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from fairlane.protocol.steps import Handled

if TYPE_CHECKING:
    from collections.abc import Callable

_SENT_S = 0.02  # a handler need not wait for a Redis that is away


class OneShotEvent:
    """Given once by one thread and waited for by another; cheaper than threading.Event."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def give(self) -> None:
        """Whoever waits goes on; once is enough, and more do no harm."""
        if self._lock.locked():
            self._lock.release()

    def wait(self, timeout_s: float = -1) -> bool:
        """True when it was given within `timeout_s`; -1 = however long it takes.

        One wait that was True is the only one.
        """
        return self._lock.acquire(timeout=timeout_s)


class BackgroundRunner:
    """Runs one call at a time in its own thread, which starts with the first and dies with us."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._pid = 0

    def handle(
        self, handle: Callable[[], Any], run: Callable[[OneShotEvent, OneShotEvent], Any]
    ) -> Handled:
        """What `handle` returns, called here, and what `run` returns or raises, called there.

        `run` gets two signals: one to give when its first words are sent, for which `handle` waits,
        not for long, so that Redis is busy while we are; and one that is given when `handle` has
        come back.
        Raises what `handle` raises, at once.
        """
        sent, handled, done = OneShotEvent(), OneShotEvent(), OneShotEvent()
        came: list[Any] = [None, None]

        def call() -> None:
            try:
                came[0] = run(sent, handled)
            except BaseException as error:  # noqa: BLE001  raised where it can be dealt with
                came[1] = error
            sent.give()
            done.give()

        self._start()
        self._calls.put(call)
        sent.wait(_SENT_S)
        try:
            outcomes = handle()
        finally:
            handled.give()
        done.wait()
        return Handled(outcomes, came[0], came[1])

    def _start(self) -> None:
        if self._pid != os.getpid():  # a forked child has none of its parent's threads
            self._calls, self._pid = SimpleQueue(), os.getpid()
            threading.Thread(target=_work, args=(self._calls,), name="beside", daemon=True).start()


def _work(calls: SimpleQueue[Callable[[], None]]) -> None:
    while True:
        calls.get()()
