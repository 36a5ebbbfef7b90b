"""SIGTERM and SIGINT as a count the supervisor looks at, and a pipe that wakes it; and Ctrl-Z."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from typing import TYPE_CHECKING, Any, Self

from .. import clock

if TYPE_CHECKING:
    from collections.abc import Iterable

_APART_S = 0.3  # of two that count


class Signals:
    """While entered, signals are counted instead of ending the process; only in the main thread.

    One stop may come as two: from a terminal, and from a program that hands on what it got itself.
    So what follows one that counted at once does not count.
    """

    def __init__(self) -> None:
        self.count = 0
        self._counted = 0.0
        self.pipe, self._wake = socket.socketpair()
        self.pipe.setblocking(False)
        self._wake.setblocking(False)
        self._before: dict[int, Any] = {}
        self.groups: Iterable[int] = ()  # of processes that are stopped with us, and go on

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._fd = signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._count)
            if signal.getsignal(signal.SIGTSTP) == signal.SIG_DFL:
                self._before[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, self._stop)
            self._before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        if self._before:
            signal.set_wakeup_fd(self._fd)
        self.forget()

    def _count(self, *_: object) -> None:
        now = clock.mono_s()
        if not self.count or now - self._counted >= _APART_S:
            self.count += 1
            self._counted = now

    def _stop(self, *_: object) -> None:
        """Ctrl-Z reaches this process alone, but its leases must not run out while others work."""
        groups = list(self.groups)
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for group in groups:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(group, number)
            if number == signal.SIGSTOP:
                os.kill(os.getpid(), number)  # comes back when we go on

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
