"""Tests that `make test` and `make test-rest` together run every test that a merge requires."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text()
WORDS = re.compile(r"\$\(PYTEST\) (.*?) ?--numprocesses \d+ --dist worksteal -m '(.*)'")


def commands_of(target: str) -> list[tuple[str, str]]:
    """Returns the place and the expression of markers of each command of pytest of a target."""
    (recipe,) = re.findall(rf"^{target}:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    found = [WORDS.fullmatch(line.strip()) for line in recipe.splitlines()]
    return [(one[1], one[2]) for one in found if one]


def test_the_two_targets_differ_in_one_marker_alone():
    """What one of them leaves out runs in the other."""
    places = ["--ignore tests/spark", "tests/spark"]
    assert commands_of("test") == [(place, "not rest and not heavy") for place in places]
    assert commands_of("test-rest") == [(place, "rest and not heavy") for place in places]


def test_a_merge_requires_both():
    steps = (ROOT / ".ci" / "run").read_text().splitlines()
    assert [line for line in steps if line.startswith("make test")] == [
        "make test",
        "make test-rest",
    ]


def test_the_pages_name_the_same_time():
    (minutes,) = re.findall(
        r"^\$ make test +# about (\d+) minutes$", (ROOT / "README.md").read_text(), re.MULTILINE
    )
    named = re.findall(
        r"`make test` takes about (\d+) minutes", (ROOT / "CONTRIBUTING.md").read_text()
    )
    assert named == [minutes]
    assert int(minutes) <= 5
