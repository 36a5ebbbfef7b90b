"""What the commands on Spark share: the session, its progress, and its errors as one sentence."""

from __future__ import annotations

import contextlib
import re
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import click

from fairlane import settings
from fairlane.cli.options import open_queue, url_of
from fairlane.cli.output import note
from fairlane.errors import FairlaneError, InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType, TracebackType

    from pyspark.sql import SparkSession


# ------------------------------------------------------------------ interrupts
# Ctrl-C while Spark works: a thread of its own ends what Spark does.


_LOOK_S = 0.1


class Interrupts:
    """Handles SIGINT while it is open, and raises KeyboardInterrupt for it.

    An exception inside a call to Java leaves half a reply on the connection. The next call then
    fails with a traceback. So a first Ctrl-C inside such a call makes Java end the call:
    streams are stopped, jobs cancelled. A second Ctrl-C raises immediately.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
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
        if self._is_interrupted and (isinstance(error, Exception) or not kind):
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


F = TypeVar("F", bound="Callable[..., Any]")
FORMATS = ("text", "csv", "json", "parquet")
_EVERY_S = 5.0
_EVERY_TTY_S = 0.5
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)
_CONDITION = re.compile(r"^\[[A-Z_.]+\]\s*")


def master_option(function: F) -> F:
    """Adds the option `--master URL` to a command."""
    text = "Spark's master, as spark://host:7077, yarn or k8s://...  [default: local[*]]"
    return click.option("--master", metavar="URL", help=text)(function)


@contextlib.contextmanager
def spark_session(master: str | None, name: str) -> Iterator[SparkSession]:
    """Opens the session; errors of Spark become one sentence. Raises FairlaneError.

    Ctrl-C raises KeyboardInterrupt.
    """
    with in_one_sentence(), hushed():
        opened, is_ours = _session(master, name)
        try:
            with Interrupts(opened):
                yield opened
        finally:
            if is_ours:
                with contextlib.suppress(Exception):  # it may have died
                    opened.stop()


def _session(master: str | None, name: str) -> tuple[SparkSession, bool]:
    """Returns a session, and True if it was started here."""
    from fairlane.spark.spark_session import (
        java_ends_with_failure,
        need_spark,
        quiet_java,
        session,
        session_there,
    )

    need_spark()
    if session_there() is not None:
        return session(), False
    note("starting Spark")
    # A failure is raised here as one sentence, so Spark's own log lines are off.
    with quiet_java(master), java_ends_with_failure():
        return session(master, f"fairlane {name}", {"spark.log.level": "OFF"}), True


@contextlib.contextmanager
def hushed() -> Iterator[None]:
    """Logs only Fairlane's warnings, as lines of the command; py4j logs errors as root."""
    import logging

    from fairlane.cli.log import StderrHandler

    handler = StderrHandler()
    wanted = {"fairlane": logging.WARNING}
    wanted |= dict.fromkeys(("", "py4j", "pyspark"), logging.CRITICAL)
    loggers = [logging.getLogger(name) for name in wanted]
    levels = [logger.level for logger in loggers]
    for logger, level in zip(loggers, wanted.values(), strict=True):
        logger.setLevel(level)
    loggers[0].addHandler(handler)
    try:
        yield
    finally:
        loggers[0].removeHandler(handler)
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextlib.contextmanager
def in_one_sentence() -> Iterator[None]:
    """Turns what Spark raises into a FairlaneError with its first line."""
    from fairlane.spark.spark_session import ours

    try:
        yield
    except (FairlaneError, click.ClickException, OSError):
        raise
    except Exception as error:
        text, carried = str(error), ours(error)
        if carried is not None:
            raise carried from error
        if "PATH_NOT_FOUND" in text:
            raise InvalidArgument(_first_line(text)) from error
        raise FairlaneError(f"Spark failed: {_first_line(text)}") from error


def _first_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return _CONDITION.sub("", lines[0]) if lines else "it does not say why"


def redis_for(master: str | None, redis: str | None) -> str:
    """Returns the URL of Redis; the embedded one only for executors on this machine."""
    from fairlane.spark.spark_session import is_local, master_of

    if settings.redis_url(redis) is None and not is_local(place := master_of(master)):
        raise InvalidArgument(
            f"name a Redis that {place} can reach: --redis URL or {settings.REDIS_VARIABLE}"
        )
    return url_of(redis)


def must_answer(url: str) -> None:
    """Waits for Redis and says so, as every command does. Raises RedisError."""
    with open_queue(url):
        pass


def is_local_path(path: str) -> bool:
    """Returns True for a path without a scheme such as hdfs: or s3a:."""
    return _SCHEME.match(path) is None


def must_be_there(path: str, master: str | None) -> None:
    """Raises InvalidArgument if this machine has no such file, or none of a pattern of * and ?.

    Spark checks a path with other signs of a pattern, or one that may be another machine's.
    """
    from fairlane.spark.spark_session import is_local, master_of

    if not is_local_path(path) or any(sign in path for sign in "[{\\") or _is_there(path):
        return
    if is_local(master_of(master)):
        is_pattern = any(sign in path for sign in "*?")
        lacking = (
            "no file or folder matches it" if is_pattern else "there is no such file or folder"
        )
        raise InvalidArgument(f"{path} cannot be read: {lacking}")


def _is_there(path: str) -> bool:
    place = Path(path)
    root = Path(place.anchor) if place.is_absolute() else Path()
    return place.exists() or any(root.glob(str(place.relative_to(root))))


def must_be_free(path: str, name: str = "--out") -> None:
    """Raises InvalidArgument if the path exists on this machine."""
    if is_local_path(path) and Path(path).exists():
        raise InvalidArgument(f"{name} {path} is there already: choose another, or remove it first")


class StageProgress:
    """Writes Spark's progress to stderr: one changing line on a terminal, else new lines."""

    def __init__(self, spark: SparkSession, activity: str) -> None:
        self._spark, self._activity = spark, activity
        self._over = threading.Event()
        self._is_tty = bool(getattr(sys.stderr, "isatty", bool)())
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._width = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        if self._is_tty and self._width:
            sys.stderr.write("\r" + " " * self._width + "\r")
            sys.stderr.flush()

    def _run(self) -> None:
        shown = ""
        while not self._over.wait(_EVERY_TTY_S if self._is_tty else _EVERY_S):
            text = self._text()
            if not text or text == shown:
                continue
            shown = text
            if not self._is_tty:
                note(text)
                continue
            line = f"fairlane: {text}"
            sys.stderr.write("\r" + line.ljust(self._width))
            sys.stderr.flush()
            self._width = len(line)

    def _text(self) -> str:
        """Returns the progress of the newest stage; "" if none is known, as on Spark Connect."""
        try:
            tracker = self._spark.sparkContext.statusTracker()
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        except Exception:  # noqa: BLE001  progress is no reason to fail
            return ""
        active = [stage for stage in stages if stage is not None]
        if not active:
            return ""
        newest = max(active, key=lambda stage: stage.stageId)
        return f"{self._activity}: {newest.numCompletedTasks:,} of {newest.numTasks:,} parts"
