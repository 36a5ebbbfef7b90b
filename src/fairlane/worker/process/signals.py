"""How the supervisor, its processes and the processes that these fork handle signals.

The supervisor counts SIGTERM, SIGINT and, unless `nohup` ignores it, SIGHUP. A pipe wakes the
supervisor. Ctrl-Z also stops its processes. The processes leave these decisions to the supervisor.
A process that a handler forks handles signals as any Python program does.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from typing import TYPE_CHECKING, Any, Self

from fairlane.common import clock

if TYPE_CHECKING:
    from collections.abc import Iterable

_APART_S = 0.3  # the least time between two signals that both count
_PYTHONS_OWN: dict[int, Any] = {
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGINT: signal.default_int_handler,
    signal.SIGHUP: signal.SIG_DFL,
}


class Signals:
    """While entered, counts signals instead of ending the process; only in the main thread.

    One stop may send two signals: one from a terminal, and one from a program that passes its own
    on. So a signal that follows another immediately does not count.
    """

    def __init__(self) -> None:
        self.count = 0
        self._counted = 0.0
        self.pipe, self._wake = socket.socketpair()
        self.pipe.setblocking(False)
        self._wake.setblocking(False)
        self._before: dict[int, Any] = {}
        self.groups: Iterable[int] = ()  # of processes that are stopped and continued with us

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._fd = signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._count)
            if signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:
                self._before[signal.SIGHUP] = signal.signal(signal.SIGHUP, self._count)
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
        """Stops all groups on Ctrl-Z, so that no process works on while its leases run out."""
        groups = list(self.groups)
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for group in groups:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(group, number)
            if number == signal.SIGSTOP:
                os.kill(os.getpid(), number)  # returns when this process is continued

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


def leave_to_parent() -> None:
    """Makes SIGTERM, SIGINT and SIGHUP do nothing in this process, and resets the others.

    The supervisor decides, also when a terminal signals all processes. The signals are not ignored
    (SIG_IGN), because a program that a handler starts would ignore them, too.
    """
    for number in _PYTHONS_OWN:
        signal.signal(number, _do_nothing)
    for number in (signal.SIGCHLD, signal.SIGTSTP):
        signal.signal(number, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)


def _do_nothing(*_: object) -> None:
    return


def restore_in_forks() -> None:
    """Gives each process that is forked from this one Python's own dispositions.

    The signals are blocked during the fork. So one that arrives before the disposition is restored
    still ends the new process, as a pool expects of the processes that it terminates.
    """
    masks = threading.local()

    def block() -> None:
        masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, _PYTHONS_OWN)

    def unblock() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.before)

    def restore() -> None:
        for number, default in _PYTHONS_OWN.items():
            if signal.getsignal(number) is _do_nothing:  # not one that the handler has set
                signal.signal(number, default)
        signal.set_wakeup_fd(-1)  # of an event loop in the process that forked
        unblock()

    os.register_at_fork(before=block, after_in_parent=unblock, after_in_child=restore)
