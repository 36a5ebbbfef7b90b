"""Runs requests and workers from the host as a user does, and compares their results by line."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.compose.engine import run
from tests.guide.blocks import ROOT, lines_of
from tests.support.wait import PATIENCE_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator


class Wrong(Exception):
    """Raised if a result has no input, or an input has no result."""


class Host:
    """The programs of Fairlane on this machine, with one Redis."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self._folder = url, folder
        clean = {k: value for k, value in os.environ.items() if not k.startswith("FAIRLANE_")}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._env = {**clean, "PATH": path, "PYTHONPATH": str(ROOT)}

    def call(self, *words: str, timeout: float = 180.0) -> str:
        """Returns what a program prints; raises EngineFailed if it ends with an error."""
        return run([*words, "--redis", self.url], self._env, timeout)

    def lines(self, name: str, count: int) -> Path:
        """Writes a file of so many lines, all different."""
        path = self._folder / f"{name}.txt"
        path.write_text("".join(f"{name}: line {number} of {count}\n" for number in range(count)))
        return path

    def submit(self, path: Path, *options: str) -> str:
        return self.call("rq-submit", str(path), *options).strip()

    def done(self, request_id: str) -> int:
        said = json.loads(self.call("fairlane", "status", request_id, "--json"))
        return int(said["done"])

    def wait_for(self, request_id: str, least: int) -> None:
        why = f"{request_id} has {least} done"
        wait_until(lambda: self.done(request_id) >= least, PATIENCE_S, every=0.1, why=why)

    def check(self, request_id: str, sent: Path) -> int:
        """Returns how many results a request has; raises Wrong unless line N answers line N."""
        out = self._folder / f"{request_id}.out"
        self.call("fairlane", "results", request_id, "--out", str(out))
        wanted = [line.upper() for line in lines_of(sent)]
        came = lines_of(out)
        if came != wanted:
            wrong = sum(one != other for one, other in zip(wanted, came, strict=False))
            raise Wrong(
                f"{request_id}: {len(came)} results for {len(wanted)} lines, {wrong} of them wrong"
            )
        said = json.loads(self.call("fairlane", "status", request_id, "--json"))
        counted = (said["done"], said["dead"], said["cancelled"])
        if counted != (len(wanted), 0, 0):
            raise Wrong(f"{request_id}: {counted} done, dead and cancelled of {len(wanted)}")
        return len(came)

    @contextlib.contextmanager
    def worker(self, worker_id: str, handler: str) -> Iterator[Path]:
        """Runs a worker, and drains it at the end; yields its log."""
        log = self._folder / "worker.log"
        words = ["rq-worker", "--redis", self.url, "--id", worker_id, "--processes", "2"]
        with log.open("wb") as said:
            process = subprocess.Popen(
                [*words, "--handler", f"{__package__}.handlers:{handler}"],
                env=self._env,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
            )
            try:
                yield log
            finally:
                process.terminate()
                process.wait(PATIENCE_S)
        if process.returncode != 0:
            raise Wrong(f"the worker ended with {process.returncode}: {log.read_text()}")
