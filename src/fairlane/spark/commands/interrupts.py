"""Ctrl-C while Spark works: a thread of its own ends what Spark does."""

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
    """Handles SIGINT while it is open, and raises KeyboardInterrupt for it.

    An exception inside a call to Java leaves half a reply on the connection. The next call then
    fails with a traceback. So a first Ctrl-C inside such a call makes Java end the call:
    streams are stopped, jobs cancelled. A second Ctrl-C raises immediately. With `ends_well`,
    for work that goes on until it is interrupted, a return after Ctrl-C is no error.
    """

    def __init__(self, spark: SparkSession, *, ends_well: bool = False) -> None:
        self._spark, self._ends_well = spark, ends_well
        self._is_interrupted = False
        self._over = threading.Event()
        self._is_main = threading.current_thread() is threading.main_thread()
        self._before: Any = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        if self._is_main:
            self._before = signal.signal(signal.SIGINT, self._on_sigint)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._over.set()
        if self._is_main:
            signal.signal(signal.SIGINT, self._before)
        if self._is_interrupted and (isinstance(error, Exception) or not (kind or self._ends_well)):
            raise KeyboardInterrupt from None

    def _on_sigint(self, _: int, frame: FrameType | None) -> None:
        if self._is_interrupted or not _is_in_java(frame):
            raise KeyboardInterrupt
        self._is_interrupted = True  # the interrupted code may hold a lock

    def _run(self) -> None:
        """Ends the work repeatedly, because an interrupted command may start another job."""
        while not self._over.wait(_LOOK_S):
            if self._is_interrupted:
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
