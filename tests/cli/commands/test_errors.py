"""Tests `fairlane errors`: the failures of one request."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from tests.cli.program import Dead, Failed, settle

if TYPE_CHECKING:
    from tests.cli.program import Program
    from tests.support.scripts.requests import Lane


def answer(_: int, body: bytes) -> bytes:
    if body.startswith(b"dead"):
        raise Dead(f"ValueError: {body.decode()}")
    if body == b"late":
        raise Failed("TimeoutError: too late")
    return body


def test_the_dead_and_what_waits_for_a_retry(program: Program, redis_url: str):
    program("submit", "-", "--id", "mine", stdin=b"dead 1\nok\ndead 2\nlate\n")
    settle(redis_url, answer)
    ended = program("errors", "mine")
    assert ended.code == 0
    lines = ended.out.decode().splitlines()
    assert re.fullmatch(r"[0-9a-f]{10}  2 dead \(rejected\): ValueError: dead 1", lines[0])
    assert "index 0, 2; first " in lines[1]
    assert re.fullmatch(
        r"[0-9a-f]{10}  1 waits \(to be tried again\), the last error: TimeoutError: too late",
        lines[2],
    )
    assert re.search(r"index 3 at attempt 1, .* ago; the next attempt is due in \d+s$", lines[3])
    assert ended.err == "fairlane: to run the dead again: fairlane dead requeue mine --all\n"


def test_json_has_a_line_for_each_kind(program: Program, redis_url: str):
    program("submit", "-", "--id", "mine", stdin=b"dead 1\nlate\n")
    settle(redis_url, answer)
    ended = program("errors", "mine", "--json")
    dead, retry = map(json.loads, ended.out.splitlines())
    assert (dead["state"], dead["count"], dead["headline"]) == ("dead", 1, "ValueError: dead 1")
    assert (retry["state"], retry["count"], retry["index"]) == ("retry", 1, 1)
    assert retry["headline"] == "TimeoutError: too late"
    assert ended.err == ""


def test_the_fingerprint_of_a_retry_is_that_of_its_death(program: Program, redis_url: str):
    def fail(_: int, __: bytes) -> bytes:
        raise Failed("TimeoutError: too late")

    program("submit", "-", "--id", "waits", stdin=b"a\n")
    program("submit", "-", "--id", "dies", "--attempts", 1, stdin=b"a\n")
    settle(redis_url, fail)
    (waits,) = map(json.loads, program("errors", "waits", "--json").out.splitlines())
    (dies,) = map(json.loads, program("errors", "dies", "--json").out.splitlines())
    assert (waits["state"], dies["state"]) == ("retry", "dead")
    assert waits["fingerprint"] == dies["fingerprint"]


def test_what_waits_without_an_error_is_a_note(program: Program, lane: Lane):
    """The worker died with several leases, so none of them is charged."""
    lane.begin([b"a", b"b"], shared=True)
    lane.reap(worker="w:1", started="7")
    ended = program("errors", "r1")
    assert (ended.code, ended.out) == (0, b"")
    assert ended.err == (
        "fairlane: 1 sub-request to be tried again, without an error, as after the end of a "
        "process; the next attempt is due now\n"
    )


def test_a_request_without_failures_is_a_note(program: Program):
    program("submit", "-", "--id", "mine", stdin=b"a\n")
    ended = program("errors", "mine")
    assert (ended.code, ended.out) == (0, b"")
    assert ended.err == (
        "fairlane: request mine has no dead sub-request, and none waits for a retry\n"
    )


def test_an_unknown_request_and_another_queue_are_refused(program: Program):
    program("errors", "nothing").refused(3, "there is no request nothing")
    program("submit", "-", "--id", "mine", stdin=b"a\n")
    program("errors", "mine", "--queue", "mail").refused(3, "request mine is in queue req")


def test_without_an_id_the_failures_of_the_queue_are_grouped(program: Program, redis_url: str):
    program("submit", "-", "--id", "one", stdin=b"dead 1\ndead 2\n")
    program("submit", "-", "--id", "two", stdin=b"dead 3\nok\n")
    settle(redis_url, answer)
    settle(redis_url, answer)
    first, second = program("errors").out.decode().splitlines()
    assert re.fullmatch(r"[0-9a-f]{10}  3 dead: ValueError: dead \d", first)
    assert "in 2 requests: " in second
    assert "one index 0" in second
    assert "two index 0" in second
    (found,) = map(json.loads, program("errors", "--json").out.splitlines())
    assert (found["count"], found["requests"], len(found["examples"])) == (3, 2, 2)
    empty = program("errors", "--queue", "mail")
    assert "no request of queue mail has dead sub-requests" in empty.err
