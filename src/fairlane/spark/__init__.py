"""Spark at both ends of a queue, and as its workers. Needs the extra `spark`.

`register(spark)` adds the format "fairlane" to a session. `df.write` and `df.writeStream` then make
sub-requests of rows. `spark.read` and `spark.readStream` return results, requests and the
completion log as rows. `run_fleet` works on a queue with Spark's executors. `queue_udf` sends the
rows of a DataFrame through a queue and joins the results. Names are loaded at first use: importing
this package needs neither Spark nor Java.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fairlane.spark.data_source import FairlaneSource, register
    from fairlane.spark.fleet import run_fleet, stop_fleet
    from fairlane.spark.handlers import arrow_handler, pandas_handler, row_handler
    from fairlane.spark.spark_session import ours, session
    from fairlane.spark.stream_metrics import StreamMetrics
    from fairlane.spark.udf import queue_udf

_HOMES = {
    "FairlaneSource": ".data_source",
    "StreamMetrics": ".stream_metrics",
    "arrow_handler": ".handlers",
    "ours": ".spark_session",
    "pandas_handler": ".handlers",
    "queue_udf": ".udf",
    "register": ".data_source",
    "row_handler": ".handlers",
    "run_fleet": ".fleet",
    "session": ".spark_session",
    "stop_fleet": ".fleet",
}

__all__ = [
    "FairlaneSource",
    "StreamMetrics",
    "arrow_handler",
    "ours",
    "pandas_handler",
    "queue_udf",
    "register",
    "row_handler",
    "run_fleet",
    "session",
    "stop_fleet",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from fairlane.spark.spark_session import need_spark

    need_spark()
    return getattr(import_module(_HOMES[name], __name__), name)
