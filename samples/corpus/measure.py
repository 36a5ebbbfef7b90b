"""The handler: measures one Python source file and returns what it found as one line of JSON."""

from __future__ import annotations

import ast
import gc
import io
import json
import os
import sysconfig
import time
import tokenize
import warnings
from pathlib import Path
from typing import Any

STDLIB = Path(sysconfig.get_path("stdlib"))

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_NO_CODE = {
    tokenize.COMMENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
    tokenize.INDENT,
    tokenize.NEWLINE,
    tokenize.NL,
}
# Errors of the parser and the tokenizer for a file that they cannot read.
_UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError, tokenize.TokenError)


def measure(body: bytes) -> bytes:
    """Measures one file; `body` is its path, relative to the standard library or absolute.

    A file that cannot be parsed is a result, too, with the key `error`. Only unexpected errors
    raise, and are retried. `run` has the process id and the times.
    """
    began = time.time()
    path = os.fsdecode(body)
    finding = {"path": path, **_measure(path)}
    finding["run"] = {"pid": os.getpid(), "began": began, "ended": time.time()}
    return json.dumps(finding).encode()


def _measure(path: str) -> dict[str, Any]:
    try:
        source = (STDLIB / path).read_bytes()
    except FileNotFoundError:
        return {"lines": 0, "error": "FileNotFoundError: there is no such file"}
    lines = len(source.splitlines())
    try:
        return {"lines": lines, **_structure(source), "tokens": _tokens(source)}
    except _UNREADABLE as error:
        return {"lines": lines, "error": f"{type(error).__name__}: {error}"}


def _tokens(source: bytes) -> int:
    """Counts the tokens that are code: no comments, no layout."""
    tokens = tokenize.tokenize(io.BytesIO(source).readline)
    return sum(token.type not in _NO_CODE for token in tokens)


def _structure(source: bytes) -> dict[str, Any]:
    imports: set[str] = set()
    functions = classes = 0
    longest: dict[str, Any] | None = None
    for node in ast.walk(_parse(source)):
        if isinstance(node, _FUNCTIONS):
            functions += 1
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if longest is None or length > longest["lines"]:
                longest = {"name": node.name, "line": node.lineno, "lines": length}
        elif isinstance(node, ast.ClassDef):
            classes += 1
        elif isinstance(node, ast.Import):
            imports.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            imports.add(node.module.partition(".")[0])
    return {
        "functions": functions,
        "classes": classes,
        "longest": longest,
        "imports": sorted(imports),
    }


def _parse(source: bytes) -> ast.Module:
    """Parses without warnings (Python 2's escapes) and without the slow garbage collector."""
    gc.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(source)
    finally:
        gc.enable()
