"""SIGTERM and SIGINT as a count the supervisor looks at, and a pipe that wakes it."""

from __future__ import annotations

import signal
import socket
import threading
from typing import Any, Self


class Signals:
    """While entered, signals are counted instead of ending the process; only in the main thread."""

    def __init__(self) -> None:
        self.count = 0
        self.pipe, self._wake = socket.socketpair()
        self.pipe.setblocking(False)
        self._wake.setblocking(False)
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._fd = signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._count)
            self._before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        if self._before:
            signal.set_wakeup_fd(self._fd)
        self.forget()

    def _count(self, *_: object) -> None:
        self.count += 1

    def clear(self) -> None:
        """Empties the pipe."""
        try:
            self.pipe.recv(4096)
        except OSError:
            return

    def forget(self) -> None:
        """Closes the pipe's ends, in a child or at the end."""
        self.pipe.close()
        self._wake.close()
