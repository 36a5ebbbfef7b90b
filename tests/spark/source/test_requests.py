"""Tests reads of many requests: by a list, by a pattern and by a transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.types import StructType

from fairlane.arrow import stream_ranges
from fairlane.errors import InvalidArgument, RequestLost, RequestNotFound
from fairlane.operations.change import Chosen, delete_each
from fairlane.options import Policy
from fairlane.spark.commit import (
    Area,
    Txn,
    TxnShare,
    add,
    append_partition,
    begin_live,
    commit,
    pack,
    stage,
    stage_all,
)
from fairlane.spark.data_source import FairlaneSource
from fairlane.spark.source import views
from tests.spark.source.test_views import planned, read, rows_of, some_of
from tests.spark.worlds import World
from tests.support.servers import backends

if TYPE_CHECKING:
    import redis

    from fairlane.drivers.sync import SyncDriver

pytestmark = pytest.mark.parametrize("redis_server", backends.one(), indirect=True)


@pytest.fixture
def world(driver: SyncDriver) -> World:
    """Returns a queue with ended requests a-0 to a-4 of so many sub-requests, and b."""
    world = World(driver)
    for n in range(5):
        world.submit(f"a-{n}", n + 1)
    world.submit("b", 300)
    world.work_off(dead=[3], most=1)
    return world


def indexes(rows: list[dict[str, Any]]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for row in rows:
        found.setdefault(row["request"], []).append(row["index"])
    return {name: sorted(numbers) for name, numbers in found.items()}


ALL_A = {f"a-{n}": [*range(n + 1)] for n in range(5)}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a-*", ALL_A),
        ("a-?", ALL_A),
        ("?-1", {"a-1": [0, 1]}),
        ("a-1,b", {"a-1": [0, 1], "b": [*range(300)]}),
        (" a-2 , a-2", {"a-2": [0, 1, 2]}),
        ('["a-0", "a-1"]', {"a-0": [0], "a-1": [0, 1]}),
    ],
)
def test_a_list_or_a_pattern_names_requests(
    redis_url: str, world: World, text: str, expected: dict[str, list[int]]
):
    for parts in (0, 3):
        assert indexes(read(redis_url, request=text, minPartitions=parts)) == expected


def test_rows_are_those_of_reads_of_each(redis_url: str, world: World):
    every = sorted(read(redis_url, request="*"), key=str)
    each = [row for name in (*ALL_A, "b") for row in read(redis_url, request=name)]
    assert every == sorted(each, key=str)
    assert {row["error"] for row in every} == {None, "it is rejected"}
    heads = some_of(redis_url, "request index status worker ran_ms", request="*")
    assert sorted(heads, key=str) == sorted(
        ({k: row[k] for k in heads[0]} for row in every), key=str
    )


def test_a_pattern_is_of_one_queue_and_of_requests_that_are_there(
    redis_url: str, world: World, driver: SyncDriver
):
    other = World(driver, "other")
    other.submit("a-9", 2)
    other.work_off()
    born = world.queue.request("a-0").progress().submitted_ms
    assert driver.run(delete_each("req", [Chosen("a-0", "req", born)])) == {"a-0": True}
    assert [*indexes(read(redis_url, request="a-*"))] == ["a-1", "a-2", "a-3", "a-4"]
    assert indexes(read(redis_url, request="a-*", queue="other")) == {"a-9": [0, 1]}
    with pytest.raises(RequestNotFound, match=r"queue req has no request named c\*"):
        planned(redis_url, request="c*")
    with pytest.raises(RequestNotFound, match="there is no request c"):
        planned(redis_url, request="b,c")


def test_small_requests_share_a_task_and_a_large_one_is_cut(
    redis_url: str, world: World, monkeypatch: pytest.MonkeyPatch
):
    assert len(planned(redis_url, request="*")[1]) == 1
    monkeypatch.setattr(views, "ROWS", 100)
    monkeypatch.setattr(views, "SMALL", 4)
    reader, parts = planned(redis_url, request="*")
    names = [[piece.request for piece in part.value] for part in parts]
    assert names == [["b"], ["b"], ["b"], ["a-0", "a-1", "a-2", "a-3", "a-4"]]
    assert indexes(rows_of(reader, parts)) == {**ALL_A, "b": [*range(300)]}


def test_few_commands_read_small_requests(redis_url: str, world: World, redis_client: redis.Redis):
    """Two of each request plan, and four read: results, state, keys, and the state again."""
    ids = [f"few-{n}" for n in range(200)]
    for name in ids:
        world.submit(name, 1)
    world.work_off()
    before = redis_client.info("stats")["total_commands_processed"]
    assert len(read(redis_url, request=",".join(ids))) == 200
    calls = redis_client.info("stats")["total_commands_processed"] - before
    assert calls < 10 * len(ids)  # three of them are those of a script


def test_many_requests_are_bounded(redis_url: str, world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stream_ranges, "NAMES_MOST", 4)
    with pytest.raises(InvalidArgument, match=r"more than 4 requests are a-\*: name fewer"):
        planned(redis_url, request="a-*")


@pytest.mark.parametrize("gone", ["req:{a-1}", "out:{a-1}"])
def test_one_that_expires_meanwhile_is_named(
    redis_url: str, world: World, redis_client: redis.Redis, gone: str
):
    reader, parts = planned(redis_url, request="a-*")
    redis_client.delete(gone)
    with pytest.raises(RequestLost, match="results of request a-1 are not there any more"):
        rows_of(reader, parts)


def test_the_dead_of_some_requests(redis_url: str, world: World):
    found = read(redis_url, view="dead", request="a-3,a-4")
    assert sorted((row["request"], row["index"]) for row in found) == [("a-3", 3), ("a-4", 3)]
    assert len(read(redis_url, view="dead", request="*")) == 3


def written(driver: SyncDriver, txn: Txn, *names: str) -> None:
    for name in names:
        packed = pack([b"x"]) + pack([name.encode()])
        driver.run(stage_all([stage(name, txn.name, "0:1", 1, packed, 60_000)]))
        driver.run(commit([TxnShare(name, Policy(), [Area("0:1", 1, 1)])], txn))


def test_a_transaction_names_the_requests_that_it_wrote(
    redis_url: str, driver: SyncDriver, world: World
):
    written(driver, Txn("t1", True), "r1", "r2")
    written(driver, Txn("q:1", False), "r2x", "r3")
    written(driver, Txn("q:2", False), "r3")
    live = Txn("t3", True)
    driver.run(begin_live("r4", Policy(), live, by_ids=False))
    driver.run(add("r4", "req", append_partition("r4", 0, 0, pack([b"a"]), live), live))
    world.work_off()
    assert indexes(read(redis_url, txn="t1")) == {"r1": [0], "r2": [0]}
    assert indexes(read(redis_url, txn="q:*")) == {"r2x": [0], "r3": [0, 1]}
    assert indexes(read(redis_url, txn="t3")) == {"r4": [0]}
    assert {row["key"] for row in read(redis_url, txn="t1")} == {"r1", "r2"}
    with pytest.raises(RequestNotFound, match="no request that transaction t9 wrote"):
        planned(redis_url, txn="t9")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"request": "a", "txn": "t"}, '"request" and "txn" exclude each other'),
        ({"request": "a-*", "born": 7}, '"born" is for one request'),
        ({"request": '["a", 7'}, "the list is no JSON"),
        ({"request": "a,,b"}, "request id '' is not valid"),
        ({"request": "a{*"}, "pattern of request ids 'a{.' is not valid"),
        ({"txn": "a b"}, "txn 'a b' is not valid"),
        ({"view": "workers", "txn": "t"}, '"txn" goes with the views results and dead'),
    ],
)
def test_bad_choices_are_named(redis_url: str, options: dict[str, str], sentence: str):
    with pytest.raises(InvalidArgument, match=sentence):
        planned(redis_url, **options)


def test_a_stream_is_of_one_request(redis_url: str):
    for options in ({"request": "a,b"}, {"request": "a-*"}, {"txn": "t"}):
        source = FairlaneSource({"redis": redis_url} | options)
        with pytest.raises(InvalidArgument, match="a stream of results is of one request"):
            source.streamReader(StructType()).initialOffset()


def test_a_body_that_was_kept_is_shown_if_the_schema_names_it(
    redis_url: str, driver: SyncDriver, world: World
):
    written(driver, Txn("t1", True, keeps_bodies=True), "r1")
    world.work_off()
    source = FairlaneSource({"redis": redis_url, "request": "r1,a-0"})
    assert "body" not in source.schema().names
    reader = source.reader(StructType().add("BODY", "binary").add("key", "string"))
    assert rows_of(reader, reader.partitions()) == [
        {"BODY": b"x", "key": "r1"},
        {"BODY": None, "key": None},
    ]
