"""Tests writeMode=staged: as many results as rows, despite failures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from fairlane.protocol import keys
from fairlane.queue import Queue
from tests.spark.sink.sinks import COUNT, areas, bodies_in, numbers, rows, write
from tests.support.scripts.requests import stored

if TYPE_CHECKING:
    import redis

    from fairlane.drivers.sync import SyncDriver


def is_sealed(client: redis.Redis, request_id: str) -> bool:
    return stored(client, request_id)["open"] == "0"


def test_rows_become_the_sub_requests_of_one_request(
    spark: Any, redis_url: str, redis_client: redis.Redis
):
    write(numbers(spark, COUNT, 4), redis_url, request="r1", priority=7, limit=2)
    assert bodies_in(redis_client, "r1") == rows(COUNT)
    found = stored(redis_client, "r1")
    assert (found["priority"], found["limit"], found["open"]) == ("7", "2", "0")
    assert areas(redis_client) == []


@pytest.mark.rest
def test_a_request_for_each_key_with_its_own_terms(
    spark: Any, redis_url: str, redis_client: redis.Redis
):
    keyed = numbers(spark, 6000).selectExpr(
        "concat('k', id % 300) AS k",
        "body",
        "CAST(id % 300 % 100 AS INT) AS p",
        "CAST(id % 300 + 1 AS SMALLINT) AS l",
        "concat(id % 300 + 9, 'm') AS d",
        "concat(id % 300 + 1, 's') AS w",
    )
    columns = {"requestColumn": "k", "priorityColumn": "p", "limitColumn": "l"}
    write(keyed, redis_url, deadlineColumn="d", delayColumn="w", **columns)
    for key in range(300):
        name = f"k{key}"
        assert bodies_in(redis_client, name) == [b"row %d" % i for i in range(key, 6000, 300)]
        found = stored(redis_client, name)
        assert (int(found["priority"]), int(found["limit"])) == (key % 100, key + 1)
        assert int(found["deadline"]) - int(found["born"]) == 60_000 * (key + 9)
        assert int(found["wait"]) == 1_000 * (key + 1)
    assert areas(redis_client) == []


@pytest.mark.rest
def test_a_frame_without_rows_is_a_request_that_is_done(
    spark: Any, redis_url: str, driver: SyncDriver
):
    write(numbers(spark, 0), redis_url, request="r1")
    assert Queue(driver).request("r1").state() == "done"


# ------------------------------------------------------------------ refusals


@pytest.mark.rest
@pytest.mark.parametrize(
    ("columns", "options", "error"),
    [
        # Each partition has one priority, so only the commit can detect it.
        (
            ("body", "CAST(id / 50 AS INT) AS p"),
            {"priorityColumn": "p"},
            'request r1 has rows with 0 and with 1 in column "p"',
        ),
        (
            ("nullif(body, 'row 70') AS text",),
            {"bodyColumn": "text"},
            'row 20 of partition 1: "text" is null',
        ),
    ],
    ids=["two priorities of one request", "a null body"],
)
def test_a_write_that_fails_shows_no_row(
    columns: tuple[str, ...],
    options: dict[str, str],
    error: str,
    spark: Any,
    redis_url: str,
    redis_client: redis.Redis,
):
    with pytest.raises(Exception, match=error):
        write(numbers(spark, 100, 2).selectExpr(*columns), redis_url, request="r1", **options)
    assert [key for key in redis_client.scan_iter() if not key.startswith(b"stage:")] == []


@pytest.mark.rest
@pytest.mark.parametrize("mode", ["staged", "pipelined"])
def test_a_request_that_exists_is_refused_at_planning(
    mode: str, spark: Any, redis_url: str, driver: SyncDriver, redis_client: redis.Redis
):
    Queue(driver).submit_request([b"x"], id="r1")
    before = redis_client.dbsize()
    with pytest.raises(Exception, match="request r1 exists"):
        write(numbers(spark, 10), redis_url, request="r1", writeMode=mode)
    assert redis_client.dbsize() == before


# ------------------------------------------------------------------ failures


def test_a_task_that_failed_half_way_is_done_again_and_its_rows_come_in_once(
    frame: Any, redis_url: str, redis_client: redis.Redis
):
    write(frame, redis_url, "crashing", request="r1", crash="task:first")
    assert bodies_in(redis_client, "r1") == rows(COUNT)
    (loser,) = areas(redis_client)  # the driver has no message about it: it expires
    assert b":1:" in loser
    assert redis_client.pttl(loser) > 0


@pytest.mark.rest
def test_when_every_attempt_fails_no_row_is_visible(
    frame: Any, redis_url: str, redis_client: redis.Redis
):
    with pytest.raises(Exception, match="disk of this executor"):
        write(frame, redis_url, "crashing", request="r1", crash="task:always")
    losers = areas(redis_client)
    assert len(losers) >= 3
    assert {*redis_client.scan_iter()} == {*losers}
    assert all(redis_client.pttl(area) > 0 for area in losers)
    write(frame, redis_url, request="r1")
    assert bodies_in(redis_client, "r1") == rows(COUNT)


@pytest.mark.parametrize("crash", ["exit:3", pytest.param("raise:8", marks=pytest.mark.rest)])
def test_a_commit_that_crashed_is_completed_by_the_next_run_of_the_same_txn(
    frame: Any, redis_url: str, redis_client: redis.Redis, crash: str
):
    """It crashes before the pin, or after it when some chunks have rolled; the order differs."""
    with pytest.raises(Exception):  # noqa: B017  Spark reports it in many ways
        write(frame, redis_url, "crashing", request="r1", txn="t1", crash=crash)
    is_pinned = redis_client.exists(keys.transaction("r1", "t1")) == 1
    assert is_pinned is (crash != "exit:3")
    before = bodies_in(redis_client, "r1")
    assert (0 < len(before) < COUNT) is is_pinned
    write(frame.orderBy(frame.id.desc()), redis_url, request="r1", txn="t1")
    found = bodies_in(redis_client, "r1")
    assert sorted(found) == sorted(rows(COUNT))
    assert (found == rows(COUNT)) is is_pinned
    assert is_sealed(redis_client, "r1")


@pytest.mark.rest
def test_another_transaction_cannot_come_between(
    frame: Any, redis_url: str, redis_client: redis.Redis
):
    with pytest.raises(Exception):  # noqa: B017  Spark reports it in many ways
        write(frame, redis_url, "crashing", request="r1", txn="t1", crash="exit:8")
    with pytest.raises(Exception, match=r"give the same txn \(t1\)"):
        write(frame, redis_url, request="r1")
    for _ in range(2):  # the first run completes the write, the second changes nothing
        write(frame, redis_url, request="r1", txn="t1")
        assert bodies_in(redis_client, "r1") == rows(COUNT)
    assert areas(redis_client) == []
