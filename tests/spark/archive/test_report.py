"""Tests that a report reads what Spark writes as an archive."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")
pytest.importorskip("duckdb")
pytest.importorskip("matplotlib")

from fairlane import report
from fairlane.report.tables import COLUMNS
from fairlane.spark.archive import SCHEMAS, write_mark, write_table, written
from fairlane.spark.source.columns import arrow_of
from tests.report.history import T0, Asked, History

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

KINDS = {"timestamp": "TIMESTAMPTZ", "string": "VARCHAR", "int": "INTEGER"}


def test_a_report_reads_columns_that_an_archive_has():
    for table, columns in COLUMNS.items():
        kinds = {
            field.name: KINDS.get(field.dataType.simpleString(), field.dataType.simpleString())
            for field in SCHEMAS[table].fields
        }
        for column in columns.split(", "):
            name, kind = column.split(" ")
            assert kinds[name].upper() == kind, column


def test_a_report_reads_an_archive_that_spark_wrote(spark: SparkSession, tmp_path: Path):
    history = History([Asked("one", 3, 2, 40, T0, 12, 2), Asked("two", 9, 1, 9, T0 + 50, 12)], 2)
    rows = {"requests": history.request_rows(), "results": history.results, "dead": history.dead}
    for table, each in rows.items():
        schema = written(table)
        made = pa.Table.from_pylist([{**row, "batch": 0} for row in each], schema=arrow_of(schema))
        write_table(spark.createDataFrame(made, schema), str(tmp_path / "archive"), table)
    counts = {"requests": 2, "results": 49, "dead": 2, "missing": 0}
    write_mark(spark, str(tmp_path / "archive"), 0, {"first": "", "last": "", **counts})
    made = report.make(tmp_path / "archive", tmp_path / "out")
    assert made.summary["finished"] == 49
    tables = tmp_path / "out" / "tables"
    dead = pq.read_table(tables / "dead.parquet").to_pylist()
    assert Counter({row["reason"]: row["count"] for row in dead}) == Counter(
        row["reason"] for row in history.dead
    )
    found = pq.read_table(tables / "windows.parquet").to_pylist()
    first = min(row["started"] for row in history.results)
    width = made.summary["window_s"] * 1e6
    expected = Counter(
        (int((row["settled"] - first // width * width) // width), row["priority"])
        for row in history.results
    )
    assert {(row["window"], row["priority"]): row["finished"] for row in found} == expected
