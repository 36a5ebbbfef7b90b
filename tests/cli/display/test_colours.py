"""Tests that states have colours on a terminal, and only there."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.cli.display.terminals import on_terminal
from tests.cli.display.test_terminal import COMMANDING, EVIL
from tests.cli.program import Dead, settle

if TYPE_CHECKING:
    from tests.cli.program import Program

GREEN, RED, CYAN = "\x1b[32m", "\x1b[31m", "\x1b[36m"
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def drawn_by(program: Program, *words: object, **env: str) -> str:
    """Returns what a command draws on a terminal until it ends."""
    shown = on_terminal(program, *words, **env)
    assert shown.end() == 0
    return shown.drawn.decode()


def fill(program: Program, redis_url: str) -> None:
    """Makes one request that is done, one with a dead sub-request, one that waits."""

    def answer(_: int, body: bytes) -> bytes:
        if body == b"dead":
            raise Dead(EVIL)
        return body

    program("submit", "-", "--id", "well", stdin=b"a\n")
    program("submit", "-", "--id", "ill", stdin=b"dead\n")
    settle(redis_url, answer)
    program("submit", "-", "--id", "waits", stdin=b"a\n")


@pytest.mark.rest
def test_states_are_coloured_on_a_terminal(program: Program, redis_url: str):
    fill(program, redis_url)
    shown = drawn_by(program, "list")
    assert f"{GREEN}done\x1b[0m" in shown
    assert f"{CYAN}active\x1b[0m" in shown
    assert f"{RED}1\x1b[0m" in shown
    assert f"{GREEN}done\x1b[0m" in drawn_by(program, "status", "well")
    assert f"{RED}1 dead\x1b[0m" in drawn_by(program, "errors", "ill")
    assert f"{RED}1 dead\x1b[0m" in drawn_by(program, "completions")


@pytest.mark.rest
@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=str)
def test_a_terminal_without_colours_gets_none(
    env: dict[str, str], program: Program, redis_url: str
):
    fill(program, redis_url)
    for command in ("list", "status", "completions"):
        assert not COLOURS.search(drawn_by(program, command, **env))


def test_a_pipe_gets_no_colours(program: Program, redis_url: str):
    fill(program, redis_url)
    program.env["TERM"] = "xterm"
    for words in (["list"], ["status", "well"], ["errors", "ill"], ["completions"]):
        assert not COLOURS.search(program(*words).out.decode())


def test_beside_the_colours_nothing_commands_the_terminal(program: Program, redis_url: str):
    fill(program, redis_url)
    shown = drawn_by(program, "errors", "ill")
    assert "owned" in shown
    assert COMMANDING.findall(COLOURS.sub("", shown).replace("\r\n", "\n")) == []


def test_columns_stay_in_line_with_colours(program: Program, redis_url: str):
    """Each of these requests has one sub-request."""
    fill(program, redis_url)
    shown = drawn_by(program, "list")
    assert COLOURS.search(shown)
    head, *rows = COLOURS.sub("", shown).replace("\r\n", "\n").splitlines()
    assert {row[head.index("TOTAL")] for row in rows} == {"1"}
    assert {row[head.index("STATE") - 1] for row in rows} == {" "}
