"""Tests streams of the completion log and results: each row once, and the same when replayed."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from fairlane import settings
from fairlane.arrow import stream_ranges
from fairlane.errors import DataLost, InvalidArgument
from fairlane.operations.completion import trim
from fairlane.protocol import keys
from fairlane.spark.data_source import FairlaneSource
from fairlane.spark.source import stream
from fairlane.spark.stream_metrics import StreamMetrics, StreamState
from tests.spark.worlds import World, forget_commit
from tests.support.servers import backends
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    import redis
    from pyspark.sql import SparkSession

    from fairlane.drivers.sync import SyncDriver

pytestmark = pytest.mark.parametrize("redis_server", backends.one(), indirect=True)
LOG = "{req}:completed"


@pytest.fixture
def world(driver: SyncDriver) -> World:
    return World(driver)


def reader(url: str, **options: Any) -> stream.StreamReader:
    """Makes the source as Spark does, without Spark."""
    source = FairlaneSource({"redis": url, **{name: str(one) for name, one in options.items()}})
    made = stream.reader_of(source.options, source.schema())
    assert isinstance(made, stream.StreamReader)
    return made


def rows_of(source: stream.StreamReader, start: Any, end: Any) -> list[dict[str, Any]]:
    return [
        row
        for part in source.partitions(start, end)
        for batch in source.read(part)
        for row in batch.to_pylist()
    ]


def ids_of(source: stream.StreamReader, start: Any, end: Any) -> list[str]:
    return [row["id"] for row in rows_of(source, start, end)]


def all_of(source: stream.StreamReader) -> tuple[Any, Any]:
    """Returns the offsets before and behind all that is there."""
    start = source.initialOffset()
    return start, source.latestOffset(start, ReadAllAvailable())


def batch_of(source: stream.StreamReader) -> tuple[Any, Any]:
    """Returns the offsets before and behind the first batch, whose size an option limits."""
    start = source.initialOffset()
    return start, source.latestOffset(start, source.getDefaultReadLimit())


def ended(world: World, *ids: str, count: int = 2) -> None:
    """Makes requests that begin and end one after the other."""
    for one in ids:
        world.submit(one, count)
        world.work_off()


def names(count: int) -> list[str]:
    return [f"r{n}" for n in range(count)]


# ------------------------------------------------------------------ offsets


def test_the_whole_log_is_between_its_beginning_and_its_end(redis_url: str, world: World):
    ended(world, *names(9))
    source = reader(redis_url)
    start, end = all_of(source)
    assert ids_of(source, start, end) == names(9)
    assert source.latestOffset(end, ReadAllAvailable()) == end
    assert source.partitions(end, end) == []
    assert source.reportLatestOffset() == {**end, "lag": 0}
    limited = reader(redis_url, maxOffsetsPerTrigger=2)  # a read of all rows ignores the option
    assert ids_of(limited, *all_of(limited)) == names(9)


def test_bytes_bound_a_batch(redis_url: str, world: World):
    """By the mean of the first and the last entry; at least one comes."""
    ended(world, *names(9))
    size = world.driver.run(stream_ranges.measured([b"{req}:completed"]))[0]
    assert size is not None
    for most, count in ((1, 1), (size.size // 3, 3), (size.size, 9)):
        source = reader(redis_url, maxBytesPerTrigger=most)
        assert ids_of(source, *batch_of(source)) == names(count)
    source = reader(redis_url, maxBytesPerTrigger=size.size, maxOffsetsPerTrigger=2)
    assert ids_of(source, *batch_of(source)) == names(2)
    world.submit("r", 3, limit=1)
    world.work_off(most=1)
    source = reader(redis_url, request="r", maxBytesPerTrigger=1)
    assert len(rows_of(source, *batch_of(source))) == 1


def test_a_batch_waits_for_enough_rows_but_not_for_ever(redis_url: str, world: World):
    ended(world, *names(2))
    source = reader(redis_url, minOffsetsPerTrigger=3)
    start, end = batch_of(source)
    assert end == start
    ended(world, "r2")
    assert ids_of(source, *batch_of(source)) == names(3)
    assert batch_of(reader(redis_url, minOffsetsPerTrigger=9, maxTriggerDelay="0s"))[1] != start
    source = reader(redis_url, minOffsetsPerTrigger=9)
    source.prepareForTriggerAvailableNow()
    assert ids_of(source, *batch_of(source)) == names(3)
    world.submit("r", 8, limit=1)
    world.work_off(most=2)  # an entry of two results is not cut
    source = reader(redis_url, request="r", minOffsetsPerTrigger=3)
    assert len(rows_of(source, *batch_of(source))) == 8
    with pytest.raises(InvalidArgument, match=r"minOffsetsPerTrigger.* is 3, and more than"):
        reader(redis_url, minOffsetsPerTrigger=3, maxOffsetsPerTrigger=2)


def test_the_lag_is_what_lies_behind_the_last_batch(
    redis_url: str, world: World, monkeypatch: pytest.MonkeyPatch
):
    ended(world, *names(9))
    source = reader(redis_url, maxOffsetsPerTrigger=2)
    lags = []
    at = source.initialOffset()
    for _ in range(6):
        at = source.latestOffset(at, source.getDefaultReadLimit())
        lags.append((source.reportLatestOffset() or {})["lag"])
    assert lags == [7, 5, 3, 1, 0, 0]
    monkeypatch.setattr(stream_ranges, "PAGE", 2)
    source = reader(redis_url, maxOffsetsPerTrigger=2)
    batch_of(source)
    assert 2 <= (source.reportLatestOffset() or {})["lag"] <= 9


def test_an_empty_log_has_a_beginning(redis_url: str, world: World):
    source = reader(redis_url)
    start = source.initialOffset()
    assert source.latestOffset(start, ReadAllAvailable()) == start
    assert source.reportLatestOffset() is None
    ended(world, "r1")
    assert ids_of(source, start, source.latestOffset(start, ReadAllAvailable())) == ["r1"]


@pytest.mark.parametrize("most", [1, 2, 3, 7, 100])
def test_a_batch_has_no_more_rows_than_it_may(redis_url: str, world: World, most: int):
    ended(world, *names(7))
    source = reader(redis_url, maxOffsetsPerTrigger=most)
    limit = source.getDefaultReadLimit()
    assert limit == ReadMaxRows(most)
    at, seen = source.initialOffset(), []
    while (end := source.latestOffset(at, limit)) != at:
        found = ids_of(source, at, end)
        assert 0 < len(found) <= most
        seen += found
        at = end
    assert seen == names(7)


def test_latest_begins_after_the_existing_entries(redis_url: str, world: World):
    ended(world, "r1")
    source = reader(redis_url, startingOffsets="latest")
    start = source.initialOffset()
    ended(world, "r2")
    assert ids_of(source, start, source.latestOffset(start, ReadAllAvailable())) == ["r2"]


def test_a_place_in_the_log_can_be_named(redis_url: str, world: World):
    ended(world, *names(4))
    second = list(world.queue.completions("0", follow=False))[1].log_id
    source = reader(redis_url, startingOffsets=json.dumps({"completions:req": second}))
    assert ids_of(source, *all_of(source)) == ["r2", "r3"]


@pytest.mark.parametrize("text", ["first", "{}", '{"completions:req": "x"}', "[]", "5"])
def test_an_invalid_place_is_refused(redis_url: str, text: str):
    with pytest.raises(InvalidArgument, match="earliest, latest or"):
        reader(redis_url, startingOffsets=text)


def test_the_same_offsets_give_the_same_rows(redis_url: str, world: World):
    ended(world, *names(8))
    source = reader(redis_url, maxOffsetsPerTrigger=5)
    start, end = batch_of(source)
    first = rows_of(source, start, end)
    ended(world, *(f"later{n}" for n in range(8)))
    again = reader(redis_url, minPartitions=4)
    assert rows_of(again, json.loads(json.dumps(start)), json.loads(json.dumps(end))) == first
    assert [row["id"] for row in first] == names(5)


def test_a_read_of_the_existing_entries_has_an_end(redis_url: str, world: World):
    ended(world, *names(3))
    source = reader(redis_url)
    source.initialOffset()
    source.prepareForTriggerAvailableNow()
    ended(world, "later")
    start, end = all_of(source)
    assert ids_of(source, start, end) == names(3)
    assert source.latestOffset(end, ReadAllAvailable()) == end


def test_a_checkpoint_of_another_stream_is_refused(redis_url: str, world: World):
    ended(world, "r1")
    start = reader(redis_url).initialOffset()
    with pytest.raises(InvalidArgument, match="the checkpoint is of the stream completions:req"):
        reader(redis_url, queue="other").latestOffset(start, ReadAllAvailable())


@pytest.mark.parametrize("view", ["requests", "workers", "dead"])
def test_a_view_that_is_no_stream_is_refused(redis_url: str, view: str):
    with pytest.raises(InvalidArgument, match=f"the view {view} is no stream"):
        reader(redis_url, view=view)


# ------------------------------------------------------------------ results


def test_results_are_a_stream(redis_url: str, world: World):
    world.submit("r1", 2000, limit=1)
    source = reader(redis_url, request="r1", maxOffsetsPerTrigger=300)
    at, seen = source.initialOffset(), []
    while world.work_off(slices=3, most=100):
        while (end := source.latestOffset(at, source.getDefaultReadLimit())) != at:
            found = [row["index"] for row in rows_of(source, at, end)]
            assert 0 < len(found) <= 300
            seen += found
            at = end
    assert seen == list(range(2000))


def test_an_entry_of_results_is_not_cut(redis_url: str, world: World):
    world.submit("r1", 300, limit=1)
    world.work_off()
    source = reader(redis_url, request="r1", maxOffsetsPerTrigger=10)
    assert len(rows_of(source, *batch_of(source))) >= 10
    assert len(rows_of(source, *all_of(source))) == 300


def test_another_request_of_the_same_id_is_not_read(
    redis_url: str, world: World, redis_client: redis.Redis
):
    ended(world, "r1")
    source = reader(redis_url, request="r1")
    start = source.initialOffset()
    redis_client.delete(*redis_client.keys("*:{r1}"))
    redis_client.zrem("{req}:active", "r1")
    ended(world, "r1")
    with pytest.raises(DataLost, match="another one than before"):
        source.latestOffset(start, ReadAllAvailable())
    end = reader(redis_url, request="r1").reportLatestOffset()
    assert end is not None
    with pytest.raises(DataLost, match="another one than before"):
        source.partitions(start, end)


# ------------------------------------------------------------------ lost entries


def trim_log(redis_client: redis.Redis, count: int) -> None:
    redis_client.xtrim(LOG, maxlen=count, approximate=False)


def test_entries_that_left_before_their_read_raise(
    redis_url: str, world: World, redis_client: redis.Redis
):
    ended(world, *names(6))
    source = reader(redis_url, maxOffsetsPerTrigger=2)
    start, end = batch_of(source)
    trim_log(redis_client, 5)  # the last one read is there
    later = source.latestOffset(end, ReadAllAvailable())
    assert ids_of(source, end, later) == names(6)[2:]
    trim_log(redis_client, 4)
    with pytest.raises(DataLost, match="completions:req has lost entries"):
        source.partitions(start, end)
    with pytest.raises(DataLost, match="failOnDataLoss"):
        source.latestOffset(end, source.getDefaultReadLimit())


def test_entries_that_leave_during_their_read_raise(
    redis_url: str, world: World, redis_client: redis.Redis
):
    ended(world, *names(6))
    source = reader(redis_url)
    (part,) = source.partitions(*all_of(source))
    lenient = reader(redis_url, failOnDataLoss="false")
    start = lenient.initialOffset()
    trim_log(redis_client, 2)
    with pytest.raises(DataLost):
        list(source.read(part))
    assert ids_of(lenient, start, lenient.latestOffset(start, ReadAllAvailable())) == ["r4", "r5"]


def test_a_deleted_log_raises(redis_url: str, world: World, redis_client: redis.Redis):
    ended(world, "r1")
    source = reader(redis_url)
    start, end = all_of(source)
    redis_client.delete(LOG)
    with pytest.raises(DataLost, match="the log is empty by now"):
        source.partitions(start, end)
    with pytest.raises(DataLost, match="the log is empty by now"):
        source.latestOffset(end, ReadAllAvailable())
    lenient = reader(redis_url, failOnDataLoss="false")
    assert lenient.latestOffset(end, ReadAllAvailable()) == end


@pytest.mark.parametrize("later", [0, 1])
def test_a_log_whose_end_a_failover_took_back_is_an_error(
    redis_url: str, world: World, redis_client: Any, later: int
):
    """The new primary's clock is behind, so new ends come before the position of the query."""
    ended(world, *names(3))
    source = reader(redis_url)
    _, end = all_of(source)
    (_, fields), *_ = redis_client.xrevrange(LOG)
    ms = int(end["completions:req"].split("-")[0])
    redis_client.delete(LOG)
    for moment in (ms - 60_000, ms + 60_000)[: 1 + later]:
        redis_client.xadd(LOG, fields, id=f"{moment}-7")
    with pytest.raises(DataLost, match="failover"):
        source.latestOffset(end, ReadAllAvailable())


