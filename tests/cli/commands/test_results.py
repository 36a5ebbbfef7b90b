"""Tests `fairlane results`: plain lines or JSON, to stdout or to a file that is whole or absent."""

from __future__ import annotations

import base64
import json
import signal
from typing import TYPE_CHECKING, Any

import pytest

from tests.cli.program import Dead, Ended, Program, finish, settle
from tests.support.run.for_each import for_each
from tests.support.wait import wait_until

if TYPE_CHECKING:
    import redis

BINARY = b"\xff\x00"


def answer(index: int, body: bytes) -> bytes | None:
    """Returns one result of each kind, by the body."""
    if body == b"dead":
        raise Dead("it cannot be")
    return {b"none": None, b"binary": BINARY, b"lines": b"two\nlines"}.get(body, body + b"!")


def submit(program: Program, *bodies: bytes) -> str:
    return program("submit", "-", "--id", "mine", stdin=b"\n".join(bodies)).id


def rows(ended: Ended) -> list[dict[str, Any]]:
    return [json.loads(line) for line in ended.out.splitlines()]


def test_plain_lines_are_the_bytes_themselves(program: Program, redis_url: str):
    submit(program, b"a", b"none", b"binary", "ü".encode())
    settle(redis_url, answer)
    ended = program("results", "mine")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == b"a!\n\n" + BINARY + b"\n" + "ü!".encode() + b"\n"
    (program.folder / "link").symlink_to("target")
    assert program("results", "mine", "--out", "link").code == 0
    assert (program.folder / "link").is_symlink()
    assert (program.folder / "target").read_bytes() == ended.out
    assert program("results", "mine", "--out", "-").out == ended.out


def test_json_has_all_and_a_dead_one_has_an_empty_line(program: Program, redis_url: str):
    submit(program, b"a", b"none", b"binary", b"dead", b"two")
    settle(redis_url, answer)
    ended = program("results", "mine", "--json")
    assert ended.code == 1
    done = {"status": "done", "attempt": 1, "error": None}
    assert rows(ended) == [
        {"index": 0, **done, "result": "a!"},
        {"index": 1, **done, "result": None},
        {"index": 2, **done, "result_base64": base64.b64encode(BINARY).decode()},
        {"index": 3, "status": "dead", "attempt": 1, "result": None, "error": "it cannot be"},
        {"index": 4, **done, "result": "two!"},
    ]
    assert "4 done, 1 dead, 0 cancelled of 5" in ended.err
    ended = program("results", "mine")
    assert (ended.code, ended.out) == (1, b"a!\n\n" + BINARY + b"\n\ntwo!\n")
    assert "line N is the result of input N" in ended.err
    ended = program("results", "mine", "--order", "done", "--json")
    assert sorted(row["index"] for row in rows(ended)) == [0, 1, 2, 3, 4]
    assert program("results", "mine", "--order", "back").code == 2


def test_cancelled_ones_have_empty_lines(program: Program, redis_url: str):
    submit(program, b"a", b"b", b"c")
    settle(redis_url, answer, most=1)
    assert program("cancel", "mine", "--reason", "changed my mind").out == b"cancelled\n"
    ended = program("results", "mine")
    assert (ended.code, ended.out) == (1, b"a!\n\n\n")
    assert "cancelled (changed my mind): 1 done, 0 dead, 2 cancelled of 3" in ended.err
    cancelled = {"status": "cancelled", "attempt": 0, "result": None, "error": "changed my mind"}
    assert rows(program("results", "mine", "--json"))[1:] == [
        {"index": 1, **cancelled},
        {"index": 2, **cancelled},
    ]


def test_a_newline_needs_json(program: Program, redis_url: str):
    submit(program, b"a", b"lines")
    settle(redis_url, answer)
    ended = program("results", "mine", "--out", "results")
    ended.refused(1, "result 1 contains a newline", "--json", ".ndjson", "stay in Redis")
    assert list(program.folder.iterdir()) == []
    assert rows(program("results", "mine", "--json"))[1]["result"] == "two\nlines"
    assert program("results", "mine", "--out", "results.ndjson").code == 0
    assert (program.folder / "results.ndjson").read_bytes().count(b"\n") == 2


