"""Waits for a condition, which is the only way a test may wait."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def wait_until(
    predicate: Callable[[], T], timeout: float = 10.0, *, every: float = 0.005, why: str = ""
) -> T:
    """Returns the predicate's first true answer; raises AssertionError after the timeout."""
    clock = threading.Event()
    deadline = time.monotonic() + timeout
    while not (answer := predicate()):
        if time.monotonic() > deadline:
            what = why or getattr(predicate, "__qualname__", repr(predicate))
            message = f"not within {timeout:g} s: {what}"
            raise AssertionError(message)
        clock.wait(every)
    return answer