def test_results_whose_end_a_failover_took_back_are_an_error(
    redis_url: str, world: World, redis_client: Any
):
    """The request continues, and its new results come before the position of the query."""
    world.submit("r1", 6, limit=1)
    world.work_off(slices=3, most=1)
    source = reader(redis_url, request="r1")
    _, end = all_of(source)
    (first, fields), *_ = redis_client.xrange("out:{r1}")
    redis_client.delete("out:{r1}")
    with pytest.raises(DataLost, match="the results end at 0-0"):
        source.latestOffset(end, ReadAllAvailable())
    redis_client.xadd("out:{r1}", fields, id=first)
    with pytest.raises(DataLost, match="failover"):
        source.latestOffset(end, ReadAllAvailable())


def test_a_moment_can_be_named(redis_url: str, world: World, redis_client: redis.Redis):
    """The query begins at the first end that is not older; its loss is detected."""
    ended(world, *names(3))
    first, *_ = list(world.queue.completions("0", follow=False))
    moment = int(first.log_id.split("-")[0]) - 5
    source = reader(redis_url, startingOffsets=json.dumps({"completions:req": str(moment)}))
    start, end = all_of(source)
    assert ids_of(source, start, end) == names(3)
    trim_log(redis_client, 2)
    with pytest.raises(DataLost):
        source.partitions(start, end)
    later = json.dumps({"completions:req": str(moment + 3_600_000)})
    begun = reader(redis_url, startingOffsets=later).initialOffset()
    assert begun["completions:req"] == end["completions:req"]


