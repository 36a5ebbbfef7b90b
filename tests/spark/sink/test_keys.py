"""Tests that the key of a row comes back beside its result, whatever the write's mode is."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from tests.spark.sink.sinks import numbers, write
from tests.spark.source.test_views import load
from tests.support.scripts.requests import work_off
from tests.support.servers import backends

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from fairlane.drivers.sync import SyncDriver

pytestmark = pytest.mark.parametrize("redis_server", backends.one(), indirect=True)
MODES = pytest.mark.parametrize(
    "mode",
    ["staged", *(pytest.param(mode, marks=pytest.mark.rest) for mode in ("dedupe", "pipelined"))],
)


@MODES
def test_results_are_joined_to_the_rows_by_their_key(
    spark: SparkSession, redis_url: str, driver: SyncDriver, mode: str
):
    """A long is text in the result, and Spark compares both."""
    rows = numbers(spark, 2500, 3).selectExpr("id * 7 AS order", "body", "concat('r', id % 2) AS r")
    options = {"keyColumn": "order", "writeMode": mode, "keepBodies": "true"}
    write(rows, redis_url, requestColumn="r", txn="t1", **options)
    work_off(driver)
    schema = "request string, key string, status string, body binary"
    results = load(spark, redis_url, schema, txn="t1")
    joined = rows.join(results, rows["order"] == results["key"])
    own = (rows["r"] == results["request"]) & (rows["body"] == results["body"].cast("string"))
    assert (joined.count(), joined.where(own).count()) == (2500, 2500)


def test_micro_batches_bring_keys_to_an_open_request(
    spark: SparkSession, redis_url: str, driver: SyncDriver, tmp_path: Path
):
    source = tmp_path / "in"
    source.mkdir()
    for n in range(3):
        lines = [json.dumps({"name": f"n{n}-{i}", "body": f"b{n}-{i}"}) for i in range(4)]
        (source / f"{n}.json").write_text("\n".join(lines))
    rows: Any = spark.readStream.schema("name string, body string")
    rows = rows.option("maxFilesPerTrigger", 1).json(str(source))
    query = rows.writeStream.format("fairlane").option("redis", redis_url)
    query = query.option("request", "r1").option("keyColumn", "name").trigger(availableNow=True)
    query.option("checkpointLocation", str(tmp_path / "at")).start().awaitTermination()
    bodies = work_off(driver)
    found = load(spark, redis_url, request="r1").orderBy("index").select("index", "key").collect()
    assert [row["index"] for row in found] == [*range(12)]
    assert [b"b" + row.key[1:].encode() for row in found] == bodies


@pytest.mark.rest
def test_a_key_without_a_value_is_named_with_its_row(spark: SparkSession, redis_url: str):
    rows = numbers(spark, 10, 2).selectExpr("nullif(id, 7) AS id", "body")
    with pytest.raises(Exception, match='row 2 of partition 1: "id" is null: give every row a'):
        write(rows, redis_url, request="r1", keyColumn="id")
    with pytest.raises(Exception, match="there is no request r1"):
        load(spark, redis_url, request="r1").collect()
