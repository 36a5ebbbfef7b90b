"""Help costs nothing, and every command says what it takes."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.cli.program import finish

if TYPE_CHECKING:
    from tests.cli.program import Program

COMMANDS = (
    *("submit", "worker", "wait", "results", "pause", "resume", "set", "cancel", "dead"),
    *("status", "stats", "spark", "doctor", "scripts", "acl", "server", "completion"),
)
GROUPS = ("dead", "scripts", "server", "spark")  # they only have commands of their own
HEAVY = (
    *("redis", "rich", "asyncio", "multiprocessing", "pyspark", "pyarrow"),
    *("fairlane.queue", "fairlane.worker", "fairlane.spark.spark_session"),
)
ASK = """
import json, sys
sys.argv[0] = "fairlane"
from fairlane import cli
try:
    getattr(cli, sys.argv.pop(1))()
except SystemExit as end:
    print(json.dumps([end.code, sorted(sys.modules)]))
"""


def modules_after(program: Program, entry: str, *words: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", ASK, entry, *words],
        env=program.env, capture_output=True, check=True, text=True,
    )  # fmt: skip
    code, modules = json.loads(done.stdout.splitlines()[-1])
    assert code == 0
    assert "Usage:" in done.stdout
    return set(modules)


@pytest.mark.parametrize("words", [(), *((name,) for name in COMMANDS)])
def test_help_imports_nothing_heavy(words: tuple[str, ...], alone: Program):
    assert modules_after(alone, "main", *words, "--help") & set(HEAVY) == set()


@pytest.mark.parametrize("entry", ["submit_main", "worker_main"])
def test_the_short_names_are_two_of_the_commands(entry: str, alone: Program):
    assert modules_after(alone, entry, "--help") & set(HEAVY) == set()


def test_the_group_names_every_command(alone: Program):
    said = alone("--help").out.decode()
    assert [name for name in COMMANDS if f"\n  {name} " not in said] == []


def test_no_commands_line_is_cut_off(alone: Program):
    for words in ((), ("dead",), ("scripts",), ("server",), ("spark",)):
        assert "..." not in alone(*words, "--help").out.decode().partition("Commands:")[2]


@pytest.mark.parametrize("entry", ["submit_main", "worker_main"])
def test_the_short_names_tell_the_version(entry: str, alone: Program):
    said = subprocess.run(
        [sys.executable, "-c", f"from fairlane import cli; cli.{entry}()", "--version"],
        env=alone.env, capture_output=True, check=True, text=True,
    ).stdout  # fmt: skip
    assert said == alone("--version").out.decode()


@pytest.mark.parametrize("name", sorted({*COMMANDS} - {*GROUPS, "acl", "completion"}))
def test_every_command_that_speaks_with_one_takes_a_redis(name: str, alone: Program):
    assert "--redis URL" in alone(name, "--help").out.decode()


@pytest.mark.parametrize("name", ["list", "requeue", "drop"])
def test_what_is_done_with_the_dead_takes_a_redis_and_speaks_json(name: str, alone: Program):
    said = alone("dead", name, "--help").out.decode()
    assert ("--redis URL" in said, "--json" in said) == (True, True)


@pytest.mark.parametrize("name", ["load", "verify"])
def test_what_is_done_with_scripts_takes_a_redis_and_speaks_json(name: str, alone: Program):
    said = alone("scripts", name, "--help").out.decode()
    assert ("--redis URL" in said, "--json" in said) == (True, True)


@pytest.mark.parametrize(
    "name", ["submit", "wait", "results", "pause", "resume", "set", "cancel", "status", "acl"]
)
def test_whatever_reads_can_speak_json(name: str, alone: Program):
    assert "--json" in alone(name, "--help").out.decode()


@pytest.mark.parametrize("name", ["pause", "resume", "set", "dead"])
def test_what_changes_a_request_names_its_exit_codes(name: str, alone: Program):
    said = " ".join(alone(name, "--help").out.decode().split())
    assert "Exit code 1: " in said
    assert "; 3: there is no" in said


@pytest.mark.parametrize("name", ["backoff", "lease", "retain", "deadline", "time-limit"])
def test_what_takes_a_time_says_so(name: str, alone: Program):
    assert f"--{name} TIME " in alone("submit", "--help").out.decode()


def test_no_command_is_a_usage_error_with_help(alone: Program):
    ended = alone()
    assert (ended.code, ended.out) == (2, b"")
    assert ended.err.startswith("Usage: ")


@pytest.mark.parametrize(
    "words",
    [
        ("nothing",),
        ("submit",),
        ("submit", "f", "--nothing"),
        ("wait",),
        ("server", "nothing"),
        ("set",),
        ("dead", "nothing"),
        ("dead", "drop"),
    ],
)
def test_bad_usage_is_one_sentence(words: tuple[str, ...], alone: Program):
    alone(*words).refused(2, "--help")


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("statsu",), "stats or status"),
        (("dead", "reqeue"), "requeue"),
        (("spark", "colect"), "collect"),
        (("requeue",), "dead requeue?"),
        (("stop",), "spark stop or server stop?"),
    ],
)
def test_a_mistyped_command_gets_a_suggestion(words: tuple[str, ...], meant: str, alone: Program):
    alone(*words).refused(2, f"No such command '{words[-1]}'. Did you mean {meant}", "--help")


def test_a_word_that_resembles_no_command_gets_no_suggestion(alone: Program):
    assert "Did you mean" not in alone("xyzzy").err


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("--prio", "--priority"),
        ("--wiat", "--wait"),
        ("--queu=x", "--queue"),
        ("--w", "--wait or "),
    ],
)
def test_a_mistyped_option_gets_a_suggestion(given: str, meant: str, alone: Program):
    named = given.partition("=")[0]
    alone("submit", "f", given).refused(2, f"No such option '{named}'. Did you mean {meant}")


@pytest.mark.parametrize("given", ["--pr1o", "--nothing", "--outcome", "-x", "--"])
def test_only_options_that_are_near_are_suggested(given: str, alone: Program):
    assert "Did you mean" not in alone("submit", "f", given, "g").err


@pytest.mark.parametrize("name", ["status", "wait", "results"])
def test_watch_of_another_command_names_what_watches(name: str, alone: Program):
    alone(name, "mine", "--watch").refused(
        2, "No such option '--watch': rq-submit FILE --id ID --watch shows progress, and ",
        "fairlane wait ID waits for the end", "--help",
    )  # fmt: skip


def test_a_single_backoff_is_explained(alone: Program):
    said = " ".join(alone("submit", "--help").out.decode().split())
    assert "shortest..longest; 1s means 1s..1s" in said


def test_the_version_is_printed(alone: Program):
    assert alone("--version").out.startswith(b"fairlane ")


def test_help_into_a_closed_pipe_ends_quietly(alone: Program):
    process = alone.start("--help")
    assert process.stdout
    process.stdout.close()
    process.stdout = None
    ended = finish(process)
    assert (ended.code, ended.err) == (0, "")
