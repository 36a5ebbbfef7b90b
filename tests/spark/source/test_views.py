"""Tests every view that Spark reads: complete, in parts, and filtered."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.datasource import EqualTo, In
from pyspark.sql.types import StructType

from fairlane.errors import InvalidArgument, RequestLost, RequestNotFound
from fairlane.operations import workers
from fairlane.spark.data_source import FairlaneSource
from fairlane.spark.source import views
from tests.spark.worlds import World
from tests.support.servers import backends

if TYPE_CHECKING:
    from collections.abc import Callable

    import redis
    from pyspark.sql import SparkSession

    from fairlane.drivers.sync import SyncDriver


pytestmark = pytest.mark.parametrize("redis_server", backends.one(), indirect=True)
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture
def world(driver: SyncDriver) -> World:
    return World(driver)


def planned(url: str, **options: Any) -> tuple[Any, Any]:
    """Returns the reader as Spark makes it, without Spark, and its parts."""
    source = FairlaneSource({"redis": url, **{name: str(value) for name, value in options.items()}})
    reader = source.reader(source.schema())
    return reader, reader.partitions()


def rows_of(reader: Any, parts: Any) -> list[dict[str, Any]]:
    return [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]


def read(url: str, **options: Any) -> list[dict[str, Any]]:
    return rows_of(*planned(url, **options))


def load(spark: SparkSession, url: str, schema: str = "", **options: Any) -> Any:
    reader = spark.read.format("fairlane").option("redis", url)
    for name, value in options.items():
        reader = reader.option(name, value)
    return (reader.schema(schema) if schema else reader).load()


# ------------------------------------------------------------------ results


def test_results_are_those_that_python_reads(redis_url: str, world: World):
    world.submit("r1", 3000)
    world.work_off(dead=range(0, 3000, 100), most=37)
    rows = sorted(read(redis_url, request="r1", minPartitions=7), key=lambda row: row["index"])
    results = sorted(world.queue.request("r1").results("done"), key=lambda result: result.index)
    names = ("index", "status", "error", "worker", "waited_ms", "ran_ms")
    assert [tuple(row[name] for name in names) for row in rows] == [
        tuple(getattr(result, name) for name in names) for result in results
    ]
    assert [row["result"] for row in rows] == [result.body for result in results]
    done = rows[8]
    assert (done["status"], done["result"], done["attempt"]) == ("done", b"done 8", 1)
    assert (done["worker"], done["waited_ms"], done["ran_ms"]) == ("w:1", 2, 1.5)
    dead = rows[100]
    assert (dead["status"], dead["result"], dead["error"]) == ("dead", None, "it is rejected")


def test_a_slice_ran_from_its_start_to_when_it_was_settled(
    redis_url: str, world: World, redis_client: redis.Redis
):
    """A slice of 700 takes two entries of `out`, which almost always bear the same millisecond."""
    for request_id in map("r{}".format, range(20)):
        world.submit(request_id, 700, limit=1)
        world.work_off()
        entries: Any = redis_client.xrange(f"out:{{{request_id}}}")
        if len({entry_id.partition(b"-")[0] for entry_id, _ in entries}) == 1:
            break
    assert len(entries) > 1
    rows = sorted(read(redis_url, request=request_id), key=lambda row: row["index"])
    assert len({row["settled"] for row in rows}) == 1
    for row, left in zip(rows, range(700, 0, -1), strict=True):
        assert row["settled"] - row["started"] == timedelta(microseconds=1500 * left)
        assert row["total_ms"] == pytest.approx(2 + 1.5 * (row["index"] + 1))


def some_of(url: str, columns: str, *filters: Any, **options: Any) -> list[dict[str, Any]]:
    """Reads some columns of the rows that meet conditions, as Spark pushes them down."""
    source = FairlaneSource({"redis": url, **{name: str(value) for name, value in options.items()}})
    wanted = StructType([field for field in source.schema() if field.name in columns.split()])
    reader = source.reader(wanted)
    assert list(reader.pushFilters(list(filters))) == []
    return rows_of(reader, reader.partitions())


def sent_by(client: redis.Redis, call: Callable[[], Any]) -> int:
    """Returns how many bytes Redis sends during a call."""
    before = client.info("stats")["total_net_output_bytes"]
    call()
    return int(client.info("stats")["total_net_output_bytes"] - before)


HEADS = "index status attempt worker waited_ms ran_ms total_ms started settled"


def test_columns_without_bodies_are_the_same(redis_url: str, world: World):
    world.submit("r1", 3000)
    world.work_off(dead=range(0, 3000, 100), most=700)
    rows = read(redis_url, request="r1")
    assert some_of(redis_url, HEADS, request="r1") == [
        {name: row[name] for name in row if name in HEADS.split()} for row in rows
    ]


@pytest.mark.parametrize("columns", [HEADS, f"{HEADS} result error"])
def test_a_condition_on_the_index_finds_the_row_as_it_is(
    redis_url: str, world: World, columns: str
):
    """The time of its start depends on the other rows of its slice, which are left out."""
    world.submit("r1", 3000)
    world.work_off(dead=[1700], most=700)
    rows = {row["index"]: row for row in read(redis_url, request="r1")}
    for wanted in (0, 1700, 2999):
        (row,) = some_of(redis_url, columns, EqualTo(("index",), wanted), request="r1")
        assert row == {name: rows[wanted][name] for name in row}
    assert some_of(redis_url, columns, EqualTo(("index",), 3000), request="r1") == []
    found = some_of(redis_url, columns, In(("index",), (5, 2500)), request="r1")
    assert {row["index"] for row in found} == {5, 2500}
    dead = some_of(redis_url, columns, EqualTo(("status",), "dead"), request="r1")
    assert [row["index"] for row in dead] == [1700]
    text = some_of(redis_url, columns, EqualTo(("error",), "it is rejected"), request="r1")
    assert [row["index"] for row in text] == [1700]


def test_bodies_that_are_not_wanted_stay_in_redis(
    redis_url: str, world: World, redis_client: redis.Redis
):
    """That is so for columns without them, a condition on the index, and the count of a batch."""
    size = 100_000
    world.submit("r1", 1)
    for n in range(40):
        redis_client.xadd("out:{r1}", {"w": "w:1", f"{n}:d:1:2:1500": b"x" * size}, id=f"{n + 1}-0")
    everything = sent_by(redis_client, lambda: read(redis_url, request="r1"))
    assert everything > 40 * size
    heads = sent_by(redis_client, lambda: some_of(redis_url, HEADS, request="r1"))
    chosen = EqualTo(("index",), 30)
    one = sent_by(redis_client, lambda: some_of(redis_url, "index result", chosen, request="r1"))
    # The plan and the check after the read look at the first and the last entry.
    assert heads < 10 * size
    assert one < 10 * size
    source = FairlaneSource({"redis": redis_url, "request": "r1", "maxOffsetsPerTrigger": "10"})
    stream = source.streamReader(source.schema())
    start = stream.initialOffset()
    ends: list[Any] = []
    limit = stream.getDefaultReadLimit()
    planned = sent_by(redis_client, lambda: ends.append(stream.latestOffset(start, limit)))
    assert planned < 10 * size
    assert ends[0]["results:r1"] == "10-0"


def test_the_first_page_of_a_read_is_small(redis_url: str, world: World, redis_client: redis.Redis):
    """A query that wants one row ends its read after the first page."""
    world.submit("r1", 1)
    for n in range(200):
        redis_client.xadd("out:{r1}", {"w": "w:1", f"{n}:d:1:2:1": b"x" * 100}, id=f"{n + 1}-0")
    reader, parts = planned(redis_url, request="r1")
    pages = [batch.num_rows for batch in reader.read(parts[0])]
    assert pages[0] <= 4
    assert sum(pages) == 200


def test_results_are_read_in_parts_by_rows_and_by_bytes(
    redis_url: str, world: World, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
):
    """Each part is a Spark task, so many small entries make no more of them."""
    world.submit("r1", 2000)
    world.work_off(most=2)
    assert redis_client.xlen("out:{r1}") >= 1000
    assert len(planned(redis_url, request="r1")[1]) == 1
    monkeypatch.setattr(views, "ROWS", 700)
    assert len(planned(redis_url, request="r1")[1]) == 3
    monkeypatch.setattr(views, "ROWS", 100_000)
    monkeypatch.setattr(views, "BYTES", 10_000)
    assert len(planned(redis_url, request="r1")[1]) > 2
    assert len(planned(redis_url, request="r1", minPartitions=2)[1]) == 2


@pytest.mark.rest
def test_results_of_a_running_request_are_those_so_far(
    spark: SparkSession, redis_url: str, world: World
):
    world.submit("r1", 100, limit=1)
    assert read(redis_url, request="r1") == []
    world.work_off(most=30, slices=1)
    frame = load(spark, redis_url, request="r1")
    assert frame.count() == 30
    world.work_off(most=30, slices=1)
    assert frame.count() == 30, "the first look fixes what a frame reads"
    assert len(read(redis_url, request="r1")) == 60


def test_parts_together_are_the_whole(redis_url: str, world: World):
    for n in range(20):
        world.submit(f"r{n}", 60)
    world.work_off(most=7)
    for parts in (1, 3, 50):
        rows = read(redis_url, request="r3", minPartitions=parts)
        assert sorted(row["index"] for row in rows) == list(range(60))
        log = read(redis_url, minPartitions=parts)
        assert sorted(row["id"] for row in log) == sorted(f"r{n}" for n in range(20))


# ------------------------------------------------------------------ results that expire meanwhile


@pytest.mark.parametrize("gone", ["the request", "its results", "replaced"])
def test_expired_results_raise_and_are_not_shown_as_no_rows(
    redis_url: str, world: World, redis_client: redis.Redis, gone: str
):
    world.submit("r1", 50)
    world.work_off()
    reader, parts = planned(redis_url, request="r1", minPartitions=3)
    assert len(rows_of(reader, parts)) == 50
    redis_client.delete("out:{r1}" if gone == "its results" else "req:{r1}", "out:{r1}")
    if gone == "replaced":
        redis_client.delete(*redis_client.keys("*:{r1}") or ["none"])
        world.submit("r1", 50)
        world.work_off()
    with pytest.raises(RequestLost, match="results of request r1 are not there any more"):
        rows_of(reader, parts)
    if gone == "its results":
        with pytest.raises(RequestLost, match="they have left Redis"):
            reader.partitions()


def test_born_selects_one_life_of_an_id(redis_url: str, world: World, redis_client: redis.Redis):
    world.submit("r1", 5)
    world.work_off()
    born = world.queue.request("r1").progress().submitted_ms
    assert len(read(redis_url, request="r1", born=born)) == 5
    with pytest.raises(RequestLost, match="another request has its id"):
        planned(redis_url, request="r1", born=born + 1)
    with pytest.raises(InvalidArgument, match="goes with the view results"):
        planned(redis_url, view="requests", born=born)
    redis_client.delete(*redis_client.keys("*:{r1}"))
    with pytest.raises(RequestLost, match="not there any more: the request is gone"):
        planned(redis_url, request="r1", born=born)
    with pytest.raises(RequestNotFound, match="there is no request r1"):
        planned(redis_url, request="r1")


def test_dead_that_are_requeued_meanwhile_are_no_loss(redis_url: str, world: World):
    world.submit("r1", 9, limit=1)
    world.work_off(dead=[0, 1], most=2, slices=1)
    reader, parts = planned(redis_url, request="r1")
    assert [row["status"] for row in rows_of(reader, parts)] == ["dead", "dead"]
    world.queue.request("r1").requeue_dead()
    assert rows_of(reader, parts) == []
    world.work_off()
    assert rows_of(reader, parts) == [], "the plan fixes what it reads: these came later"
    assert [row["status"] for row in read(redis_url, request="r1")] == ["done"] * 9


# ------------------------------------------------------------------ the other views


def test_completions_are_the_log(redis_url: str, world: World):
    for n in range(3):
        world.submit(f"r{n}", 10 * n + 1, priority=n)
    world.work_off(dead=[0])
    names = ("log_id", "id", "state", "priority", "total", "done", "dead")
    rows = [tuple(row[name] for name in names) for row in read(redis_url)]
    log = world.queue.completions("0", follow=False)
    assert sorted(rows) == [tuple(getattr(ending, name) for name in names) for ending in log]
    assert sorted(row[1] for row in rows) == ["r0", "r1", "r2"]


def test_requests_are_those_in_the_log_and_those_that_still_run(redis_url: str, world: World):
    world.submit("ended", 5, limit=2)
    world.work_off(dead=[1])
    world.submit("runs", 9, priority=7, limit=4)
    world.work_off(most=3, slices=1)
    rows = {row["id"]: row for row in read(redis_url, view="requests")}
    names = ("state", "limit", "total", "done", "dead")
    assert {id: tuple(row[name] for name in names) for id, row in rows.items()} == {  # noqa: A001
        "ended": ("done", 2, 5, 4, 1),
        "runs": ("active", 4, 9, 3, 0),
    }
    assert (rows["runs"]["held"], rows["runs"]["ended"]) == (0, None)
    assert rows["runs"]["submitted"] is not None


def test_dead_sub_requests_come_with_reason_and_body(redis_url: str, world: World):
    world.submit("r1", 50)
    world.submit("r2", 50)
    world.work_off(dead=[3, 40])
    rows = sorted(read(redis_url, view="dead", request="r1"), key=lambda row: row["index"])
    assert [(row["index"], row["reason"], row["body"]) for row in rows] == [
        (3, "rejected", b"3"),
        (40, "rejected", b"40"),
    ]
    assert rows[0]["fingerprint"] == next(iter(world.queue.request("r1").dead())).fingerprint
    every = sorted((row["request"], row["index"]) for row in read(redis_url, view="dead"))
    assert every == [("r1", 3), ("r1", 40), ("r2", 3), ("r2", 40)]


def register(driver: SyncDriver) -> None:
    driver.run(workers.register_worker("req", "host:1234", "host", 99, "1700000000000"))


def test_workers_are_those_that_beat(redis_url: str, driver: SyncDriver):
    register(driver)
    (row,) = read(redis_url, view="workers")
    assert (row["worker"], row["host"], row["pid"]) == ("host:1234", "host", 99)
    assert read(redis_url, view="workers", queue="other") == []


def test_spark_shows_the_rows_of_every_view_unchanged(
    spark: SparkSession, redis_url: str, world: World
):
    world.submit("r1", 20)
    world.work_off(dead=[3], most=4)
    world.submit("r2", 2)
    register(world.driver)
    views = {"completions": 1, "requests": 2, "dead": 1, "workers": 1, "results": 20}
    for view, count in views.items():
        options = {"view": view} | ({"request": "r1"} if view == "results" else {})
        frame = load(spark, redis_url, minPartitions=3, **options)
        rows = frame.toArrow().to_pylist()
        assert sorted(map(str, rows)) == sorted(map(str, read(redis_url, **options))), view
        assert len(rows) == count
        assert view != "results" or frame.rdd.getNumPartitions() > 1
    spark.sql(
        f"""CREATE OR REPLACE TEMPORARY VIEW outcomes USING fairlane
            OPTIONS (redis "{redis_url}", request "r1", view "results")"""
    )
    (row,) = spark.sql("SELECT count(*) AS n, sum(index) AS s FROM outcomes").collect()
    assert (row.n, row.s) == (20, 190)
    spark.catalog.dropTempView("outcomes")


# ------------------------------------------------------------------ conditions


CONDITIONS = [
    "priority = 2",
    "priority in (1, 3, 7)",
    "priority > 1 and priority <= 3",
    "id = 'r2'",
    "id in ('r0', 'r4')",
    "id like 'r%' and priority != 2",
    "reason is null or reason = ''",
    "total >= 21 and done < 41",
]


def check_conditions(frame: Any, conditions: list[str]) -> None:
    """Asserts that each condition on the frame selects what Spark itself selects of all rows."""
    columns = [f"coalesce({text}, false) AS c{n}" for n, text in enumerate(conditions)]
    every = frame.selectExpr("*").localCheckpoint().selectExpr("id", *columns).collect()
    for n, text in enumerate(conditions):
        expected = sorted(row.id for row in every if row[f"c{n}"])
        assert sorted(row.id for row in frame.where(text).collect()) == expected, text
    assert frame.where(text).count() == len(expected)


@pytest.mark.rest
@pytest.mark.parametrize("view", ["completions", "requests"])
def test_conditions_leave_the_same_rows_wherever_they_are_checked(
    spark: SparkSession, redis_url: str, world: World, view: str
):
    for n in range(5):
        world.submit(f"r{n}", 10 * n + 1, priority=n)
    world.work_off()
    check_conditions(load(spark, redis_url, view=view), CONDITIONS)


@pytest.mark.rest
def test_conditions_on_time_leave_the_same_rows(spark: SparkSession, redis_url: str, world: World):
    for n in range(3):
        world.submit(f"r{n}", 3)
        world.work_off()
    frame = load(spark, redis_url)
    moments = [row.logged for row in frame.selectExpr("string(logged) logged").collect()]
    compares = ("<", "<=", "=", ">=", ">")
    check_conditions(
        frame, [f"logged {compare} timestamp'{at}'" for at in moments for compare in compares]
    )


@pytest.mark.rest
def test_conditions_hold_with_and_without_pushdown(
    spark: SparkSession, redis_url: str, world: World
):
    """With it the source checks them, and they do not reach Spark's plan."""
    for n in range(4):
        world.submit(f"r{n}", 3, priority=n)
    world.work_off()
    assert spark.conf.get(PUSHDOWN) == "true"
    plan = load(spark, redis_url).where("priority = 5")._jdf.queryExecution().executedPlan()
    assert not re.search(r"\bFilter\b", plan.toString())
    spark.conf.set(PUSHDOWN, "false")
    try:
        frame = load(spark, redis_url).where("priority = 2")
        assert [row.id for row in frame.collect()] == ["r2"]
    finally:
        spark.conf.set(PUSHDOWN, "true")


