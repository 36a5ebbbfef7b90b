"""Ends a worker's process, so that its handlers' exit hooks run, and no code of its parent's."""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import io
import os
import signal
import socket
import sys
import threading
import traceback
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NoReturn, Self

from fairlane.common import clock
from fairlane.common.text import exact

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


# True in a process that a handler forked. A flag, because it is read after every call: a system
# call for the process's id would take as long as all other costs of a call.
is_fork = False
is_marked = False  # ... or in which a call has set a timer
is_child = False  # this is a process of a worker
_FLUSH_S = 0.2
_HOOKS_S = 5.0  # how long exit hooks may take
_imported: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []  # of the handler's modules
_flushing: threading.Thread | None = None


def watch_forks() -> None:
    """Makes each process that is forked from this one set `is_fork`."""
    global is_fork, is_marked  # noqa: PLW0603
    is_fork = is_marked = (
        False  # this process is a worker's, even if a handler forked its supervisor
    )
    os.register_at_fork(after_in_child=_mark)


def _mark() -> None:
    global is_fork, is_marked  # noqa: PLW0603
    is_fork = is_marked = True


@contextmanager
def noting_exit_hooks() -> Iterator[None]:
    """Notes the exit hooks that modules register while a handler or an app is imported."""
    register = atexit.register

    def note(function: Any, /, *args: Any, **kwargs: Any) -> Any:
        _imported.append((function, args, kwargs))
        return register(function, *args, **kwargs)

    atexit.register = note
    try:
        yield
    finally:
        atexit.register = register


def begin_process() -> None:
    """Makes a new process of a worker independent of the program that it was forked from.

    It draws its own random numbers, and keeps of the exit hooks those of its handler's modules.
    """
    global is_child  # noqa: PLW0603
    is_child = True
    signal.alarm, signal.setitimer = _marking(signal.alarm), _marking(signal.setitimer)
    atexit._clear()  # noqa: SLF001  the only way
    for function, args, kwargs in _imported:
        atexit.register(function, *args, **kwargs)
    for module, reseed in (("numpy.random", "seed"), ("torch", "seed")):
        if module in sys.modules:  # Python's own module does this itself
            with suppress(Exception):
                getattr(sys.modules[module], reseed)()


def run_exit_hooks() -> None:
    """Runs the exit hooks and writes the buffers of open files, for a bounded time."""
    thread = threading.Thread(target=_end, name="exit-hooks", daemon=True)
    thread.start()
    thread.join(_HOOKS_S)
    if thread.is_alive():
        line = f"fairlane: exit hooks took more than {exact(_HOOKS_S)} s: they are cut off"
        with suppress(OSError):  # the stream may be what the hooks wait for
            os.write(2, line.encode() + b"\n")


def _end() -> None:
    with suppress(BaseException):
        atexit._run_exitfuncs()  # noqa: SLF001
    for found in gc.get_objects():
        with suppress(BaseException):  # a proxy may raise anything
            if isinstance(found, (io.TextIOWrapper, io.BufferedWriter)) and not found.closed:
                found.flush()


def _marking(function: Any) -> Any:
    """Returns a function of `signal` that also notes that a call has set a timer."""

    def wrapped(*args: Any) -> Any:
        global is_marked  # noqa: PLW0603
        is_marked = True
        return function(*args)

    return functools.wraps(function)(wrapped)


def clear_timer() -> None:
    """Stops a timer that a call has left behind, because its signal would hit another call."""
    global is_marked  # noqa: PLW0603
    signal.setitimer(signal.ITIMER_REAL, 0)
    is_marked = False


def after_call(error: BaseException | None) -> None:
    """Ends a process that a handler forked; else stops the timer that the call has left behind."""
    if is_fork:
        leave_fork(error)
    clear_timer()


def flush_streams() -> None:
    """Writes buffered output; skips a stream that is closed or gone."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # also an object that the handler put in its place
            stream.flush()


def flush_before_fork() -> None:
    """Writes buffered output, because the new process would print it a second time.

    For a bounded time: a supervisor must not wait for the reader of its output.
    """
    _flush_for(_FLUSH_S)


def _flush_for(longest_s: float) -> None:
    """Writes buffered output in a thread, unless the last such thread still waits to write."""
    global _flushing  # noqa: PLW0603
    if _flushing is None or not _flushing.is_alive():
        _flushing = threading.Thread(target=flush_streams, name="flush", daemon=True)
        _flushing.start()
        _flushing.join(longest_s)


def leave(code: int) -> NoReturn:
    """Ends this process now, without waiting for threads.

    Its output is waited for as long as exit hooks are, because the lock of a stream may never be
    free: a thread of the parent may have held it at the fork.
    """
    try:
        _flush_for(_HOOKS_S)
    finally:
        os._exit(code)


def leave_fork(error: BaseException | None) -> NoReturn:
    """Ends a process that a handler forked and that returned from the handler or raised `error`.

    It must not go on, because the lease and the sockets belong to the process that forked it.
    Its exit code is the one that Python would have given it.
    """
    code = 0
    try:
        if isinstance(error, SystemExit):
            code = error.code & 255 if isinstance(error.code, int) else int(error.code is not None)
        elif error is not None:
            code = 1
            traceback.print_exception(error)
    finally:
        leave(code)


# ------------------------------------------------------------------ signals
# How the supervisor, its processes and the processes that these fork handle signals.
#
# The supervisor counts SIGTERM, SIGINT and, unless `nohup` ignores it, SIGHUP. A pipe wakes the
# supervisor. Ctrl-Z also stops its processes. The processes leave these decisions to the
# supervisor. A process that a handler forks handles signals as any Python program does.


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
