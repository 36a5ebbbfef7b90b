"""Tests the links of docs/guarantees.md: every guarantee and every failure has its tests.

The tests that docs/seeds.md names must exist, too.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.support.run.for_each import for_each

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGE = DOCS / "guarantees.md"
WITH_TESTS = ("## Promises", "## What goes wrong")  # whose tables end in a column of tests
LEAST_ROWS = 45  # the present number: a row may be added, and none may get lost
# [test_x.py::test_that_it_is_so](../tests/folder/test_x.py)
TEST = re.compile(r"\[([^\]\[]+\.py)::(\w+)\]\(([^)]+)\)")
FUNCTION = re.compile(r"^ *(?:async )?def (\w+)\(", re.MULTILINE)
LINK = re.compile(r"\]\(([^)#:]+)(?:#[\w-]+)?\)")


class Named(NamedTuple):
    """A test as the page names it."""

    file: str
    function: str
    link: str


class Row(NamedTuple):
    """A row of a table: its first cell, and what its last one names."""

    what: str
    tests: tuple[Named, ...]


def named_in(text: str) -> tuple[Named, ...]:
    return tuple(Named(*found) for found in TEST.findall(text))


NAMED = sorted({*named_in(PAGE.read_text()), *named_in((DOCS / "seeds.md").read_text())})


def sections() -> dict[str, str]:
    """Returns the page by its second-level headings."""
    parts = re.split(r"^(## .*)$", PAGE.read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def rows() -> list[Row]:
    """Returns the rows of all tables that must name tests."""
    found = []
    for title in WITH_TESTS:
        for table in re.findall(r"(?:^\|.*\n)+", sections()[title], re.MULTILINE):
            head, _, *lines = table.splitlines()
            assert head.endswith("| test |")
            cells = [line.strip("|").split(" | ") for line in lines]
            found += [Row(each[0].strip(), named_in(each[-1])) for each in cells]
    return found


@cache
def functions_of(path: Path) -> set[str]:
    """Returns the tests that a file defines; to parse it takes a hundred times as long."""
    return set(FUNCTION.findall(path.read_text()))


@for_each("named", NAMED)
def test_every_test_that_is_named_is_there(named: Named):
    path = (PAGE.parent / named.link).resolve()
    assert path.is_relative_to(ROOT / "tests")
    assert path.name == named.file
    assert named.function.startswith("test_")
    assert named.function in functions_of(path)


def test_every_row_has_a_test():
    found = rows()
    assert len(found) >= LEAST_ROWS
    assert [row.what for row in found if not row.tests] == []


def test_no_row_is_there_twice():
    cells = [row.what for row in rows()]
    assert sorted(set(cells)) == sorted(cells)


def test_whatever_looks_like_a_test_is_a_link_to_one():
    """A name without a link would not be checked."""
    text = PAGE.read_text()
    assert text.count("::") == len(named_in(text))


@for_each("page", sorted(DOCS.rglob("*.md")))
def test_every_relative_link_of_the_documentation_leads_somewhere(page: Path):
    links = LINK.findall(page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []
