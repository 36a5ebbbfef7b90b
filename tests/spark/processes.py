"""The processes that a test looks for."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairlane.protocol import keys

if TYPE_CHECKING:
    import redis


def workers_of(client: redis.Redis) -> list[int]:
    """The process of each worker that is registered on this machine."""
    ids: Any = client.zrange(keys.workers("req"), 0, -1)
    return [int(client.hget(keys.worker("req", one.decode()), "pid") or 0) for one in ids]


def having(mark: bytes) -> set[int]:
    """The processes with this in their environment."""
    found = set()
    for one in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark in one.read_bytes():
                found.add(int(one.parent.name))
    return found
