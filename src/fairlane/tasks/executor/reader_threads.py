"""Threads that read the results of one request after the other.

A reader learns of the end of a sealed request up to two seconds after its last result, so the next
request needs another thread. While the interpreter ends, no thread can start: then the requests
wait for each other.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class ReaderThreads(Generic[T]):
    """Starts a thread for what is to be read, unless one is free."""

    def __init__(self, read: Callable[[T], None]) -> None:
        self._read = read
        self._todo: SimpleQueue[T | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._free = 0

    def start_one(self) -> None:
        """Starts a thread, which is free. Raises RuntimeError while the interpreter ends."""
        thread = threading.Thread(target=self._run, name="fairlane-results", daemon=True)
        thread.start()
        with self._lock:
            self._threads.append(thread)
            self._free += 1

    def read(self, what: T) -> None:
        """Has a thread read this; the first one that is free if none can be started."""
        with self._lock:
            has_one, self._free = self._free > 0, self._free - 1
        if not has_one:
            with suppress(RuntimeError):  # the interpreter ends
                self.start_one()
        self._todo.put(what)

    def end(self) -> None:
        """Ends each thread when it is free."""
        with self._lock:
            count = len(self._threads)
        for _ in range(count):
            self._todo.put(None)

    def is_current(self) -> bool:
        """Returns True in one of these threads."""
        with self._lock:
            return threading.current_thread() in self._threads

    def _run(self) -> None:
        while (what := self._todo.get()) is not None:
            self._read(what)
            with self._lock:
                self._free += 1
