"""Tests which values are carried: each arrives equal and of its type, or is refused by name."""

from __future__ import annotations

import asyncio
import collections
import enum
import math
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

import msgspec
import pytest

from fairlane import App, ArgumentsRefused, Executor, Reject, TaskError, chain, group
from fairlane.errors import InvalidArgument
from fairlane.tasks.codec import CODECS, JSON
from fairlane.testing import eager
from tests.support.run.for_each import for_each
from tests.tasks.parts import Size, call

if TYPE_CHECKING:
    from collections.abc import Callable


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Word(str, enum.Enum):  # noqa: UP042  as users write it
    YES = "yes"


class Name(str):
    __slots__ = ()


class Point(NamedTuple):
    x: int
    y: int


@dataclass
class Note:
    meta: dict[str, Any]
    weight: float = 1.0


@dataclass
class Unequal:
    """Its instances are equal to nothing."""

    n: int

    def __eq__(self, other: object) -> bool:
        raise ValueError("not comparable")

    __hash__ = None  # type: ignore[assignment]


NAN, INF = math.nan, math.inf
VALUES: list[Any] = [
    None,
    True,
    0,
    -1,
    2**63,
    2**64,
    -(2**70),
    1.5,
    -0.0,
    1e308,
    NAN,
    INF,
    -INF,
    "",
    "é\x00",
    "\ud800",
    b"",
    b"\xff",
    bytearray(b"x"),
    memoryview(b"x"),
    [1, [2.5, None]],
    (1, 2),
    {1},
    frozenset({1}),
    {"a": {"b": [1]}},
    {"a": [1, None]},
    [1, 2],
    [1.5, 2.0],
    {1: 2},
    {1.5: 2},
    {True: 1},
    {None: 1},
    {(1, 2): 3},
    {b"x": 1},
    [NAN],
    {"a": INF},
    {"a": (1,)},
    Decimal("1.10"),
    Decimal("NaN"),
    Decimal("sNaN"),
    msgspec.Raw(b"1"),
    msgspec.Raw(b"no value"),
    [msgspec.Raw(b"[1]")],
    datetime(2026, 1, 2, 3, tzinfo=UTC),
    datetime(2026, 1, 2, 3, 4, 5, 6),  # noqa: DTZ001
    date(2026, 1, 2),
    timedelta(days=1, microseconds=1),
    UUID(int=7),
    Colour.RED,
    Level.LOW,
    Word.YES,
    {Level.LOW: 1},
    Name("x"),
    Point(1, 2),
    Size(1, 2),
    Note({"a": 1}),
    Note({"a": (1,)}),
    Note({}, NAN),
    collections.OrderedDict(a=1),
    collections.defaultdict(int),
    collections.Counter("a"),
    collections.deque([1]),
    range(3),
    1j,
    Unequal(1),
]
ANNOTATIONS: list[Any] = [
    Any,
    int,
    float,
    str,
    bool,
    bytes,
    list[int],
    list[float],
    tuple[int, ...],
    set[int],
    frozenset[int],
    dict[str, Any],
    dict[int, int],
    dict[float, int],
    Decimal,
    datetime,
    date,
    timedelta,
    UUID,
    Colour,
    Level,
    Word,
    Point,
    Size,
    Note,
    Unequal,
    float | None,
    str | int | None,
    dict[str, list[Any]],
]


def same(one: Any, other: Any) -> bool:
    """Returns True for equal values of one type; a whole number may be a float."""
    if type(one) is not type(other):
        return type(one) is int and type(other) is float and one == other
    if isinstance(one, dict):
        return same(list(one.items()), list(other.items()))
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, (Note, Unequal, Size)):
        return same(vars(one), vars(other))
    return repr(one) == repr(other) if isinstance(one, (float, Decimal)) else bool(one == other)


def is_carried(annotation: Any, value: Any, got: Any) -> bool:
    """Returns True if a value came back equal; where nothing names its type, with its type."""
    is_typed = annotation is not Any and not isinstance(value, Unequal)
    return same(value, got) or (is_typed and value == got)


def task_of(annotation: Any, encoding: Any, body: Callable[[Any], Any]) -> Any:
    def run(value):  # noqa: ANN001  set below
        return body(value)

    run.__annotations__ = {"value": annotation, "return": Any}
    return App("images", encoding=encoding).task(run)


