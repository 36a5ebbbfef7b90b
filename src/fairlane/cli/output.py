"""Output of commands: data to stdout as bytes, messages to stderr as one sentence a line.

Whatever a command prints goes through here, and none of it can command a terminal. Results as plain
lines are the exception: they are the bytes that a handler returned.
"""

from __future__ import annotations

import io
import logging
import sys
from typing import TYPE_CHECKING, Any, BinaryIO

from fairlane.common.text import as_json, printable

if TYPE_CHECKING:
    from collections.abc import Callable


_takers: list[Callable[[int, str], None]] = []


def send_notes_to(taker: Callable[[int, str], None]) -> None:
    """Passes each later note with its level to `taker`: a log of JSON lines has no line of text."""
    _takers[:] = [taker]


def note(sentence: str, level: int = logging.INFO) -> None:
    """Writes one line to stderr. A closed stderr is no error. `level` counts in a log only."""
    if _takers:
        _takers[0](level, sentence)
        return
    line = printable(" ".join(sentence.split("\n")))
    try:
        print(f"fairlane: {line}", file=sys.stderr, flush=True)  # noqa: T201  that is what it is for
    except (OSError, ValueError):
        return


def stdout() -> BinaryIO:
    """Returns the stream for data."""
    return sys.stdout.buffer


def flush_stdout() -> None:
    """Writes buffered data out; raises BrokenPipeError when the reader is gone."""
    sys.stdout.flush()


def write_line(line: str) -> None:
    """Writes one line of data and flushes it."""
    write_styled(printable(line))


def write_styled(line: str) -> None:
    """Writes one line that cli/tables.py made, with its colours, and flushes it."""
    out = stdout()
    out.write(line.encode() + b"\n")
    out.flush()


def write_json(value: Any) -> None:
    """Writes one JSON value as a line of data."""
    write_line(as_json(value))


def take_care_of_closed_streams() -> None:
    """Replaces a stream that the caller closed (`>&-`) by one that discards its data."""
    if sys.stdout is None:
        sys.stdout = io.TextIOWrapper(io.BytesIO())
    if sys.stderr is None:
        sys.stderr = io.StringIO()
