"""Tests which modules may call the scripts that create requests; types check how all are read."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import fairlane

SRC = Path(fairlane.__file__).parent
CREATING = {"enqueue", "submit"}  # scripts


MAY_CALL = re.compile(rf"\bscripts\s*\.\s*(?:{'|'.join(sorted(CREATING))})\b|\bsigned\b")


def trees() -> list[tuple[str, ast.Module]]:
    """Returns each module of the package that may call one, by its path, with its nodes."""
    texts = {path: path.read_text() for path in sorted(SRC.rglob("*.py"))}
    return [
        (path.relative_to(SRC).as_posix(), ast.parse(text))
        for path, text in texts.items()
        if MAY_CALL.search(text)
    ]


def test_only_one_module_calls_the_scripts_that_create_requests():
    callers = {name for name, tree in trees() for node in ast.walk(tree) if calls_creating(node)}
    assert callers == {"operations/create.py"}


def calls_creating(node: ast.AST) -> bool:
    """Returns True for the typed function of either script, and for its name."""
    match node:
        case ast.Attribute(value=ast.Name("scripts")):
            return node.attr in CREATING
        case ast.Call(func=ast.Name("signed"), args=[_, ast.Constant(name), *_]):
            return name in CREATING
    return False
