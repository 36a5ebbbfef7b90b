"""How the package calls scripts: which module may call which."""

from __future__ import annotations

import ast
from pathlib import Path

import fairlane

SRC = Path(fairlane.__file__).parent
CREATING = {"enqueue", "submit"}  # scripts


def test_only_one_module_calls_the_scripts_that_create_requests():
    callers = {
        path.relative_to(SRC).as_posix()
        for path in SRC.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if calls_creating(node)
    }
    assert callers == {"operations/submit/create.py"}


def calls_creating(node: ast.AST) -> bool:
    """Returns True for library().submit, library().enqueue and the name of either script."""
    match node:
        case ast.Attribute(value=ast.Call(func=ast.Name("library"))):
            return node.attr in CREATING
        case ast.Call(func=ast.Name("signed"), args=[_, ast.Constant(name), *_]):
            return name in CREATING
    return False
