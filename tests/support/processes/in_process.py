"""Runs a command of `fairlane` in the process of the tests: a process takes ten times its CPU.

What a command changes in its process is put back: the streams, the environment, the folder, the
logging, the signals and the imports' path.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING
from unittest import mock

from fairlane import settings
from fairlane.cli import output
from fairlane.cli.program import run as invoke

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

# Their subject is their process, or they run until a signal, or they fork, or they start Java.
PROCESSES = frozenset({"worker", "serve", "server", "top", "spark", "fanout", "forward", "balance"})
PIPE_BYTES = 60_000  # a pipe holds so much without a reader
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE)


def can_run(words: Sequence[str], env: Mapping[str, str], stdin: bytes) -> bool:
    """Returns whether a command may run here."""
    is_main = threading.current_thread() is threading.main_thread()
    is_shell = any(name.endswith("_COMPLETE") for name in env)
    return (
        is_main and not is_shell and len(stdin) < PIPE_BYTES and not PROCESSES.intersection(words)
    )


def run(
    words: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    stdin: bytes,
    patience_s: float | None = None,
) -> tuple[int, bytes, str]:
    """Runs `fairlane` with these words; returns its exit code, its data and its messages."""
    given, writer = os.pipe()
    with os.fdopen(writer, "wb") as stream:
        stream.write(stdin)
    out, err = (os.memfd_create(name) for name in ("stdout", "stderr"))
    try:
        with _streams(given, out, err), _state(env, cwd, patience_s):
            sys.argv[:] = ["fairlane", *words]
            try:
                code = invoke("fairlane", None)
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else int(end.code is not None)
                if isinstance(end.code, str):
                    sys.stderr.write(f"{end.code}\n")
            for one in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError, ValueError):
                    one.flush()
        return code, _content(out), _content(err).decode()
    finally:
        os.close(out)
        os.close(err)


def _content(fd: int) -> bytes:
    return os.pread(fd, os.fstat(fd).st_size, 0)


@contextlib.contextmanager
def _streams(given: int, out: int, err: int) -> Iterator[None]:
    """Gives the command its streams, each with a file descriptor as in a process."""
    before = sys.stdin, sys.stdout, sys.stderr
    made = (
        os.fdopen(given),
        os.fdopen(os.dup(out), "w"),
        os.fdopen(os.dup(err), "w", 1, errors="backslashreplace"),
    )
    sys.stdin, sys.stdout, sys.stderr = made
    try:
        yield
    finally:
        sys.stdin, sys.stdout, sys.stderr = before
        for one in made:
            with contextlib.suppress(OSError, ValueError):
                one.close()


@contextlib.contextmanager
def _state(env: Mapping[str, str], cwd: Path, patience_s: float | None) -> Iterator[None]:
    """Gives the command the environment, folder, logging and signals of a new process."""
    words, threads = list(sys.argv), set(threading.enumerate())
    patience = settings.PATIENCE_S if patience_s is None else patience_s
    with (
        contextlib.chdir(cwd),
        mock.patch.dict(os.environ, env, clear=True),
        mock.patch.object(sys, "path", [str(cwd), *sys.path[1:]]),
        mock.patch.object(settings, "PATIENCE_S", patience),
        mock.patch.object(output, "_takers", []),
        _logging(),
        _signals(),
    ):
        try:
            yield
        finally:
            sys.argv[:] = words
            for one in set(threading.enumerate()) - threads:
                if not one.daemon:
                    one.join()


@contextlib.contextmanager
def _logging() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in ("fairlane", "")]
    before = [
        (one, one.handlers, one.level, one.propagate, one.disabled, level)
        for one, level in zip(loggers, (logging.NOTSET, logging.WARNING), strict=True)
    ]
    for one, *_, level in before:
        one.handlers = []
        one.setLevel(level)
        one.propagate = True
    try:
        yield
    finally:
        for one, handlers, level, propagate, disabled, _ in before:
            one.handlers, one.propagate, one.disabled = handlers, propagate, disabled
            one.setLevel(level)


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
