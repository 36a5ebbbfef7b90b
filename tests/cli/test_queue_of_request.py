"""Tests `--queue` of commands for one request: they act only on a request of that queue."""

from __future__ import annotations

import pytest

from tests.cli.program import Program, settle
from tests.support.run.params import rest_but

COMMANDS = [
    ("status", "mine"),
    ("why", "mine"),
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


@pytest.mark.parametrize("words", rest_but(4, zip(COMMANDS)), ids=lambda words: " ".join(words[:2]))
def test_a_request_of_another_queue_is_refused_and_its_queue_named(
    words: tuple[str, ...], program: Program, redis_url: str
):
    """With its own queue the command acts on it."""
    program("submit", "-", "--id", "mine", "--queue", "later", "--attempts", 1, stdin=b"a\n")
    said = "request mine is in queue later, not in queue req: give --queue later, or leave it out"
    program(*words, "--queue", "req").refused(3, said)
    assert b"active" in program("status", "mine").out
    if words[0] in ("wait", "results"):
        settle(redis_url, lambda _, body: body, queue="later")
    ended = program(*words, "--queue", "later")
    assert ended.code == 0, ended.err


def test_an_invalid_queue_and_an_unknown_request_are_refused(program: Program):
    program("wait", "mine", "--queue", "a{b").refused(2, "queue 'a{b' is not valid")
    program("cancel", "mine", "--queue", "later").refused(3, "there is no request mine")
