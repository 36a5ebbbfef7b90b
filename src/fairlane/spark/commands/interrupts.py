"""Ctrl-C while Spark works: what it does is ended from a thread of its own."""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from types import FrameType, TracebackType

    from pyspark.sql import SparkSession

_LOOK_S = 0.1


class Interrupts:
    """Hears SIGINT while it is open, and raises KeyboardInterrupt for it.

    Whoever is torn out of a call to Java leaves half an answer on the connection, of which the next
    call makes a traceback. So a first Ctrl-C that comes within one makes Java end the call: streams
    are stopped, jobs cancelled. A second one is not as patient. With `ends_well` (of what goes on
    until it is interrupted) what then returns by itself is no error.
    """

    def __init__(self, spark: SparkSession, *, ends_well: bool = False) -> None:
        self._spark, self._ends_well = spark, ends_well
        self._heard = False
        self._over = threading.Event()
        self._is_main = threading.current_thread() is threading.main_thread()
        self._before: Any = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        if self._is_main:
            self._before = signal.signal(signal.SIGINT, self._hear)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._over.set()
        if self._is_main:
            signal.signal(signal.SIGINT, self._before)
        if self._heard and (isinstance(error, Exception) or not (kind or self._ends_well)):
            raise KeyboardInterrupt from None

    def _hear(self, _: int, frame: FrameType | None) -> None:
        if self._heard or not _is_in_java(frame):
            raise KeyboardInterrupt
        self._heard = True  # a lock might be held by the one that is interrupted here

    def _run(self) -> None:
        """Again and again: what was interrupted may be about to begin the next job."""
        while not self._over.wait(_LOOK_S):
            if self._heard:
                with contextlib.suppress(Exception):  # it may have died
                    self._end()

    def _end(self) -> None:
        streams = self._spark.streams.active
        for query in streams:  # each ends its own jobs, and well
            query.stop()
        if not streams:
            self._spark.sparkContext.cancelAllJobs()


def _is_in_java(frame: FrameType | None) -> bool:
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith("py4j."):
            return True
        frame = frame.f_back
    return False
