"""Tests `fairlane completions`: the completion log as lines, from a position on, and followed."""

from __future__ import annotations

import json
import re
import signal
from typing import TYPE_CHECKING

import pytest

from fairlane import settings
from fairlane.protocol import keys
from tests.cli.program import Dead, finish, settle
from tests.support.run.for_each import for_each

if TYPE_CHECKING:
    import redis

    from tests.cli.program import Program

LINE = (
    r"\d+-\d+  \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ  done  one  1 done, 1 dead of 2 in "
    r"(\d+s|\d+ ms)\n"
)


def answer(_: int, body: bytes) -> bytes:
    if body == b"dead":
        raise Dead("it cannot be")
    return body


def end(program: Program, redis_url: str, *ids: str, bodies: bytes = b"a\n") -> None:
    """Ends requests, one after the other."""
    for request_id in ids:
        program("submit", "-", "--id", request_id, stdin=bodies)
        settle(redis_url, answer)


def ids_of(out: bytes) -> list[str]:
    return [json.loads(line)["id"] for line in out.splitlines()]


def test_a_line_for_each_ending(program: Program, redis_url: str):
    end(program, redis_url, "one", bodies=b"a\ndead\n")
    ended = program("completions")
    assert (ended.code, ended.err) == (0, "")
    assert re.fullmatch(LINE, ended.out.decode())


def test_without_a_place_the_newest_are_printed(program: Program, redis_url: str):
    end(program, redis_url, "one", "two", "three")
    assert ids_of(program("completions", "--limit", 2, "--json").out) == ["two", "three"]


@for_each("since", ["0", "10m", "2020-01-01T00:00Z", "1500000000000"])
def test_all_that_ended_since_a_place_is_printed(since: str, program: Program, redis_url: str):
    end(program, redis_url, "one", "two")
    assert ids_of(program("completions", "--since", since, "--json").out) == ["one", "two"]


def test_a_log_id_continues_behind_that_ending(program: Program, redis_url: str):
    end(program, redis_url, "one", "two", "three")
    ended = program("completions", "--since", "0", "--limit", 1)
    named = re.fullmatch(
        r"fairlane: there are more: repeat the command with --since (\S+)\n", ended.err
    )
    assert named
    assert ended.out.decode().startswith(named[1])
    found = program("completions", "--since", named[1], "--json")
    assert ids_of(found.out) == ["two", "three"]


@pytest.mark.rest
def test_follow_prints_endings_as_they_come_until_ctrl_c(program: Program, redis_url: str):
    end(program, redis_url, "one")
    with program.start("completions", "--follow", "--json") as process:
        assert process.stdout
        assert json.loads(process.stdout.readline())["id"] == "one"
        end(program, redis_url, "two")
        last = json.loads(process.stdout.readline())
        assert last["id"] == "two"
        process.send_signal(signal.SIGINT)
        ended = finish(process)
    assert ended.code == 130
    again = f"fairlane completions --follow --since {last['log_id']} continues"
    assert ended.err == f"fairlane: interrupted; {again}\n"


def test_following_an_empty_log_begins_with_the_first_ending(program: Program, redis_url: str):
    program("submit", "-", "--id", "one", stdin=b"a\n")
    with program.start("completions", "--follow", "--json") as process:
        settle(redis_url, answer)
        assert process.stdout
        assert json.loads(process.stdout.readline())["id"] == "one"
        process.send_signal(signal.SIGINT)
        assert finish(process).code == 130


def test_lost_endings_are_one_sentence(program: Program, redis_client: redis.Redis):
    """The log has an earlier and a later entry, but not the reader's position."""
    for log_id in ("10-1", "30-1"):
        redis_client.xadd(keys.completed(settings.DEFAULT_QUEUE), {"id": "x"}, id=log_id)
    program("completions", "--since", "20-1").refused(
        1, "endings after 20-1 may be missing from the completion log of queue req"
    )


def test_no_ending_is_a_note(program: Program):
    program("submit", "-", stdin=b"a\n")
    ended = program("completions")
    assert (ended.code, ended.out) == (0, b"")
    assert ended.err == "fairlane: no request of queue req has ended\n"
    assert program("completions", "--since", "10m").err.endswith("has ended since 10m\n")


@for_each(
    "since, sentence",
    [
        ("yesterday", "--since yesterday is no place in the log: give a log id, 0, a time"),
        ("1-2-3", "is no place in the log"),
        ("2999-01-01", "--since 2999-01-01 is in the future"),
        ("9" * 15, "is in the future"),
    ],
)
def test_a_bad_place_is_refused(since: str, sentence: str, program: Program):
    program("completions", "--since", since).refused(2, sentence)
