"""Ends a worker's process immediately, so that no code of its parent's runs in it."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from contextlib import suppress
from typing import NoReturn

# True in a process that a handler forked. A flag, because it is read after every call: a system
# call for the process's id would take as long as all other costs of a call.
is_fork = False
_FLUSH_S = 0.2
_flushing: threading.Thread | None = None


def watch_forks() -> None:
    """Makes each process that is forked from this one set `is_fork`."""
    global is_fork  # noqa: PLW0603
    is_fork = False  # this process is a worker's, even if a handler forked its supervisor
    os.register_at_fork(after_in_child=_mark)


def _mark() -> None:
    global is_fork  # noqa: PLW0603
    is_fork = True


def flush() -> None:
    """Writes buffered output; skips a stream that is closed or gone."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # also an object that the handler put in its place
            stream.flush()


def flush_before_fork() -> None:
    """Writes buffered output, because the new process would print it a second time.

    In a thread, for a bounded time: a supervisor must not wait for the reader of its output.
    """
    global _flushing  # noqa: PLW0603
    if _flushing is None or not _flushing.is_alive():
        _flushing = threading.Thread(target=flush, name="flush", daemon=True)
        _flushing.start()
        _flushing.join(_FLUSH_S)


def leave(code: int) -> NoReturn:
    """Ends this process without exit hooks and without waiting for threads."""
    try:
        flush()
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
