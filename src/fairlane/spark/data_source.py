"""The format "fairlane": passes each request of Spark to the part that performs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource
from pyspark.sql.utils import is_remote

from fairlane.errors import FairlaneError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

FORMAT = "fairlane"


def register(spark: SparkSession, *, wrap_calls: bool = True) -> None:
    """Adds the format "fairlane" to this session, which becomes the active one here.

    One call is enough for all threads of the program. With `wrap_calls` it wraps five methods of
    pyspark in this process, for every format: they then work in any thread, and raise Fairlane's
    own errors. Methods that are wrapped stay so. On Spark Connect a session does not belong to a
    thread, and nothing is wrapped.
    """
    if not is_remote():
        from fairlane.spark.spark_calls import make_active, repair_calls

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
