"""The archive's tables: their columns, and how a batch of one is written and counted."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F  # noqa: N812  the usual name
from pyspark.sql.types import StructField, StructType

from fairlane.operations.control import completion_log
from fairlane.spark.operations import stream_ranges
from fairlane.spark.source.columns import INT, LONG, MOMENT, TEXT, arrow_of, moment, struct_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

_MOMENTS = ("submitted", "ended", "logged")
_DAY = StructField("date", TEXT)


def _struct(*fields: StructField | tuple[str, Any]) -> StructType:
    return StructType(
        [StructField(*field) if isinstance(field, tuple) else field for field in fields]
    )


SCHEMAS: Mapping[str, StructType] = {
    "results": _struct(("request", TEXT), ("priority", INT), *struct_of("results").fields, _DAY),
    "dead": _struct(*struct_of("dead").fields, ("priority", INT), _DAY),
    "requests": _struct(*struct_of("completions").fields, ("limit", INT), ("results", LONG), _DAY),
    "batches": _struct(
        *(("first", TEXT), ("last", TEXT), ("requests", LONG), ("results", LONG)),
        *(("dead", LONG), ("missing", LONG), ("archived", MOMENT)),
    ),
}
# A part of a request's stream, for one call of the readers.
PARTS = _struct(("request", TEXT), ("priority", INT), ("first", TEXT), ("last", TEXT))


def parts_of(
    spans: Sequence[tuple[str, completion_log.Span]],
    rows: Mapping[str, Mapping[str, Any]],
    ranges_of: int,
) -> list[tuple[Any, ...]]:
    """Returns streams in parts of about `ranges_of` entries, as rows of PARTS."""
    return [
        (request, rows[request]["priority"], piece.first, piece.last)
        for request, span in spans
        for piece in stream_ranges.cut(span.first, span.last, -(-span.length // ranges_of))
    ]


def collect(endings: DataFrame) -> list[dict[str, Any]]:
    """Returns the rows of a batch of the log, oldest first, with their moments in ms."""
    # Timestamps would come in the local time of this process, without a zone.
    plain = [name for name in endings.columns if name not in _MOMENTS]
    millis = [F.unix_millis(name).alias(name) for name in _MOMENTS]
    rows = [row.asDict() for row in endings.select(*plain, *millis).collect()]
    return sorted(rows, key=lambda row: completion_log.place(row["log_id"]))


def write_counted(
    spark: SparkSession, out: str, table: str, batch: int, frame: DataFrame
) -> dict[str, int]:
    """Writes a batch's rows by date, over those of an earlier attempt; returns id -> rows."""
    (
        frame.withColumn("batch", F.lit(batch))
        .write.mode("overwrite")
        .option("partitionOverwriteMode", "dynamic")
        .partitionBy("date", "batch")
        .parquet(f"{out}/{table}")
    )
    written = read_table(spark, out, table, batch)
    if written is None:
        return {}
    counted = written.groupBy("request").count()
    return {row["request"]: row["count"] for row in counted.collect()}


def write_requests(
    spark: SparkSession,
    out: str,
    batch: int,
    rows: Sequence[Mapping[str, Any]],
    ended_requests: Sequence[stream_ranges.Ended | None],
    result_counts: Mapping[str, int],
) -> None:
    """Writes the endings of a batch; the limit comes from the request's own record, if any."""
    if not rows:
        return
    schema = SCHEMAS["requests"]
    full = [
        {
            **row,
            **{name: moment(row[name]) for name in _MOMENTS},
            "limit": ended.limit if ended else None,
            "results": result_counts.get(row["id"], 0) if ended else 0,
            "date": f"{datetime.fromtimestamp(row['logged'] / 1000, UTC):%Y-%m-%d}",
        }
        for row, ended in zip(rows, ended_requests, strict=True)
    ]
    table = pa.Table.from_pylist(full, schema=arrow_of(schema))
    frame = spark.createDataFrame(table, schema).coalesce(1)
    (
        frame.withColumn("batch", F.lit(batch))
        .write.mode("overwrite")
        .option("partitionOverwriteMode", "dynamic")
        .partitionBy("date", "batch")
        .parquet(f"{out}/requests")
    )


def write_mark(spark: SparkSession, out: str, batch: int, mark: Mapping[str, Any]) -> None:
    """Writes the row that marks a batch as finished."""
    schema = SCHEMAS["batches"]
    row = {**mark, "archived": datetime.now(UTC)}
    table = pa.Table.from_pylist([row], schema=arrow_of(schema))
    frame = spark.createDataFrame(table, schema).coalesce(1)
    frame.write.mode("overwrite").parquet(f"{out}/batches/batch={batch}")


def read_mark(
    spark: SparkSession, out: str, batch: int
) -> tuple[str | None, str | None, int] | None:
    """Returns a finished batch's first and last log entry and their number; else None."""
    marks = read_table(spark, out, "batches", batch)
    row = None if marks is None else marks.first()
    return None if row is None else (row["first"], row["last"], row["requests"])


def read_table(
    spark: SparkSession, out: str, table: str, batch: int | None = None
) -> DataFrame | None:
    """Returns a table of the archive, or one batch of it; None if it does not exist.

    It has the columns `batch` and, except for the table `batches`, `date`.
    """
    fields = [field for field in SCHEMAS[table].fields if field.name != "date"]
    days = [] if table == "batches" else [_DAY]
    schema = StructType([*fields, StructField("batch", INT), *days])
    base = f"{out.rstrip('/')}/{table}"
    place = base
    if batch is not None:  # a read of all batches takes longer with each
        place = f"{base}{'/date=*' if days else ''}/batch={batch}"
    try:
        return spark.read.schema(schema).option("basePath", base).parquet(place)
    except AnalysisException as error:
        if error.getCondition() == "PATH_NOT_FOUND":
            return None
        raise
