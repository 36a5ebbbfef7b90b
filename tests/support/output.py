"""Lines that a program of the tests prints."""

from __future__ import annotations

import sys


def say(text: str) -> None:
    """Prints a line and flushes it, because a reader of a pipe waits for it."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
