"""Tests that an archive holds each end and each result once, wherever it was stopped."""

from __future__ import annotations

import os
import shutil
import signal
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

pytest.importorskip("pyspark")

from fairlane.drivers.sync import SyncDriver
from fairlane.errors import DataLost, InvalidArgument
from fairlane.spark import archive as archive_module
from fairlane.spark import archive as reader
from fairlane.spark import archive as tables
from fairlane.spark.archive import Archived, archive
from fairlane.spark.commands.archive import command
from tests.spark.worlds import World, forget_commit

if TYPE_CHECKING:
    from pathlib import Path

    import redis
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("lean")


@pytest.fixture
def world(driver: SyncDriver) -> World:
    return World(driver)


class Made:
    """r0 to r4 and their archive in three batches: made once, restored for each test."""

    def __init__(self, spark: SparkSession, url: str, client: redis.Redis, folder: Path) -> None:
        with closing(SyncDriver(url)) as driver:
            ended(World(driver), 0, 5)
        self.folder = folder
        self.done = archive(spark, url, str(folder), most=2)
        names = list(client.scan_iter())
        self.keys = [(key, max(0, client.pttl(key)), client.dump(key) or b"") for key in names]

    def put(self, client: redis.Redis, folder: Path) -> None:
        """Restores them into a Redis that is empty, and a folder that does not exist."""
        client.flushdb()
        for key, ttl_ms, value in self.keys:
            client.restore(key, ttl_ms, value)
        shutil.copytree(self.folder, folder)


@pytest.fixture(scope="module")
def kept() -> list[Made]:
    """Returns what `archived` has made."""
    return []


