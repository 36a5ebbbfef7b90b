"""Tests writeMode=dedupe and pipelined: rows are appended directly, each once, despite failures."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.types import StructType

from fairlane.errors import RequestEnded
from fairlane.queue import Queue
from fairlane.spark.commit import add, append_unique, begin_live, pack
from fairlane.spark.data_source import SparkOptions
from fairlane.spark.sink.plan import OPTIONS, STREAM_OPTIONS, plan_of
from fairlane.spark.sink.writers import Added, LiveMessage, LiveStreamWriter, LiveWriter
from tests.spark.sink.sinks import COUNT, bodies_in, numbers, rows, write
from tests.support.scripts.requests import stored, work_off
from tests.support.servers import backends

if TYPE_CHECKING:
    import redis

    from fairlane.drivers.sync import SyncDriver

pytestmark = pytest.mark.parametrize("redis_server", backends.one(), indirect=True)
DEDUPE = {"writeMode": "dedupe", "keyColumn": "id"}
MODES = pytest.mark.parametrize(
    "mode",
    [DEDUPE, {"writeMode": "pipelined"}, {"writeMode": "pipelined", "keyColumn": "id"}],
    ids=["dedupe", "pipelined", "pipelined by id"],
)


@MODES
def test_every_row_comes_in_once_though_a_task_failed_half_way(
    frame: Any, redis_url: str, redis_client: redis.Redis, mode: dict[str, str]
):
    write(frame, redis_url, "crashing", request="r1", crash="task:first", **mode)
    assert sorted(bodies_in(redis_client, "r1")) == sorted(rows(COUNT))
    assert stored(redis_client, "r1")["open"] == "0"


@pytest.mark.rest
@pytest.mark.parametrize("mode", ["dedupe", "pipelined"])
def test_each_key_has_a_request_of_its_own(
    mode: str, spark: Any, redis_url: str, redis_client: redis.Redis
):
    keyed = numbers(spark, 1000).selectExpr("concat('k', id % 7) AS k", "id", "body")
    write(keyed, redis_url, requestColumn="k", writeMode=mode, keyColumn="id")
    for key in range(7):
        found = bodies_in(redis_client, f"k{key}")
        assert sorted(found) == sorted(b"row %d" % i for i in range(key, 1000, 7))
        assert stored(redis_client, f"k{key}")["open"] == "0"
    assert [*redis_client.scan_iter(match="begun:*")] == []


@pytest.mark.rest
def test_dedupe_goes_on_from_the_rows_of_a_failed_write(
    frame: Any, redis_url: str, redis_client: redis.Redis
):
    with pytest.raises(Exception, match="disk of this executor"):
        write(frame, redis_url, "crashing", request="r1", crash="task:always", **DEDUPE)
    assert 0 < len(bodies_in(redis_client, "r1")) < COUNT
    write(frame, redis_url, request="r1", **DEDUPE)
    assert sorted(bodies_in(redis_client, "r1")) == sorted(rows(COUNT))
    write(frame, redis_url, request="r1", **DEDUPE)
    assert len(bodies_in(redis_client, "r1")) == COUNT


@pytest.mark.parametrize("kind", ["batch", "stream"])
def test_a_request_that_was_cancelled_before_its_seal_raises(
    kind: str,
    redis_url: str,
    redis_client: redis.Redis,
    driver: SyncDriver,
    caplog: pytest.LogCaptureFixture,
):
    """The others are sealed before. A stream reports it and continues: it could never recover."""
    given = {"redis": redis_url, "requestColumn": "k", "finalize": "true"} | DEDUPE
    schema = StructType().add("k", "string").add("id", "long").add("body", "string")
    own = (*OPTIONS, *STREAM_OPTIONS)
    plan = plan_of(SparkOptions(given, own), schema, is_stream=kind == "stream")
    for name in ("a", "b"):
        txn = plan.transaction("t1")
        driver.run(begin_live(name, plan.policy, txn, by_ids=True))
        driver.run(
            add(name, "req", append_unique(name, pack([b"1"]), pack([b"x"]), txn, 60_000), txn)
        )
    Queue(driver).request("a").cancel("not needed")
    message = LiveMessage([Added("a"), Added("b")])
    if kind == "stream":
        LiveStreamWriter(plan).commit([message], 7)
        assert "micro-batch 7: request a ended (not needed)" in caplog.text
    else:
        with pytest.raises(RequestEnded, match=r"request a ended \(not needed\)"):
            LiveWriter(plan).commit([message])
    assert stored(redis_client, "b")["open"] == "0"


@pytest.mark.rest
@pytest.mark.parametrize(
    "options",
    [{"requestColumn": "k"}, {"request": "k0", "priorityColumn": "p"}, {"request": "k0"}],
    ids=str,
)
def test_of_a_pipelined_write_that_failed_every_request_is_cancelled(
    spark: Any,
    redis_url: str,
    driver: SyncDriver,
    redis_client: redis.Redis,
    options: dict[str, str],
):
    """The driver receives no message from a task that failed."""
    frame = numbers(spark, 50_000, 2)
    holes = frame.selectExpr(
        "concat('k', id % 3) AS k", "nullif(body, 'row 49999') AS body", "1 AS p"
    )
    with pytest.raises(Exception, match='"body" is null'):
        write(holes, redis_url, writeMode="pipelined", **options)
    names = [key.decode()[5:-1] for key in redis_client.scan_iter(match="req:*")]
    assert len(names) == (3 if "requestColumn" in options else 1)
    for name in names:
        request = Queue(driver).request(name)
        assert request.state() == "cancelled"
        assert "failed" in (request.progress().reason or "")


@pytest.mark.rest
def test_a_write_waits_for_the_workers(
    spark: Any, redis_url: str, driver: SyncDriver, redis_client: redis.Redis
):
    """With maxWaiting no more than that waits, except what each task has just brought."""
    options: dict[str, Any] = {"writeMode": "pipelined", "maxWaiting": 500, "batchSize": 100}
    seen: list[bytes] = []
    waiting = [0]
    is_written = threading.Event()

    def work() -> None:
        while not is_written.wait(0.01):
            waiting.append(int(stored(redis_client, "r1").get("fresh", "0")))
            seen.extend(work_off(driver, count=50))

    worker = threading.Thread(target=work)
    worker.start()
    try:
        write(numbers(spark, 5000, 2), redis_url, request="r1", **options)
    finally:
        is_written.set()
        worker.join()
    seen += work_off(driver)
    assert sorted(seen) == sorted(rows(5000))
    assert 0 < max(waiting) <= 700
