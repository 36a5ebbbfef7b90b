"""Returns the Spark session of this process, or starts one that needs no configuration."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import threading
import traceback
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairlane import errors
from fairlane.errors import FairlaneError, SparkMissing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


OLDEST = (4, 2)  # the first with admission control for sources written in Python
NEWEST = (5, 0)  # not this one
_INSTALL = "run `pip install '.[spark]'` in a clone of Fairlane"


@cache
def need_spark() -> None:
    """Raises SparkMissing unless pyspark of a fitting version and pyarrow can be imported."""
    try:
        import pyspark
    except ModuleNotFoundError as missing:
        raise SparkMissing(f"pyspark is not installed: {_INSTALL}") from missing
    installed = pyspark.__version__  # that of a cluster's Spark has no metadata of a package
    numbers = tuple(int(part) for part in re.findall(r"\d+", installed)[:2])
    if not OLDEST <= numbers < NEWEST:
        raise SparkMissing(
            f"pyspark {installed} does not fit: Spark >= {OLDEST[0]}.{OLDEST[1]} and "
            f"< {NEWEST[0]} is needed; {_INSTALL}"
        )
    if find_spec("pyarrow") is None:
        raise SparkMissing(f"pyarrow is not installed: {_INSTALL}")


def need_java() -> None:
    """Raises SparkMissing unless there is a Java that Spark's driver can be started with."""
    home = os.environ.get("JAVA_HOME")
    if home and not (Path(home) / "bin" / "java").exists():
        raise SparkMissing(f"JAVA_HOME is {home}, and there is no bin/java in it: correct it")
    if not home and shutil.which("java") is None:
        raise SparkMissing(
            "Spark needs Java 17 or newer and none was found: install it "
            "(Debian: apt install openjdk-17-jre-headless) or set JAVA_HOME"
        )


# ------------------------------------------------------------------ java process
# Starts Spark's Java without its start messages on stderr.


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


# ------------------------------------------------------------------ spark session
# The session itself.


# Quiet, in UTC, and closed to the network; the caller's settings win.
_QUIET = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": "true",
}
_LOCAL = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "4",
}


def session(
    master: str | None = None,
    name: str = "fairlane",
    conf: dict[str, Any] | None = None,
    *,
    wrap_calls: bool = True,
) -> SparkSession:
    """Returns a session in which the format "fairlane" is registered.

    An active session is used, such as spark-submit's. Otherwise a new one starts on `master`
    (default local[*]). `conf` are Spark's own settings, `wrap_calls` is that of `register`. Raises
    SparkMissing.
    """
    need_spark()
    from fairlane.spark.data_source import register

    spark = session_there()
    if spark is None:
        if "SPARK_REMOTE" not in os.environ:
            need_java()
        spark = _new(master, name, conf or {})
    register(spark, wrap_calls=wrap_calls)
    return spark


def session_there() -> SparkSession | None:
    """Returns the session of this process, or None.

    Spark's "active" session belongs to one thread of Java. Behind a stream there is none.
    """
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is None and SparkContext._active_spark_context is not None:  # noqa: SLF001
        return SparkSession.builder.getOrCreate()
    return active


def master_of(master: str | None) -> str:
    """Returns where a session on `master` would run; None under spark-submit is its master.

    "remote" stands for a server of Spark Connect.
    """
    if master is not None:
        return master
    if "SPARK_REMOTE" in os.environ:
        return "remote"
    if not _is_submitted():
        return "local[*]"
    need_spark()
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()  # noqa: SLF001  spark-submit's Java, which runs already
    return str(SparkConf().get("spark.master", "local[*]"))


def is_local(master: str) -> bool:
    """Returns True for a master whose executors are on this machine."""
    return master.startswith("local")


def _new(master: str | None, name: str, conf: dict[str, Any]) -> SparkSession:
    from pyspark.sql import SparkSession

    # Otherwise executors on this machine start the first `python3` on PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    settings = dict(_QUIET)
    if master is not None:
        builder = builder.master(master)
    elif not _is_submitted():
        builder = builder.master("local[*]")
    if is_local(master or "local") and not _is_submitted():
        settings |= _LOCAL
    for key, value in (settings | conf).items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _is_submitted() -> bool:
    """Returns True under spark-submit, which names the master itself."""
    return "PYSPARK_GATEWAY_PORT" in os.environ or "SPARK_REMOTE" in os.environ


# ------------------------------------------------------------------ errors
# Restores a FairlaneError that Spark passes on as the text of a traceback.


_OURS = re.compile(r"^(?:.*?\s)?fairlane\.[\w.]+\.([A-Z]\w+): (.+?)\s*$", re.MULTILINE)


def ours(error: BaseException) -> FairlaneError | None:
    """Returns the last FairlaneError in a Spark error; None if there is none."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, FairlaneError):
            return seen
        seen = seen.__cause__ or seen.__context__
    matches = _OURS.findall(str(error))
    if not matches:
        return None
    name, sentence = matches[-1]
    kind = _kind(name)
    return None if kind is None else kind(sentence)


def _kind(name: str) -> type[FairlaneError] | None:
    kind = getattr(errors, name, None)
    return kind if isinstance(kind, type) and issubclass(kind, FairlaneError) else None
