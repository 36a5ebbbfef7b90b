"""Tests what the sink refuses at planning: one sentence with the remedy. No Java is needed."""

from __future__ import annotations

from typing import Any

import pytest

from fairlane import settings
from fairlane.errors import InvalidArgument, RedisUnreachable
from fairlane.options_table import options_of

pytest.importorskip("pyspark")

from pyspark.sql.types import (
    ArrayType,
    CalendarIntervalType,
    DateType,
    DoubleType,
    GeometryType,
    IntegerType,
    MapType,
    StringType,
    StructType,
    YearMonthIntervalType,
)

from fairlane.spark.data_source import FairlaneSource, SparkOptions
from fairlane.spark.sink import stream_writer_of, writer_of
from fairlane.spark.sink.plan import OPTIONS, STREAM_OPTIONS, plan_of, spark_name
from fairlane.spark.sink.writers import LiveWriter, StagedStreamWriter, StagedWriter
from fairlane.spark.source.columns import table_of

BODY = StructType().add("body", StringType())
WIDE = StructType().add("key", StringType()).add("text", StringType())
WIDE = WIDE.add("rank", IntegerType()).add("share", DoubleType())
HERE = {"redis": "redis://127.0.0.1:1", "request": "r1"}


def plan(given: dict[str, str], schema: StructType = BODY, *, is_stream: bool = False) -> Any:
    known = (*OPTIONS, *STREAM_OPTIONS) if is_stream else OPTIONS
    return plan_of(SparkOptions(HERE | given, known), schema, is_stream=is_stream)


def test_a_column_called_body_is_the_body():
    made = plan({})
    assert (made.body_column, made.body_format, made.request) == ("body", "", "r1")
    assert (made.mode, made.finalize, made.batch_size) == ("staged", True, 1000)


def test_options_and_columns_are_found_in_any_case_of_letters():
    """Spark finds them so; the plan has the name that the frame has."""
    made = plan({"BODYCOLUMN": "text", "RequestColumn": "key", "request": ""}, WIDE)
    assert (made.body_column, made.request_column) == ("text", "key")
    schema = StructType().add("Body", StringType()).add("KEY", StringType())
    made = plan({"requestColumn": "key", "request": ""}, schema)
    assert (made.body_column, made.request_column) == ("Body", "KEY")
    assert plan({"bodyColumn": "BODY"}, schema).body_column == "Body"


def test_of_two_columns_that_differ_in_case_alone_one_is_to_be_named():
    schema = StructType().add("Text", StringType()).add("TEXT", StringType())
    assert plan({"bodyColumn": "TEXT"}, schema).body_column == "TEXT"
    with pytest.raises(InvalidArgument, match='"text" may be Text or TEXT: write it as one'):
        plan({"bodyColumn": "text"}, schema)


def test_a_path_is_refused_with_what_to_do():
    """Spark makes an option of save("id") and start("id")."""
    with pytest.raises(InvalidArgument, match=r"no path, and 'id' was.*save\(\).*option\(.request"):
        plan({"path": "id"})
    with pytest.raises(InvalidArgument, match="no path"):
        plan({"path": "id"}, is_stream=True)


def test_a_write_without_options_reports_that_a_table_keeps_none():
    """INSERT and CREATE TABLE AS SELECT have none, whatever the table was made with."""
    with pytest.raises(InvalidArgument, match=r"name where the rows go.*Spark's catalog keeps no"):
        writer_of({}, BODY, False)


def test_a_table_of_the_catalog_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch):
    """CREATE TABLE has Spark's own options; a read of the table has none."""
    monkeypatch.setenv("FAIRLANE_REDIS", "redis://127.0.0.1:1")
    made = {"option.request": "r1", "request": "r1", "owner": "me", "provider": "fairlane"}
    with pytest.raises(InvalidArgument, match=r"makes no tables: .*CREATE TEMPORARY VIEW"):
        FairlaneSource(made).schema()
    with pytest.raises(InvalidArgument, match=r'no column "body".*catalog keeps no options'):
        FairlaneSource({}).reader(StructType().add("body", StringType()))


