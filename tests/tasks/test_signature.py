"""Tests how arguments are bound and encoded by the caller, and decoded in the worker."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

import pytest

from fairlane import App, ArgumentsRefused, Context, InvalidArgument, Reject
from fairlane.tasks.codec import JSON, MSGPACK
from fairlane.worker.errors import GiveBack
from tests.support.run.for_each import for_each
from tests.tasks.parts import Box, Row, Size, body_of, call, context_of

if TYPE_CHECKING:
    from fairlane.tasks.codec import Codec
    from fairlane.tasks.task import Task


def made(function: Any, encoding: Any = "json") -> tuple[App, Task[..., Any, Any]]:
    app = App("images", encoding=encoding)
    return app, app.task(function)


def sent(task: Task[..., Any, Any], *args: Any, **kwargs: Any) -> bytes:
    """Returns the body that submit would send."""
    return task.signature.encode(task.app.codec, task.signature.bind(args, kwargs))


def resize(path: str, width: int = 200) -> Size:
    return Size(width, len(path))


def test_a_body_is_an_array_of_version_task_and_arguments_by_name():
    _, task = made(resize)
    assert sent(task, "a.png", width=100) == b'[1,"resize",{"path":"a.png","width":100}]'
    _, packed = made(resize, "msgpack")
    assert sent(packed, "a") == b"\x93\x01\xa6resize\x81\xa4path\xa1a"


@for_each("codec", [JSON, MSGPACK])
@for_each(
    "annotation, value",
    [
        (Size, Size(1, 2)),
        (Box, Box([Size(3, 4)], "b")),
        (Row, {"id": 7, "tags": ["x"]}),
        (bytes, b"\x00\xff"),
        (datetime, datetime(2024, 5, 6, tzinfo=UTC)),
        (dict[str, list[int]], {"a": [1]}),
        (tuple[int, str], (1, "b")),
        (set[int], {1, 2}),
        (float | None, None),
        (Any, {"a": [1, None]}),
    ],
)
def test_a_value_arrives_and_returns_as_its_annotation_describes_it(
    codec: Codec, annotation: Any, value: Any
):
    seen = []

    def keep(value):  # noqa: ANN001  set below
        seen.append(value)
        return value

    keep.__annotations__ = {"value": annotation, "return": annotation}
    app, task = made(keep, codec.name)
    result = call(app, sent(task, value))
    assert seen == [value]
    assert task.signature.decode_result(codec, result) == value


def test_every_kind_of_parameter_is_passed_as_python_would():
    def every(a: int, /, b: int, *more: int, c: int, d: int = 9, **rest: str) -> str:
        return f"{a} {b} {more} {c} {d} {rest}"

    app, task = made(every)
    calls: list[tuple[Any, Any]] = [
        ((1, 2), {"c": 3}),
        ((1, 2, 5, 6), {"c": 3, "d": 4, "x": "y"}),
        ((1,), {"b": 2, "c": 3}),
    ]
    for args, kwargs in calls:
        found = call(app, sent(task, *args, **kwargs))
        assert task.signature.decode_result(JSON, found) == every(*args, **kwargs)


def test_a_context_may_stand_at_any_place_and_is_no_argument():
    def first(ctx: Context, path: str) -> str:
        return f"{path} {ctx.id} {ctx.index} {ctx.attempt} {ctx.attempts} {ctx.fence}"

    def last(path: str, *more: str, at: Context) -> str:
        return f"{path} {more} {at.id} {at.deadline} {at.cancelled}"

    app, task = made(first)
    assert call(app, sent(task, "a"), context_of(2)) == b'"a r1 4 2 3 9"'
    app, task = made(last)
    assert call(app, sent(task, "a", "b"), context_of()) == b"\"a ('b',) r1 7.5 False\""


def test_the_context_is_refused_as_an_argument_also_of_a_task_that_takes_any_name():
    def ask(ctx: Context, **more: int) -> int:
        return len(more)

    app, task = made(ask)
    with pytest.raises(ArgumentsRefused, match="argument ctx is the worker's Context: leave it o"):
        sent(task, ctx=5)
    assert call(app, sent(task, other=5), context_of()) == b"1"


def test_a_plain_call_needs_no_worker_and_makes_a_context_of_its_own():
    def ask(ctx: Context, path: str) -> str:
        return f"{path} {ctx.attempt} {ctx.cancelled}"

    _, task = made(ask)
    assert task("a") == "a 1 False"
    assert task(context_of(2), "a") == "a 2 False"
    assert task(ctx=context_of(2), path="a") == "a 2 False"


@for_each(
    "args, kwargs, reason",
    [
        ((), {}, "task resize: missing a required argument: 'path'; its arguments are path, width"),
        (("a",), {"widht": 1}, "unexpected keyword argument 'widht'; did you mean width?"),
        ((), {"pahth": "a"}, "unexpected keyword argument 'pahth'; did you mean path?"),
        (
            ("a",),
            {"priority": 1},
            "'priority'; give it as an option: with_options(priority=...)",
        ),
        (("a", 1, 2), {}, "too many positional arguments"),
        (("a",), {"path": "b"}, "multiple values for argument 'path'"),
        ((object(),), {}, "argument path cannot be encoded: Encoding objects of type object"),
        (("a", "\ud800"), {}, "argument width cannot be encoded: its text has"),
        (("a" * 2_000_000,), {}, "the arguments have 2,000,024 bytes: the most is 1,048,576"),
    ],
)
def test_bad_arguments_are_refused_by_name(
    args: tuple[Any, ...], kwargs: dict[str, Any], reason: str
):
    _, task = made(resize)
    with pytest.raises(ArgumentsRefused) as refused:
        sent(task, *args, **kwargs)
    assert reason in str(refused.value)
    assert isinstance(refused.value, TypeError)
    assert isinstance(refused.value, InvalidArgument)


def test_an_argument_that_contains_itself_is_refused():
    _, task = made(anything)
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(ArgumentsRefused, match="argument value cannot be encoded"):
        sent(task, endless)


def anything(value: Any) -> Any:
    return value


def test_a_default_is_not_sent_so_the_workers_own_applies():
    _, task = made(resize)
    body = sent(task, "a")
    assert b"width" not in body


@for_each(
    "annotations, reason",
    [
        ({"path": "Missing"}, "an annotation cannot be resolved: name 'Missing' is not defined"),
        ({"path": object.__class__}, "argument path has the type type, which cannot be decoded"),
        ({"return": dict[str, list[Exception]]}, "its result has the type Exception"),
        ({"path": Size | Box}, "the type of its argument path is not valid"),
        ({"path": Context, "width": Context}, "has 2 parameters of type Context"),
    ],
)
def test_an_annotation_that_cannot_be_used_is_refused_at_registration(
    annotations: dict[str, Any], reason: str
):
    def odd(path, width):  # noqa: ANN001  set below
        return path

    odd.__annotations__ = annotations
    with pytest.raises(InvalidArgument, match=r"^task odd(:| has) ") as refused:
        made(odd)
    assert reason in str(refused.value)


def test_a_body_with_another_type_is_named_with_the_argument():
    """A newer worker might take it, so it waits; else it is dead."""
    app, _ = made(resize)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"path": 1}, "Expected `str`, got `int` - at `path`"),
        ({"path": "a", "width": "b"}, "Expected `int`, got `str` - at `width`"),
        ({}, "arguments: missing argument `path`"),
        ({"path": "a", "height": 1}, "arguments: unknown argument `height`"),
    ]
    for arguments, reason in wrong:
        modes: tuple[tuple[Literal["wait", "dead"], type[Exception]], ...]
        modes = (("wait", GiveBack), ("dead", Reject))
        for unknown, error in modes:
            app.unknown_tasks = unknown
            with pytest.raises(error, match="task resize cannot take its arguments: ") as refused:
                call(app, body_of(app, "resize", **arguments))
            assert reason in str(refused.value)


def hidden(*, __y: int) -> int:
    return __y


def listed(*__all: int) -> int:
    return len(__all)


def method(self: Any, path: str) -> str:
    return f"{self}{path}"


@for_each(
    "function, why",
    [
        (hidden, "task hidden: its parameter __y is not valid, because names with two underscores"),
        (listed, "task listed: its parameter __all is not valid"),
        (method, "task method: its parameter self is not valid, because a task is a function"),
    ],
)
def test_a_parameter_that_cannot_be_given_by_its_name_is_refused(function: Any, why: str):
    with pytest.raises(InvalidArgument, match=why):
        made(function)
