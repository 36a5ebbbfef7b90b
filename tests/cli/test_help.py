"""Tests the help: it imports nothing heavy, and describes what every command takes."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import click
import pytest

from fairlane.cli.program import COMMANDS as ALL
from fairlane.cli.program import OTHER_WORDS, fairlane, load
from tests.cli.program import NO_SERVER, finish
from tests.support.run.for_each import for_each

if TYPE_CHECKING:
    from tests.cli.program import Program

COMMANDS = (
    *("submit", "worker", "wait", "results", "pause", "resume", "set", "cancel", "dead"),
    *("errors", "status", "why", "list", "workers", "queues", "completions"),
    *("stats", "demand", "queue", "spark", "doctor", "scripts", "acl", "server", "completion"),
    *("serve", "token"),
)
GROUPS = ("dead", "scripts", "server", "spark", "token")  # they only have commands of their own
HEAVY = (
    *("redis", "rich", "asyncio", "starlette", "uvicorn", "multiprocessing", "pyspark", "pyarrow"),
    *("fairlane.queue", "fairlane.worker", "fairlane.spark.spark_session"),
)
# Each command runs in a fork of one process that has imported nothing but the command line.
ASK = """
import contextlib, io, json, os, sys
from fairlane import cli

def ask(entry, *words):
    sys.argv[:] = ["fairlane", *words]
    with contextlib.redirect_stdout(io.StringIO()) as said:
        try:
            getattr(cli, entry)()
        except SystemExit as end:
            return [end.code, "Usage:" in said.getvalue(), sorted(sys.modules)]

found = []
for given in json.loads(sys.argv[1]):
    reader, writer = os.pipe()
    if not os.fork():
        with open(writer, "w") as stream:
            json.dump(ask(*given), stream)
        os._exit(0)
    os.close(writer)
    with open(reader) as stream:
        found.append(json.load(stream))
    os.wait()
