"""Tests the report of a repeated txn: how many rows it added, and what differs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from fairlane.spark.sink import writer_of, writers
from fairlane.spark.sink.writers import log_brought
from tests.support.servers import backends

if TYPE_CHECKING:
    import redis

pytestmark = pytest.mark.parametrize("redis_server", backends.one(), indirect=True)
DEDUPE = {"writeMode": "dedupe", "keyColumn": "body"}


def write(url: str, bodies: list[str], **options: str) -> None:
    """Writes one partition without Spark, as Spark does."""
    batch = pa.RecordBatch.from_pydict({"body": pa.array(bodies, pa.string())})
    given = {"redis": url, "request": "r1", "txn": "t1"} | options
    writer = writer_of(given, from_arrow_schema(batch.schema), False)
    writer.commit([writer.write(iter([batch]))])


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]


@pytest.mark.parametrize("options", [{}, DEDUPE, {"writeMode": "pipelined"}], ids=str)
def test_a_first_write_logs_its_rows_without_a_warning(
    redis_url: str, caplog: pytest.LogCaptureFixture, options: dict[str, str]
):
    caplog.set_level("INFO", "fairlane.spark")
    write(redis_url, ["a", "b", "c"], **options)
    assert "txn t1: 3 of 3 rows were added to request r1" in caplog.text
    assert warnings_in(caplog) == []


OTHERS = "; an earlier write with this txn brought the others"
APART = (
    ", because an earlier write with this txn brought 3 other rows: write new rows with a txn and "
    "a request of their own"
)
TERMS = (
    ". The priority, limit or another option is not the one with which request r1 began, and has "
    "no effect: change a request with `fairlane set`"
)


@pytest.mark.parametrize(
    ("bodies", "options", "expected"),
    [
        (["c", "a", "b"], {}, OTHERS),
        (["a"], {}, APART),
        (["x", "y", "z"], {}, APART),
        (["a", "b", "c"], {"priority": "9"}, OTHERS + TERMS),
        (["a", "b"], {"limit": "9"}, APART + TERMS),
    ],
    ids=["the same rows", "fewer rows", "other rows", "another priority", "another limit"],
)
def test_a_repeated_txn_warns_of_rows_that_it_did_not_add(
    redis_url: str,
    caplog: pytest.LogCaptureFixture,
    bodies: list[str],
    options: dict[str, str],
    expected: str,
):
    write(redis_url, ["a", "b", "c"])
    caplog.clear()
    write(redis_url, bodies, **options)
    head = f"txn t1: 0 of {len(bodies)} rows were added to request r1"
    assert warnings_in(caplog) == [head + expected]


def test_ids_that_were_there_are_counted(redis_url: str, caplog: pytest.LogCaptureFixture):
    write(redis_url, ["a", "b"], finalize="false", **DEDUPE)
    write(redis_url, ["b", "c", "d"], txn="t2", finalize="false", **DEDUPE)
    (line,) = warnings_in(caplog)
    assert line.startswith(
        "txn t2: 2 of 3 rows were added to request r1; rows with the keys of the"
    )


def test_places_that_were_filled_are_counted(redis_url: str, caplog: pytest.LogCaptureFixture):
    write(redis_url, ["a", "b"], writeMode="pipelined")
    write(redis_url, ["x"], writeMode="pipelined")
    (line,) = warnings_in(caplog)
    assert line.startswith("txn t1: 0 of 1 rows were added to request r1; an earlier write or")


def test_many_requests_make_one_line(
    redis_url: str, redis_client: redis.Redis, caplog: pytest.LogCaptureFixture
):
    options = {"requestColumn": "body", "request": ""}
    for _ in range(2):
        write(redis_url, [f"k{n}" for n in range(5)], **options)
    assert redis_client.exists("req:{k4}")
    head = "txn t1: 0 of 5 rows were added to 5 requests (k0, k1, k2, ...)"
    assert warnings_in(caplog) == [head + OTHERS]


def test_no_request_at_all_is_no_warning(caplog: pytest.LogCaptureFixture, redis_url: str):
    write(redis_url, [], requestColumn="body", request="")
    log_brought("t1", [])
    assert warnings_in(caplog) == []


@pytest.mark.parametrize("options", [{}, {"writeMode": "pipelined"}], ids=str)
@pytest.mark.parametrize("is_scattered", [True, False])
def test_rows_of_a_request_from_many_partitions_get_a_hint(
    redis_url: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, str],
    is_scattered: bool,
):
    """Each partition has rows of every request, or of two requests that no other one has."""
    monkeypatch.setattr(writers, "_MANY_PARTS", 5)
    names = [f"k{n}" for n in range(6)]
    batch = pa.RecordBatch.from_pydict({"k": pa.array(names, pa.string()), "body": names})
    given = {"redis": redis_url, "requestColumn": "k", "txn": "t1"} | options
    writer = writer_of(given, from_arrow_schema(batch.schema), False)
    monkeypatch.setattr("pyspark.TaskContext.get", lambda: None)
    each = [batch] * 3 if is_scattered else [batch.slice(at, 2) for at in (0, 2, 4)]
    writer.commit([writer.write(iter([one])) for one in each])
    hints = [line for line in warnings_in(caplog) if "parts" in line]
    expected = ["the rows of 6 requests came in 18 parts, because many partitions have rows of"]
    assert [line[:77] for line in hints] == ([one[:77] for one in expected] if is_scattered else [])