def test_a_view_is_not_written_to():
    with pytest.raises(InvalidArgument, match=r"INSERT cannot write to it: write with df\.write"):
        writer_of(HERE | {"view": "results"}, BODY, False)
    with pytest.raises(InvalidArgument, match="INSERT cannot write to it"):
        writer_of(HERE, table_of("results"), False)


def test_the_policy_is_that_of_the_options():
    same = {"limit": "2", "retain": "2h", "backoff": "1s..5m", "lease": "1m"}
    made = plan({"priority": "7"} | same)
    policy = made.policy
    assert (policy.priority, policy.limit, policy.retain_ms) == (7, 2, 7_200_000)
    assert (policy.backoff_ms, policy.lease_ms) == ((1_000, 300_000), 60_000)
    assert plan({"limits": "customer-42=3,api=10"}).policy.limits == (
        ("api", 10),
        ("customer-42", 3),
    )
    made = plan(same | {"priorityColumn": "rank", "bodyColumn": "text"}, WIDE)
    assert made.policy_of("r1", [3]) == plan({"priority": "3"} | same).policy


def test_a_stream_leaves_its_request_open_for_a_week():
    assert not plan({"checkpointLocation": "x"}, is_stream=True).finalize
    assert plan({}, is_stream=True).open_ms == 7 * 24 * 3_600_000
    assert plan({}).open_ms == 24 * 3_600_000


@pytest.mark.parametrize(
    ("given", "schema", "sentence"),
    [
        ({}, WIDE, r'no column "body" \(the columns are key, text, rank, share\).*bodyFormat'),
        ({"bodyColumn": "txt"}, WIDE, '"bodyColumn" names the column "txt".*key, text'),
        ({"bodyColumn": "rank"}, WIDE, '"rank" is int: a body is a string or binary'),
        ({"bodyFormat": "xml"}, WIDE, "json, arrow is expected"),
        ({"bodyFormat": "json", "bodyColumn": "text"}, WIDE, "exclude each other"),
        ({"requst": "r2"}, BODY, r'"requst" is not known: did you mean request\? The options are'),
        ({"zzzz": "r2"}, BODY, r'"zzzz" is not known\. The options are attempts, '),
        ({"mode": "dedupe"}, BODY, '"mode" is not known: did you mean writeMode'),
        ({"request": ""}, BODY, '"requestColumn"'),
        ({"requestColumn": "key", "bodyColumn": "text"}, WIDE, "one of them is expected"),
        ({"request": "", "requestColumn": "kay", "bodyColumn": "text"}, WIDE, '"kay"'),
        ({"request": "", "requestColumn": "share", "bodyColumn": "text"}, WIDE, "double"),
        ({"priorityColumn": "text", "bodyColumn": "text"}, WIDE, "string: a whole number"),
        ({"priority": "100"}, BODY, "from 0 to 99"),
        ({"limit": "none"}, BODY, "from 1 to 10,000"),
        ({"limits": "api"}, BODY, 'option "limits" .api. is not valid: write a key and its limit'),
        ({"limits": "a=1,b=1,c=1,d=1"}, BODY, "4 keys are too many"),
        ({"writeMode": "stage"}, BODY, "did you mean staged"),
        ({"writeMode": "dedupe"}, BODY, "keyColumn"),
        ({"maxWaiting": "9"}, BODY, "writeMode dedupe and pipelined"),
        ({"txn": "a b"}, BODY, "txn"),
        ({"request": "a{b}"}, BODY, "request id"),
        ({"batchSize": "5000"}, BODY, "from 1 to 1,000"),
        ({"finalize": "maybe"}, BODY, "true or false"),
        ({"openFor": "soon"}, BODY, "openFor.*duration"),
        ({"stageTtl": "1s"}, BODY, "at least 1m"),
    ],
    ids=str,
)
def test_wrong_options_are_refused_in_one_sentence(
    given: dict[str, str], schema: StructType, sentence: str
):
    with pytest.raises(InvalidArgument, match=sentence):
        plan(given, schema)


