"""Tests streams into a request: each micro-batch once, wherever the query stops and restarts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from tests.spark.sink.sinks import Crashing, areas, bodies_in
from tests.support.scripts.requests import stored

if TYPE_CHECKING:
    from pathlib import Path

    import redis


class Stream:
    """Files of lines that come one by one, and a query with a checkpoint."""

    def __init__(self, spark: Any, url: str, folder: Path) -> None:
        self.spark, self.url, self.folder = spark, url, folder
        self.lines: list[bytes] = []
        (folder / "in").mkdir()
        spark.dataSource.register(Crashing)

    def add(self, count: int = 40) -> None:
        """Adds one more file, of which a micro-batch is made."""
        number = len([*(self.folder / "in").iterdir()])
        lines = [f"file {number} line {i}" for i in range(count)]
        (self.folder / "in" / f"{number}.txt").write_text("".join(f"{line}\n" for line in lines))
        self.lines += [line.encode() for line in lines]

    def run(self, format: str = "fairlane", **options: Any) -> None:  # noqa: A002
        """Writes all there is, a file a micro-batch, and stops."""
        frame = (
            self.spark.readStream.option("maxFilesPerTrigger", 1)
            .text(str(self.folder / "in"))
            .repartition(2)
        )
        writer = frame.selectExpr("value AS body", "'k' || substring(value, 6, 1) AS k").writeStream
        for name, value in options.items():
            writer = writer.option(name, str(value))
        query = (
            writer.format(format)
            .option("redis", self.url)
            .option("checkpointLocation", str(self.folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()


@pytest.fixture
def stream(spark: Any, redis_url: str, tmp_path: Path) -> Stream:
    return Stream(spark, redis_url, tmp_path)


def test_micro_batches_fill_one_request_that_stays_open(stream: Stream, redis_client: redis.Redis):
    stream.add()
    stream.add()
    stream.run(request="r1")
    assert sorted(bodies_in(redis_client, "r1")) == sorted(stream.lines)
    assert stored(redis_client, "r1")["open"] == "1"
    stream.add()
    stream.run(request="r1")
    stream.run(request="r1")  # there are no new files
    assert sorted(bodies_in(redis_client, "r1")) == sorted(stream.lines)
    assert areas(redis_client) == []


@pytest.mark.rest
def test_a_query_that_crashed_goes_on_where_it_was(stream: Stream, redis_client: redis.Redis):
    """It crashes before the commit, in its middle, and after it before Spark notes that it ran."""
    stream.add()
    stream.run(request="r1")
    for crash in ("task:always", "exit:0", "exit:4", "exit:9", "raise:6", "exit:99"):
        stream.add()
        with pytest.raises(Exception):  # noqa: B017  Spark reports it in many ways
            stream.run("crashing", request="r1", crash=crash, batchSize=3)
        stream.add()
        stream.run(request="r1")
        assert sorted(bodies_in(redis_client, "r1")) == sorted(stream.lines), crash


@pytest.mark.rest
def test_a_request_for_each_key_of_a_stream(stream: Stream, redis_client: redis.Redis):
    stream.add()
    stream.add()
    stream.run(requestColumn="k")
    found = [*bodies_in(redis_client, "k0"), *bodies_in(redis_client, "k1")]
    assert sorted(found) == sorted(stream.lines)


@pytest.mark.rest
def test_rows_of_a_stream_join_while_it_writes(stream: Stream, redis_client: redis.Redis):
    stream.add()
    stream.add()
    stream.run(request="r1", writeMode="dedupe", keyColumn="body")
    assert sorted(bodies_in(redis_client, "r1")) == sorted(stream.lines)
    assert stored(redis_client, "r1")["open"] == "1"
