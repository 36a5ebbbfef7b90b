"""Tests `fairlane report`: what it prints and how it ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("duckdb")
pytest.importorskip("matplotlib")

from tests.report.history import T0, Asked, History

if TYPE_CHECKING:
    from tests.cli.program import Program


def test_it_prints_the_path_of_the_page_and_needs_no_redis(alone: Program):
    History([Asked("one", 3, 2, 40, T0, 12)], 2).write(Path(alone.folder) / "archive")
    made = alone("report", "archive", "--out", "out", "--targets", "1s")
    assert (made.code, made.out.decode()) == (0, "out/report.html\n")
    numbers = json.loads(alone("report", "archive", "--out", "out", "--json").out)
    assert (numbers["page"], numbers["finished"]) == ("out/report.html", 40)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("no --out o", "no is no archive of a queue"),
        ("no --out o --targets x:5s", "priority"),
        ("no --out o --since soon", "soon"),
    ],
)
def test_bad_input_is_one_sentence(alone: Program, words: str, said: str):
    alone("report", *words.split()).refused(2, said)