def test_a_query_holds_what_it_has_not_read(
    redis_url: str, world: World, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
):
    """A query that starts again from its checkpoint has the same mark, which it moves."""
    monkeypatch.setattr(settings, "LOG_ENTRIES", 1)
    ended(world, *names(5))
    start, end = batch_of(reader(redis_url, maxOffsetsPerTrigger=2))
    marks: Any = redis_client.hgetall(keys.log_readers("req"))
    (name,) = marks
    assert name.decode() == start["reader"] == end["reader"]
    redis_client.config_set("stream-node-max-entries", 1)
    world.driver.run(trim("req"))
    redis_client.config_set("stream-node-max-entries", 100)
    assert ids_of(reader(redis_url), start, end) == ["r0", "r1"]
    again = reader(redis_url)
    later = again.latestOffset(json.loads(json.dumps(end)), ReadAllAvailable())
    assert later["reader"] == end["reader"]
    marks = redis_client.hgetall(keys.log_readers("req"))
    assert {key: text.split()[0].decode() for key, text in marks.items()} == {
        name: end["completions:req"]
    }
    assert ids_of(again, end, later) == ["r2", "r3", "r4"]
    redis_client.delete(keys.log_readers("req"))


# ------------------------------------------------------------------ in Spark


def run(spark: SparkSession, url: str, folder: Path, **options: Any) -> list[Any]:
    """Reads all that is there now, once, to Parquet; returns the rows so far."""
    source = spark.readStream.format("fairlane").option("redis", url)
    for name, value in options.items():
        source = source.option(name, value)
    query = (
        source.load()
        .writeStream.format("parquet")
        .option("path", str(folder / "out"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    batches = [progress["numInputRows"] for progress in query.recentProgress]
    return [batches, spark.read.parquet(str(folder / "out")).collect()]


@pytest.mark.rest
def test_a_query_goes_on_where_it_was(
    spark: SparkSession, redis_url: str, world: World, tmp_path: Path, redis_client: redis.Redis
):
    """It continues after a clean stop, after an uncommitted batch, and after a loss of entries."""
    ended(world, *names(5))
    batches, rows = run(spark, redis_url, tmp_path, maxOffsetsPerTrigger=2, minPartitions=3)
    assert [count for count in batches if count] == [2, 2, 1]
    assert sorted(row.id for row in rows) == names(5)
    forget_commit(tmp_path / "checkpoint")
    ended(world, "r5")
    _, rows = run(spark, redis_url, tmp_path, maxOffsetsPerTrigger=2)
    assert sorted(row.id for row in rows) == names(6)
    ended(world, "gone", "r7")
    trim_log(redis_client, 1)
    with pytest.raises(Exception, match="has lost entries that were not read yet"):
        run(spark, redis_url, tmp_path)
    _, rows = run(spark, redis_url, tmp_path, failOnDataLoss="false")
    assert sorted(row.id for row in rows) == [*names(6), "r7"]


class Noting(StreamMetrics):
    """Keeps what it showed after each micro-batch."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[StreamState] = []
        self.texts: list[str] = []

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802  Spark's name
        super().onQueryProgress(event)
        self.seen += self.states.values()
        self.texts.append(self.text())


def test_results_stream_in_spark(spark: SparkSession, redis_url: str, world: World, tmp_path: Path):
    world.submit("r1", 500, limit=1)
    world.work_off(most=50, slices=4)
    metrics = Noting()
    spark.streams.addListener(metrics)
    _, rows = run(spark, redis_url, tmp_path, request="r1", maxOffsetsPerTrigger=100)
    assert sorted(row["index"] for row in rows) == list(range(200))
    wait_until(lambda: not metrics.states and len(metrics.seen) >= 2)
    spark.streams.removeListener(metrics)
    assert [(one.rows, one.batch, one.lag) for one in metrics.seen[:2]] == [
        (100, 0, 2),
        (200, 1, 0),
    ]
    assert metrics.seen[1].txn.endswith(":1")
    assert re.search(r'fairlane_stream_rows_total\{query="[^"]+"\} 100\n', metrics.texts[0])
    world.work_off()
    _, rows = run(spark, redis_url, tmp_path, request="r1", minPartitions=3)
    assert sorted(row["index"] for row in rows) == list(range(500))
