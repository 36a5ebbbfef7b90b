"""Forks test programs from one process that has imported the product.

So a program starts in some milliseconds. `python -m tests.support.processes.prepared FD` is that
one process.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import pkgutil
import random
import select
import signal
import socket
import subprocess
import sys
import threading
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from fairlane import settings
from tests.support.run import extras
from tests.support.servers.server_process import _die_with_parent

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT = Path(__file__).resolve().parents[3]
IMPORTED = ("cli", "embedded", "operations", "worker")
# What programs import when they connect or serve, in a third of a second.
LAZY = ("encodings.idna", "fairlane.flows", "fairlane.schedules", "fairlane.taken")
LAZY_OF_WEB = (
    *("anyio._backends._asyncio", "httpcore2", "httpx2", "truststore"),
    *("uvicorn.lifespan.on", "uvicorn.protocols.http.auto"),
)
MOST_BYTES = 200_000  # of one message
PATIENCE = "TESTS_PATIENCE_S"  # how long a program waits for a Redis that is away
MOST_FDS = 4096  # of the process that forks: two for each program that runs
FDS = 4  # stdin, stdout, stderr, and a socket for the process id and the exit code


class Forked:
    """A running program, with the part of Popen's interface that the tests use."""

    def __init__(
        self,
        call: str,
        words: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        fds: tuple[int, int, int],
    ) -> None:
        """Starts `module:function` with these words in sys.argv."""
        self.returncode: int | None = None
        self._news, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        given = {"call": call, "argv": [call, *words], "env": dict(env), "cwd": str(cwd)}
        with theirs:
            socket.send_fds(_forker(), [json.dumps(given).encode()], [*fds, theirs.fileno()])
        self.pid = int(self._news.recv(MOST_BYTES))

    def poll(self) -> int | None:
        """Returns the exit code, or None while the program runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Returns the exit code as soon as the program has ended."""
        if self.returncode is None:
            if not select.select([self._news], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
            self.returncode = int(self._news.recv(MOST_BYTES) or -signal.SIGKILL)
            self._news.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Sends a signal, unless the program has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Ends the program now, unless it has ended."""
        self.send_signal(signal.SIGKILL)


@cache
def _forker() -> socket.socket:
    """Returns the line to the process that forks; the first call starts that process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(theirs.fileno())],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            preexec_fn=_die_with_parent,  # noqa: PLW1509 - runs one system call, no Python lock
        )
    atexit.register(process.wait)
    atexit.register(ours.close)  # called first: the process ends at the end of its input
    return ours


def main(fd: int) -> None:
    """Forks until the tests end. Every program returns from here as well."""
    gc.disable()
    _import_all()
    gc.freeze()  # a collection in a program would write to, and so copy, all that it shares
    gc.enable()
    running: dict[int, tuple[int, int]] = {}  # by pidfd: the process id, and its caller's socket
    with socket.socket(fileno=fd) as line:
        while True:
            ready, *_ = select.select([line.fileno(), *running], [], [])
            for pidfd in running.keys() & set(ready):
                _report(pidfd, *running.pop(pidfd))
            if line.fileno() not in ready:
                continue
            text, fds, *_ = socket.recv_fds(line, MOST_BYTES, FDS)
            if not text:
                return
            pid = os.fork()
            if pid == 0:
                break
            for number in fds[:3]:
                os.close(number)
            with contextlib.suppress(BrokenPipeError):  # its caller is gone, others are not
                os.write(fds[3], str(pid).encode())
            running[os.pidfd_open(pid)] = (pid, fds[3])
    _be_program(json.loads(text), fds)


def _import_all() -> None:
    has_web = extras.is_installed("web")
    for folder in (*IMPORTED, "web") if has_web else IMPORTED:
        package = importlib.import_module(f"fairlane.{folder}")
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if found.name != "fairlane.cli.program":  # would hide the function of this name
                importlib.import_module(found.name)
    for name in (*LAZY, *LAZY_OF_WEB) if has_web else LAZY:
        importlib.import_module(name)


def _report(pidfd: int, pid: int, news: int) -> None:
    """Sends the exit code of a program that has ended."""
    _, status = os.waitpid(pid, 0)
    with contextlib.suppress(BrokenPipeError):
        os.write(news, str(os.waitstatus_to_exitcode(status)).encode())
    os.close(news)
    os.close(pidfd)


def _be_program(given: dict, fds: list[int]) -> None:
    """Calls the function with the streams, folder and environment of its caller."""
    _die_with_parent()
    os.setpgid(0, 0)
    for number, one in enumerate(fds[:3]):
        os.dup2(one, number)
    os.closerange(3, MOST_FDS)
    sys.stdin, sys.stdout = open(0), open(1, "w")  # noqa: SIM115 - for the life of the process
    sys.stderr = open(2, "w", 1, errors="backslashreplace")  # noqa: SIM115
    os.environ.clear()
    os.environ.update(given["env"])
    os.chdir(given["cwd"])
    sys.path[0] = given["cwd"]
    sys.argv[:] = given["argv"]
    random.seed()
    if patience := os.environ.get(PATIENCE):
        settings.PATIENCE_S = float(patience)
    module, _, name = given["call"].partition(":")
    try:
        status = getattr(importlib.import_module(module), name)()
    except SystemExit as end:
        status = end.code
    if threading.active_count() == 1 and isinstance(status, int | None):
        _end(status or 0)
    sys.exit(status)


def _end(code: int) -> None:
    """Ends as `sys.exit` does, but leaves the objects: most are shared, and would be copied first.

    Returns if the streams cannot be flushed; then `sys.exit` reports that. A program with another
    thread does not come here, because such a thread could disturb the usual end.
    """
    atexit._run_exitfuncs()
    gc.collect()  # reports what was left behind
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main(int(sys.argv[1]))