@pytest.fixture
def archived(
    kept: list[Made],
    spark: SparkSession,
    redis_url: str,
    redis_client: redis.Redis,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """Returns the folder of an archive of r0 to r4, which are in Redis."""
    if not kept:
        folder = tmp_path_factory.mktemp("made") / "archive"
        kept.append(Made(spark, redis_url, redis_client, folder))
    kept[0].put(redis_client, tmp_path / "archive")
    return tmp_path / "archive"


def ended(world: World, low: int, high: int) -> None:
    """Makes requests r<low> to r<high - 1>, of 20 sub-requests, of which two die."""
    for n in range(low, high):
        world.submit(f"r{n}", 20, priority=n % 3, limit=2)
        world.work_off(dead=[3, 11], most=8)


def check(spark: SparkSession, folder: Path, count: int) -> None:
    """Checks that the archive holds r0 to r<count - 1> once, completely."""
    ids = [f"r{n}" for n in range(count)]
    for name, columns, expected in (
        ("requests", ["id"], [(one,) for one in ids]),
        ("results", ["request", "index"], [(one, index) for one in ids for index in range(20)]),
        ("dead", ["request", "index"], [(one, index) for one in ids for index in (3, 11)]),
    ):
        table = tables.read_table(spark, str(folder), name)
        assert table is not None
        assert sorted(map(tuple, table.select(*columns).collect())) == sorted(expected)


def test_what_ended_is_archived_once(
    spark: SparkSession, redis_url: str, world: World, archived: Path, kept: list[Made]
):
    expected = Archived(batches=3, requests=5, results=100, dead=10, missing=0, skipped=0)
    assert kept[0].done == expected
    check(spark, archived, 5)
    assert archive(spark, redis_url, str(archived)) == Archived()
    ended(world, 5, 7)
    seen: list[Archived] = []
    assert archive(spark, redis_url, str(archived), on_batch=seen.append).requests == 2
    assert [one.requests for one in seen] == [2]
    check(spark, archived, 7)


@pytest.mark.rest
def test_rows_are_what_the_queue_reports(spark: SparkSession, world: World, archived: Path):
    def read(name: str, where: str) -> list[Any]:
        return list(spark.read.parquet(str(archived / name)).where(where).collect())

    results = {one.index: one for one in world.queue.request("r0").results()}
    rows = read("results", "request = 'r0'")
    assert len(rows) == 20
    for row in rows:
        one = results[row["index"]]
        body = None if row.result is None else bytes(row.result)
        assert (row.request, row.status, body, row.error) == ("r0", one.status, one.body, one.error)
        assert (row.attempt, row.worker, row.ran_ms) == (one.attempt, one.worker, one.ran_ms)
        assert (row.priority, str(row.date)) == (0, f"{row.settled:%Y-%m-%d}")
    (row,) = read("requests", "id = 'r0'")
    assert (row.id, row.limit, row.total, row.dead, row.results) == ("r0", 2, 20, 2, 20)
    bodies = sorted(bytes(row.body) for row in read("dead", "request = 'r0'"))
    assert bodies == [b"11", b"3"]
    (row,) = read("batches", "batch = 0")
    assert (row.batch, row.requests, row.results, row.dead, row.missing) == (0, 2, 40, 4, 0)


@pytest.mark.rest
def test_a_batch_whose_commit_was_lost_is_not_written_twice(
    spark: SparkSession, redis_url: str, archived: Path
):
    forget_commit(archived / "_checkpoint")
    done = archive(spark, redis_url, str(archived), most=2)
    assert (done.batches, done.skipped) == (0, 1)
    check(spark, archived, 5)


STEPS = [
    "results",
    pytest.param("dead", marks=pytest.mark.heavy),
    pytest.param("requests", marks=pytest.mark.heavy),
    "mark",
]


@pytest.mark.rest
@pytest.mark.parametrize("stop", STEPS)
def test_an_archive_that_stopped_within_a_batch_goes_on(
    spark: SparkSession,
    redis_url: str,
    world: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stop: str,
):
    """It stops after each table of the second batch, and before the batch is marked as finished."""
    ended(world, 0, 3)
    calls = {"count": 0}
    name = "write_mark" if stop == "mark" else "write_table"
    real = getattr(tables, name)
    nth = {"results": 4, "dead": 5, "requests": 6}.get(stop, 2)  # three tables a batch

    def stopping(*args: Any) -> Any:
        calls["count"] += 1
        if stop == "mark" and calls["count"] == nth:
            raise InterruptedError("stopped")
        found = real(*args)
        if calls["count"] == nth:
            raise InterruptedError("stopped")
        return found

    monkeypatch.setattr(tables, name, stopping)
    with pytest.raises(Exception, match="stopped"):
        archive(spark, redis_url, str(tmp_path), most=2)
    assert calls["count"] == nth
    monkeypatch.undo()
    done = archive(spark, redis_url, str(tmp_path), most=2)
    assert (done.batches, done.requests) == (1, 1)
    check(spark, tmp_path, 3)


@pytest.mark.rest
def test_without_results_only_the_endings_are_archived(
    spark: SparkSession, redis_url: str, world: World, tmp_path: Path
):
    ended(world, 0, 2)
    done = archive(spark, redis_url, str(tmp_path), results=False)
    assert done == Archived(batches=1, requests=2)
    assert {path.name for path in tmp_path.iterdir()} == {"_checkpoint", "batches", "requests"}


@pytest.mark.rest
def test_results_that_have_left_redis_are_counted_as_missing(
    spark: SparkSession, redis_url: str, world: World, tmp_path: Path, redis_client: redis.Redis
):
    ended(world, 0, 2)
    redis_client.delete(*redis_client.keys("*:{r0}"))
    done = archive(spark, redis_url, str(tmp_path))
    assert done == Archived(batches=1, requests=2, results=20, dead=2, missing=20)
    rows = {row.id: row for row in spark.read.parquet(str(tmp_path / "requests")).collect()}
    assert (rows["r0"].limit, rows["r0"].results) == (None, 0)
    assert (rows["r1"].limit, rows["r1"].results) == (2, 20)


@pytest.mark.rest
def test_an_invalid_queue_another_checkpoint_and_lost_endings_are_refused(
    spark: SparkSession,
    redis_url: str,
    world: World,
    tmp_path: Path,
    archived: Path,
    redis_client: redis.Redis,
):
    with pytest.raises(InvalidArgument, match="queue 'a b' is not valid"):
        archive(spark, redis_url, str(archived), queue="a b")
    with pytest.raises(InvalidArgument, match="holds other endings as batch 0"):
        archive(spark, redis_url, str(archived), checkpoint=str(tmp_path / "new"))
    ended(world, 5, 8)
    checkpoint, other = str(archived / "_checkpoint"), str(tmp_path / "other")
    with pytest.raises(InvalidArgument, match="does not hold the one before"):
        archive(spark, redis_url, other, checkpoint=checkpoint)
    check(spark, archived, 5)
    redis_client.xtrim("{req}:completed", maxlen=1, approximate=False)
    with pytest.raises(DataLost, match="has lost entries that were not read yet"):
        archive(spark, redis_url, str(archived))
    assert archive(spark, redis_url, str(archived), fail_on_data_loss=False).requests == 1


@pytest.mark.rest
@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (["--every", "soon"], "--every: 'soon' is not a duration"),
        (["--every", "10ms"], "--every 10ms is too short"),
        (["--batch", "0"], "x>=1"),
    ],
)
def test_an_interval_and_a_batch_that_cannot_be_are_refused(given: list[str], sentence: str):
    """They are refused before Spark starts."""
    ran = CliRunner().invoke(command, ["archive", *given])
    assert ran.exit_code != 0
    assert sentence in f"{ran.output}{ran.exception}"


