"""Logs to stderr, a line for each record, without characters that could command a terminal.

The lines of this package begin with `fairlane: `, as all messages of the commands do. The lines of
other loggers, such as a handler's own, show their time, level and name.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

from fairlane.common.terminal import printable

_OURS = "fairlane: %(message)s"
_OTHERS = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class _Lines(logging.Formatter):
    """Writes the message on one line, and the lines of a traceback behind it, indented."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  logging's name
        return printable(" ".join(super().formatMessage(record).split("\n")))

    def formatException(self, ei: Any) -> str:  # noqa: N802  logging's name
        return "\n".join("  " + printable(line) for line in super().formatException(ei).split("\n"))


class StderrHandler(logging.Handler):
    """Writes each record past Python's buffers and locks.

    If nothing reads a full pipe, a write may block for ever. It must then hold no lock for which
    the interpreter waits when it ends.
    """

    def __init__(self, form: str = _OURS) -> None:
        super().__init__()
        self.setFormatter(_Lines(form))

    def handle(self, record: logging.LogRecord) -> bool:
        """Writes the record without the handler's lock."""
        self.emit(record)
        return True

    def emit(self, record: logging.LogRecord) -> None:
        """Writes the record. A stream that is closed or has no reader is no error."""
        left = f"{self.format(record)}\n".encode(errors="backslashreplace")
        try:
            while left:
                left = left[os.write(sys.stderr.fileno(), left) :]
        except (OSError, ValueError):
            return


def log_to_stderr() -> None:
    """Sends log lines to stderr; a root logger that has handlers already keeps them."""
    ours = logging.getLogger("fairlane")
    ours.setLevel(logging.INFO)
    ours.addHandler(StderrHandler())
    ours.propagate = False
    logging.basicConfig(level=logging.INFO, handlers=[StderrHandler(_OTHERS)])
