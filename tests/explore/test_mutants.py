"""The mutants are found mechanically: each is another text, and the excused ones are among them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fairlane.protocol.scripts import FOLDERS, library
from tests.explore.mutants import EXCEPTIONS, Mutant, find

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


@pytest.mark.parametrize(
    ("lines", "wanted"),
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
    ids=["guard", "branch", "operands", "value"],
)
def test_conditions_are_taken_apart(
    tmp_path: Path, lines: list[str], wanted: list[tuple[str, str]]
):
    assert [(one.kind, one.text) for one in mutants_of(tmp_path, *lines)] == wanted
