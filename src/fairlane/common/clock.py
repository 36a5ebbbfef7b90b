"""Time: `wall_ms` is for people and names, `mono_s` for durations. Redis keeps the deadlines."""

from __future__ import annotations

import time


def wall_ms() -> int:
    """Returns the ms since 1970 by this machine's clock. Never compare it with a server's time."""
    return time.time_ns() // 1_000_000


def mono_s() -> float:
    """Returns the seconds of a clock that never goes back; use only differences."""
    return time.monotonic()


def sleep(seconds: float) -> None:
    """Sleeps. Only this function does, so that a test can replace it."""
    time.sleep(seconds)
