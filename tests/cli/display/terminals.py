"""Runs a program on a terminal: collects what it draws, and waits for its end."""

from __future__ import annotations

import contextlib
import os
import pty
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.support.wait import PATIENCE_S, wait_until

if TYPE_CHECKING:
    import subprocess

    from tests.cli.program import Program


@dataclass
class OnTerminal:
    """A started program, and all that it has drawn so far."""

    process: subprocess.Popen[bytes]
    screen: int
    drawn: bytes = b""

    def wait_for(self, text: str) -> None:
        """Reads until this text was drawn."""
        wait_until(lambda: text.encode() in self._read(), why=f"{text} is drawn")

    def _read(self) -> bytes:
        """Returns all that was drawn so far."""
        os.set_blocking(self.screen, False)
        with contextlib.suppress(OSError):  # nothing more is there now, or the program has ended
            while part := os.read(self.screen, 1 << 16):
                self.drawn += part
        return self.drawn

    def end(self) -> int:
        """Waits for the end; returns the exit code."""
        code = self.process.wait(PATIENCE_S)
        self._read()
        os.close(self.screen)
        return code


def on_terminal(program: Program, *words: object, **env: str) -> OnTerminal:
    """Starts the program on a terminal of 80 columns and 24 lines."""
    program.env.pop("NO_COLOR", None)
    program.env |= {"TERM": "xterm", "COLUMNS": "80", "LINES": "24", **env}
    screen, its_side = pty.openpty()
    process = program.start(*words, stdout=its_side, stderr=its_side)
    os.close(its_side)
    return OnTerminal(process, screen)