@pytest.mark.rest
def test_a_batch_of_no_endings_is_refused(spark: SparkSession, redis_url: str, tmp_path: Path):
    with pytest.raises(InvalidArgument, match="most 0 is not valid"):
        archive(spark, redis_url, str(tmp_path), most=0)


@pytest.mark.rest
def test_a_later_request_of_an_id_is_not_archived_as_the_earlier_one(
    spark: SparkSession, redis_url: str, world: World, tmp_path: Path, redis_client: redis.Redis
):
    """Its results are those of another ending; those of the earlier one are missing."""
    world.submit("r0", 70)
    world.work_off()
    world.submit("r1", 3)
    world.work_off()
    for name in ("r0", "r1"):
        redis_client.delete(*redis_client.keys(f"*:{{{name}}}"))
        world.submit(name, 5)
    done = archive(spark, redis_url, str(tmp_path))
    assert (done.requests, done.results, done.missing) == (2, 0, 73)


@pytest.mark.rest
def test_rows_of_an_attempt_that_stopped_are_counted_when_their_results_are_gone(
    spark: SparkSession,
    redis_url: str,
    world: World,
    tmp_path: Path,
    redis_client: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
):
    ended(world, 0, 2)

    def stops(*_: Any) -> None:
        raise InterruptedError("stopped")

    monkeypatch.setattr(tables, "write_mark", stops)
    with pytest.raises(Exception, match="stopped"):
        archive(spark, redis_url, str(tmp_path))
    monkeypatch.undo()
    redis_client.delete(*redis_client.keys("*:{r[01]}"))
    done = archive(spark, redis_url, str(tmp_path))
    assert done == Archived(batches=1, requests=2, results=40, dead=4, missing=0)
    check(spark, tmp_path, 2)


@pytest.mark.rest
def test_two_lives_of_an_id_in_one_batch_have_counts_of_their_own(
    spark: SparkSession, redis_url: str, world: World, tmp_path: Path, redis_client: redis.Redis
):
    for count, limit in ((5, 1), (3, 2)):
        redis_client.delete(*redis_client.keys("*:{r0}"), "unused")
        world.submit("r0", count, limit=limit)
        world.work_off()
    done = archive(spark, redis_url, str(tmp_path))
    assert (done.requests, done.results, done.missing) == (2, 3, 5)
    rows = spark.read.parquet(str(tmp_path / "requests")).collect()
    assert sorted((row.total, row.limit, row.results) for row in rows) == [(3, 2, 3), (5, None, 0)]


