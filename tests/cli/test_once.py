"""Tests `--once`: a FILE that is submitted again is the same request."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fairlane import content_id
from fairlane.queue import Queue
from tests.cli.program import Program, settle
from tests.support.scripts.requests import waiting_bodies

if TYPE_CHECKING:
    import redis


def test_the_file_twice_is_one_request(program: Program, redis_client: redis.Redis):
    """It is the same under another name, and after the end."""
    first = program("submit", program.file(b"a\nb\n"), "--once")
    again = program("submit", program.file(b"a\nb\n", "copy"), "--once")
    assert (first.code, first.out) == (0, again.out)
    assert waiting_bodies(redis_client, first.id) == [b"a", b"b"]
    url = program.env["FAIRLANE_REDIS"]
    assert len(settle(url, lambda _, body: body)) == 2
    assert program("submit", program.file(b"a\nb\n"), "--once", "--wait").code == 0
    assert settle(url, lambda _, body: body) == []


def test_other_lines_or_options_are_another_request(program: Program):
    ids = {
        program("submit", program.file(content), "--once", *words).id
        for content, words in [
            (b"a\nb\n", ()),
            (b"b\na\n", ()),
            (b"a\nb\n", ("--priority", 6)),
            (b"a\nb\n", ("--queue", "q")),
        ]
    }
    assert len(ids) == 4


def test_the_id_is_that_of_the_library(program: Program, redis_url: str):
    """Lines are bodies: a program and a person may submit the same."""
    ended = program("submit", program.file(b"a\nb"), "--once", "--limit", 4)
    assert ended.id == content_id(["a", "b"], limit=4)
    with Queue.from_url(redis_url) as queue:
        assert queue.submit_request(["a", "b"], limit=4, id=ended.id).id == ended.id


def test_a_file_of_requests_is_submitted_once_line_by_line(program: Program):
    """Two equal lines are two requests; the file again is the same two."""
    words = ("submit", program.file(b"3:a:b\n3:a:b\n"), "--format", "requests", "--once")
    first, again = program(*words), program(*words)
    assert first.out == again.out
    one, two = first.out.decode().splitlines()
    assert (one[-2:], two[-2:]) == (".1", ".2")
    assert len(settle(program.env["FAIRLANE_REDIS"], lambda _, body: body)) == 4


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-",), ("standard input", "only once")),
        (("-", "--format", "requests"), ("standard input", "only once")),
        (("input", "--id", "mine"), ("--id",)),
    ],
    ids=["a pipe", "a pipe of requests", "an own id"],
)
def test_once_is_refused_of(
    words: tuple[str, ...], said: tuple[str, ...], program: Program, redis_client: redis.Redis
):
    program.file(b"1:a\n")
    program("submit", *words, "--once", stdin=b"1:a\n").refused(2, "--once", *said)
    assert redis_client.dbsize() == 0
