"""Finds which scripts and commands code sends to Redis, read from its source.

It starts at some functions and classes and follows every name they use, through the modules of the
package. So it finds what may be sent in the rarest of cases, and too much rather than too little: a
class that is named counts with all its methods. Only of the faces, Queue and Request, a method
counts if a call has its name.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import fairlane

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SRC = Path(fairlane.__file__).parent
Place = tuple[str, str]  # a module and a name at its top; "*" = all names
FACES = {"queue": {"Queue"}, "request": {"Request", "OpenRequest"}}
NOT_FOLLOWED = ("aio", "drivers", "embedded", "protocol.lua")
STEPS = {"Call", "Confirm", "Pop", "Subscribe"}
# Commands that are known by their second word, too.
CONTAINERS = {"CLIENT", "CLUSTER", "CONFIG", "MEMORY", "SCRIPT", "XGROUP", "XINFO"}
# Words of a command that stand at the beginning of a tuple of their own.
ARGUMENTS = {"BLOCK", "RIGHT", "STREAMS"}
_WORD = re.compile(r"[A-Z]{3,}(_RO)?")
_RAW = re.compile(rb"\$\d+\r\n([A-Z]+)\r\n")


class Sent(NamedTuple):
    """What code sends: script names, ACL names of commands, step names, and where they occur."""

    scripts: set[str]
    commands: set[str]
    steps: set[str]
    seen: set[Place]


def sent_by(*entries: Place) -> Sent:
    """Returns what these functions and classes may send, and what they use."""
    found = Sent(set(), set(), set(), set())
    todo = list(entries)
    while todo:
        place = todo.pop()
        module, name = place
        if place in found.seen or f"{module}.".startswith(tuple(f"{one}." for one in NOT_FOLLOWED)):
            continue
        parsed = _parsed(module)
        if parsed is None:
            continue
        found.seen.add(place)
        if name == "*":
            todo += [(module, own) for own in parsed.names]
        elif name in parsed.imports:
            todo.append(parsed.imports[name])
        elif name in parsed.names:
            scripts, commands, used = _read(module, name)
            found.scripts.update(scripts)
            found.commands.update(commands)
            todo += used
        if module == "protocol.steps" and name in STEPS:
            found.steps.add(name)
    return found


@cache
def _read(module: str, name: str) -> tuple[set[str], set[str], set[Place]]:
    """Returns the scripts, the commands and the names in one definition."""
    parsed = _parsed(module)
    assert parsed is not None
    node = parsed.names[name]
    return set(_scripts(node)), set(commands_in(node)), set(_used(module, node))


def modules(*packages: str) -> Iterator[str]:
    """Returns the modules of these folders, in the form that `sent_by` takes."""
    for package in packages:
        for path in sorted((SRC / package).rglob("*.py")):
            if path.stem != "__init__":
                yield ".".join(path.relative_to(SRC).with_suffix("").parts)


def tree_of(module: str) -> ast.Module:
    """Returns the syntax tree of a module, without its annotations."""
    parsed = _parsed(module)
    assert parsed is not None, module
    return parsed.tree


def used_by(module: str) -> set[Place]:
    """Returns the names that a module uses, of other modules and its own."""
    return set(_used(module, tree_of(module)))


# ------------------------------------------------------------------ one module


class _Parsed(NamedTuple):
    tree: ast.Module
    names: dict[str, ast.AST]
    imports: dict[str, Place]


class _Bare(ast.NodeTransformer):
    """Removes annotations: a type that is only named is not used."""

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        self.generic_visit(node)
        if node.value is None:
            return None
        return ast.copy_location(ast.Assign([node.target], node.value), node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        node.returns = None
        self.generic_visit(node)
        return node

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        node.returns = None
        self.generic_visit(node)
        return node


@cache
def _parsed(module: str) -> _Parsed | None:
    path = SRC.joinpath(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if not path.exists():
        return None
    tree = _Bare().visit(ast.parse(path.read_text()))
    imports: dict[str, Place] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith("fairlane."):
            home = str(node.module).removeprefix("fairlane").removeprefix(".")
            imports |= {alias.asname or alias.name: (home, alias.name) for alias in node.names}
    names: dict[str, ast.AST] = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name in FACES.get(module, ()):
            names |= {f".{one.name}": one for one in node.body if isinstance(one, ast.FunctionDef)}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names[node.name] = node
        elif isinstance(node, ast.Assign):
            names |= {one.id: node.value for one in node.targets if isinstance(one, ast.Name)}
    return _Parsed(tree, names, imports)


def _used(module: str, node: ast.AST) -> Iterator[Place]:
    parsed = _parsed(module)
    assert parsed is not None
    own = {one.arg for one in ast.walk(node) if isinstance(one, ast.arg)}
    for one in ast.walk(node):
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load) and one.id not in own:
            if one.id in parsed.names:
                yield module, one.id
            elif one.id in parsed.imports:
                yield parsed.imports[one.id]
        if isinstance(one, ast.Attribute) and isinstance(one.value, ast.Name):
            home = parsed.imports.get(one.value.id)
            if home is not None:
                yield ".".join(part for part in home if part), one.attr
        is_call = isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute)
        if is_call and module.split(".", maxsplit=1)[0] in ("cli", *FACES):
            yield from ((face, f".{one.func.attr}") for face in FACES)  # type: ignore[attr-defined]


# ------------------------------------------------------------------ scripts and commands


def _scripts(node: ast.AST) -> Iterator[str]:
    """Finds what a typed function calls, and `something(library(), "acquire", ...)`."""
    for one in ast.walk(node):
        if not isinstance(one, ast.Call):
            continue
        if isinstance(one.func, ast.Name) and one.func.id == "_call":
            yield from _texts(one.args[:1], str)
        elif any(map(_is_library, one.args)):
            yield from _texts(one.args, str)


def _is_library(node: ast.AST) -> bool:
    is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    return is_call and node.func.id == "library"  # type: ignore[attr-defined]


def commands_in(node: ast.AST) -> Iterator[str]:
    """Finds the first words in capitals of a call or a tuple: `Command(b"HGET", ...)`."""
    for one in ast.walk(node):
        if isinstance(one, ast.Constant) and isinstance(one.value, bytes):
            yield from (word.decode().lower() for word in _RAW.findall(one.value))
        elif isinstance(one, ast.IfExp):
            for word in _texts([one.body, one.orelse], bytes):
                yield from _command([word])
        elif isinstance(one, ast.Call):
            yield from _command([*_texts(one.args, bytes)] or _spoken(one))
        elif isinstance(one, ast.Tuple):
            yield from _command([*_texts(one.elts, bytes)])


def _command(words: list[str]) -> Iterator[str]:
    if words and _WORD.fullmatch(words[0]) and words[0] not in ARGUMENTS:
        yield "|".join(words[: 2 if words[0] in CONTAINERS else 1]).lower()


def _spoken(call: ast.Call) -> list[str]:
    """Finds the words of `line.send_command("CLUSTER", "SLOTS")`."""
    is_sent = isinstance(call.func, ast.Attribute) and call.func.attr == "send_command"
    return [*_texts(call.args, str)] if is_sent else []


def _texts(nodes: Iterable[ast.AST], kind: type) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, kind):
            value = node.value
            yield value.decode("latin-1") if isinstance(value, bytes) else str(value)
