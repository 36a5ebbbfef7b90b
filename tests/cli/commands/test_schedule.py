"""Tests `fairlane schedule`: what it prints, and what it refuses in one sentence."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.run.for_each import for_each

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cli.program import Program

DAILY = ("schedule", "add", "daily", "0 7 * * mon-fri", "--tz", "Europe/Berlin")


@pytest.fixture(autouse=True)
def _clean(redis_client: Any) -> Iterator[None]:
    """Removes schedules, which must not outlive a test."""
    yield
    redis_client.flushall()


def listed(program: Program) -> list[dict[str, Any]]:
    out = program("schedule", "list", "--json").out
    return [json.loads(line) for line in out.splitlines()]


def test_a_schedule_is_added_listed_paused_resumed_and_removed(program: Program):
    added = program(*DAILY, "--body", "go", "--body", "on", "--priority", 1, "--retain", "1h")
    assert added.out.startswith(b"next ")
    assert b" 07:00:00 +0" in added.out
    (one,) = listed(program)
    assert (one["schedule"], one["state"], one["sub_requests"]) == ("daily", "active", 2)
    assert one["options"] == {"priority": 1, "retain": 3600.0}
    assert len(one["next"]) == 5
    table = program("schedule", "list").out.decode().splitlines()
    assert table[0].split() == ["SCHEDULE", "STATE", "CRON", "TZ", "MISSED", "NEXT"]
    assert len(table) == 1 + 5
    assert program("schedule", "pause", "daily").out == b"paused\n"
    assert listed(program)[0]["next"] == []
    assert program("schedule", "resume", "daily").out.startswith(b"next ")
    assert program("schedule", "remove", "daily").out == b"removed\n"
    assert program("schedule", "list").err == "fairlane: queue req has no schedules\n"


def test_a_file_and_a_task_are_submitted_at_each_tick(program: Program, redis_client: Any):
    program(*DAILY, program.file(b"a\nb\nc\n"))
    assert listed(program)[0]["sub_requests"] == 3
    program(*DAILY, "--task", "report", "--args", '{"day": 1}')
    text = json.loads(redis_client.hget("{req}:schedules", "daily"))
    import base64

    assert base64.b64decode(text["bodies"][0]) == b'[1,"report",{"day":1}]'


@for_each(
    "words, sentence",
    [
        (("add", "d", "0 0 31 2 *", "--body", "x"), "is never due"),
        (("add", "d", "61 * * * *", "--body", "x"), "minute 61 is wrong"),
        (("add", "d", "* * * * *", "--body", "x", "--tz", "berlin"), "did you mean Europe/Berlin?"),
        (("add", "a b", "* * * * *", "--body", "x"), "schedule 'a b' is not valid"),
        (("add", "d", "* * * * *"), "name one of them"),
        (("add", "d", "* * * * *", "-", "--body", "x"), "name one of them"),
        (("add", "d", "* * * * *", "-"), "is empty: each request needs at least one line"),
        (("add", "d", "* * * * *", "--body", "x", "--args", "{}"), "--args needs --task"),
        (("add", "d", "* * * * *", "--task", "t", "--args", "7"), "--args 7 is no object"),
        (("add", "d", "* * * * *", "--task", "t", "--args", "{"), "--args { is not JSON"),
        (("add", "d", "* * * * *", "--body", "x", "--priority", "100"), "priority 100"),
        (("add", "d", "* * * * *", "--body", "x", "--most", "0"), "most 0 is not valid"),
        (
            ("add", "d", "* * * * *", "--body", "x" * 65_537),
            "bodies of the schedule are too many or too large",
        ),
    ],
)
def test_a_wrong_schedule_is_refused_in_one_sentence(
    program: Program, words: tuple[str, ...], sentence: str
):
    program("schedule", *words).refused(2, sentence)


@pytest.mark.parametrize("action", ["pause", "resume", "remove"])
def test_an_unknown_schedule_is_not_found(program: Program, action: str):
    program(*DAILY, "--body", "x")
    ended = program("schedule", action, "dayly")
    ended.refused(3, "schedule dayly is not in queue req: did you mean daily?")
