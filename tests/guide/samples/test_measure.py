"""Tests the sample's handler, called as a plain function."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from samples.corpus.measure import measure
from samples.corpus.sources import sources, spread
from samples.corpus.table import Row, imported, longest, peak, table, timeline

from tests.support.run.for_each import for_each

if TYPE_CHECKING:
    from pathlib import Path

SOURCE = b'''"""Not code."""
import os, sys.path
from json.decoder import JSONDecoder
from . import near


class Thing:
    # a comment
    async def long(self):
        one = 1
        return one


def short(): pass
'''


def measured(path: Path, source: bytes) -> dict[str, Any]:
    path.write_bytes(source)
    found: dict[str, Any] = json.loads(measure(os.fsencode(path)))
    return found


def test_a_file_is_measured(tmp_path: Path):
    path = tmp_path / "one.py"
    found = measured(path, SOURCE)
    run = found.pop("run")
    assert run["pid"] == os.getpid()
    assert run["began"] <= run["ended"]
    assert found == {
        "path": str(path),
        "lines": 14,
        "tokens": 38,
        "functions": 2,
        "classes": 1,
        "longest": {"name": "long", "line": 9, "lines": 3},
        "imports": ["json", "os", "sys"],
    }


def test_a_path_is_relative_to_the_standard_library():
    assert json.loads(measure(b"json/decoder.py"))["functions"] > 5


def test_an_empty_file_has_no_longest_function(tmp_path: Path):
    found = measured(tmp_path / "empty.py", b"")
    assert (found["lines"], found["tokens"], found["longest"]) == (0, 0, None)


@for_each(
    "source",
    [
        b"print 'Python 2'\n",
        b"# coding: no-such-coding\n",
        b"text = '\xff'\n",
        b"x = '\0'\n",
        b"if x:\n        y\n    z\n",
        b"(" * 10_000,
        b'"""never closed',
    ],
)
def test_what_cannot_be_parsed_is_a_result(tmp_path: Path, source: bytes):
    found = measured(tmp_path / "bad.py", source)
    assert found["error"]
    assert found["lines"] > 0
    assert "tokens" not in found


def test_a_missing_file_is_a_result(tmp_path: Path):
    assert "FileNotFoundError" in json.loads(measure(os.fsencode(tmp_path / "no.py")))["error"]


def test_a_result_is_one_line(tmp_path: Path):
    assert b"\n" not in measure(os.fsencode(tmp_path / "two\nlines.py"))


def test_a_warning_is_not_an_error(tmp_path: Path):
    assert "error" not in measured(tmp_path / "old.py", b"pattern = '\\d'\nx = 1 is 1\n")


# ------------------------------------------------------------------ the corpus


@pytest.mark.rest
def test_the_corpus_is_the_standard_library():
    paths = sources()
    assert "json/decoder.py" in paths
    assert paths == sorted(set(paths))
    assert not any("site-packages" in path for path in paths)


@pytest.mark.rest
def test_packages_are_chosen_by_name():
    assert {path.partition("/")[0] for path in sources("json", "email")} == {"json", "email"}


@for_each("most, count", [(None, 10), (20, 10), (10, 10), (4, 4), (1, 1)])
def test_a_part_is_taken_from_all_over(most: int | None, count: int):
    paths = [str(i) for i in range(10)]
    part = spread(paths, most)
    assert len(part) == len(set(part)) == count
    assert part == sorted(part)


# ------------------------------------------------------------------ the table


@for_each(
    "intervals, most",
    [
        ([], 0),
        ([(0, 1)], 1),
        ([(0, 1), (1, 2)], 1),
        ([(0, 2), (1, 3), (2, 4)], 2),
        ([(0, 9), (1, 2), (1, 3), (4, 5)], 3),
    ],
)
def test_the_most_at_the_same_time(intervals: list[tuple[float, float]], most: int):
    assert peak(intervals) == most


def result(path: str, began: float, ended: float, **found: Any) -> Any:
    body = json.dumps({"path": path, "run": {"began": began, "ended": ended}, **found})
    return SimpleNamespace(status="done", body=body.encode())


def rows() -> list[Row]:
    dead = SimpleNamespace(status="dead", body=None)
    bulk = [result("a", 1, 3), result("b", 2, 5), dead]
    return [Row.of("urgent-1", 0, 3, 2.0, [result("c", 3, 4)]), Row.of("bulk-1", 50, 2, 0.0, bulk)]


def test_the_table_shows_how_long_each_request_took():
    head, line, *lines = table(rows())
    assert head.split()[:5] == ["request", "priority", "limit", "sub-requests", "dead"]
    assert set(line) == {"-"}
    assert [one.split() for one in lines] == [
        ["urgent-1", "0", "3", "1", "0", "1.00", "s", "1.00", "s", "2.00", "s", "1", "1"],
        ["bulk-1", "50", "2", "3", "1", "1.00", "s", "4.00", "s", "5.00", "s", "2", "1"],
    ]


def test_the_timeline_shows_when_each_worker_worked():
    _, urgent, bulk, _ = timeline(rows(), columns=5)
    assert urgent == "urgent-1    .1"
    assert bulk == "bulk-1    .1211"


def test_the_timeline_of_nothing():
    assert len(list(timeline([Row.of("none", 5, 3, 1.0, [])]))) == 3


def test_findings():
    found: list[dict[str, Any]] = [
        {"path": "a", "longest": {"name": "f", "line": 1, "lines": 9}, "imports": ["os"]},
        {"path": "b", "longest": None, "imports": ["os", "sys"]},
        {"path": "c", "error": "SyntaxError"},
    ]
    assert longest(found, 2) == ["f, 9 lines (a:1)"]
    assert imported(found) == ["os (2)", "sys (1)"]
