"""Tests which functions are handlers, and how they are found."""

from __future__ import annotations

import functools
import json
import re
import sys
import typing
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.errors import HandlerNotFound
from fairlane.worker import Context, batch_handler, handlers
from fairlane.worker.handlers import load, print_json, shape_of
from tests.support.run.for_each import for_each
from tests.worker.parts import record_of_its_own

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("still_clock")


def sync(body: bytes) -> bytes:
    return body


async def asynchronous(body: bytes) -> bytes:
    return body


def with_context(body: bytes, context: Context) -> bytes:
    return body


def with_any_second(body: bytes, anything: object) -> bytes:
    return body


def with_option(body: bytes, colour: str = "red") -> bytes:
    return body


def with_optional_context(body: bytes, context: Context | None = None) -> bytes:
    return body


def listed(bodies: list[bytes]) -> list[bytes]:
    return bodies


async def listed_async(bodies: list[bytes], context: Context) -> list[bytes]:
    return bodies


@batch_handler
def marked(bodies: Any) -> Any:
    return bodies


def with_any(*bodies: bytes) -> bytes:
    return bodies[0]


def with_anything(*args: Any, **kwargs: Any) -> Any:
    return args[0]


def with_more(body: bytes, *more: bytes, colour: str = "red", **kwargs: Any) -> bytes:
    return body


def needs_keyword(body: bytes, *, colour: str) -> bytes:
    return body


def generator(body: bytes) -> typing.Iterator[bytes]:
    yield body


async def async_generator(body: bytes) -> typing.AsyncIterator[bytes]:
    yield body


class GeneratorCallable:
    def __call__(self, body: bytes) -> typing.Iterator[bytes]:
        yield body


class Callable:
    """Objects that can be called."""

    def __call__(self, body: bytes) -> bytes:
        return body

    async def method(self, body: bytes, context: Context) -> bytes:
        return body

    @staticmethod
    def static(body: bytes) -> bytes:
        return body


class AsyncCallable:
    async def __call__(self, body: bytes, context: Context) -> bytes:
        return body


class BatchCallable:
    @batch_handler
    def __call__(self, bodies: Any) -> Any:
        return bodies


def annotated(annotation: Any) -> typing.Callable[..., Any]:
    """Returns a handler whose parameter has this annotation, as an object or as text."""

    def handler(bodies: Any) -> Any:
        return bodies

    handler.__annotations__["bodies"] = annotation
    return handler


SHAPES = {  # handler: (is_async, is_batch, wants_context)
    "sync": (sync, (False, False, False)),
    "async": (asynchronous, (True, False, False)),
    "context": (with_context, (False, False, True)),
    "any second parameter": (with_any_second, (False, False, True)),
    "second parameter with a default": (with_option, (False, False, False)),
    "optional context": (with_optional_context, (False, False, True)),
    "batch by annotation": (listed, (False, True, False)),
    "async batch with context": (listed_async, (True, True, True)),
    "batch by decorator": (marked, (False, True, False)),
    "callable object": (Callable(), (False, False, False)),
    "bound async method": (Callable().method, (True, False, True)),
    "static method": (Callable.static, (False, False, False)),
    "async callable object": (AsyncCallable(), (True, False, True)),
    "batch callable object": (BatchCallable(), (False, True, False)),
    "partial": (functools.partial(with_option, colour="blue"), (False, False, False)),
    "partial with context": (functools.partial(with_context), (False, False, True)),
    "partial of async": (functools.partial(asynchronous), (True, False, False)),
    "partial of a partial of async": (
        functools.partial(functools.partial(asynchronous)),
        (True, False, False),
    ),
    "partial of a batch": (functools.partial(marked), (False, True, False)),
    "partial of an async object": (functools.partial(AsyncCallable()), (True, False, True)),
    "any number of bodies": (with_any, (False, False, False)),
    "anything": (with_anything, (False, False, False)),
    "body and anything": (with_more, (False, False, False)),
    "partial that gives the keyword": (
        functools.partial(needs_keyword, colour="red"),
        (False, False, False),
    ),
    "built-in": (bytes.upper, (False, False, False)),
    "built-in without a signature": (bytes.fromhex, (False, False, False)),
    "lambda": (lambda body: body, (False, False, False)),
    "list as an object": (annotated(list), (False, True, False)),
    "list of bytes as an object": (annotated(list[bytes]), (False, True, False)),
    "typing.List as an object": (annotated(typing.List[bytes]), (False, True, False)),  # noqa: UP006
    "list as text": (annotated("list"), (False, True, False)),
    "typing.List as text": (annotated("typing.List[ bytes ]"), (False, True, False)),
    "another annotation as text": (annotated("listing"), (False, False, False)),
}


@for_each("handler, expected", SHAPES.values())
def test_a_handlers_shape_is_seen(
    handler: typing.Callable[..., Any], expected: tuple[bool, bool, bool]
):
    """It is sync or async, takes one body or a list, with or without a context."""
    shape = shape_of(handler)
    assert (shape.is_async, shape.is_batch, shape.wants_context) == expected
    assert shape.call is handler


@pytest.mark.parametrize(
    ("handler", "count"),
    [(lambda: None, 0), (lambda a, b, c: None, 3), (functools.partial(sync, b""), 0)],
    ids=["none", "three", "partial that leaves none"],
)
def test_a_handler_that_cannot_take_a_body_is_refused(
    handler: typing.Callable[..., Any], count: int
):
    """The error names how many arguments it takes and what is expected."""
    with pytest.raises(HandlerNotFound, match=rf"takes {count} arguments: \(body\) or \(body, con"):
        shape_of(handler)


def test_a_required_keyword_is_refused():
    with pytest.raises(HandlerNotFound, match="needs_keyword needs the keyword argument colour: "):
        shape_of(needs_keyword)


