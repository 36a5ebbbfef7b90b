"""Runs workers on a handler that notes when each of its calls began and ended."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

# A body is a name and how many ms the call takes.
HANDLER = """
import os
import time

LOG = os.open(os.environ["FAIRLANE_BENCH_LOG"], os.O_WRONLY | os.O_APPEND)


def work(body):
    began = time.monotonic()
    name, ms = body.decode().split()
    if ms != "0":
        time.sleep(float(ms) / 1000)
    os.write(LOG, b"%s %.6f %.6f\\n" % (name.encode(), began, time.monotonic()))
"""


class Called(NamedTuple):
    """One call of the handler: the name in its body, and its times in s of the machine's clock."""

    name: str
    began: float
    ended: float


class Log:
    """The calls so far."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def count(self) -> int:
        """Returns how many calls have ended."""
        return self._path.read_bytes().count(b"\n")

    def calls(self) -> list[Called]:
        """Returns the calls that have ended, in the order of their beginnings."""
        lines = (line.split() for line in self._path.read_text().splitlines())
        found = [Called(name, float(began), float(ended)) for name, began, ended in lines]
        return sorted(found, key=lambda call: call.began)


@contextmanager
def workers(
    url: str, *, count: int = 1, concurrency: int = 1, words: tuple[str, ...] = ()
) -> Iterator[Log]:
    """Runs `count` workers with one process of `concurrency` units each, and kills them after."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "handler.py").write_text(HANDLER)
        log = Path(folder) / "log"
        log.touch()
        env = {**os.environ, "FAIRLANE_BENCH_LOG": str(log), "PYTHONPATH": folder}
        program = str(Path(sys.executable).with_name("rq-worker"))
        command = [program, "--redis", url, "--id", "127.0.0.1:0", "--handler", "handler:work"]
        command += ["--processes", "1", "--concurrency", str(concurrency), *words]
        running = [
            subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL) for _ in range(count)
        ]
        try:
            yield Log(log)
        finally:
            for worker in running:
                worker.kill()
                worker.wait()
