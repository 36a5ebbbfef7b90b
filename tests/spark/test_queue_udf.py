"""Tests the queue as a UDF: rows return with their own results, whatever Spark computes again."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as sql

from fairlane.errors import (
    InvalidArgument,
    RequestExists,
    RequestLost,
    RequestNotFound,
    WaitTimeout,
)
from fairlane.queue import Queue
from fairlane.records import Progress
from fairlane.spark import ours, queue_udf, udf
from tests.spark.fleet.fleet_handlers import CROWD
from tests.support.wait import PATIENCE_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis


ROOT = Path(__file__).resolve().parents[2]


@contextlib.contextmanager
def worker(url: str, handler: str) -> Iterator[None]:
    words = [sys.executable, "-m", "fairlane", "worker", "--processes", "2", "--handler"]
    words.append(f"tests.spark.fleet.fleet_handlers:{handler}")
    env = os.environ | {"FAIRLANE_REDIS": url, "PYTHONPATH": str(ROOT / "src")}
    made = subprocess.Popen(words, cwd=ROOT, env=env, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        made.terminate()
        assert made.wait(PATIENCE_S) == 0


def rows_of(spark: Any, count: int = 1000) -> Any:
    """Returns some rows in five partitions that are not equally full."""
    made = spark.range(0, count, 1, 5).where("id % 7 != 0 or id < 100")
    return made.withColumn("body", sql.concat(sql.lit("b"), "id"))


def test_every_row_comes_back_with_its_own_result(
    spark: Any, redis_url: str, redis_client: redis.Redis
):
    """The bodies are random, so they are sent once: each result is that of the body beside it."""
    frame = rows_of(spark).withColumn("body", sql.expr("cast(rand() as string)"))
    with worker(redis_url, "upper"):
        found = queue_udf(frame, redis=redis_url, limit=4)
        rows = found.collect()
    assert found.columns == ["id", "body", "result", "status", "attempt"]
    assert sorted(row.id for row in rows) == sorted(r.id for r in rows_of(spark).collect())
    assert {(row.status, row.attempt) for row in rows} == {("done", 1)}
    assert all(bytes(row.result) == row.body.upper().encode() for row in rows)
    # No worker runs any more: a frame that is computed again reads what is there.
    assert sorted(map(tuple, found.collect())) == sorted(map(tuple, rows))
    # When the results have expired no row is reported as cancelled.
    redis_client.delete(*redis_client.keys("*:{*}"))
    with pytest.raises(Exception, match="are not there any more") as caught:
        found.where("id % 2 = 0").collect()
    assert isinstance(ours(caught.value), RequestLost)


@pytest.mark.rest
def test_the_limit_holds_for_all_rows_together(
    spark: Any, redis_url: str, redis_client: redis.Redis
):
    with worker(redis_url, "crowd"):
        found = queue_udf(rows_of(spark, 300), redis=redis_url, limit=1).collect()
    redis_client.delete(CROWD)
    assert {bytes(row.result) for row in found} == {b"1"}


@pytest.mark.rest
def test_a_failed_row_has_the_status_dead(spark: Any, redis_url: str):
    rows = spark.createDataFrame([(1, b"good"), (2, b"bad")], ["the.id", "a `body`.of it"])
    with worker(redis_url, "rejects_bad"):
        made = queue_udf(rows, body="a `body`.of it", redis=redis_url, keep=["the.id"])
    assert made.columns == ["the.id", "result", "status", "attempt"]
    assert sorted(map(tuple, made.collect())) == [(1, b"good", "done", 1), (2, None, "dead", 1)]


@pytest.mark.rest
def test_a_row_that_always_fails_holds_a_query_for_seconds_only(spark: Any, redis_url: str):
    """By default it has three attempts, with pauses of 0.1 s to 1 s."""
    rows = spark.createDataFrame([(1, b"good"), (2, b"raise")], ["id", "body"])
    with worker(redis_url, "raises"):
        made = queue_udf(rows, redis=redis_url, request="r1", timeout_s=60)
    found = sorted((row.id, row.status, row.attempt) for row in made.collect())
    assert found == [(1, "done", 1), (2, "dead", 3)]
    with Queue.from_url(redis_url) as queue:
        counts = queue.request("r1").progress()
    assert counts.ended_ms is not None
    assert counts.ended_ms - counts.submitted_ms < 6000


@pytest.mark.rest
def test_a_query_names_its_attempts_and_times(spark: Any, redis_url: str):
    rows = spark.createDataFrame([(1, b"raise"), (2, b"never")], ["id", "body"])
    options: dict[str, Any] = {"attempts": 1, "time_limit": 0.5, "deadline": 600}
    with worker(redis_url, "raises"):
        made = queue_udf(rows, redis=redis_url, request="r1", timeout_s=60, **options)
    with Queue.from_url(redis_url) as queue:
        counts = queue.request("r1").progress()
    assert (counts.time_limit_ms, counts.timeouts) == (500, 1)
    assert counts.deadline_ms == counts.submitted_ms + 600_000
    assert [(row.status, row.attempt) for row in made.collect()] == [("dead", 1)] * 2


@pytest.mark.rest
@pytest.mark.parametrize(
    ("options", "sent"),
    [
        ({}, {"attempts": 3, "backoff": "100ms..1000ms"}),
        ({"backoff": 2}, {"attempts": 3, "backoff": "2000ms..2000ms"}),
        (
            {"attempts": 5, "backoff": (0, 0.5), "deadline": 1.5, "time_limit": 0.0001},
            {"attempts": 5, "backoff": "0ms..500ms", "deadline": "1500ms", "timeLimit": "1ms"},
        ),
    ],
)
def test_the_policy_goes_to_the_sink(
    spark: Any,
    redis_url: str,
    options: dict[str, Any],
    sent: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
):
    def stop(rows: Any, body: str, request_id: str, given: dict[str, Any]) -> None:
        raise InterruptedError(given)

    monkeypatch.setattr(udf, "_submit", stop)
    with pytest.raises(InterruptedError) as caught:
        queue_udf(rows_of(spark, 10), redis=redis_url, **options)
    target = {"redis": redis_url, "queue": "req", "priority": 5, "limit": 3}
    assert caught.value.args[0] == target | sent


@pytest.mark.rest
def test_cancelled_rows_have_the_status_cancelled(spark: Any, redis_url: str):
    def cancel_when_there() -> None:
        with Queue.from_url(redis_url) as queue:
            request = queue.request("r1")

            def is_whole() -> bool:
                with contextlib.suppress(RequestNotFound):
                    return request.progress().total == 10
                return False

            wait_until(is_whole)
            request.cancel()

    waiting = Thread(target=cancel_when_there)
    waiting.start()
    found = queue_udf(rows_of(spark, 10), redis=redis_url, request="r1", timeout_s=60)
    waiting.join()
    rows = found.collect()
    assert [(row.status, row.result, row.attempt) for row in rows] == [("cancelled", None, 0)] * 10


@pytest.mark.rest
def test_a_row_without_a_result_is_an_error_when_none_was_cancelled(spark: Any, redis_url: str):
    counts = Progress(id="r1", queue="req", state="done", priority=5, total=2, done=2, limit=1)
    rows = spark.createDataFrame([("done",), (None,)], "status string")
    with pytest.raises(Exception, match="request r1 has no result for a row"):
        rows.select(udf._status(counts)).collect()
    one = replace(counts, done=1, cancelled=1)
    found = rows.select(udf._status(one)).collect()
    assert [row.status for row in found] == ["done", "cancelled"]


@pytest.mark.rest
def test_a_frame_without_rows_calls_no_handler(spark: Any, redis_url: str):
    none = spark.createDataFrame([], "id int, body string")
    assert queue_udf(none, redis=redis_url, timeout_s=PATIENCE_S).collect() == []


@pytest.mark.rest
def test_a_timeout_raises_and_cancels_the_request(spark: Any, redis_url: str):
    rows = rows_of(spark, 10)
    with pytest.raises(WaitTimeout, match=r"had not ended after 0\.1 s and was cancelled"):
        queue_udf(rows, redis=redis_url, request="r1", timeout_s=0.1)
    with Queue.from_url(redis_url) as queue:
        assert queue.request("r1").state() == "cancelled"
        queue.submit_request([b"other"], id="taken").cancel()
    with pytest.raises((RequestExists, InvalidArgument)):
        queue_udf(rows, redis=redis_url, request="taken", timeout_s=5)


@pytest.mark.rest
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"body": "text"}, "no column 'text': there are id, body"),
        ({"keep": ["id", "no"]}, "no column 'no'"),
        ({"priority": 100}, "priority"),
        ({"limit": 0}, "limit"),
        ({"request": "a b"}, "request id"),
        ({"attempts": 0}, "attempts 0"),
        ({"backoff": (2, 1)}, "backoff 2 s..1 s ends before it begins"),
        ({"backoff": -1}, "backoff -1 s is not valid"),
        ({"deadline": "400d"}, "deadline 400d is not valid: a time from 1ms to 366d"),
        ({"time_limit": "soon"}, "time_limit 'soon' is not a duration"),
    ],
)
def test_wrong_arguments_are_refused_first(options: dict, words: str, spark: Any, redis_url: str):
    with pytest.raises(InvalidArgument, match=words):
        queue_udf(rows_of(spark, 10), redis=redis_url, **options)


@pytest.mark.rest
def test_a_column_that_would_stand_twice_is_refused(spark: Any, redis_url: str):
    rows = rows_of(spark, 10).withColumn("status", sql.lit(1))
    with pytest.raises(InvalidArgument, match="'status' would stand twice"):
        queue_udf(rows, redis=redis_url)
