"""The format "fairlane": which part of this package does what Spark asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource
from pyspark.sql.utils import is_remote

from fairlane.errors import FairlaneError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

FORMAT = "fairlane"


def register(spark: SparkSession) -> None:
    """Makes the format "fairlane" known to this session, which becomes the active one here.

    One call is enough for all threads of the program. On Spark Connect a session does not belong to
    a thread.
    """
    spark.dataSource.register(FairlaneSource)
    if not is_remote():
        from fairlane.spark.spark_calls import make_active, repair_calls

        repair_calls()
        make_active(spark)


class FairlaneSource(DataSource):
    """Requests written, and results and completions read; options in docs/spark.md.

    Spark makes one of these wherever it plans, writes, reads or commits, and sends what the
    methods return to the executors: so nothing here holds a connection.
    """

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return FORMAT

    def schema(self) -> StructType:
        """The columns of what is read, by the options `view` and `request`."""
        from fairlane.spark.source.views import schema_of

        return schema_of(self.options)

    def reader(self, schema: StructType) -> Any:
        """Reads one view."""
        from fairlane.spark.source.views import reader_of

        return reader_of(self.options, schema)

    def streamReader(self, schema: StructType) -> Any:  # noqa: N802  Spark's name
        """Reads the completion log, or a request's results, as they come."""
        from fairlane.spark.source.stream import Refused, reader_of

        try:
            return reader_of(self.options, schema)
        except FairlaneError as error:
            return Refused(error)

    # The names of the next two methods' parameters are Spark's: it passes them by keyword, too.

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        """Makes sub-requests of rows."""
        from fairlane.spark.sink import writer_of

        return writer_of(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: N802  Spark's name
        """Makes sub-requests of the rows of each micro-batch."""
        from fairlane.spark.sink import stream_writer_of

        return stream_writer_of(self.options, schema, overwrite)
