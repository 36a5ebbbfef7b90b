"""Prints lines of a test program so that a reader of its pipe gets them immediately."""

from __future__ import annotations

import sys


def say(text: str) -> None:
    """Prints a line and flushes it, because a reader of a pipe waits for it."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