@for_each("encoding", list(CODECS))
@for_each("annotation", ANNOTATIONS)
def test_an_argument_arrives_as_it_was_given_or_is_refused_by_name(encoding: str, annotation: Any):
    task = task_of(annotation, encoding, lambda value: seen.append(value))  # noqa: PLW0108  a new list each time
    carried = 0
    for value in VALUES:
        seen: list[Any] = []
        try:
            body = task.encode_call(value)
        except ArgumentsRefused as error:
            assert str(error).startswith("task run: argument value")  # noqa: PT017
            continue
        call(task.app, body)
        assert is_carried(annotation, value, seen[0]), (value, seen)
        carried += 1
    assert carried


@pytest.mark.rest
@for_each("encoding", list(CODECS))
@for_each("annotation", ANNOTATIONS)
def test_a_result_comes_back_as_it_was_returned_or_is_rejected(encoding: str, annotation: Any):
    for value in VALUES:

        def run(value: Any = value) -> Any:
            return value

        run.__annotations__ = {"value": int, "return": annotation}
        task = App("images", encoding=encoding).task(run)  # type: ignore[arg-type]
        try:
            body = call(task.app, task.encode_call())
        except Reject as error:
            assert str(error).startswith("task run returned ")  # noqa: PT017
            continue
        got = task.signature.decode_result(task.app.codec, body)
        assert is_carried(annotation, value, got), (value, got)


@for_each(
    "annotation, value, why",
    [
        (float, NAN, "argument value is nan, which JSON does not have: use None, or App("),
        (list[float], [1.0, -INF], "argument value[1] is -inf, which JSON does not have"),
        (Note, Note({}, NAN), "argument value.weight is nan, which JSON does not have"),
        (Any, (1,), "argument value is a tuple and would become a list: annotate its type"),
        (Any, {"a": {1}}, "argument value['a'] is a set and would become a list"),
        (Any, {1: 2}, "argument value has the key 1, which is an int and would become a str"),
        (Any, b"x", "argument value is a bytes and would become a str"),
        (Any, Level.LOW, "argument value is a Level and would become an int"),
        (list[int], (1,), "argument value is a tuple and would become a list: use a value of its"),
        (Size, "x", "argument value is not valid: Expected `object`, got `str`"),
        (list[Size], [{"width": 1, "height": "x"}], "argument value[0].height is not valid: Exp"),
    ],
)
def test_a_refusal_names_the_place_and_the_remedy(annotation: Any, value: Any, why: str):
    task = task_of(annotation, "json", lambda value: value)
    with pytest.raises(ArgumentsRefused) as refused:
        task.encode_call(value)
    assert why in str(refused.value)


def test_a_value_of_too_many_levels_is_refused_by_name():
    task, value = task_of(Any, "json", lambda value: value), [1]
    for _ in range(100_000):  # far above any limit of the interpreter
        value = [value]  # type: ignore[list-item]
    with pytest.raises(ArgumentsRefused, match="argument value cannot be encoded: it contains"):
        task.encode_call(value)


def test_every_way_to_call_a_task_refuses_the_value(monkeypatch: pytest.MonkeyPatch):
    """Nothing listens there, so what is sent would raise another error."""
    app = App("images", "redis://127.0.0.1:1")

    @app.task
    def scale(by: float, also: Any = None) -> float:
        return by

    with eager(app):
        ways: list[Callable[[], Any]] = [
            lambda: scale.submit(NAN),
            lambda: scale.submit(1.0, also={1}),
            lambda: scale.map([1.0, NAN]),
            lambda: scale.map([1.0], also=(1,)),
            lambda: scale.starmap([(1.0, b"x")]),
            lambda: asyncio.run(scale.asubmit(NAN)),
            lambda: asyncio.run(scale.amap([NAN])),
            lambda: asyncio.run(scale.astarmap([(NAN,)])),
            lambda: group(scale.s(1.0), scale.s(NAN)).submit(),
            lambda: chain(scale.s(NAN), scale.s()).submit(),
            lambda: chain(scale.s(1.0), scale.s(also=(1,))).submit(),
            lambda: app.cron("* * * * *", args=(NAN,))(scale),
            lambda: Executor(app).submit(scale, NAN),
            lambda: Executor(app).map(scale, [1.0, NAN]),
        ]
        for way in ways:
            with pytest.raises(ArgumentsRefused, match=r"task scale: argument (by|also)"):
                way()


def test_a_result_that_json_lacks_makes_the_call_dead():
    app = App("images", "redis://127.0.0.1:1")

    @app.task
    def scale(by: float) -> float:
        return by - by if by else NAN

    with eager(app), pytest.raises(TaskError, match="its result is nan, which JSON does not have"):
        scale.submit(0.0).result()
    assert isinstance(InvalidArgument("x"), ValueError)
    assert JSON.name == "json"
