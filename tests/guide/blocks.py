"""Runs the fenced blocks of a markdown page, in order, as a reader does."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.support.wait import PATIENCE_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
REQUESTS = ROOT / "docs" / "how-to" / "use" / "lines.md"
GUIDE = ROOT / "docs" / "guide"
CLUSTER = "On a Redis Cluster"  # its heading
FAILING = "When a handler fails"
SPARK = "On Spark"
PUBLISHED = "redis+cluster://127.0.0.1:7000"  # where cluster-compose.yml makes one
IN_ANOTHER_SHELL = "# in another shell"
END_S = PATIENCE_S
ON_ONE_KIND = pytest.mark.parametrize("redis_server", ["single"], indirect=True)
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


class Block(NamedTuple):
    """One fenced block: its language, and the text between the fences."""

    language: str
    text: str

    @property
    def is_background(self) -> bool:
        """Returns True if it continues while the next blocks run."""
        return self.text.startswith(IN_ANOTHER_SHELL)

    def words(self) -> list[str]:
        """The command that runs it."""
        if self.language == "python":
            return [sys.executable, "-c", self.text]
        return ["bash", "-euo", "pipefail", "-c", self.text]


def blocks_of(
    page: Path, heading: str = "", languages: tuple[str, ...] = ("bash", "python")
) -> list[Block]:
    """Returns the blocks of a page that must run; with a heading, those of its section."""
    text = page.read_text()
    if heading:
        text = text.split(f"\n## {heading}\n")[1].split("\n## ")[0] + "\n"
    found = [Block(*match) for match in _FENCE.findall(text)]
    return [block for block in found if block.language in languages]


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines()


def environment(url: str) -> dict[str, str]:
    """Returns a reader's environment: a Redis, and the virtual environment first on PATH."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("FAIRLANE_")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**clean, "FAIRLANE_REDIS": url, "PATH": path}


class Shells(contextlib.AbstractContextManager["Shells"]):
    """The shells of a reader: one in front, the others drained at the end."""

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        self._folder, self._env = folder, env
        self._others: list[subprocess.Popen[bytes]] = []

    def run(self, block: Block, timeout_s: float = END_S) -> str:
        """Runs a block and returns what it printed; a background block is only started."""
        if block.is_background:
            self._others.append(
                subprocess.Popen(
                    block.words(), cwd=self._folder, env=self._env, start_new_session=True
                )
            )
            return ""
        done = subprocess.run(
            block.words(),
            cwd=self._folder,
            env=self._env,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert done.returncode == 0, f"{block.text}\nsaid:\n{done.stdout}{done.stderr}"
        return done.stdout

    def __exit__(self, failed: object, *_: object) -> None:
        for other in self._others:  # after a failure a worker may have work that takes hours
            with contextlib.suppress(ProcessLookupError):
                os.killpg(other.pid, signal.SIGTERM if failed is None else signal.SIGKILL)
        for other in self._others:
            other.wait(END_S)
            wait_until(partial(_is_gone, other.pid), END_S, why="the worker has drained")


def _is_gone(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False