@for_each(
    "handler", [generator, async_generator, GeneratorCallable(), functools.partial(generator)]
)
def test_a_generator_function_is_refused(handler: typing.Callable[..., Any]):
    """It would return a generator, and nothing of it would run."""
    with pytest.raises(HandlerNotFound, match="is a generator function: a handler returns its res"):
        shape_of(handler)


def test_what_is_no_function_is_refused():
    """The error names its type."""
    with pytest.raises(HandlerNotFound, match="'text' is a text: import the function and pass it"):
        shape_of("text")  # type: ignore[arg-type]


def test_the_decorator_returns_the_function_itself():
    """It only marks the function."""

    def function(bodies: Any) -> Any:
        return bodies

    assert batch_handler(function) is function


# ------------------------------------------------------------------ load


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Writes modules that can be imported in this test only."""
    monkeypatch.syspath_prepend(tmp_path)
    made = []

    def write(name: str, text: str) -> None:
        (tmp_path / f"{name}.py").write_text(text)
        made.append(name)

    yield write
    for name in made:
        sys.modules.pop(name, None)


def test_a_handler_is_found_by_name():
    """`module:function`, and dots after the colon lead into objects."""
    assert load("tests.worker.handler.test_handlers:sync") is sync
    assert load("tests.worker.handler.test_handlers:Callable.static") is Callable.static


@for_each("name", ["", "module", "module:", ":function", "module.function"])
def test_a_name_without_its_colon_is_refused(name: str):
    """The error shows the right form."""
    with pytest.raises(HandlerNotFound, match="is not valid: write module:function"):
        load(name)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "nowhere.to_be_found:f",
            r"cannot be imported: ModuleNotFoundError: No module named 'nowhere'[^(]*$",
        ),
        ("json:f", "cannot be imported: json has no f"),
        ("json:loads.f", r"cannot be imported: json has no loads\.f"),
        ("json:__all__", "is a list, not something to call"),
        (
            "fairlane_test_bad:f",
            r"cannot be imported: ValueError: not today \(.*/fairlane_test_bad\.py:2\)$",
        ),
        ("fairlane_test_exit:f", "cannot be imported: SystemExit: 3"),
        ("fairlane_test_odd:f", r"cannot be imported: Odd: never \(.*/fairlane_test_odd\.py:2\)$"),
        ("fairlane_test_syntax:f", "cannot be imported: SyntaxError"),
        ("fairlane_test_arity:f", "f takes 0 arguments"),
    ],
)
def test_a_handler_that_is_not_there_is_refused(
    name: str, sentence: str, module: typing.Callable[[str, str], None]
):
    """Missing module, missing attribute, a module that raises, a function that does not fit."""
    module("fairlane_test_bad", "\nraise ValueError('not today')")
    module("fairlane_test_exit", "raise SystemExit(3)")
    module("fairlane_test_odd", "class Odd(BaseException): pass\nraise Odd('never')")
    module("fairlane_test_syntax", "def f(:")
    module("fairlane_test_arity", "def f(): pass")
    with pytest.raises(HandlerNotFound, match=sentence):
        load(name)


def test_a_missing_module_is_named_with_the_current_folder(
    module: typing.Callable[[str, str], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    """An import that fails within a module does not prove where that module is."""
    module("fairlane_test_needs", "import fairlane_test_absent")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    folder = f"neither in the current folder, {re.escape(str(tmp_path))}, nor elsewhere on Python"
    for name in ("nope:price", "nope.shop:price"):
        with pytest.raises(HandlerNotFound, match=f"No module named 'nope': it is {folder}"):
            load(name)
    with pytest.raises(
        HandlerNotFound, match=r"No module named 'fairlane_test_absent' \(.*_needs\.py:1\)$"
    ):
        load("fairlane_test_needs:f")


# ------------------------------------------------------------------ the default handler


def context_of(index: int = 3, attempt: int = 2) -> Context:
    """Returns the description of a sub-request."""
    return Context("r1", index, attempt, 7, record_of_its_own())


def test_the_default_handler_prints_and_returns_an_object(capfdbinary: Any):
    """It prints one line of JSON, in the terms of the queue."""
    returned = print_json("zwölf".encode(), context_of())
    expected = {"request": "r1", "index": 3, "attempt": 2, "body": "zwölf"}
    assert json.loads(returned) == expected
    assert capfdbinary.readouterr().out == returned + b"\n"


def test_the_default_handler_shows_bytes_that_are_no_text(capfdbinary: Any):
    """They are base64, under another key."""
    assert json.loads(print_json(b"\xff\n", context_of()))["body_base64"] == "/wo="
    assert capfdbinary.readouterr().out.count(b"\n") == 1


def test_the_context_follows_the_lease():
    """The deadline and the stop are read when they are used."""
    record = record_of_its_own()
    record.hold("r1", "0", 7, b"o" * 32, 100.0, 30.0)
    context = Context("r1", 0, 1, 7, record)
    assert (context.deadline, context.cancelled) == (130.0, False)
    held = record.held()
    assert held is not None
    record.extended(held, 140.0)
    record.stop(held)
    assert (context.deadline, context.cancelled) == (140.0, True)


@for_each(
    "name, sentence",
    [
        ("parse.py:price", "handler 'parse.py:price' names a file: write parse:price"),
        ("./jobs/parse.py:price", "write jobs.parse:price"),
        ("json:lods", "json has no lods; did you mean loads?"),
        ("json:xyzzy", "json has no xyzzy$"),
    ],
)
def test_a_mistyped_handler_gets_a_suggestion(name: str, sentence: str):
    with pytest.raises(HandlerNotFound, match=sentence):
        handlers.load(name)
