"""The format "fairlane": passes each request of Spark to the part that performs it."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.readwriter import DataFrameReader, DataFrameWriter
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter
from pyspark.sql.utils import is_remote

from fairlane.errors import FairlaneError
from fairlane.spark.source.errors import ours

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql.types import StructType


# ------------------------------------------------------------------ spark calls
# Wraps Spark's own `load`, `save`, `start` and `awaitTermination` for this format.
#
# Spark looks up a format written in Python in the session that is active in the calling thread. A
# thread that did not make the session has none, or has another one of several. So a write raises
# DATA_SOURCE_NOT_FOUND. Spark also passes on a FairlaneError as the text of a traceback. The
# wrappers repair both.


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


FORMAT = "fairlane"


def register(spark: SparkSession, *, wrap_calls: bool = True) -> None:
    """Adds the format "fairlane" to this session, which becomes the active one here.

    One call is enough for all threads of the program. With `wrap_calls` it wraps five methods of
    pyspark in this process, for every format: they then work in any thread, and raise Fairlane's
    own errors. Methods that are wrapped stay so. On Spark Connect a session does not belong to a
    thread, and nothing is wrapped.
    """
    if not is_remote():
        # Spark looks for the format in the active session, and refuses a second one.
        make_active(spark)
        if wrap_calls:
            repair_calls()
    spark.dataSource.register(FairlaneSource)


class FairlaneSource(DataSource):
    """Writes requests, and reads results and completions; options in docs/how-to/connect/spark.md.

    Spark makes an instance wherever it plans, writes, reads or commits. It sends what the
    methods return to the executors, so nothing here holds a connection.
    """

    @classmethod
    def name(cls) -> str:
        """Returns the name of the format."""
        return FORMAT

    def schema(self) -> StructType:
        """Returns the columns to read, by `view` and `request`. Raises InvalidArgument."""
        from fairlane.spark.source.views import schema_of

        return schema_of(self.options)

    def reader(self, schema: StructType) -> Any:
        """Returns the reader of one view. Raises InvalidArgument."""
        from fairlane.spark.source.views import reader_of

        return reader_of(self.options, schema)

    def streamReader(self, schema: StructType) -> Any:  # noqa: N802  Spark's name
        """Returns the reader of the completion log, or of a request's results, as they come."""
        from fairlane.spark.source.stream import Refused, reader_of

        try:
            return reader_of(self.options, schema)
        except FairlaneError as error:
            return Refused(error)

    # The names of the next two methods' parameters are Spark's: it passes them by keyword, too.

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        """Returns the writer that makes sub-requests of rows. Raises InvalidArgument."""
        from fairlane.spark.sink import writer_of

        return writer_of(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: N802  Spark's name
        """Returns the writer that makes sub-requests of the rows of each micro-batch."""
        from fairlane.spark.sink import stream_writer_of

        return stream_writer_of(self.options, schema, overwrite)