def test_a_stream_does_not_seal_the_one_request_it_fills_and_takes_no_txn():
    """Its second micro-batch would be refused; a request for each key may be sealed."""
    with pytest.raises(InvalidArgument, match=r"first micro-batch.*leave it out"):
        plan({"finalize": "true"}, is_stream=True)
    keyed = {"request": "", "requestColumn": "key", "bodyColumn": "text", "finalize": "true"}
    assert plan(keyed, WIDE, is_stream=True).finalize
    with pytest.raises(InvalidArgument, match="not for streams"):
        plan({"txn": "t1"}, is_stream=True)


def test_json_takes_maps_whose_keys_have_a_text_and_no_geometry():
    texts = StructType().add("m", ArrayType(MapType(DateType(), StringType())))
    assert plan({"bodyFormat": "json"}, texts).body_format == "json"
    key = StructType().add("a", StringType())
    nested = StructType().add("m", ArrayType(MapType(key, StringType())))
    place = StructType().add("body", StringType()).add("place", GeometryType(4326))
    for schema, error in (
        (nested, '"m" has a map whose keys are struct<a:string>'),
        (place, r'"place" holds geometry\(4326\).*bodyFormat arrow'),
    ):
        with pytest.raises(InvalidArgument, match=error):
            plan({"bodyFormat": "json"}, schema)
        assert plan({"bodyFormat": "arrow"}, schema).body_format == "arrow"


@pytest.mark.parametrize("given", [{}, {"bodyFormat": "json"}, {"bodyFormat": "arrow"}], ids=str)
def test_an_interval_of_months_is_refused_by_its_column_and_type(given: dict[str, str]):
    """Spark passes no batch with one to Python, also beside the body."""
    kinds = [YearMonthIntervalType(), ArrayType(MapType(StringType(), YearMonthIntervalType()))]
    for kind in kinds:
        schema = StructType().add("body", StringType()).add("age", kind)
        with pytest.raises(InvalidArgument, match=r'"age" holds interval year to month.*to string'):
            plan(given, schema)


@pytest.mark.parametrize("body_format", ["json", "arrow"])
def test_a_calendar_interval_is_refused_in_a_body(body_format: str):
    """No program reads it back. Beside a body it is allowed."""
    kind = ArrayType(CalendarIntervalType())
    schema = StructType().add("body", StringType()).add("pause", kind)
    with pytest.raises(InvalidArgument, match=r'"pause" holds interval.*to string'):
        plan({"bodyFormat": body_format}, schema)
    assert plan({}, schema).body_column == "body"


def test_the_error_of_an_interrupted_commit_names_the_txn_that_goes_on():
    """This holds for a write without a given txn, too."""
    given = {"patience": "0s"}
    one = plan(given)
    with pytest.raises(RedisUnreachable, match=f"same txn, {one.txn}, to go on"):
        StagedWriter(one).commit([])
    with pytest.raises(RedisUnreachable, match=f"same txn, {one.txn}, to go on"):
        LiveWriter(plan({**given, "writeMode": "pipelined", "txn": one.txn})).abort([])
    with pytest.raises(RedisUnreachable, match="start the stream again"):
        StagedStreamWriter(plan(given, is_stream=True)).commit([], 3)


def test_a_request_cannot_be_overwritten():
    with pytest.raises(InvalidArgument, match="append"):
        writer_of(HERE, BODY, True)
    with pytest.raises(InvalidArgument, match="append"):
        stream_writer_of(HERE, BODY, True)


def test_redis_must_be_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("FAIRLANE_REDIS", raising=False)
    with pytest.raises(InvalidArgument, match='"redis" is missing'):
        plan_of(SparkOptions({"request": "r1"}, OPTIONS), BODY, is_stream=False)


def test_an_unreachable_redis_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(settings, "PATIENCE_S", 0.0)
    with pytest.raises(RedisUnreachable, match=r"127\.0\.0\.1:1"):
        writer_of(HERE, BODY, False)


def test_the_sink_has_every_option_of_the_table():
    assert {spark_name(option) for option in options_of("sink")} <= {*OPTIONS}
