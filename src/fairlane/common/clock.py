"""Time: `wall_ms` is for people and names, `mono_s` for durations. Deadlines live in Redis."""

from __future__ import annotations

import time


def wall_ms() -> int:
    """Milliseconds since 1970 by this machine's clock; never compared with a server's."""
    return time.time_ns() // 1_000_000


def mono_s() -> float:
    """Seconds of a clock that never goes back; only differences mean anything."""
    return time.monotonic()


def sleep(seconds: float) -> None:
    """Sleeps; the one place, so that a test can pass the time."""
    time.sleep(seconds)
