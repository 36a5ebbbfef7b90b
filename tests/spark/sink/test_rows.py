"""Tests how columns of Arrow become packed bodies; an invalid body is named by its row."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import struct
from typing import Any

import pytest

from fairlane import settings
from fairlane.errors import InvalidArgument

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_type
from pyspark.sql.types import VariantType, VariantVal

from fairlane.spark.commit import pack
from fairlane.spark.data_source import SparkOptions
from fairlane.spark.sink.plan import OPTIONS, plan_of
from fairlane.spark.sink.rows import Reader, pieces


def unpacked(packed: bytes) -> list[bytes]:
    (count,) = struct.unpack_from("<I", packed)
    at, bodies = 4 + 4 * count, []
    for length in struct.unpack_from(f"<{count}I", packed, 4):
        bodies.append(packed[at : at + length])
        at += length
    assert at == len(packed)
    return bodies


def read(batch: Any, most: int = 1000, **given: str) -> dict[str, list[list[bytes]]]:
    """Returns request -> its chunks of bodies."""
    options = {"redis": "redis://x", **given}
    if "requestColumn" not in options:
        options.setdefault("request", "r1")
    plan = plan_of(SparkOptions(options, OPTIONS), from_arrow_schema(batch.schema), is_stream=False)
    found: dict[str, list[list[bytes]]] = {}
    for group in Reader(plan, 4).groups(batch):
        found.setdefault(group.request, []).extend(
            unpacked(piece.packed) for piece in pieces(group, most)
        )
    return found


def batch_of(**columns: Any) -> Any:
    return pa.RecordBatch.from_pydict(columns)


def test_rows_are_packed_as_an_operation_packs_them():
    bodies = [b"a", b"", b"\x00\xff" * 9]
    assert unpacked(pack(bodies)) == bodies


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()], ids=str)
def test_binary_bodies_stay_as_they_are(kind: Any):
    bodies = [b"", b"\x00\xff", b"x" * 300]
    assert read(batch_of(body=pa.array(bodies, kind))) == {"r1": [bodies]}


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()], ids=str)
def test_text_becomes_utf_8(kind: Any):
    assert read(batch_of(body=pa.array(["ü", ""], kind))) == {"r1": [["ü".encode(), b""]]}


def test_a_slice_of_a_batch_is_read_from_where_it_begins():
    whole = batch_of(body=pa.array([f"{i}" for i in range(100)]))
    bodies = [f"{i}".encode() for i in range(40, 47)]
    assert read(whole.slice(40, 7), 3) == {"r1": [bodies[:3], bodies[3:6], bodies[6:]]}


def test_an_empty_batch_has_no_groups():
    assert read(batch_of(body=pa.array([], pa.string()))) == {}


def test_chunks_end_where_their_bytes_do():
    size = settings.CHUNK_BYTES // 3
    bodies = [b"x" * size] * 7 + [b"y" * settings.CHUNK_BYTES, b"z"]
    (chunks,) = read(batch_of(body=pa.array(bodies))).values()
    assert [len(chunk) for chunk in chunks] == [3, 3, 1, 1, 1]
    assert [body for chunk in chunks for body in chunk] == bodies
    assert all(sum(map(len, chunk)) <= settings.CHUNK_BYTES for chunk in chunks)


def test_rows_go_to_the_requests_that_their_column_names():
    batch = batch_of(key=["b", "a", "b", "c"], body=["1", "2", "3", "4"])
    found = read(batch, requestColumn="key")
    assert found == {"b": [[b"1", b"3"]], "a": [[b"2"]], "c": [[b"4"]]}


def test_a_request_may_be_a_number():
    assert read(batch_of(key=[7, 8], body=["1", "2"]), requestColumn="key").keys() == {"7", "8"}


# ------------------------------------------------------------------ whole rows


def test_a_row_becomes_one_object_of_json():
    when = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
    batch = batch_of(
        n=pa.array([1, None]),
        x=[0.5, float("nan")],
        s=["ü", None],
        d=pa.array([decimal.Decimal("1.10"), None], pa.decimal128(9, 2)),
        t=pa.array([when, None], pa.timestamp("us", "UTC")),
        b=pa.array([b"\xff", None]),
        inner=[{"a": [1, 2]}, None],
    )
    ((first, second),) = read(batch, bodyFormat="json")["r1"]
    assert b": " not in first
    assert json.loads(first) == {
        "n": 1,
        "x": 0.5,
        "s": "ü",
        "d": "1.10",
        "t": when.isoformat(),
        "b": "/w==",
        "inner": {"a": [1, 2]},
    }
    nulls = dict.fromkeys(["n", "s", "d", "t", "b", "inner"])
    assert json.loads(second) == {**nulls, "x": "NaN"}


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (pa.array([dt.date(2026, 1, 2)]), "2026-01-02"),
        (pa.array([decimal.Decimal("1.50")]), "1.50"),
        (pa.array([b"\x00\xff"]), "AP8="),
        (pa.array([dt.timedelta(seconds=90)], pa.duration("us")), "90.0"),
        (pa.array([float("nan")]), "NaN"),
        (pa.array([7]), "7"),
        (pa.array([True]), "true"),
    ],
    ids=str,
)
def test_keys_of_maps_become_text_as_values_do(keys: Any, expected: str):
    column = pa.MapArray.from_arrays([0, 1], keys, pa.array([1]))
    ((body,),) = read(batch_of(m=pa.array([column[0]], column.type)), bodyFormat="json")["r1"]
    assert json.loads(body) == {"m": {expected: 1}}


VARIANT = to_arrow_type(VariantType())


def variant_of(text: str) -> dict[str, bytes]:
    found = VariantVal.parseJson(text)
    return {"value": found.value, "metadata": found.metadata}


@pytest.mark.parametrize(
    "text",
    [
        '{"a":1.5,"b":[1,"x",null,true],"c":1e+300}',
        "null",
        "7",
        pytest.param('{"long":"0.1234567890123456789012"}', id="a decimal no double holds"),
    ],
)
def test_a_variant_becomes_the_json_that_it_stands_for(text: str):
    given = variant_of(text.replace('"0.1234567890123456789012"', "0.1234567890123456789012"))
    ((body, absent),) = read(batch_of(v=pa.array([given, None], VARIANT)), bodyFormat="json")["r1"]
    assert body.decode() == f'{{"v":{text}}}'
    assert absent == b'{"v":null}'


def test_a_variant_inside_of_other_types_becomes_json():
    kind = pa.list_(pa.struct({"m": pa.map_(pa.string(), VARIANT), "n": pa.int64()}))
    value = [{"m": [("k", variant_of('{"a":[1]}'))], "n": 3}, {"m": None, "n": None}]
    ((body,),) = read(batch_of(deep=pa.array([value], kind)), bodyFormat="json")["r1"]
    assert json.loads(body) == {"deep": [{"m": {"k": {"a": [1]}}, "n": 3}, {"m": None, "n": None}]}


def test_a_row_becomes_a_stream_of_arrow():
    batch = batch_of(n=pa.array([1, None]), s=["a", "b"])
    ((first, second),) = read(batch, bodyFormat="arrow")["r1"]
    for at, body in enumerate((first, second)):
        with pa.ipc.open_stream(body) as stream:
            assert stream.read_all().to_pylist() == batch.slice(at, 1).to_pylist()


NESTED = {
    "list": (pa.list_(pa.string()), lambda text: [text]),
    "map": (pa.map_(pa.string(), pa.string()), lambda text: [(text, text)]),
    "list of structs": (pa.list_(pa.struct({"s": pa.string()})), lambda text: [{"s": text}]),
    "struct with a map": (
        pa.struct({"m": pa.map_(pa.string(), pa.string())}),
        lambda text: {"m": [(text, text)]},
    ),
    "list of lists": (pa.list_(pa.list_(pa.string())), lambda text: [[text]]),
}


@pytest.mark.parametrize("kind", NESTED)
def test_a_row_of_arrow_holds_nothing_of_other_rows(kind: str):
    """A null or empty row of a nested column is the same, whatever the other rows are."""
    made, value = NESTED[kind]
    empty = {"m": []} if "struct with" in kind else []
    for hole in (None, empty):
        column = pa.array([*(value(f"secret-{n}") for n in range(500)), hole], made)
        alone = pa.array([hole], made)
        ((*_, among),) = read(batch_of(c=column), bodyFormat="arrow")["r1"]
        ((by_itself,),) = read(batch_of(c=alone), bodyFormat="arrow")["r1"]
        assert among == by_itself
        assert b"secret" not in among


# ------------------------------------------------------------------ refusals


KEYED = {"requestColumn": "key"}
RANKED = {"priorityColumn": "p"}
DEDUPE = {"keyColumn": "i", "writeMode": "dedupe"}
NOW = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)
LATER = NOW + dt.timedelta(seconds=1)
LONG = "x" * (settings.MAX_BODY + 1)
TOO_LONG = 'row 1 of partition 4: "body" has 1,048,577 bytes: the most is 1,048,576'
ID_OF_ROW_1 = r"^row 1 of partition 4: request id \(column \"key\"\) 'b c' is not valid"
PRIORITY_100 = r'^request r1: priority \(column "p"\) 100 is not valid'
LIMIT_0 = r'^request r1: limit \(column "p"\) 0 is not valid'
SOON = r"^request r1: deadline \(column \"p\"\) 'soon' is"
TWO_RANKS = 'request r1 has rows with 1 and with 2 in column "p"'


@pytest.mark.parametrize(
    ("columns", "given", "sentence"),
    [
        ({"body": ["a", None]}, {}, 'row 1 of partition 4: "body" is null'),
        ({"body": ["a", LONG]}, {}, TOO_LONG),
        ({"key": ["a", None], "body": ["1", "2"]}, KEYED, 'row 1 of partition 4: "key" is null'),
        ({"key": ["a", "b c"], "body": ["1", "2"]}, KEYED, ID_OF_ROW_1),
        ({"body": ["a", "b"], "p": pa.array([1, None], pa.int32())}, RANKED, '"p" is null'),
        ({"body": ["a", "b"], "p": pa.array([1, 2], pa.int32())}, RANKED, TWO_RANKS),
        ({"body": ["a"], "p": pa.array([100], pa.int32())}, RANKED, PRIORITY_100),
        ({"body": ["a"], "p": [0]}, {"limitColumn": "p"}, LIMIT_0),
        ({"body": ["a"], "p": ["soon"]}, {"deadlineColumn": "p"}, SOON),
        ({"body": ["a", "b"], "p": [NOW, LATER]}, {"runAtColumn": "p"}, "r1 has rows with 2026-.*"),
        ({"body": ["a", "b"], "i": ["1", None]}, DEDUPE, '"i" is null'),
        ({"body": ["a"], "i": ["1" * 1025]}, DEDUPE, "has 1,025 bytes"),
    ],
    ids=map(str, range(12)),
)
def test_an_invalid_row_is_named(columns: dict[str, Any], given: dict[str, str], sentence: str):
    with pytest.raises(InvalidArgument, match=sentence):
        read(batch_of(**columns), 1000, **given)


@pytest.mark.parametrize(
    ("column", "value", "name", "expected"),
    [
        ("delayColumn", "90s", "delay_ms", 90_000),
        ("runAtColumn", NOW, "start_ms", 1000 * NOW.timestamp()),
        ("deadlineColumn", "2h", "deadline_ms", 7_200_000),
        ("limitColumn", 7, "limit", 7),
    ],
)
def test_options_of_a_request_may_be_columns(column: str, value: Any, name: str, expected: int):
    batch = batch_of(body=["a"], v=[value])
    options = SparkOptions({"redis": "redis://x", "request": "r1", column: "v"}, OPTIONS)
    plan = plan_of(options, from_arrow_schema(batch.schema), is_stream=False)
    ((group),) = Reader(plan, 0).groups(batch)
    assert getattr(plan.policy_of("r1", group.terms), name) == expected


def test_rows_are_counted_over_the_batches():
    batch = batch_of(body=["a", "b"])
    plan = plan_of(
        SparkOptions({"redis": "redis://x", "request": "r1"}, OPTIONS),
        from_arrow_schema(batch.schema),
        is_stream=False,
    )
    reader = Reader(plan, 0)
    assert len([*reader.groups(batch)]) == 1
    with pytest.raises(InvalidArgument, match="row 3 of partition 0"):
        [*reader.groups(batch_of(body=["c", None]))]
