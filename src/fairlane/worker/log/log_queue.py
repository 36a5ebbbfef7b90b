"""Writes the supervisor's log in a thread, because a slow reader must not stop the supervisor.

The supervisor shares its stderr with the processes of the handlers. If one of them fills the pipe,
each further write blocks until a reader empties it. A supervisor that waited would extend no lease.
O_NONBLOCK is no remedy, because it would change the writes of all processes that share the pipe.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections import deque
from typing import Self

from fairlane.common import clock

_LOGGER = logging.getLogger("fairlane.worker")
_MOST = 1000  # records that wait
_STUCK_S = 2.0  # at the end the thread is given up if it has written nothing for so long
_LAST_S = 10.0  # ... and in any case after this time


class LogQueue(logging.Filter):
    """While entered, a thread writes this process's log records with their own handlers.

    A record that finds the queue full is dropped and counted; the count is logged when there is
    room again. At the end the remaining records are written, if that is possible in bounded time.
    """

    def __init__(self) -> None:
        super().__init__()
        self._pid = os.getpid()
        self._waiting: deque[logging.LogRecord] = deque()
        self._changed = threading.Condition()
        self._dropped = self._written = 0
        self._is_closed = False
        self._thread = threading.Thread(target=self._write, name="log", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        _LOGGER.addFilter(self)
        return self

    def __exit__(self, *_: object) -> None:
        _LOGGER.removeFilter(self)
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        until, before = clock.mono_s() + _LAST_S, -1
        while self._thread.is_alive() and self._written > before and clock.mono_s() < until:
            before = self._written
            self._thread.join(_STUCK_S)

    def filter(self, record: logging.LogRecord) -> bool:
        """Puts a record into the queue, so that this thread does not write it."""
        if os.getpid() != self._pid:  # a handler's process, which has no thread of this queue
            return True
        with self._changed:
            if len(self._waiting) >= _MOST:
                self._dropped += 1
            else:
                self._note_dropped()
                self._waiting.append(record)
                self._changed.notify()
        return False

    def _note_dropped(self) -> None:
        """Logs how many records were dropped, at their place in the log."""
        if self._dropped:
            text = "%d lines of this log were dropped: its reader is slow"
            given = ("", 0, text, (self._dropped,), None)
            self._waiting.append(_LOGGER.makeRecord(_LOGGER.name, logging.WARNING, *given))
            self._dropped = 0

    def _write(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._dropped and not self._is_closed:
                    self._changed.wait()
                if not self._waiting:
                    self._note_dropped()
                if not self._waiting:
                    return
                record = self._waiting.popleft()
            with contextlib.suppress(Exception):  # a handler's own failure stops no other line
                _LOGGER.callHandlers(record)
            self._written += 1