# ------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"view": "result"}, "option \"view\" is 'result': one of .* did you mean results"),
        ({"view": "results"}, 'option "request" is missing'),
        ({"view": "workers", "request": "r1"}, "goes with the views results and dead"),
        ({"requst": "r1"}, 'option "requst" is not known: did you mean request'),
        ({"request": "a b"}, "request id 'a b' is not valid"),
        ({"minPartitions": "many"}, "option \"minPartitions\" is 'many'"),
        ({"startingOffsets": "latest"}, "is for streams"),
        ({"request": "absent"}, "there is no request absent"),
        ({"view": "dead", "request": "absent"}, "there is no request absent"),
    ],
)
def test_bad_options_are_named(redis_url: str, options: dict[str, str], sentence: str):
    with pytest.raises((InvalidArgument, RequestNotFound), match=sentence):
        planned(redis_url, **options)


@pytest.mark.rest
def test_a_schema_selects_columns_in_any_case_of_letters(
    spark: SparkSession, redis_url: str, world: World, capsys: pytest.CaptureFixture[str]
):
    """A formatted plan shows which conditions and columns are read."""
    for n in range(3):
        world.submit(f"r{n}", 3, priority=n)
    world.work_off()
    frame = load(spark, redis_url, "Priority int, ID string").where("Id = 'r1'")
    assert [row.asDict() for row in frame.collect()] == [{"Priority": 1, "ID": "r1"}]
    assert load(spark, redis_url, "priority int, id string").where("id = 'r1'").count() == 1
    frame = load(spark, redis_url, "id string, priority int").where("priority = 2")
    frame.explain("formatted")
    plan = capsys.readouterr().out
    assert "PushedFilters: [IsNotNull(priority), EqualTo(priority,2)]" in plan
    assert "ReadSchema: struct<id:string,priority:int>" in plan
    with pytest.raises(Exception, match='the view completions has no column "body"'):
        load(spark, redis_url, "id string, body string").collect()
    with pytest.raises(Exception, match='column "priority" is int, not string'):
        load(spark, redis_url, "id string, priority string").collect()
