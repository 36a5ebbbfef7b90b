"""Runs the tests on every available back end: `python -m tests.everywhere [BACK END]...`.

By default on all that `make test` leaves out. Ends with a table of what ran where, and of what did
not, and why. Exit: that of pytest. A container needs an engine that is installed here.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.compose.engine import EngineFailed, NoEngine, run_engine
from tests.compose.image import NoProgram, find_image
from tests.support.servers import backends, containers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).resolve().parent.parent
PROCESSES = "2"


def main(named: list[str]) -> int:
    """Installs what can be installed, then runs pytest once."""
    kinds = named or list(backends.OTHERS)
    if unknown := set(kinds) - set(backends.OTHERS) - set(backends.USUAL):
        sys.stderr.write(f"no such back end: {', '.join(sorted(unknown))}\n")
        return 2
    with contextlib.ExitStack() as later:
        env: Mapping[str, str] = os.environ
        if "container" in kinds:
            env = later.enter_context(engine())
        return tests_on(kinds, env)


def tests_on(kinds: list[str], env: Mapping[str, str]) -> int:
    """Returns the exit code of one run on all of these."""
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--numprocesses",
        PROCESSES,
        "--dist",
        "loadfile",
    ]
    words += [str(ROOT / "tests" / folder) for folder in backends.EVERYTHING]
    env = {**env, backends.VARIABLE: ",".join(kinds)}
    return subprocess.run(words, cwd=ROOT, env=env, check=False).returncode


@contextlib.contextmanager
def engine() -> Iterator[Mapping[str, str]]:
    """Yields the environment in which the tests find an engine; unchanged if none is installed."""
    with contextlib.ExitStack() as later:
        env: Mapping[str, str] = os.environ
        if containers.no_engine() and shutil.which("docker") is None:
            say("container: no engine is installed here; `make compose` installs one")
        else:
            try:
                found = later.enter_context(run_engine(say))
                env = {**found.env, containers.IMAGE: find_image(found, containers.image())}
            except (EngineFailed, NoEngine, NoProgram) as reason:
                say(f"container: {reason}")
        yield env


def say(text: str) -> None:
    """Prints a step, before the tests print."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
