"""The archive's tables: their columns, and how a batch of one is written and counted."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import AnalysisException
from pyspark.sql.types import StructField, StructType

from fairlane.spark.operations import stream_ranges
from fairlane.spark.source.columns import INT, LONG, MOMENT, TEXT, arrow_of, struct_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from fairlane.operations import completion

SMALL = 64  # results of a request that are read in one call
ROWS = 100_000  # rows of one Spark task, about
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
# A part of a request's stream for a reader; `born` in ms, `count` of the whole request.
PARTS = _struct(
    *(("request", TEXT), ("priority", INT), ("born", LONG), ("count", LONG)),
    *(("first", TEXT), ("last", TEXT)),
)
_BATCH = StructField("batch", INT)


def written(table: str) -> StructType:
    """Returns the columns of a table as they are written: with those of its folders."""
    return StructType([*SCHEMAS[table].fields, _BATCH])


def small_parts(endings: pa.Table, count: str) -> pa.Table:
    """Returns one part for each request whose stream of `count` rows is read in one call."""
    rows = endings.filter(pc.less_equal(endings.column(count), SMALL))
    edges = [pa.repeat(edge, rows.num_rows) for edge in ("-", "+")]
    columns = [rows.column(name) for name in ("id", "priority", "born", count)]
    return pa.table([*columns, *edges], schema=arrow_of(PARTS))


def parts_of(
    spans: Sequence[tuple[str, completion.Span]], endings: pa.Table, rows_of: str
) -> pa.Table:
    """Returns streams in parts of about ROWS rows; the column `rows_of` has those of a stream."""
    names = ("id", "priority", "born", rows_of)
    rows = {row["id"]: row for row in endings.select(names).to_pylist()}
    parts = [
        (*(rows[request][name] for name in names), piece.first, piece.last)
        for request, span in spans
        for piece in stream_ranges.cut(span.first, span.last, -(-rows[request][rows_of] // ROWS))
    ]
    names_of_parts = arrow_of(PARTS)
    columns = zip(*parts, strict=True) if parts else [[] for _ in names_of_parts]
    arrays = [
        pa.array(column, kind) for column, kind in zip(columns, names_of_parts.types, strict=True)
    ]
    return pa.table(arrays, schema=names_of_parts)


def collect(endings: DataFrame) -> pa.Table:
    """Returns the rows of a batch of the log, oldest first.

    Adds `born`, when the request was submitted, in ms, and `settled`, the number of its results.
    """
    table = endings.toArrow()
    places = pc.split_pattern(table.column("log_id"), "-")
    keys = pa.table(
        {name: pc.list_element(places, at).cast(pa.uint64()) for at, name in enumerate(("ms", "n"))}
    )
    table = table.take(pc.sort_indices(keys, sort_keys=[("ms", "ascending"), ("n", "ascending")]))
    submitted = table.column("submitted")
    born = pc.divide(submitted.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()), 1000)
    settled = pc.add(table.column("done"), table.column("dead"))
    return table.append_column("born", born.fill_null(0)).append_column("settled", settled)


def with_earlier(
    counts: pa.Table, spark: SparkSession, out: str, table: str, batch: int
) -> pa.Table:
    """Returns the counts of a batch with the rows that only an earlier attempt has written.

    Such rows stay if none of their date are written now, because the results have left Redis.
    """
    frame = read_table(spark, out, table, batch)
    if frame is None:
        return counts
    there = frame.groupBy("request").count().toArrow()
    if total(there.column("count")) == total(counts.column("rows")):
        return counts
    at = pc.index_in(counts.column("request"), value_set=there.column("request").combine_chunks())
    rows = there.column("count").take(at).fill_null(0)
    return counts.set_column(counts.schema.get_field_index("rows"), "rows", rows)


def total(column: Any) -> int:
    """Returns the sum of a column, 0 if it is empty."""
    return pc.sum(column).as_py() or 0


def counts_at(endings: pa.Table, counts: pa.Table) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    """Returns the number of results and the limit of each ending, null where none was counted."""
    at = pc.index_in(_lives(endings, "id"), value_set=_lives(counts, "request").combine_chunks())
    return counts.column("rows").take(at).fill_null(0), counts.column("limit").take(at)


def _lives(rows: pa.Table, id_column: str) -> pa.ChunkedArray:
    """Returns what distinguishes a request from a later one with the same id."""
    born = rows.column("born").cast(pa.string())
    return pc.binary_join_element_wise(rows.column(id_column), born, " ")


def request_rows(endings: pa.Table, results: Any, limits: Any, batch: int) -> pa.Table:
    """Returns the rows of the table `requests`."""
    logged = endings.column("logged").cast(pa.timestamp("us", tz="UTC"))
    added = {
        "limit": limits,
        "results": results,
        "date": pc.strftime(logged, format="%Y-%m-%d"),
        "batch": pa.repeat(batch, endings.num_rows),
    }
    for name, column in added.items():
        endings = endings.append_column(name, column)
    schema = written("requests")
    return endings.select(schema.names).cast(arrow_of(schema))


def write_table(frame: DataFrame, out: str, table: str) -> None:
    """Writes a batch's rows by date, over those of an earlier attempt."""
    (
        frame.write.mode("overwrite")
        .option("partitionOverwriteMode", "dynamic")
        .partitionBy("date", "batch")
        .parquet(f"{out}/{table}")
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
