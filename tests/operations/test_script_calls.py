"""Tests how the package calls scripts: which module may call which, and how replies are read."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import fairlane
from fairlane.protocol.scripts import library

SRC = Path(fairlane.__file__).parent
CREATING = {"enqueue", "submit"}  # scripts
STATES = {b"abandoned", b"cancelled", b"cancelling", b"lost"}  # of requests, and in the log
WORDS = {word for script in library() for word in script.replies} - STATES
REDIS = "a stream, or TIME: Redis's own reply has no names"
EXCEPTED = {
    "drivers/encoding.py": "a pop, or WAIT behind a step: Redis's own reply has no names",
    "operations/completion.py": REDIS,
    "operations/lease.py": "acquire's slice: to unpack a tuple is quickest",
    "protocol/server_info.py": REDIS,
}


@cache
def trees() -> list[tuple[str, list[ast.AST]]]:
    """Returns the nodes of each module of the package, by its path."""
    return [
        (path.relative_to(SRC).as_posix(), [*ast.walk(ast.parse(path.read_text()))])
        for path in sorted(SRC.rglob("*.py"))
    ]


def test_only_one_module_calls_the_scripts_that_create_requests():
    callers = {name for name, nodes in trees() for node in nodes if calls_creating(node)}
    assert callers == {"operations/create.py"}


def calls_creating(node: ast.AST) -> bool:
    """Returns True for library().submit, library().enqueue and the name of either script."""
    match node:
        case ast.Attribute(value=ast.Call(func=ast.Name("library"))):
            return node.attr in CREATING
        case ast.Call(func=ast.Name("signed"), args=[_, ast.Constant(name), *_]):
            return name in CREATING
    return False


def test_replies_are_read_by_name():
    """The names are those of the scripts' headers, see protocol/replies.py."""
    found = {name: lines for name, lines in nameless().items() if exception_of(name) is None}
    assert found == {}


def test_every_exception_is_still_one():
    assert EXCEPTED.keys() == {exception_of(name) for name in nameless()} - {None}


def exception_of(name: str) -> str | None:
    """Returns the exception for a module: itself or its folder."""
    return next((one for one in (name, name.rpartition("/")[0]) if one in EXCEPTED), None)


@cache
def nameless() -> dict[str, list[str]]:
    """Returns where each module reads a reply without names."""
    found: dict[str, list[str]] = {}
    for name, nodes in trees():
        for node in nodes:
            if not isinstance(node, ast.expr | ast.stmt):
                continue
            if reads_by_number(node) or compares_a_word(node) or takes_raw(node):
                found.setdefault(name, []).append(f"{node.lineno}: {ast.unparse(node)}")
    return found


def reads_by_number(node: ast.AST) -> bool:
    """Returns True for reply[3], and for names that are unpacked from a reply."""
    match node:
        case ast.Subscript(slice=ast.Constant(value=int()) | ast.UnaryOp()):
            return is_reply(node.value)
        case ast.Assign(targets=[ast.Tuple()]):
            return is_reply(node.value)
    return False


def is_reply(node: ast.AST) -> bool:
    """Returns True for a variable or an attribute with the name of a reply."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in {"reply", "replied", "answer", "settled"}
    return False


def compares_a_word(node: ast.AST) -> bool:
    """Returns True for `x == b"ok"` and `x in {b"ok", b"at"}`."""
    return isinstance(node, ast.Compare) and any(
        isinstance(part, ast.Constant) and part.value in WORDS for part in ast.walk(node)
    )


def takes_raw(node: ast.AST) -> bool:
    """Returns True for `x = yield library().y(...)` of a script whose reply has names."""
    match node:
        case ast.Assign(value=ast.Yield(value=ast.Call(func=ast.Attribute() as func))):
            is_script = ast.unparse(func.value) == "library()"
            return is_script and not getattr(library(), func.attr).replies.is_plain
    return False
