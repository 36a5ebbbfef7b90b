"""Writing: checks the options, and returns the writer that they name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlane.errors import InvalidArgument
from fairlane.spark.data_source import SparkOptions
from fairlane.spark.sink.plan import OPTIONS, STREAM_OPTIONS, plan_of
from fairlane.spark.sink.writers import (
    LiveStreamWriter,
    LiveWriter,
    StagedStreamWriter,
    StagedWriter,
    begin_first,
    look_first,
)
from fairlane.spark.source.columns import COLUMNS, table_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql.types import StructType


def writer_of(options: Mapping[str, str], schema: StructType, overwrite: bool) -> Any:
    """Returns the writer of a batch. Raises for wrong options, columns or a wrong target.

    A transaction without a name gets one here, which all of its tasks and its commit share.
    """
    if overwrite:
        raise InvalidArgument('a request cannot be overwritten: write with mode("append")')
    _refuse_views(options, schema)
    plan = plan_of(SparkOptions(options, OPTIONS), schema, is_stream=False)
    if plan.mode == "staged":
        look_first(plan)
        return StagedWriter(plan)
    begin_first(plan)
    return LiveWriter(plan)


def stream_writer_of(options: Mapping[str, str], schema: StructType, overwrite: bool) -> Any:
    """Returns the writer of one micro-batch; Spark calls this on both sides of the write."""
    if overwrite:
        raise InvalidArgument('a request cannot be overwritten: write with outputMode("append")')
    plan = plan_of(SparkOptions(options, (*OPTIONS, *STREAM_OPTIONS)), schema, is_stream=True)
    if plan.mode == "staged":
        return StagedStreamWriter(plan)
    return LiveStreamWriter(plan)


def _refuse_views(options: Mapping[str, str], schema: StructType) -> None:
    """Raises InvalidArgument for what INSERT writes to a view of `view_columns`."""
    names = {name.lower() for name in options}
    columns = schema.fieldNames()
    is_view = any(columns == table_of(view).names for view in COLUMNS)
    has_body = "body" in columns or names & {"bodycolumn", "bodyformat"}
    if "view" in names or (is_view and not has_body):
        raise InvalidArgument(
            "a view of the format fairlane is for reading, and INSERT cannot write to it: write "
            'with df.write.format("fairlane").option("request", ID).mode("append").save()'
        )
