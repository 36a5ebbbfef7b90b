"""Skips tests without Java, and finds the processes that a test looks for."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.errors import SparkMissing
from fairlane.protocol import keys
from fairlane.spark import spark_session

if TYPE_CHECKING:
    import redis


def skip_without_java() -> None:
    """Skips the test if there is no Spark or no Java, in one sentence."""
    try:
        spark_session.need_spark()
        spark_session.need_java()
    except SparkMissing as missing:
        pytest.skip(str(missing))


def workers_of(client: redis.Redis) -> list[int]:
    """Returns the process of each worker that is registered on this machine."""
    ids: Any = client.zrange(keys.workers("req"), 0, -1)
    return [int(client.hget(keys.worker("req", name.decode()), "pid") or 0) for name in ids]


def having(mark: bytes) -> set[int]:
    """Returns the processes that have `mark` in their environment."""
    processes = set()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark in path.read_bytes():
                processes.add(int(path.parent.name))
    return processes


def is_java(process: int) -> bool:
    """Returns True if the process runs Java, and not a fork of Python."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/exe").readlink().name == "java"
    return False
