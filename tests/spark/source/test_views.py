"""What is read is what is there: every view, in parts, filtered or not."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from fairlane.errors import InvalidArgument, RequestLost, RequestNotFound
from fairlane.operations.maintenance import registry
from fairlane.spark.data_source import FairlaneSource
from tests.spark.worlds import World
from tests.support.servers import backends

if TYPE_CHECKING:
    import redis
    from pyspark.sql import SparkSession

    from fairlane.drivers.sync.driver import SyncDriver


pytestmark = pytest.mark.parametrize("redis_server", backends.one(), indirect=True)


@pytest.fixture
def world(driver: SyncDriver) -> World:
    return World(driver)


def load(spark: SparkSession, url: str, **options: Any) -> Any:
    reader = spark.read.format("fairlane").option("redis", url)
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load()


# ------------------------------------------------------------------ results


def test_the_results_of_a_request_are_its_rows(spark: SparkSession, redis_url: str, world: World):
    world.submit("r1", 1234)
    world.work_off(dead=[7])
    rows = load(spark, redis_url, request="r1").orderBy("index").collect()
    assert [row["index"] for row in rows] == list(range(1234))
    assert bytes(rows[8].result) == b"done 8"
    assert (rows[8].status, rows[8].attempt, rows[8].worker) == ("done", 1, "w:1")
    assert (rows[8].waited_ms, rows[8].ran_ms) == (2, 1.5)
    assert (rows[7].status, rows[7].result, rows[7].error) == ("dead", None, "it is rejected")


def test_python_and_spark_read_the_same_results(spark: SparkSession, redis_url: str, world: World):
    world.submit("r1", 3000)
    world.work_off(dead=range(0, 3000, 100), most=37)
    frame = load(spark, redis_url, request="r1", minPartitions=7)
    assert frame.rdd.getNumPartitions() > 1
    told = {one.index: one for one in world.queue.request("r1").results("done")}
    rows = frame.collect()
    assert len(rows) == len(told) == 3000
    for row in rows:
        one = told[row["index"]]
        body = None if row.result is None else bytes(row.result)
        assert (row.status, body, row.error) == (one.status, one.body, one.error)
        assert (row.worker, row.waited_ms, row.ran_ms) == (one.worker, one.waited_ms, one.ran_ms)


def test_a_slice_ran_from_its_start_to_when_it_was_settled(
    spark: SparkSession, redis_url: str, world: World, redis_client: redis.Redis
):
    """A slice of 700 takes two entries of `out`, which almost always bear the same millisecond."""
    for request_id in map("r{}".format, range(20)):
        world.submit(request_id, 700, limit=1)
        world.work_off()
        entries: Any = redis_client.xrange(f"out:{{{request_id}}}")
        if len({entry_id.partition(b"-")[0] for entry_id, _ in entries}) == 1:
            break
    rows = (
        load(spark, redis_url, request=request_id)
        .selectExpr("*", "unix_micros(started) as begun", "unix_micros(settled) as over")
        .orderBy("index")
        .collect()
    )
    assert len(entries) > 1
    assert len({row.over for row in rows}) == 1
    for row, left in zip(rows, range(700, 0, -1), strict=True):
        assert row.begun == row.over - 1500 * left
        assert row.total_ms == pytest.approx(2 + 1.5 * (row["index"] + 1))


def test_results_of_a_running_request_are_those_so_far(
    spark: SparkSession, redis_url: str, world: World
):
    world.submit("r1", 100, limit=1)
    world.work_off(most=30, slices=1)
    frame = load(spark, redis_url, request="r1")
    assert frame.count() == 30
    world.work_off(most=30, slices=1)
    assert frame.count() == 30  # what it reads is fixed when it is first looked at
    assert load(spark, redis_url, request="r1").count() == 60


def test_a_request_without_results_has_no_rows(spark: SparkSession, redis_url: str, world: World):
    world.submit("r1", 3)
    assert load(spark, redis_url, request="r1").collect() == []


@pytest.mark.parametrize("parts", [1, 3, 50])
def test_parts_together_are_the_whole(
    spark: SparkSession, redis_url: str, world: World, parts: int
):
    for n in range(20):
        world.submit(f"r{n}", 60)
    world.work_off(most=7)
    frame = load(spark, redis_url, request="r3", minPartitions=parts)
    assert sorted(row["index"] for row in frame.collect()) == list(range(60))
    log = load(spark, redis_url, minPartitions=parts)
    assert sorted(row.id for row in log.collect()) == sorted(f"r{n}" for n in range(20))


# ------------------------------------------------------------------ results that go meanwhile


def planned(url: str, **options: Any) -> tuple[Any, Any]:
    """The reader as Spark makes it, without Spark, and its parts."""
    source = FairlaneSource({"redis": url, **{name: str(one) for name, one in options.items()}})
    made = source.reader(source.schema())
    return made, made.partitions()


def rows_of(made: Any, parts: Any) -> list[dict[str, Any]]:
    return [row for part in parts for batch in made.read(part) for row in batch.to_pylist()]


@pytest.mark.parametrize("what", ["all of it", "its results", "replaced"])
def test_expired_results_raise_and_are_not_shown_as_no_rows(
    redis_url: str, world: World, redis_client: redis.Redis, what: str
):
    world.submit("r1", 50)
    world.work_off()
    made, parts = planned(redis_url, request="r1", minPartitions=3)
    assert len(rows_of(made, parts)) == 50
    redis_client.delete("out:{r1}" if what == "its results" else "req:{r1}", "out:{r1}")
    if what == "replaced":
        redis_client.delete(*redis_client.keys("*:{r1}") or ["none"])
        world.submit("r1", 50)
        world.work_off()
    with pytest.raises(RequestLost, match="results of request r1 are not there any more"):
        rows_of(made, parts)
    if what == "its results":
        with pytest.raises(RequestLost, match="they have left Redis"):
            made.partitions()


def test_results_of_one_life_of_an_id_can_be_asked_for(redis_url: str, world: World):
    world.submit("r1", 5)
    world.work_off()
    born = world.queue.request("r1").progress().submitted_ms
    assert len(rows_of(*planned(redis_url, request="r1", born=born))) == 5
    with pytest.raises(RequestLost, match="another request has its id"):
        planned(redis_url, request="r1", born=born + 1)
    with pytest.raises(InvalidArgument, match="goes with the view results"):
        planned(redis_url, view="requests", born=born)


def test_a_life_whose_keys_were_deleted_is_lost(
    redis_url: str, world: World, redis_client: redis.Redis
):
    world.submit("r1", 5)
    world.work_off()
    born = world.queue.request("r1").progress().submitted_ms
    redis_client.delete(*redis_client.keys("*:{r1}"))
    with pytest.raises(RequestLost, match="not there any more: the request is gone"):
        planned(redis_url, request="r1", born=born)
    with pytest.raises(RequestNotFound, match="there is no request r1"):
        planned(redis_url, request="r1")


def test_dead_that_are_requeued_meanwhile_are_no_loss(redis_url: str, world: World):
    world.submit("r1", 9, limit=1)
    world.work_off(dead=[0, 1], most=2, slices=1)
    made, parts = planned(redis_url, request="r1")
    assert [row["status"] for row in rows_of(made, parts)] == ["dead", "dead"]
    world.queue.request("r1").requeue_dead()
    assert rows_of(made, parts) == []
    world.work_off()
    assert rows_of(made, parts) == []  # what it reads is fixed: these came later
    made, parts = planned(redis_url, request="r1")
    assert [row["status"] for row in rows_of(made, parts)] == ["done"] * 9


# ------------------------------------------------------------------ the other views


def test_completions_are_the_log(spark: SparkSession, redis_url: str, world: World):
    for n in range(3):
        world.submit(f"r{n}", 10 * n + 1, priority=n)
    world.work_off(dead=[0])
    rows = load(spark, redis_url).orderBy("log_id").collect()
    told = list(world.queue.completions("0", follow=False))
    assert [(r.log_id, r.id, r.state, r.priority, r.total, r.done, r.dead) for r in rows] == [
        (c.log_id, c.id, c.state, c.priority, c.total, c.done, c.dead) for c in told
    ]
    assert [row.id for row in rows] == ["r0", "r1", "r2"]


def test_requests_are_those_in_the_log_and_those_that_still_run(
    spark: SparkSession, redis_url: str, world: World
):
    world.submit("ended", 5, limit=2)
    world.work_off(dead=[1])
    world.submit("runs", 9, priority=7, limit=4)
    world.work_off(most=3, slices=1)
    rows = {row.id: row for row in load(spark, redis_url, view="requests").collect()}
    assert set(rows) == {"ended", "runs"}
    one = rows["ended"]
    assert (one.state, one.limit, one.total, one.done, one.dead) == ("done", 2, 5, 4, 1)
    one = rows["runs"]
    assert (one.state, one.limit, one.total, one.done, one.held) == ("active", 4, 9, 3, 0)
    assert one.ended is None
    assert one.submitted is not None


def test_dead_sub_requests_come_with_reason_and_body(
    spark: SparkSession, redis_url: str, world: World
):
    world.submit("r1", 50)
    world.submit("r2", 50)
    world.work_off(dead=[3, 40])
    rows = load(spark, redis_url, view="dead", request="r1").orderBy("index").collect()
    assert [(row["index"], row.reason, bytes(row.body)) for row in rows] == [
        (3, "rejected", b"3"),
        (40, "rejected", b"40"),
    ]
    assert rows[0].fingerprint == next(iter(world.queue.request("r1").dead())).fingerprint
    every = load(spark, redis_url, view="dead").collect()
    assert sorted((row.request, row["index"]) for row in every) == [
        ("r1", 3),
        ("r1", 40),
        ("r2", 3),
        ("r2", 40),
    ]


def test_workers_are_those_that_beat(spark: SparkSession, redis_url: str, driver: SyncDriver):
    driver.run(registry.register_worker("req", "host:1234", "host", 99, "1700000000000"))
    (row,) = load(spark, redis_url, view="workers").collect()
    assert (row.worker, row.host, row.pid) == ("host:1234", "host", 99)
    assert load(spark, redis_url, view="workers", queue="other").collect() == []


def test_views_in_sql(spark: SparkSession, redis_url: str, world: World):
    world.submit("r1", 20)
    world.work_off()
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


@pytest.mark.parametrize("view", ["completions", "requests"])
def test_conditions_leave_the_same_rows_wherever_they_are_checked(
    spark: SparkSession, redis_url: str, world: World, view: str
):
    for n in range(5):
        world.submit(f"r{n}", 10 * n + 1, priority=n)
    world.work_off()
    every = load(spark, redis_url, view=view).localCheckpoint()
    frame = load(spark, redis_url, view=view)
    for condition in CONDITIONS:
        expected = sorted(row.id for row in every.where(condition).collect())
        assert sorted(row.id for row in frame.where(condition).collect()) == expected, condition
        assert frame.where(condition).count() == len(expected)


def test_conditions_on_time_leave_the_same_rows(spark: SparkSession, redis_url: str, world: World):
    for n in range(6):
        world.submit(f"r{n}", 3)
        world.work_off()
    frame = load(spark, redis_url)
    every = frame.localCheckpoint()
    moments = [row.logged for row in every.selectExpr("string(logged) logged").collect()]
    for moment in moments:
        for compare in ("<", "<=", "=", ">=", ">"):
            condition = f"logged {compare} timestamp'{moment}'"
            expected = sorted(row.id for row in every.where(condition).collect())
            assert sorted(row.id for row in frame.where(condition).collect()) == expected


def test_conditions_checked_here_do_not_reach_spark(
    spark: SparkSession, redis_url: str, world: World
):
    world.submit("r1", 3)
    world.work_off()
    conf = "spark.sql.python.filterPushdown.enabled"
    assert spark.conf.get(conf) == "true"
    plan = load(spark, redis_url).where("priority = 5")._jdf.queryExecution().executedPlan()
    assert not re.search(r"\bFilter\b", plan.toString())
    assert load(spark, redis_url).where("priority = 5").select("id").count() == 1


def test_without_pushdown_conditions_hold_as_well(
    spark: SparkSession, redis_url: str, world: World
):
    for n in range(4):
        world.submit(f"r{n}", 3, priority=n)
    world.work_off()
    conf = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(conf, "false")
    try:
        frame = load(spark, redis_url).where("priority = 2")
        assert [row.id for row in frame.collect()] == ["r2"]
    finally:
        spark.conf.set(conf, "true")


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
        ({"request": "nobody"}, "there is no request nobody"),
        ({"view": "dead", "request": "nobody"}, "there is no request nobody"),
    ],
)
def test_bad_options_are_named(
    spark: SparkSession, redis_url: str, options: dict[str, str], sentence: str
):
    with pytest.raises(Exception, match=sentence):
        load(spark, redis_url, **options).collect()


def test_unknown_columns_are_named(spark: SparkSession, redis_url: str):
    reader = spark.read.format("fairlane").option("redis", redis_url)
    with pytest.raises(Exception, match='the view completions has no column "body"'):
        reader.schema("id string, body string").load().collect()
    with pytest.raises(Exception, match='column "priority" is int, not string'):
        reader.schema("id string, priority string").load().collect()


def test_a_part_of_the_columns_can_be_asked_for(spark: SparkSession, redis_url: str, world: World):
    world.submit("r1", 3, priority=9)
    world.work_off()
    reader = spark.read.format("fairlane").option("redis", redis_url)
    frame = reader.schema("priority int, id string").load()
    assert [tuple(row) for row in frame.collect()] == [(9, "r1")]
    assert frame.where("id = 'r1'").count() == 1


def test_columns_are_found_in_any_case_of_letters(
    spark: SparkSession, redis_url: str, world: World
):
    for n in range(3):
        world.submit(f"r{n}", 3, priority=n)
    world.work_off()
    reader = spark.read.format("fairlane").option("redis", redis_url)
    frame = reader.schema("Priority int, ID string").load().where("Id = 'r1'")
    assert [row.asDict() for row in frame.collect()] == [{"Priority": 1, "ID": "r1"}]


def test_a_formatted_plan_shows_which_conditions_and_columns_are_read(
    spark: SparkSession, redis_url: str, capsys: pytest.CaptureFixture[str]
):
    reader = spark.read.format("fairlane").option("redis", redis_url)
    reader.schema("id string, priority int").load().where("priority = 2").explain("formatted")
    plan = capsys.readouterr().out
    assert "PushedFilters: [IsNotNull(priority), EqualTo(priority,2)]" in plan
    assert "ReadSchema: struct<id:string,priority:int>" in plan
