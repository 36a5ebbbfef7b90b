"""Tests `fairlane pause`, `resume` and `set`: they print what is in force, and refuse the rest."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.cli.program import NO_SERVER, hold, settle
from tests.support.run.for_each import for_each
from tests.support.scripts.requests import change_number

if TYPE_CHECKING:
    import redis

    from tests.cli.program import Program

COMMANDS = [("pause",), ("resume",), ("set", "--limit", "2")]


def test_a_paused_request_waits_and_a_resumed_one_runs(program: Program, redis_url: str):
    program("submit", "-", "--id", "mine", stdin=b"a\nb\n")
    for _ in range(2):
        ended = program("pause", "mine")
        assert (ended.code, ended.out, ended.err) == (0, b"paused\n", "")
    assert settle(redis_url, lambda _, body: body) == []
    assert b"state     paused\n" in program("status", "mine").out
    assert b"1 paused" in program("status").out
    assert json.loads(program("pause", "mine", "--json").out)["state"] == "paused"
    for _ in range(2):
        ended = program("resume", "mine")
        assert (ended.code, ended.out, ended.err) == (0, b"active\n", "")
    found = json.loads(program("resume", "mine", "--json").out)
    assert (found["id"], found["state"], found["left"]) == ("mine", "active", 2)
    assert len(settle(redis_url, lambda _, body: body)) == 2
    assert program("wait", "mine").code == 0


def test_a_watcher_shows_that_it_is_paused(program: Program):
    program("submit", "-", "--id", "mine", stdin=b"a\n")
    program("pause", "mine")
    ended = program("submit", "-", "--id", "mine", "--watch", "--timeout", "1s", stdin=b"a\n")
    assert ended.code == 4
    assert "request mine paused: 0/1 done" in ended.err


def test_what_is_being_cancelled_is_neither_paused_nor_resumed(program: Program, redis_url: str):
    program("submit", "-", "--id", "mine", stdin=b"a\nb\n")
    hold(redis_url)
    program("cancel", "mine")
    for command in ("pause", "resume"):
        ended = program(command, "mine")
        assert (ended.code, ended.out) == (1, b"cancelling\n")
        assert ended.err == "fairlane: request mine is being cancelled: it stays cancelling\n"


def test_what_is_past_its_deadline_is_not_paused(program: Program, redis_client: redis.Redis):
    program("submit", "-", "--id", "mine", "--deadline", "1s", stdin=b"a\nb\n")
    change_number(redis_client, "mine", "deadline", 1)
    ended = program("pause", "mine")
    assert (ended.code, ended.out) == (1, b"active\n")
    assert ended.err == "fairlane: request mine is past its deadline: it stays active\n"


def test_set_prints_what_is_in_force(program: Program, redis_client: redis.Redis):
    program("submit", "-", "--id", "mine", stdin=b"a\n" * 20)
    ended = program("set", "mine", "--limit", "7")
    assert (ended.code, ended.out, ended.err) == (0, b"limit 7, priority 5\n", "")
    assert program("set", "mine", "--priority", "0").out == b"limit 7, priority 0\n"
    found = json.loads(program("set", "mine", "--limit", 2, "--priority", 1, "--json").out)
    assert (found["limit"], found["priority"], found["state"]) == (2, 1, "active")
    assert redis_client.llen("{req}:1") == 2
    ended = program("set", "mine", "--rate", "50/s", "--burst", 4)
    assert (ended.code, ended.out) == (0, b"limit 2, priority 1, rate 50/s\n")
    assert b"50/s" in program("status", "mine").out
    ended = program("set", "mine", "--weight", 2)
    assert ended.out == b"limit 2, priority 1, rate 50/s, each counts for 2\n"
    program("set", "mine", "--share", 3).refused(2, "request mine names no tenant")


def test_a_tenant_gets_another_share(program: Program):
    program("submit", "-", "--id", "mine", "--tenant", "t", stdin=b"a\n")
    assert program("set", "mine", "--share", 3).out == b"limit 3, priority 5, share 3 of tenant t\n"
    assert program("set", "--tenant", "t", "--share", 4, "--yes").out == b"1 request changed\n"
    assert b"t (share 4)" in program("status", "mine").out


@for_each(
    "words, said",
    [
        ((), "nothing to set"),
        (("--limit", "0"), "limit 0 is not valid: a whole number from 1 to 10000 is expected"),
        (("--limit", "10001"), "limit 10001 is not valid"),
        (("--priority", "100"), "priority 100 is not valid: a whole number from 0 to 99"),
        (("--limit", "2", "--priority", "-1"), "priority -1 is not valid"),
        (("--limit", "many"), "not a valid integer"),
        (("--rate", "50"), "rate '50' is not valid: write a rate such as 100/s"),
        (("--rate", ""), "rate '' is not valid"),
        (("--limit", "2", "--burst", "5"), "burst needs a rate"),
    ],
)
def test_bad_numbers_are_refused_before_redis_is_called(
    words: tuple[str, ...], said: str, program: Program
):
    program("set", "mine", *words, "--redis", NO_SERVER).refused(2, said)


@pytest.mark.parametrize("words", COMMANDS)
def test_only_a_request_that_exists_and_has_not_ended_can_be_changed(
    words: tuple[str, ...], program: Program
):
    program(words[0], "mien", *words[1:]).refused(3, "there is no request mien")
    program(words[0], "m{e", *words[1:]).refused(2, "request id 'm{e' is not valid")
    program("submit", "-", "--id", "mine", stdin=b"a\n")
    program("cancel", "mine")
    program(words[0], "mine", *words[1:]).refused(1, "request mine has ended (cancelled)")


def test_status_shows_the_deadline_and_the_time_limit(program: Program, redis_url: str):
    words = ("--id", "mine", "--deadline", "2h", "--time-limit", "90s")
    program("submit", "-", *words, stdin=b"a\nb\n")
    said = program("status", "mine").out.decode()
    assert "deadline  in 1h 59m\n" in said
    assert "per call  at most 1m 30s in the handler\n" in said
    found = json.loads(program("status", "mine", "--json").out)
    assert found["deadline_ms"] == found["submitted_ms"] + 7_200_000
    assert (found["time_limit_ms"], found["timeouts"]) == (90_000, 0)
    settle(redis_url, lambda _, body: body)
    program("submit", "-", "--id", "plain", stdin=b"a\n")
    plain = program("status", "plain").out.decode()
    assert not {line.split()[0] for line in plain.splitlines()} & {"deadline", "per"}
