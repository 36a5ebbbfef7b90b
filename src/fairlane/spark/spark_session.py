"""Returns the Spark session of this process, or starts one that needs no configuration."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from fairlane.spark.requirements import need_java, need_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
