"""Starts real workers, as a user does: `fairlane worker`, each with processes of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from pathlib import Path

PATIENCE_S = 15.0


class Workers:
    """Runs `count` workers, and drains them at the end in any case.

    They run in `folder`, which has the handler's file. They have a session of their own, so that
    Ctrl-C reaches only the demo, which drains them.
    """

    def __init__(
        self, count: int, handler: str, *options: str, folder: Path, url: str, queue: str, log: Path
    ) -> None:
        self._command = [sys.executable, "-m", "fairlane", "worker", "--handler", handler]
        self._command += ["--queue", queue, *options]
        self._env = {**os.environ, "FAIRLANE_REDIS": url}  # not an argument: it may hold a password
        self._count, self._folder, self._log = count, folder, log
        self._running: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            for _ in range(self._count):
                self._running.append(
                    subprocess.Popen(
                        self._command,
                        cwd=self._folder,
                        env=self._env,
                        start_new_session=True,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                    )
                )
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._running:
            worker.terminate()  # SIGTERM: finish what is held, take nothing new
        for worker in self._running:
            try:
                worker.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()

    @property
    def pids(self) -> set[int]:
        """Returns the process ids of their supervisors, as in the queue's registry."""
        return {worker.pid for worker in self._running}

    @property
    def are_gone(self) -> bool:
        """Returns True when none of them runs any more."""
        return all(worker.poll() is not None for worker in self._running)

    @property
    def log_end(self) -> str:
        """Returns the end of their log."""
        return self._log.read_text(errors="replace")[-2000:]
