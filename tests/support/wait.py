"""Waits for a condition, which is the only way a test may wait."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
LONGEST_S = 0.025  # of the pauses that grow
# What takes a tenth of a second may take a thousand times as long on a busy machine.
PATIENCE_S = 240.0


def wait_until(
    predicate: Callable[[], T], timeout: float = PATIENCE_S, *, every: float = 0.005, why: str = ""
) -> T:
    """Returns the predicate's first true answer; raises AssertionError after the timeout.

    Short pauses grow up to LONGEST_S, because a long wait would otherwise keep a core busy.
    """
    clock = threading.Event()
    deadline = time.monotonic() + timeout
    while not (answer := predicate()):
        if time.monotonic() > deadline:
            what = why or getattr(predicate, "__qualname__", repr(predicate))
            message = f"not within {timeout:g} s: {what}"
            raise AssertionError(message)
        clock.wait(every)
        every = max(every, min(1.2 * every, LONGEST_S))
    return answer
