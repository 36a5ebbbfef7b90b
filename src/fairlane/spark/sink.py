"""Writing: the writer that the options ask for, after what is wrong with them was said."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import InvalidArgument
from .options import Options
from .sink_live import LiveStreamWriter, LiveWriter, begin_first
from .sink_plan import OPTIONS, STREAM_OPTIONS, plan_of
from .sink_staged import StagedStreamWriter, StagedWriter, look_first

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql.types import StructType


def writer_of(options: Mapping[str, str], schema: StructType, overwrite: bool) -> Any:
    """The writer of a batch. Raises what of its options, columns and target is wrong.

    A transaction that is not named gets a name here, which all of its tasks and its commit share.
    """
    if overwrite:
        raise InvalidArgument('a request cannot be overwritten: write with mode("append")')
    plan = plan_of(Options(options, OPTIONS), schema, is_stream=False)
    if plan.mode == "staged":
        look_first(plan)
        return StagedWriter(plan)
    begin_first(plan)
    return LiveWriter(plan)


def stream_writer_of(options: Mapping[str, str], schema: StructType, overwrite: bool) -> Any:
    """The writer of one micro-batch; Spark asks for it on both sides of the write."""
    if overwrite:
        raise InvalidArgument('a request cannot be overwritten: write with outputMode("append")')
    plan = plan_of(Options(options, (*OPTIONS, *STREAM_OPTIONS)), schema, is_stream=True)
    if plan.mode == "staged":
        return StagedStreamWriter(plan)
    return LiveStreamWriter(plan)
