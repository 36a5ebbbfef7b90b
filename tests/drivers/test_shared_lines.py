"""Tests that the two drivers share one request loop, and that little code is in both."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import fairlane.drivers

DRIVERS = Path(fairlane.drivers.__file__).parent
MOST_SHARED = 0.15  # of the lines of the blocking driver
KEYWORDS = re.compile(r"\b(async|await) ")
INTERFACE = ("class ", "def ", "try:", "if TYPE_CHECKING:", "@")


class Code(ast.NodeTransformer):
    """Removes imports and docstrings."""

    def visit(self, node: ast.AST) -> ast.AST | None:
        """Removes a node or visits its parts."""
        is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        is_import = isinstance(node, ast.Import | ast.ImportFrom)
        return None if is_docstring or is_import else self.generic_visit(node)


def lines_of(name: str) -> Counter[str]:
    """Counts the lines of code of a driver without `async` and `await`.

    Signatures do not count: both drivers offer the same, and perform the same primitives.
    """
    tree = ast.parse((DRIVERS / f"{name}.py").read_text())
    Code().generic_visit(tree)
    lines = (KEYWORDS.sub("", line).strip() for line in ast.unparse(tree).splitlines())
    return Counter(line for line in lines if line and not line.startswith(INTERFACE))


def test_little_of_one_driver_stands_again_in_the_other():
    """Shared code belongs beside them; only the ways to wait are apart."""
    blocking, asynchronous = lines_of("sync"), lines_of("aio")
    again = blocking & asynchronous
    share = again.total() / blocking.total()
    assert share < MOST_SHARED, (
        f"{share:.0%} of drivers/sync.py stands in drivers/aio.py: {[*again]}"
    )
