"""The place of an incident: a Redis of its own, a folder, a reader's shells, workers to kill."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from functools import partial
from typing import TYPE_CHECKING

from fairlane import Queue
from tests.guide.blocks import environment
from tests.support.servers.restart import killed_and_started_again
from tests.support.servers.server_process import run_server
from tests.support.wait import PATIENCE_S, wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.servers.server_process import Server
    from tests.web.receiver import Received

QUEUE = "shop"


class Stage(contextlib.ExitStack):
    """Where one incident happens. Its end kills every process that it has started."""

    def __init__(self, folder: Path, *server_options: str) -> None:
        super().__init__()
        self.folder = folder
        self._options = server_options
        self.server: Server = self.enter_context(run_server("single", *server_options))
        self.queue = self.enter_context(Queue.from_url(self.server.url, name=QUEUE))
        self.workers: list[subprocess.Popen[bytes]] = []
        self.received: list[Received] = []
        self._env = environment(self.server.url)

    def file(self, name: str, text: str) -> None:
        """Writes a file of the people whose incident it is."""
        (self.folder / name).write_text(text)

    def run(self, text: str, *, must_succeed: bool = True) -> Shown:
        """Runs lines in a reader's shell; both streams are one, as on a terminal."""
        began = time.monotonic()
        words = ["bash", "-euo" if must_succeed else "-uo", "pipefail", "-c", f"exec 2>&1\n{text}"]
        done = subprocess.run(
            words, cwd=self.folder, env=self._env, capture_output=True, text=True,
            timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0 or not must_succeed, f"{text}\nsaid:\n{done.stdout}"
        return Shown(done.stdout, time.monotonic() - began)

    def start(self, text: str) -> subprocess.Popen[bytes]:
        """Starts a line in another shell; its output goes to a file."""
        with (self.folder / "others.log").open("ab") as log:
            started = subprocess.Popen(
                ["bash", "-c", f"exec {text}"], cwd=self.folder, env=self._env,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self.callback(_end, started)
        return started

    def worker(self, what: str = f"--queue {QUEUE} --handler shop:work", more: str = "") -> None:
        """Starts a worker, and waits until it is in the registry."""
        self.worker_of(f"rq-worker {what} {more}")

    def worker_of(self, text: str) -> None:
        """Starts the worker of a block of the page, or of a line, and waits until it beats."""
        before = self._pids()
        self.workers.append(self.start(text.splitlines()[-1]))
        wait_until(lambda: self._pids() - before, why="the worker registers")

    def kill_redis(self) -> None:
        """Ends Redis by kill -9 and starts it again on what it has on its disk."""
        self.server = self.enter_context(killed_and_started_again(self.server, self._options))

    def _pids(self) -> set[int | None]:
        return {one.pid for one in self.queue.workers().workers if one.is_alive}


class Shown:
    """What a shell printed, and how long it took."""

    def __init__(self, text: str, seconds: float) -> None:
        self.text, self.seconds = text, seconds


def _end(started: subprocess.Popen[bytes]) -> None:
    """Kills a process and all of its group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(started.pid, signal.SIGKILL)
    started.wait(PATIENCE_S)
    wait_until(partial(_is_gone, started.pid), why="its group has ended")


def _is_gone(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False