print(json.dumps(found))
"""


@pytest.mark.rest
def test_help_imports_nothing_heavy(alone: Program):
    asked = [["main"], *(["main", name] for name in COMMANDS), ["submit_main"], ["worker_main"]]
    done = subprocess.run(
        [sys.executable, "-c", ASK, json.dumps([[*words, "--help"] for words in asked])],
        env=alone.env, capture_output=True, check=True, text=True,
    )  # fmt: skip
    for words, (code, has_usage, modules) in zip(asked, json.loads(done.stdout), strict=True):
        assert (code, has_usage) == (0, True), words
        assert set(modules) & set(HEAVY) == set(), words


def help_of(alone: Program, words: str) -> str:
    """Returns the help as one line."""
    return " ".join(alone(*words.split(), "--help").out.decode().split())


def test_the_group_names_every_command(alone: Program):
    said = alone("--help").out.decode()
    assert [name for name in COMMANDS if f"\n  {name} " not in said] == []


def test_no_commands_line_is_cut_off(alone: Program):
    for words in ("", "dead", "scripts", "server", "spark"):
        assert "..." not in help_of(alone, words).partition("Commands:")[2]


EXIT_CODES = ("Exit code 1: ", "; 3: there is no")
REQUEUED = (
    "under their old indexes",
    "If ID has ended, it is opened again",
)
TIMES = [f"--{name} TIME " for name in ("backoff", "lease", "retain", "deadline", "time-limit")]
BACKOFF = "shortest..longest; 1s means 1s..1s"


@for_each(
    "words, expected",
    [
        ("submit", ("--redis URL", "--json", *TIMES, BACKOFF)),
        ("worker", ("--redis URL",)),
        *((name, ("--redis URL", "--json")) for name in ("wait", "results", "cancel", "status")),
        *((name, ("--redis URL", "--json", *EXIT_CODES)) for name in ("pause", "resume", "set")),
        *((name, ("--redis URL",)) for name in ("stats", "doctor")),
        ("list", ("--redis URL", "--json", "--after CURSOR", "running, ended, active, paused")),
        *(
            (name, ("--redis URL", "--json"))
            for name in ("workers", "queues", "errors", "why", "demand")
        ),
        ("completions", ("--redis URL", "--json", "Exit code 1: ")),
        ("dead", EXIT_CODES),
        ("dead requeue", ("--redis URL", "--json", *REQUEUED)),
        *((f"dead {name}", ("--redis URL", "--json")) for name in ("list", "drop")),
        *((f"scripts {name}", ("--redis URL", "--json")) for name in ("load", "verify")),
        ("acl", ("--json",)),
    ],
)
def test_help_names_the_options_and_exit_codes(
    words: str, expected: tuple[str, ...], alone: Program
):
    said = help_of(alone, words)
    assert [text for text in expected if text not in said] == []


@pytest.mark.rest
@pytest.mark.parametrize("entry", ["submit_main", "worker_main"])
def test_the_short_names_print_the_version(entry: str, alone: Program):
    said = subprocess.run(
        [sys.executable, "-c", f"from fairlane import cli; cli.{entry}()", "--version"],
        env=alone.env, capture_output=True, check=True, text=True,
    ).stdout  # fmt: skip
    assert said.startswith("fairlane ")
    assert said == alone("--version").out.decode()


def test_no_command_is_a_usage_error_with_help(alone: Program):
    ended = alone()
    assert (ended.code, ended.out) == (2, b"")
    assert ended.err.startswith("Usage: ")


@for_each(
    "words",
    [
        *("nothing", "submit", "submit f --nothing", "wait", "server nothing", "set"),
        "dead nothing",
    ],
)
def test_bad_usage_is_one_sentence(words: str, alone: Program):
    alone(*words.split()).refused(2, "--help")


@for_each(
    "words, meant",
    [
        ("statsu", "stats or status"),
        ("dead reqeue", "requeue"),
        ("spark colect", "collect"),
        ("requeue", "dead requeue?"),
        ("purge", "delete or dead drop?"),
        ("dead retry", "requeue?"),
        ("retry", "dead requeue?"),
        ("dead purge", "drop?"),
        ("schedule delete", "remove?"),
        ("queue purge", "fairlane delete or fairlane dead drop?"),
        ("enqueue", "submit?"),
        ("stop", "spark stop or server stop?"),
    ],
)
def test_a_mistyped_command_gets_a_suggestion(words: str, meant: str, alone: Program):
    *_, mistyped = given = words.split()
    alone(*given).refused(2, f"No such command '{mistyped}'. Did you mean {meant}", "--help")


def test_every_suggested_command_exists():
    def exists(words: list[str], group: click.Command) -> bool:
        if not words:
            return True
        with click.Context(group) as context:
            found = group.get_command(context, words[0]) if isinstance(group, click.Group) else None
        return found is not None and exists(words[1:], found)

    for words, commands in OTHER_WORDS:
        assert [one for one in commands if not exists(one.split(), fairlane)] == []
        assert words


@for_each(
    "words, named",
    [
        ("serve --queue a --queue b", "--queue"),
        ("submit f --limit 1 --limit 2", "--limit"),
        ("list --limit 1 --limit=2", "--limit"),
        ("dead list x --queue a --queue a", "--queue"),
        ("queue rate 5/s --burst 1 --burst 2", "--burst"),
        ("webhook add w http://a --queue a --queue b", "--queue"),
        ("top --queue a --queue b", "--queue"),
    ],
)
def test_an_option_that_is_given_twice_is_refused(words: str, named: str, alone: Program):
    alone(*words.split()).refused(2, f"Option '{named}' is given twice: give it once", "--help")


def test_a_switch_and_an_option_of_several_values_may_be_repeated(alone: Program):
    ended = alone("list", "--json", "--json", "--tag", "a", "--tag", "b", "--redis", NO_SERVER)
    assert "twice" not in ended.err


def test_an_option_of_one_value_is_refused_twice_in_every_command():
    """Also a command that a test calls twice in one process."""
    count = 0
    for name in ALL:
        todo = [load(name)]
        while todo:
            command = todo.pop()
            todo += command.commands.values() if isinstance(command, click.Group) else ()
            for one in command.params:
                if not isinstance(one, click.Option) or one.multiple or one.is_flag or one.count:
                    continue
                if one.nargs != 1 or not one.expose_value:
                    continue
                word, count = max(one.opts, key=len), count + 1
                context = click.Context(command, info_name=name)
                with pytest.raises(click.UsageError, match=f"Option '{word}' is given twice"):
                    command.make_parser(context).parse_args([word, "1", word, "2"])
    assert count > 100


def test_a_word_that_resembles_no_command_gets_no_suggestion(alone: Program):
    assert "Did you mean" not in alone("xyzzy").err


@for_each(
    "given, meant",
    [
        ("--prio", "--priority"),
        ("--wiat", "--wait"),
        ("--queu=x", "--queue"),
        ("--w", "--weight or "),
    ],
)
def test_a_mistyped_option_gets_a_suggestion(given: str, meant: str, alone: Program):
    named = given.partition("=")[0]
    alone("submit", "f", given).refused(2, f"No such option '{named}'. Did you mean {meant}")


@for_each("given", ["--pr1o", "--nothing", "--outcome", "-x", "--"])
def test_only_options_that_are_near_are_suggested(given: str, alone: Program):
    assert "Did you mean" not in alone("submit", "f", given, "g").err


@pytest.mark.parametrize("name", ["wait", "results"])
def test_watch_of_another_command_names_what_watches(name: str, alone: Program):
    alone(name, "mine", "--watch").refused(
        2, "No such option '--watch': fairlane status ID --watch shows progress, and ",
        "fairlane wait ID waits for the end", "--help",
    )  # fmt: skip


def test_help_into_a_closed_pipe_ends_quietly(alone: Program):
    process = alone.start("--help")
    assert process.stdout
    process.stdout.close()
    process.stdout = None
    ended = finish(process)
    assert (ended.code, ended.err) == (0, "")
