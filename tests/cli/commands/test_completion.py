"""Tests shell completion: what the shells load, and what the programs then return."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.run.for_each import for_each

if TYPE_CHECKING:
    from tests.cli.program import Program

ENTRIES = {"fairlane": "main", "rq-submit": "submit_main", "rq-worker": "worker_main"}
RUN = "import sys; sys.argv[0] = {name!r}; from fairlane import cli; cli.{entry}()"


def completions(program: Program, line: str) -> list[str]:
    """Returns what bash offers for the last word of this line."""
    words = line.split(" ")
    asked = "_" + words[0].replace("-", "_").upper() + "_COMPLETE"
    env = {asked: "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    code = RUN.format(name=words[0], entry=ENTRIES[words[0]])
    done = subprocess.run(
        [sys.executable, "-c", code], env=program.env | env, check=True, capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.rest
@for_each(
    "line, expected",
    [
        ("fairlane st", ["plain,status", "plain,stacks", "plain,stats"]),
        ("fairlane dead re", ["plain,requeue"]),
        ("fairlane work", ["plain,worker", "plain,workers"]),
        ("fairlane list --state ca", ["plain,cancelling", "plain,cancelled"]),
        ("fairlane completions --f", ["plain,--follow"]),
        ("fairlane results --order d", ["plain,done"]),
        ("fairlane completion z", ["plain,zsh"]),
        ("rq-submit --pri", ["plain,--priority"]),
        ("rq-submit wor", ["file,wor"]),
        ("rq-submit words.txt --out res", ["file,res"]),
        ("rq-worker --hand", ["plain,--handler"]),
        ("rq-worker --log-level w", ["plain,warning"]),
    ],
)
def test_a_word_is_completed(line: str, expected: list[str], alone: Program):
    assert completions(alone, line) == expected


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_loads_completions_of_all_three_programs(shell: str, alone: Program):
    ended = alone("completion", shell)
    assert (ended.code, ended.err) == (0, "")
    for program in ENTRIES:
        assert f"_{program}_COMPLETE".replace("-", "_").upper() in ended.out.decode()


def test_bash_takes_what_is_printed(alone: Program):
    alone.file(alone("completion", "bash").out, "script")
    done = subprocess.run(
        ["bash", "-c", "source ./script && complete -p rq-submit"], cwd=alone.folder,
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout.endswith(" rq-submit\n")


def test_a_missing_shell_and_another_shell_are_refused(alone: Program):
    choose = "Choose from: bash, zsh, fish (see fairlane completion --help)"
    alone("completion").refused(2, choose)
    alone("completion", "ksh").refused(2, "'ksh' is not one of")