def test_out_appears_when_it_is_whole(program: Program, redis_url: str):
    words = ("submit", program.file(b"a\nb\nc\n"), "--out", "results")
    with program.start(*words) as process:
        assert process.stdout
        process.stdout.readline()
        settle(redis_url, answer, most=2)
        assert not (program.folder / "results").exists()
        settle(redis_url, answer)
        ended = finish(process)
    assert (ended.code, ended.err) == (0, "")
    assert (program.folder / "results").read_bytes() == b"a!\nb!\nc!\n"
    assert sorted(path.name for path in program.folder.iterdir()) == ["input", "results"]


def test_out_keeps_what_there_was_when_it_fails(program: Program, redis_url: str):
    program.file(b"before\n", "results")
    words = ("--out", "results", "--timeout", "50ms")
    assert program("submit", program.file(b"a\n"), *words).code == 4
    assert (program.folder / "results").read_bytes() == b"before\n"
    assert sorted(path.name for path in program.folder.iterdir()) == ["input", "results"]


def test_a_result_that_is_gone_is_an_error_and_no_cancelled_one(
    program: Program, redis_url: str, redis_client: Any
):
    submit(program, b"a", b"b", b"c")
    settle(redis_url, answer)
    redis_client.xdel("out:{mine}", redis_client.xrange("out:{mine}")[1][0])
    for words in (["--json"], ["--out", "answers"], ["--order", "done"]):
        ended = program("results", "mine", *words)
        assert ended.code == 3
        assert "request mine has 3 results, but only" in ended.err
        assert b"cancelled" not in ended.out
    assert not list(program.folder.iterdir())


GOES_ON = "no longer waiting; request mine goes on: fairlane wait mine"
NO_FILE = "results was not written; request mine goes on: fairlane results mine --out results"


@pytest.mark.rest
@for_each(
    "words, number, said",
    [
        (("submit", "input", "--id", "mine", "--out", "results"), signal.SIGINT, NO_FILE),
        (("submit", "input", "--id", "mine", "--out", "results"), signal.SIGTERM, NO_FILE),
        (("results", "mine", "--out", "results"), signal.SIGTERM, GOES_ON),
        (("results", "mine"), signal.SIGINT, GOES_ON),
    ],
)
def test_an_interrupted_command_leaves_no_file_and_names_what_goes_on(
    words: tuple[str, ...], number: int, said: str, program: Program, redis_client: redis.Redis
):
    program("submit", program.file(b"a\n"), "--id", "mine")
    with program.start(*words) as process:
        wait_until(lambda: redis_client.info("clients")["blocked_clients"], why="it waits")
        process.send_signal(number)
        ended = finish(process)
    assert ended.code == 130
    assert said in ended.err
    assert [path.name for path in program.folder.iterdir()] == ["input"]


def test_results_flow_while_the_request_runs(program: Program, redis_url: str):
    submit(program, b"a", b"b")
    with program.start("results", "mine") as process:
        assert process.stdout
        settle(redis_url, answer, most=1)
        assert process.stdout.readline() == b"a!\n"
        settle(redis_url, answer)
        assert finish(process).out == b"b!\n"


@pytest.mark.rest
def test_a_closed_pipe_ends_the_output(program: Program, redis_url: str):
    submit(program, *(b"x" * 1000 for _ in range(300)))
    settle(redis_url, answer)
    with program.start("results", "mine") as process:
        assert process.stdout
        assert len(process.stdout.readline()) == 1002
        process.stdout.close()
        process.stdout = None
        ended = finish(process)
    assert (ended.code, ended.err) == (0, "")


def test_a_full_disk_is_one_sentence(program: Program, redis_url: str):
    submit(program, b"a")
    settle(redis_url, answer)
    with open("/dev/full", "wb") as full, program.start("results", "mine", stdout=full) as process:  # noqa: PTH123
        ended = finish(process)
    assert ended.code == 1
    assert "no space left" in ended.err.lower()
