"""How commands speak: data to stdout as bytes, talk to stderr as one sentence a line."""

from __future__ import annotations

import io
import json
import sys
from typing import Any, BinaryIO


def say(sentence: str) -> None:
    """One line on stderr. Nobody listening is no error."""
    line = " ".join(sentence.split("\n"))
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


def emit(line: str) -> None:
    """One line of data, handed over at once."""
    out = stdout()
    out.write(line.encode("utf-8", "replace") + b"\n")
    out.flush()


def emit_json(value: Any) -> None:
    """One JSON value as a line of data."""
    emit(as_json(value))


def as_json(value: Any) -> str:
    """JSON on one line, text as it is."""
    return json.dumps(value, ensure_ascii=False, separators=(", ", ": "))


def take_care_of_closed_streams() -> None:
    """A stream that was closed by the caller (`>&-`) becomes one that keeps nothing."""
    if sys.stdout is None:
        sys.stdout = io.TextIOWrapper(io.BytesIO())
    if sys.stderr is None:
        sys.stderr = io.StringIO()