@pytest.mark.rest
def test_each_ending_costs_one_read_of_its_results_and_one_of_its_record(
    spark: SparkSession, redis_url: str, world: World, tmp_path: Path, redis_client: redis.Redis
):
    count = 40
    for n in range(count):
        world.submit(f"r{n}", 1)
    world.work_off(dead=[0])
    redis_client.config_resetstat()
    done = archive(spark, redis_url, str(tmp_path))
    assert (done.results, done.dead) == (count, count)
    calls = {name: row["calls"] for name, row in redis_client.info("commandstats").items()}
    # Each request also has a dead letter, with a record; they all have one text of an error.
    assert calls["cmdstat_hmget"] <= 2 * count + 5
    assert calls["cmdstat_xrange"] <= 2 * count + 20
    errors = {row.error for row in spark.read.parquet(str(tmp_path / "dead")).collect()}
    errors |= {row.error for row in spark.read.parquet(str(tmp_path / "results")).collect()}
    assert errors == {"it is rejected"}


@pytest.mark.rest
def test_a_large_request_and_one_without_results_are_archived_beside_small_ones(
    spark: SparkSession, redis_url: str, world: World, tmp_path: Path
):
    world.submit("large", 150, limit=3)
    world.work_off(dead=range(70))
    world.submit("small", 2, limit=4)
    world.work_off(dead=[1])
    world.submit("none", 2, limit=5)
    world.queue.request("none").cancel()
    done = archive(spark, redis_url, str(tmp_path))
    assert (done.requests, done.results, done.dead, done.missing) == (3, 152, 71, 0)
    rows = spark.read.parquet(str(tmp_path / "requests")).collect()
    found = {row.id: (row.limit, row.results, row.dead, row.cancelled) for row in rows}
    assert found == {"large": (3, 150, 70, 0), "small": (4, 2, 1, 0), "none": (5, 0, 0, 2)}


@pytest.mark.rest
def test_a_repeated_task_counts_once(
    spark: SparkSession, redis_url: str, world: World, tmp_path: Path
):
    ended(world, 0, 2)
    born = {one.id: one.submitted_ms for one in world.queue.completions("0", follow=False)}
    parts = [(name, 5, submitted_ms, 20, "-", "+") for name, submitted_ms in born.items()]
    counts = reader.counts_of(spark)
    read = reader.results_of(redis_url, 0, counts)
    failed = tmp_path / "failed"

    def fails_once(batches: Any) -> Any:
        yield from read(batches)
        if not failed.exists():
            failed.touch()
            raise OSError("the executor is lost")

    frame = spark.createDataFrame(parts, tables.PARTS).coalesce(1)
    rows = frame.mapInArrow(fails_once, tables.written("results"))
    tables.write_table(rows, str(tmp_path), "results")
    assert failed.exists()
    found = reader.counted(counts.value)
    assert sorted(found.column("rows").to_pylist()) == [20, 20]


@pytest.mark.rest
def test_an_archive_on_spark_connect_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(archive_module, "is_remote", lambda: True)
    with pytest.raises(InvalidArgument, match="cannot be written on Spark Connect"):
        archive(None, "redis://localhost", "out")  # type: ignore[arg-type]


@pytest.mark.heavy  # and what it interrupts is not this thread's again
def test_an_archive_that_follows_goes_on_until_an_interrupt(
    spark: SparkSession, redis_url: str, world: World, tmp_path: Path
):
    ended(world, 0, 1)

    def more(done: Archived) -> None:
        if done.batches == 1:
            ended(world, 1, 2)
        else:
            os.kill(os.getpid(), signal.SIGINT)

    done = archive(spark, redis_url, str(tmp_path), follow=True, every_s=0.2, on_batch=more)
    assert (done.batches, done.requests) == (2, 2)
    check(spark, tmp_path, 2)
