"""Runs the fleet, and watches the workers while they work."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from counting import count_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from fairlane import Queue

HERE = Path(__file__).resolve().parent


class Fleet(threading.Thread):
    """Runs `run_fleet` in a thread, so that this program can show the progress."""

    def __init__(self, spark: SparkSession, url: str, queue: str, workers: int) -> None:
        super().__init__(name="fleet")
        self._spark, self._url, self._queue, self._workers = spark, url, queue, workers
        self.summary: list[dict[str, Any]] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        """Runs until the queue is idle."""
        from fairlane.spark import run_fleet

        try:
            summaries = run_fleet(
                self._spark, count_table, input="table", redis=self._url, queue=self._queue,
                workers=self._workers, name="pipeline", until_idle=True, max_idle_s=None,
            )  # fmt: skip
            self.summary = [row.asDict() for row in summaries.collect()]
        except BaseException as error:  # noqa: BLE001  raised in the main thread
            self.error = error

    def __enter__(self) -> Self:
        self.start()
        return self

    @contextlib.contextmanager
    def begun(self, queue: Queue) -> Iterator[None]:
        """Waits until the first of its workers is registered."""
        while self.is_alive() and not workers_of(queue):
            time.sleep(0.01)
        yield

    def __exit__(self, *_: object) -> None:
        if self.is_alive():
            from fairlane.spark import stop_fleet

            with contextlib.suppress(Exception):
                stop_fleet("pipeline", redis=self._url, queue=self._queue)
        self.join()


class View:
    """Writes lines to stderr, each with the time since the beginning."""

    def __init__(self) -> None:
        self._began = self._shown = time.monotonic()

    def say(self, sentence: str) -> None:
        """Writes a sentence."""
        print(f"{time.monotonic() - self._began:6.1f} s  {sentence}", file=sys.stderr, flush=True)

    def now_and_then(self, sentence: str) -> None:
        """Writes a sentence, at most one a second."""
        if time.monotonic() - self._shown >= 1:
            self._shown = time.monotonic()
            self.say(sentence)


def workers_of(queue: Queue) -> list[dict[str, str]]:
    """Returns the registry: worker, host, pid and more of each."""
    from fairlane.arrow.stream_ranges import workers

    return [dict(worker) for worker in queue.driver.run(workers(queue.name))]


def kill_one(queue: Queue, spared: set[int]) -> str:
    """Sends SIGKILL to a fleet's worker; returns its name, "" if there is none yet."""
    for worker in workers_of(queue):
        if int(worker.get("pid", 0)) not in spared:
            os.kill(int(worker["pid"]), signal.SIGKILL)
            return f"{worker['worker']} (pid {worker['pid']})"
    return ""
