"""Tests `fairlane queue`, and `rq-submit` to a queue with a bound."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.cli.program import Program, finish, settle
from tests.support.run.for_each import for_each

if TYPE_CHECKING:
    import redis


ONE_SLOT = b"shards    none, one slot\n"
ANY = b"queue     req\nwaiting   any number of sub-requests\n" + ONE_SLOT
TWO = b"queue     req\nwaiting   2 of at most 1,000,000 sub-requests\n" + ONE_SLOT
UNSPREAD: dict[str, object] = {
    "shards": [],
    "moving_from": [],
    "is_paused": False,
    "paused_until_ms": None,
    "rate": None,
}
OUT_OF_RANGE = ("-1", 10**16, 10**20)
RANGE = "is not valid: a whole number from 0 (no bound) to 1,000,000,0"


def test_a_bound_is_set_shown_and_taken_away(program: Program, redis_client: redis.Redis):
    assert program("queue", "show").out == ANY
    expected = {"queue": "req", "max_waiting": None, "waiting": None} | UNSPREAD
    assert json.loads(program("queue", "show", "--json").out) == expected
    program("submit", program.file(b"a\nb\n"))
    ended = program("queue", "set", "--max-waiting", 1_000_000)
    assert ended.out == TWO
    expected |= {"max_waiting": 1_000_000, "waiting": 2}
    assert json.loads(program("queue", "show", "--json").out) == expected
    assert "bound     2 of at most 1,000,000 sub-requests\n" in program("status").out.decode()
    found = json.loads(program("status", "--json").out)
    assert (found["max_waiting"], found["admitted"]) == (1_000_000, 2)
    assert b"any number" in program("queue", "set", "--max-waiting", 0).out
    assert redis_client.hgetall("{req}:conf") == {}
    found = json.loads(program("status", "--json").out)
    assert (found["max_waiting"], found["admitted"]) == (None, None)
    assert b"bound" not in program("status").out


def test_the_bound_is_that_queues_alone(program: Program):
    program("queue", "set", "--queue", "slow", "--max-waiting", 1)
    assert program("submit", program.file(b"a\nb\n")).code == 0
    assert program("submit", program.file(b"a\nb\n"), "--queue", "slow").code == 0
    ended = program("submit", program.file(b"a\nb\n"), "--queue", "slow")
    ended.refused(5, "queue slow has 2 waiting sub-requests", "--queue slow --max-waiting")


@for_each(
    "words, said",
    [
        *((f"--max-waiting={most}", f"--max-waiting {most} {RANGE}") for most in OUT_OF_RANGE),
        ("--max-waiting=x", "--max-waiting"),
        ("--max-waiting=1.5", "--max-waiting"),
        ("--shards=-1", "-1 shards are not possible"),
        ("--shards=17", "17 shards are not possible"),
    ],
)
def test_a_setting_out_of_its_range_is_refused(words: str, said: str, program: Program):
    program("queue", "set", words).refused(2, said)


def test_a_refusal_reports_how_long_there_was_no_room(program: Program):
    program("queue", "set", "--max-waiting", 1)
    program("submit", program.file(b"a\n"))
    ended = program("submit", program.file(b"b\n"), "--max-wait", "100ms")
    ended.refused(5, "no room after 0.1 s: queue req has 1 waiting")


def test_a_refused_file_leaves_nothing(program: Program, redis_client: redis.Redis):
    program("queue", "set", "--max-waiting", 10)
    program("submit", program.file(b"a\n" * 8))
    ended = program("submit", program.file(b"b\n" * 9), "--id", "mine")
    ended.refused(5, "8 waiting sub-requests, 9 more would pass its bound of 10")
    assert redis_client.exists("req:{mine}", "sub:{mine}") == 0
    assert redis_client.zscore("{req}:active", "mine") is None


def test_a_file_waits_for_room(program: Program, redis_url: str):
    program("queue", "set", "--max-waiting", 10)
    program("submit", program.file(b"a\n" * 8))
    waits = ("--max-wait", "50s", "--id", "mine")
    process = program.start("submit", program.file(b"b\n" * 9), *waits)
    settle(redis_url, lambda _, body: body)
    assert finish(process).out == b"mine\n"


@pytest.mark.parametrize("time", ["2h", "x", "-1s"])
def test_a_wait_that_is_too_long_or_no_time_is_a_usage_error(program: Program, time: str):
    ended = program("submit", program.file(b"a\n"), f"--max-wait={time}")
    assert (ended.code, ended.err.count("\n")) == (2, 1)


def test_a_queue_is_spread_and_brought_together_again(program: Program):
    ended = program("queue", "set", "--shards", 2)
    assert ended.out.endswith(b"shards    2: 1, 2; requests are being moved there\n")
    found = json.loads(program("queue", "show", "--json").out)
    assert (found["shards"], found["moving_from"]) == ([1, 2], [0])
    found = json.loads(program("queue", "set", "--shards", 0, "--json").out)
    assert (found["shards"], found["moving_from"]) == ([], [1, 2])


# ------------------------------------------------------------------ rate


def test_a_queue_gets_a_rate_that_is_shown_and_taken_away(program: Program):
    program("submit", program.file(b"a\n"))
    shown = b"rate      100/s\n"
    assert program("queue", "rate", "100/s", "--burst", 20).out == ANY + shown
    assert shown in program("queue", "show").out
    assert b"rate      100/s\n" in program("status").out
    assert json.loads(program("queue", "show", "--json").out)["rate"] == "100/s"
    assert b"the queue starts at most 100/s" in program("doctor").out
    assert program("queue", "rate", "off").out == ANY
    assert b"rate" not in program("status").out


@for_each(
    "words, said",
    [
        (("100",), "rate '100' is not valid: write a rate such as 100/s, 30/m or 5/h"),
        (("none",), "rate 'none' is not valid"),
        (("100/s", "--burst", "0"), "burst 0 is not valid"),
        (("off", "--burst", "5"), "burst needs a rate: give rate, too, as 100/s"),
    ],
)
def test_a_rate_that_is_none_is_refused(program: Program, words: tuple[str, ...], said: str):
    program("queue", "rate", *words).refused(2, said)
    assert program("queue", "show").out == ANY


# ------------------------------------------------------------------ pause


def test_a_queue_is_paused_shown_and_resumed(program: Program):
    program("submit", program.file(b"a\n"))
    assert program("queue", "pause").out == b"queue req is paused until it is resumed\n"
    shown = b"paused    until fairlane queue resume\n"
    assert shown in program("queue", "show").out
    assert shown in program("status").out
    found = json.loads(program("status", "--json").out)
    assert (found["is_paused"], found["paused_until_ms"]) == (True, None)
    assert program("queues").out.splitlines()[1].endswith(b"yes")
    assert b"the queue is paused until it is resumed" in program("doctor").out
    assert program("queue", "resume").out == b"queue req is resumed\n"
    assert b"paused" not in program("status").out + program("queue", "show").out
    assert b"PAUSED" not in program("queues").out


def test_a_pause_for_a_time_names_its_end(program: Program):
    ended = program("queue", "pause", "--queue", "slow", "--for", "10m")
    assert ended.out.startswith(b"queue slow is paused until 20")
    assert ended.out.endswith(b" UTC (in 10 min)\n")
    found = json.loads(program("queue", "show", "--queue", "slow", "--json").out)
    assert found["is_paused"]
    until = found["paused_until_ms"]
    assert json.loads(program("queues", "--json").out)["queues"][0]["paused_until_ms"] == until


def test_a_resume_of_a_queue_that_is_not_paused_is_fine_and_reports_it(program: Program):
    ended = program("queue", "resume")
    assert (ended.code, ended.err) == (0, "fairlane: queue req was not paused\n")
    ended = program("queue", "resume", "--json")
    assert json.loads(ended.out) == {"queue": "req", "is_paused": False, "was_paused": False}


@for_each("time", ["-5m", "x", "0s", "366d", "nan", "1e400"])
def test_a_pause_that_is_no_time_or_longer_than_a_year_is_refused(program: Program, time: str):
    ended = program("queue", "pause", f"--for={time}")
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert "--for" in ended.err
    assert not json.loads(program("queue", "show", "--json").out)["is_paused"]


def test_a_wait_reports_that_the_queue_is_paused(program: Program):
    program("submit", program.file(b"a\n"), "--id", "mine")
    program("queue", "pause")
    ended = program("wait", "mine", "--timeout", "10ms")
    assert ended.code == 4
    assert "queue req is paused until it is resumed: fairlane queue resume" in ended.err


def test_nothing_to_set_is_a_usage_error(program: Program):
    program("queue", "set").refused(2, "nothing to set: name --max-waiting or --shards")
