"""Starts Spark's Java without its start messages on stderr."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import threading
import traceback
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_NOISE = re.compile(
    rb"WARNING: Using incubator|Using Spark's default log4j|Setting .*log level to"
    rb"|To adjust logging level|Warning: Java versions|.{17} (WARN|INFO) "
)


@contextlib.contextmanager
def quiet_java(master: str | None = None) -> Iterator[None]:
    """Hides the start messages of a Java that starts here, and passes on what handlers print.

    `master` is Spark's; None is this machine.
    """
    if master is None or master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    try:
        stderr = os.dup(2)
    except OSError:  # there is no stderr
        yield
        return
    reading, writing = os.pipe()
    os.dup2(writing, 2)
    os.close(writing)
    threading.Thread(target=_pass_on, args=(reading, os.dup(stderr)), daemon=True).start()
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


@contextlib.contextmanager
def java_ends_with_failure() -> Iterator[None]:
    """Kills the Java that starts here when its start fails or is interrupted.

    Java ends when its stdin is closed, but not before it has started.
    """
    before = _gateway()
    try:
        yield
    except BaseException as error:
        begun = _processes_of(error)
        gateway = _gateway()
        if gateway is not None and gateway is not before:
            begun.append(getattr(gateway, "proc", None))
        for process in begun:
            if process is not None:
                process.kill()
                process.wait()
        raise


def _gateway() -> Any:
    from pyspark import SparkContext

    return SparkContext._gateway  # noqa: SLF001  it has the process


def _processes_of(error: BaseException) -> list[Any]:
    """Returns the processes that the raising frames were starting. Nothing else refers to them."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    values = [value for frame in frames for value in list(frame.f_locals.values())]
    return [
        value
        for value in values
        if isinstance(value, subprocess.Popen) and getattr(value, "pid", None)
    ]


def _pass_on(reading: int, to: int) -> None:
    with os.fdopen(reading, "rb") as lines, os.fdopen(to, "wb", buffering=0) as target:
        for line in lines:
            if not _NOISE.match(line):
                with contextlib.suppress(OSError):
                    target.write(line)
