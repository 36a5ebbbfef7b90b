"""Tests `fairlane status ID` of failures: that attempts fail, why, and when the next is due."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NoReturn

from tests.cli.program import Dead, Failed, settle

if TYPE_CHECKING:
    from tests.cli.program import Program

RAISED = 'Traceback (most recent call last):\n  File "/own/port.py", line 7, in go\n{}\n'


def fail(_: int, body: bytes) -> NoReturn:
    raise Failed(RAISED.format(f"ValueError: bad port {body!r}"))


def test_a_request_without_failures_has_no_rows_about_them(program: Program):
    program("submit", "-", "--id", "mine", stdin=b"a\n")
    said = program("status", "mine").out.decode()
    assert not {line.split()[0] for line in said.splitlines()} & {"failed", "error"}
    found = json.loads(program("status", "mine", "--json").out)
    names = ("failures", "last_failure", "retries_waiting", "next_retry_ms")
    assert [found[name] for name in names] == [0, None, 0, None]


def test_status_shows_the_last_error_the_failed_attempts_and_the_next_attempt(
    program: Program, redis_url: str
):
    program("submit", "-", "--id", "mine", "--limit", "1", stdin=b"a\nb\n")
    settle(redis_url, fail, most=2)
    lines = program("status", "mine").out.decode().splitlines()
    failed, error, which = lines[lines.index(next(x for x in lines if "failed" in x)) :][:3]
    assert failed.startswith("failed    2 attempts; 2 wait for another, the next is due in ")
    assert failed.endswith("s")
    assert error == "error     ValueError: bad port b'b' (port.py:7 go)"
    assert which.startswith("          sub-request 1 at attempt 1, ")
    assert which.endswith(" ago")
    found = json.loads(program("status", "mine", "--json").out)
    assert (found["failures"], found["retries_waiting"]) == (2, 2)
    last = found["last_failure"]
    assert (last["index"], last["attempt"]) == (1, 1)
    assert last["error"].endswith("ValueError: bad port b'b'\n")
    assert 0 < found["next_retry_ms"] - last["at_ms"] <= 60_000


def test_the_next_attempt_of_a_paused_request_waits_for_its_resumption(
    program: Program, redis_url: str
):
    program("submit", "-", "--id", "mine", "--limit", "1", stdin=b"a\n")
    settle(redis_url, fail, most=1)
    program("pause", "mine")
    said = program("status", "mine").out.decode()
    assert "failed    1 attempt; 1 waits for another, after `fairlane resume mine`\n" in said


def test_an_ended_request_still_shows_its_last_error(program: Program, redis_url: str):
    def reject(_: int, body: bytes) -> NoReturn:
        raise Dead("no such \x1b[31mhost")

    program("submit", "-", "--id", "mine", stdin=b"a\n")
    settle(redis_url, reject)
    said = program("status", "mine").out.decode()
    assert "failed    1 attempt\nerror     no such \\x1b[31mhost\n" in said
