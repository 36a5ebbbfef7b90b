"""How commands speak: data to stdout as bytes, talk to stderr as one sentence a line.

Whatever a command prints goes through here, and none of it can command a terminal. Results as plain
lines are the exception: they are the bytes that a handler returned.
"""

from __future__ import annotations

import io
import sys
from typing import Any, BinaryIO

from fairlane.common.terminal import as_json, printable


def note(sentence: str) -> None:
    """One line on stderr. Nobody listening is no error."""
    line = printable(" ".join(sentence.split("\n")))
    try:
        print(f"fairlane: {line}", file=sys.stderr, flush=True)  # noqa: T201  that is what it is for
    except (OSError, ValueError):
        return


def stdout() -> BinaryIO:
    """Where data go."""
    return sys.stdout.buffer


def flush_stdout() -> None:
    """Hands over what is buffered; raises BrokenPipeError when nobody reads it."""
    sys.stdout.flush()


def write_line(line: str) -> None:
    """Writes one line of data and flushes it."""
    out = stdout()
    out.write(printable(line).encode() + b"\n")
    out.flush()


def write_json(value: Any) -> None:
    """One JSON value as a line of data."""
    write_line(as_json(value))


def take_care_of_closed_streams() -> None:
    """A stream that was closed by the caller (`>&-`) becomes one that keeps nothing."""
    if sys.stdout is None:
        sys.stdout = io.TextIOWrapper(io.BytesIO())
    if sys.stderr is None:
        sys.stderr = io.StringIO()
