"""Wraps Spark's own `load`, `save`, `start` and `awaitTermination` for this format.

Spark looks up a format written in Python in the session that is active in the calling thread. A
thread that did not make the session has none, or has another one of several. So a write raises
DATA_SOURCE_NOT_FOUND. Spark also passes on a FairlaneError as the text of a traceback. The wrappers
repair both.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession
from pyspark.sql.readwriter import DataFrameReader, DataFrameWriter
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

from fairlane.spark.source.errors import ours

if TYPE_CHECKING:
    from collections.abc import Callable

_CALLS: tuple[tuple[type, str], ...] = (
    (DataFrameReader, "load"),
    (DataStreamReader, "load"),
    (DataFrameWriter, "save"),
    (DataStreamWriter, "start"),
    (StreamingQuery, "awaitTermination"),
)
_MARK = "fairlane_repaired"


def repair_calls() -> None:
    """Wraps the calls, once in a process. Spark Connect has classes of its own, left as they are.

    A wrapped call makes the frame's session the active one, and afterwards the one that was active
    before. It raises the FairlaneError that a Spark error carries, in place of the Spark error.
    """
    for kind, name in _CALLS:
        method = getattr(kind, name)
        if not hasattr(method, _MARK):
            setattr(kind, name, _repaired(method))


def is_wrapped() -> bool:
    """Returns True if the calls are wrapped in this process."""
    return all(hasattr(getattr(kind, name), _MARK) for kind, name in _CALLS)


def make_active(spark: SparkSession) -> None:
    """Makes this session the active one of the calling thread."""
    spark.createDataFrame([], "fairlane int")


def _repaired(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(self: Any, *args: Any, **options: Any) -> Any:
        spark = getattr(self, "_spark", None)  # of a reader or writer; a query has none
        before = _activated(spark) if isinstance(spark, SparkSession) else None
        try:
            return method(self, *args, **options)
        except Exception as error:
            carried = ours(error)
            if carried is None or carried is error:
                raise
        finally:
            if before is not None:
                make_active(before)
        raise carried

    setattr(call, _MARK, True)
    return call


def _activated(spark: SparkSession) -> SparkSession | None:
    """Makes this session the active one; returns the other session that was active, or None."""
    active = SparkSession.getActiveSession()
    if active is not None and spark._jsparkSession.equals(active._jsparkSession):  # noqa: SLF001
        return None
    make_active(spark)
    return active
