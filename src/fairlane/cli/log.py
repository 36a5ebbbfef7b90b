"""Logs to stderr: text, or one JSON object a line, without characters that command a terminal.

As text, the lines of this package begin with `fairlane: `, as all messages of the commands do. The
lines of other loggers, such as a handler's own, show their time, level and name.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from datetime import UTC, datetime
from typing import Any, Literal

from fairlane.cli.output import send_notes_to
from fairlane.common.text import as_json, printable

_OURS = "fairlane: %(message)s"
_OTHERS = "%(asctime)s %(levelname)s %(name)s: %(message)s"
# What each record has: the other attributes are fields of the caller.
_USUAL = {*vars(logging.makeLogRecord({})), "asctime", "message", "taskName", "traceback"}


class _Lines(logging.Formatter):
    """Writes the message on one line, and the lines of a traceback behind it, indented."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  logging's name
        return printable(" ".join(super().formatMessage(record).split("\n")))

    def formatException(self, ei: Any) -> str:  # noqa: N802  logging's name
        return "\n".join("  " + printable(line) for line in super().formatException(ei).split("\n"))


class JsonLines(logging.Formatter):
    """Writes each record as one JSON object: docs/how-to/watch/logging.md lists the fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the object: time, level, logger, message, pid, then the fields of the caller."""
        moment = datetime.fromtimestamp(record.created, UTC)
        fields: dict[str, Any] = {
            "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "pid": record.process,
        }
        for name, value in vars(record).items():
            if name not in _USUAL:
                fields.setdefault(name, _plain(value))
        if traceback := self._traceback(record):
            fields["traceback"] = traceback
        return as_json(fields)

    def _traceback(self, record: logging.LogRecord) -> str:
        """Returns the traceback of a failed attempt or of the caller's exception; "" for none."""
        given = vars(record).get("traceback", "")
        if not given and record.exc_info:
            return self.formatException(record.exc_info)
        return str(given)


def _plain(value: Any) -> Any:
    """Returns a value that JSON can hold, or its repr."""
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        return repr(value)


class StderrHandler(logging.Handler):
    """Writes each record past Python's buffers and locks.

    If nothing reads a full pipe, a write may block for ever. It must then hold no lock for which
    the interpreter waits when it ends.
    """

    def __init__(self, formatter: logging.Formatter | None = None) -> None:
        super().__init__()
        self.setFormatter(formatter or _Lines(_OURS))

    def handle(self, record: logging.LogRecord) -> bool:
        """Writes the record without the handler's lock."""
        self.emit(record)
        return True

    def emit(self, record: logging.LogRecord) -> None:
        """Writes the record. A stream that is closed or has no reader is no error."""
        try:
            text = self.format(record)
        except Exception:  # noqa: BLE001  a wrong log call must not fail its caller
            self.handleError(record)
            return
        left = f"{text}\n".encode(errors="backslashreplace")
        try:
            while left:
                left = left[os.write(sys.stderr.fileno(), left) :]
        except (OSError, ValueError):
            return


def log_to_stderr(level: str = "info", form: Literal["text", "json"] = "text") -> None:
    """Sends log lines of `level` and above to stderr.

    A logger that the program configured itself keeps its handlers and its level: the root logger,
    and `fairlane`.
    """
    least = logging.getLevelNamesMapping()[level.upper()]
    is_json = form == "json"
    ours, root = logging.getLogger("fairlane"), logging.getLogger()
    _enable(ours)
    if not ours.handlers:
        ours.setLevel(least)
        ours.addHandler(StderrHandler(JsonLines() if is_json else None))
        ours.propagate = False
    if not root.handlers:
        if root.level == logging.WARNING:  # the level of a root logger that no program changed
            root.setLevel(least)
        root.addHandler(StderrHandler(JsonLines() if is_json else _Lines(_OTHERS)))
    if is_json:
        send_notes_to(logging.getLogger("fairlane.cli").log)


def _enable(ours: logging.Logger) -> None:
    """Enables our loggers again: dictConfig of the handler's module disables those it omits."""
    for name, logger in ours.manager.loggerDict.items():
        if f"{name}.".startswith("fairlane.") and isinstance(logger, logging.Logger):
            logger.disabled = False
