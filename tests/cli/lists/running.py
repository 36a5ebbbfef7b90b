"""Starts the programs of a test beside it, and kills them."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from tests.support.processes.prepared import Forked
from tests.support.wait import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cli.program import Program


class Crew(contextlib.AbstractContextManager["Crew"]):
    """Starts programs; all of them are dead at the end."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._all: list[Forked] = []

    def fairlane(self, *words: object) -> Forked:
        """Starts a command of `fairlane`."""
        return self.start("fairlane.cli:main", *words)

    def start(self, call: str, *words: object) -> Forked:
        """Starts a function of a module, with these words in sys.argv."""
        with _streams() as fds:
            made = Forked(
                call,
                list(map(str, words)),
                env=self._program.env,
                cwd=self._program.folder,
                fds=fds,
            )
        self._all.append(made)
        return made

    def __exit__(self, *_: object) -> None:
        for one in self._all:
            one.kill()
            one.wait(PATIENCE_S)


@contextlib.contextmanager
def _streams() -> Iterator[tuple[int, int, int]]:
    null = os.open(os.devnull, os.O_RDWR)
    try:
        yield null, null, 2
    finally:
        os.close(null)
