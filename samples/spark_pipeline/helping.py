"""Runs the fleet and the till, and watches the workers while they work."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

from orders import add_up

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from fairlane import Queue

HERE = Path(__file__).resolve().parent
NAME = "pipeline"  # of the fleet
BETWEEN_S = 0.8  # between files of the till


class Fleet(threading.Thread):
    """Runs `run_fleet` in a thread, so that this program can go on meanwhile."""

    def __init__(self, spark: SparkSession, queue: Queue, workers: int) -> None:
        super().__init__(name="fleet")
        self._spark, self._queue, self._workers = spark, queue, workers
        self.error: BaseException | None = None

    def run(self) -> None:
        """Runs until no request of the queue is unfinished."""
        from fairlane.spark import run_fleet

        try:
            run_fleet(
                self._spark, add_up, redis=self._queue.driver.url, queue=self._queue.name,
                workers=self._workers, name=NAME, until_idle=True, max_idle_s=None,
            ).collect()  # fmt: skip
        except BaseException as error:  # noqa: BLE001  raised in the main thread
            self.error = error

    def check(self) -> None:
        """Raises what ended the fleet early."""
        if self.error is not None:
            raise self.error

    def __enter__(self) -> Self:
        self.start()
        while self.is_alive() and not workers_of(self._queue):
            time.sleep(0.01)
        return self

    def __exit__(self, failed: object, *_: object) -> None:
        if failed is not None and self.is_alive():
            from fairlane.spark import stop_fleet

            with contextlib.suppress(Exception):
                stop_fleet(NAME, redis=self._queue.driver.url, queue=self._queue.name)
        self.join()


class Till(threading.Thread):
    """Moves files into the stream's folder, one after the other, as a shop's till writes them."""

    def __init__(self, source: Path, target: Path) -> None:
        super().__init__(name="till", daemon=True)
        first, *self._files = sorted(source.glob("*.parquet"))
        self._target = target
        target.mkdir()
        first.replace(target / first.name)

    def run(self) -> None:
        """Moves the other files."""
        for file in self._files:
            file.replace(self._target / file.name)
            time.sleep(BETWEEN_S)


@contextlib.contextmanager
def stderr_in(log: Path) -> Iterator[None]:
    """Sends what the programs that start here write to stderr to a file: Java, and its Pythons."""
    before = os.dup(2)
    with log.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


class View:
    """Writes lines to stderr, each with the time since the beginning."""

    def __init__(self) -> None:
        self._began = self._shown = time.monotonic()

    @property
    def seconds(self) -> float:
        """Returns the time since the beginning."""
        return time.monotonic() - self._began

    def say(self, sentence: str) -> None:
        """Writes a sentence."""
        print(f"{self.seconds:6.1f} s  {sentence}", file=sys.stderr, flush=True)

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
            return worker["worker"]
    return ""
