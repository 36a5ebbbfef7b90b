"""Tests the table functions of SQL: rows go in, results and dead sub-requests come out."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from fairlane.spark.spark_session import ours
from fairlane.spark.sql_functions import _in_utc
from tests.spark.sink.sinks import areas, bodies_in, numbers, rows
from tests.spark.source.test_views import read
from tests.spark.worlds import World
from tests.support.servers import backends

if TYPE_CHECKING:
    import redis
    from pyspark.sql import SparkSession

    from fairlane.drivers.sync import SyncDriver

pytestmark = pytest.mark.parametrize("redis_server", backends.one(), indirect=True)


@pytest.fixture
def run(spark: SparkSession, redis_url: str) -> Any:
    """Returns a function that runs a statement; `{at}` in it names this Redis."""
    more = ("*", "concat('k', id % 2) AS k", "nullif(body, 'row 7') AS hole")
    numbers(spark, 2500, 1).selectExpr(*more).createOrReplaceTempView("work")
    yield lambda text: [tuple(row) for row in spark.sql(text.format(at=redis_url)).collect()]
    spark.catalog.dropTempView("work")


def test_rows_are_submitted_and_their_results_read(
    run: Any, redis_url: str, redis_client: redis.Redis, driver: SyncDriver
):
    options = "request => 'r1', keyColumn => 'id', redis => '{at}'"
    assert run(f"SELECT * FROM fairlane_submit(TABLE(work), {options})") == [("r1", 2500)]
    assert sorted(bodies_in(redis_client, "r1")) == sorted(rows(2500))
    assert areas(redis_client) == []
    World(driver).work_off(dead=[7])
    names = "key, status, cast(result AS string), settled"
    found = run(f"SELECT {names} FROM fairlane_results('r1', redis => '{{at}}') ORDER BY index")
    expected = sorted(read(redis_url, request="r1"), key=lambda row: row["index"])
    assert [row[0] for row in found] == [row["key"] for row in expected]
    assert found[3][1:3] == ("done", f"done row {found[3][0]}")
    (dead,) = run("SELECT index, reason FROM fairlane_dead('r1', redis => '{at}')")
    assert dead == (7, "rejected")
    assert len(run("SELECT * FROM fairlane_dead(redis => '{at}')")) == 1


@pytest.mark.rest
def test_a_repeated_submission_adds_nothing(
    run: Any, spark: SparkSession, redis_url: str, redis_client: redis.Redis
):
    options = "requestColumn => 'k', limit => 2, redis => '{at}'"
    text = f"SELECT * FROM fairlane_submit(TABLE(work), {options})"
    frame = spark.sql(text.format(at=redis_url)).orderBy("request")
    for _ in range(2):
        assert [tuple(row) for row in frame.collect()] == [("k0", 1250), ("k1", 1250)]
    assert len(bodies_in(redis_client, "k0")) == 1250
    with pytest.raises(Exception, match="request k0 exists"):
        run(text)


@pytest.mark.rest
@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("fairlane_results('a b', redis => '{at}')", "request id 'a b' is not valid"),
        ("fairlane_results('r1', redis => '{at}')", "there is no request r1"),
        ("fairlane_results('r1', rediss => '{at}')", '"rediss" is not known: did you mean redis'),
        ("fairlane_submit('r1', redis => '{at}')", "fairlane_submit takes the rows first"),
        ("fairlane_submit(TABLE(work), redis => '{at}')", "name where the rows go"),
        (
            "fairlane_submit(TABLE(work), request => 'r1', bodyFormat => 'json', redis => '{at}')",
            '"bodyFormat" is not known',
        ),
        (
            "fairlane_submit(TABLE(work), bodyColumn => 'hole', request => 'r1', redis => '{at}')",
            'row 7 of partition 0: "hole" is null: give every row a value',
        ),
    ],
)
def test_bad_calls_are_one_sentence(run: Any, text: str, sentence: str):
    with pytest.raises(Exception, match=sentence) as caught:
        run(f"SELECT * FROM {text}")
    assert sentence.replace("\\", "") in str(ours(caught.value))


@pytest.mark.usefixtures("redis_server")
def test_a_moment_of_a_row_is_that_of_its_session(monkeypatch: pytest.MonkeyPatch):
    """Spark passes it in the zone of the machine, and does not name that zone."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        local = datetime(2027, 7, 1, 14, 30)  # noqa: DTZ001  as Spark passes it
        assert _in_utc(local) == datetime(2027, 7, 1, 12, 30, tzinfo=UTC)
        assert _in_utc(None) is None
    finally:
        monkeypatch.undo()
        time.tzset()
