"""`--queue` of the commands for one request: they act only if the request is in that queue."""

from __future__ import annotations

import pytest

from tests.cli.program import Program, settle

COMMANDS = [
    ("status", "mine"),
    ("dead", "list", "mine"),
    ("wait", "mine", "--timeout", "5"),
    ("results", "mine"),
    ("cancel", "mine"),
    ("pause", "mine"),
    ("resume", "mine"),
    ("set", "mine", "--limit", "2"),
    ("dead", "requeue", "mine", "--all"),
    ("dead", "drop", "mine", "--all"),
]
by_command = pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words[:2]))


@by_command
def test_a_request_of_another_queue_is_refused_and_its_queue_named(
    words: tuple[str, ...], program: Program
):
    program("submit", "-", "--id", "mine", "--queue", "later", stdin=b"a\n")
    said = "request mine is in queue later, not in queue req: give --queue later, or leave it out"
    program(*words, "--queue", "req").refused(3, said)
    assert b"active" in program("status", "mine").out


@by_command
def test_a_request_of_the_queue_is_acted_on(
    words: tuple[str, ...], program: Program, redis_url: str
):
    program("submit", "-", "--id", "mine", "--queue", "later", "--attempts", 1, stdin=b"a\n")
    if words[0] in ("wait", "results"):
        settle(redis_url, lambda _, body: body, queue="later")
    ended = program(*words, "--queue", "later")
    assert ended.code == 0, ended.err


def test_a_queue_that_cannot_be_one_is_refused(program: Program):
    program("wait", "mine", "--queue", "a{b").refused(2, "queue 'a{b' is not valid")


def test_an_id_without_a_request_is_not_found_in_a_queue(program: Program):
    program("cancel", "mine", "--queue", "later").refused(3, "there is no request mine")
