"""Tests how mutants are found: each differs from the scripts, and the excused ones still exist."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from fairlane.protocol import keys, scripts
from fairlane.protocol.lua import FOLDERS, library
from tests.explore.mutants import EXCEPTIONS, Mutant, changed_scripts, find
from tests.explore.witnesses import ROOT, forked, recorded
from tests.support.run.for_each import for_each

if TYPE_CHECKING:
    from pathlib import Path


def mutants_of(folder: Path, *lines: str) -> list[Mutant]:
    (folder / "one.lua").write_text("\n".join(lines))
    return list(find(folder))


def test_an_excused_mutant_is_still_there():
    assert set(EXCEPTIONS) <= {(mutant.path, mutant.gone) for mutant in find(library().root)}


def test_every_script_that_refuses_has_a_guard():
    guarded = {mutant.path for mutant in find(library().root) if mutant.kind == "guard"}
    refusing = {
        path.relative_to(library().root).as_posix()
        for folder in FOLDERS
        for path in (library().root / folder).glob("*.lua")
        if "error_reply" in path.read_text() or "load_state()" in path.read_text()
    }
    assert refusing <= guarded


def test_a_mutant_differs_by_one_line(tmp_path: Path):
    one = next(find(library().root))
    before = (library().root / one.path).read_text().splitlines()
    after = (one.write(tmp_path) / one.path).read_text().splitlines()
    assert [i + 1 for i, line in enumerate(before) if line != after[i]] == [one.line]
    assert len(before) == len(after)


@for_each(
    "lines, wanted",
    [
        (["if x then", "  return 1", "end"], [("guard", "if false then")]),
        (["if x then", "  y = 1", "end"], [("branch", "if false then")]),
        (
            ["if f(a, b) ~= 1 or c then", "  return 1", "end"],
            [
                ("guard", "if false then"),
                ("operand", "if c then"),
                ("operand", "if f(a, b) ~= 1 then"),
            ],
        ),
        (
            ["return a == 1 and (b or c)"],
            [("operand", "return (b or c)"), ("operand", "return a == 1")],
        ),
    ],
)
def test_conditions_are_taken_apart(
    tmp_path: Path, lines: list[str], wanted: list[tuple[str, str]]
):
    assert [(one.kind, one.text) for one in mutants_of(tmp_path, *lines)] == wanted


@pytest.mark.rest
def test_a_changed_library_changes_the_scripts_that_use_its_line(tmp_path: Path):
    (first, *_) = (one for one in find(library().root) if one.path == "lib/flows.lua")
    assert changed_scripts(first.write(tmp_path)) == {
        *("hand_over", "join", "hand_chosen", "join_chosen"),
    }


def test_the_scripts_that_are_called_are_recorded():
    with recorded() as names:
        scripts.confirm(keys.request_keys("r1"))
    files = {name for name in names if name.endswith(".lua")}  # those not yet read
    assert names - files == {"confirm"}
    scripts.pause(keys.request_keys("r1"))
    assert "pause" not in names


def test_each_thing_has_a_process_of_its_own():
    found = dict(forked(lambda thing: (2 * thing, os.getpid()), range(5)))
    assert {thing: twice for thing, (twice, _) in found.items()} == {n: 2 * n for n in range(5)}
    assert len({process for _, process in found.values()} | {os.getpid()}) == 6


FEW = """
import sys
from tests.explore import mutants, witnesses
witnesses.FOLDERS = (sys.argv.pop(1),)
sys.exit(mutants.main())
"""


@pytest.mark.slow
@pytest.mark.rest
@pytest.mark.parametrize(
    ("file", "caught", "missed"), [("dispatch/test_place", 3, 0), ("dispatch/test_backlog", 0, 3)]
)
def test_a_guard_is_missed_unless_a_test_that_calls_its_script_fails(
    file: str, caught: int, missed: int
):
    command = [sys.executable, "-c", FEW, f"tests/scripts/{file}.py"]
    words = ["single_server/place.lua", "--guard", "--fast"]
    done = subprocess.run([*command, *words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert f"3 mutants: {caught} caught, 0 excused, {missed} missed" in done.stdout, done
    assert done.returncode == bool(missed)
