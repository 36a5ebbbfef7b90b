"""Tests `rq-submit FILE`: every line is a sub-request, with its bytes as they are."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.queue import Queue
from fairlane.settings import CHUNK_ENTRIES
from tests.cli.program import (
    Program,
    begin_submission,
    bodies_of,
    finish,
    hold,
    settle,
)
from tests.cli.submission.test_submit_lines import LINES
from tests.support.run.for_each import for_each
from tests.support.scripts.requests import stored
from tests.support.servers.server_process import run_server
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from subprocess import Popen

    import redis


@for_each("way", ["file", "pipe", "pipe with an id"])
@for_each("content, lines", LINES[1:])
def test_every_line_is_a_body(
    content: bytes, lines: list[bytes], way: str, program: Program, redis_client: redis.Redis
):
    words = ("--id", "mine") if way == "pipe with an id" else ()
    name = program.file(content) if way == "file" else "-"
    ended = program("submit", name, *words, stdin=content)
    assert (ended.code, ended.err) == (0, "")
    assert bodies_of(redis_client, ended.id) == lines


def test_the_id_is_the_only_data_and_json_reports_what_was_submitted(program: Program):
    ended = program("submit", program.file(b"a\nb\n"))
    assert re.fullmatch(rb"[0-9a-f]{20}\n", ended.out)
    words = ("--json", "--id", "mine", "--priority", 7, "--limit", 2)
    expected = {"id": "mine", "total": 2, "left_out": 0, "priority": 7, "limit": 2}
    for way in (program.file(b"a\nb\n"), "-"):  # of a pipe it comes when its lines are counted
        assert json.loads(program("submit", way, *words, stdin=b"a\nb\n").out) == expected


def test_every_option_reaches_the_request(program: Program, redis_client: redis.Redis):
    words = (
        "--queue slow --priority 99 --limit 10 --attempts 2 --backoff 500ms..1.5m --lease 2m "
        "--retain 7d --id mine"
    )
    assert program("submit", program.file(b"a\n"), *words.split()).code == 0
    found = stored(redis_client, "mine")
    expected = {
        "queue": "slow", "priority": "99", "limit": "10", "attempts": "2", "backoff_min": "500",
        "backoff_max": "90000", "lease_ms": "120000", "retain_ms": "604800000",
    }  # fmt: skip
    assert {name: found[name] for name in expected} == expected
    assert redis_client.llen("{slow}:99") == 1


def test_the_defaults_are_the_librarys(program: Program, redis_client: redis.Redis, redis_url: str):
    program("submit", program.file(b"a\n"), "--id", "cli")
    with Queue.from_url(redis_url) as queue:
        queue.submit_request([b"a"], id="library")
    names = ("digest", "queue", "priority", "limit", "attempts", "lease_ms", "retain_ms")
    cli, library = stored(redis_client, "cli"), stored(redis_client, "library")
    assert [cli[name] for name in names] == [library[name] for name in names]


@pytest.mark.parametrize("way", ["file", "pipe"])
def test_the_same_again_finds_the_same_request(
    way: str, program: Program, redis_client: redis.Redis
):
    content = b"".join(b"%d\n" % number for number in range(2_500))
    name = program.file(content) if way == "file" else "-"
    first = program("submit", name, "--id", "mine", "--json", stdin=content)
    again = program("submit", name, "--id", "mine", "--json", stdin=content)
    assert (again.code, again.out) == (0, first.out)
    assert redis_client.xlen("sub:{mine}") == 2_500


def test_an_id_that_was_cancelled_is_refused_with_its_reason(program: Program):
    """No id is on standard output, because nothing of it runs. Other content is refused before."""
    program("submit", "-", "--id", "mine", stdin=b"a\n")
    ended = program("submit", program.file(b"b\n"), "--id", "mine")
    ended.refused(2, "mine exists with other content")
    program("cancel", "mine", "--reason", "changed my mind")
    ended = program("submit", program.file(b"a\n"), "--id", "mine")
    ended.refused(1, "request mine was cancelled (changed my mind): choose another id")


@pytest.mark.parametrize("words", [(), ("--wait",), ("--json", "--watch")])
def test_an_empty_file_is_done_immediately(words: tuple[str, ...], program: Program):
    ended = program("submit", program.file(b""), *words)
    assert ended.code == 0
    assert ended.out.count(b"\n") == 1
    assert "is empty" in ended.err.splitlines()[0]


def test_a_named_pipe_is_read_as_it_comes(program: Program, redis_client: redis.Redis):
    with program.start("submit", "/dev/stdin", stdin=-1) as process:
        write(process, b"a\n" * 2_000)
        found: Any = wait_until(lambda: redis_client.keys("req:*"), why="the request is there")
        request_id = found[0].decode()[5:-1]
        wait_until(lambda: stored(redis_client, request_id).get("open") == "1", why="it is open")
        assert process.stdin
        process.stdin.close()
        process.stdin = None
        ended = finish(process)
    assert ended.code == 0
    found = stored(redis_client, ended.id)
    assert (found["total"], found["open"]) == ("2000", "0")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_pipe_takes_the_request_back(
    number: signal.Signals, program: Program, redis_client: redis.Redis
):
    with program.start("submit", "-", stdin=-1) as process:
        write_two_chunks(process, redis_client)
        process.send_signal(number)
        ended = finish(process)
    # A withdrawal has half a second, see settings.HURRY_S. Else the request is cancelled.
    assert ended.code == 130
    assert re.fullmatch(
        r"fairlane: interrupted: request \w+ was (?:withdrawn, and nothing of it is left"
        r"|cancelled before all of it was submitted)\n",
        ended.err,
    )
    left = redis_client.keys("*{????????????????????}*")
    assert all(redis_client.ttl(key) > 0 for key in left)  # a marker


@pytest.mark.rest
@pytest.mark.parametrize("words", [(), ("--id", "mine")], ids=str)
def test_an_interrupt_while_redis_hangs_reports_what_is_uncertain(
    words: tuple[str, ...], program: Program
):
    """It ends soon, whether it waits for a reply or for more lines."""
    with run_server() as server, server.client() as client:
        program.env["FAIRLANE_REDIS"] = server.url
        with program.start("submit", "-", *words, stdin=-1) as process:
            write_two_chunks(process, client)
            os.kill(server.pid, signal.SIGSTOP)
            try:
                write(process, b"a\n" * 2_000)
                began = time.monotonic()
                process.send_signal(signal.SIGINT)
                ended = finish(process)
                took = time.monotonic() - began
            finally:
                os.kill(server.pid, signal.SIGCONT)
    assert ended.code == 130
    assert re.fullmatch(
        r"fairlane: interrupted: nothing more is submitted, but whether request (\w+) is in Redis "
        r"is not certain \(Redis at .* does not answer: .*\): when Redis answers again, "
        r"fairlane status \1 shows it, if it is\n",
        ended.err,
    )
    assert took < 8.0, "twice the time that it takes on a busy machine"


@pytest.mark.rest
@pytest.mark.parametrize("words", [("--id", "mine"), ("--id", "mine", "--watch"), ("--watch",)])
def test_a_pipe_prints_an_id_that_is_wanted_before_it_is_read(
    words: tuple[str, ...], program: Program
):
    with program.start("submit", "-", *words, stdin=-1) as process:
        assert process.stdout
        printed = process.stdout.readline().decode()
        assert re.fullmatch("mine\n" if "mine" in words else "[0-9a-f]{20}\n", printed)
        ended = finish(process)
    assert (ended.code, ended.out) == (0, b"")
    assert "standard input is empty" in ended.err


# What is there under the id when a submission is interrupted, and what the command reports.
BEFORE = {
    "nothing": "request mine was withdrawn, and nothing of it is left",
    "begun": "request mine is not complete: submit the same again to go on, or",
    "all": "request mine was submitted and is active: fairlane status mine",
    "held": "request mine was cancelled before all of it was submitted",
}


@pytest.mark.rest
@for_each("before", BEFORE)
def test_an_interrupt_reports_what_is_left_under_an_own_id(
    before: str, program: Program, redis_url: str, redis_client: redis.Redis
):
    if before == "all":
        program("submit", "-", "--id", "mine", stdin=b"a\n" * 5_000)
    if before == "begun":
        begin_submission(redis_url)
    with program.start("submit", "-", "--id", "mine", "--watch", stdin=-1) as process:
        assert process.stderr
        assert process.stderr.readline().endswith(b"request mine: submitting, 0 lines read\n")
        if before in ("nothing", "held"):
            write_two_chunks(process, redis_client)
        if before == "held":
            hold(redis_url)
        process.send_signal(signal.SIGINT)
        ended = finish(process)
    assert ended.err.splitlines()[-1].startswith(f"fairlane: interrupted: {BEFORE[before]}")
    assert (ended.code, ended.out) == (130, b"mine\n")
    assert (program("status", "mine").code == 3) == (before == "nothing")


def has_two_chunks(redis_client: redis.Redis) -> bool:
    """Returns True if the producer of the only request has the reply to its first chunk."""
    found: Any = redis_client.keys("req:*")
    fields = [stored(redis_client, key.decode()[5:-1]) for key in found]
    return any(int(one.get("total", 0)) > CHUNK_ENTRIES for one in fields)


def write_two_chunks(process: Popen[bytes], redis_client: redis.Redis) -> None:
    """Writes lines of several chunks to a started submission, and waits for two of them."""
    write(process, b"a\n" * 5_000)
    wait_until(lambda: has_two_chunks(redis_client), why="two chunks are there")


def write(process: Popen[bytes], lines: bytes) -> None:
    assert process.stdin
    process.stdin.write(lines)
    process.stdin.flush()


def test_a_request_whose_wait_timed_out_goes_on(program: Program, redis_client: redis.Redis):
    ended = program("submit", program.file(b"a\n"), "--wait", "--timeout", "100ms")
    assert ended.code == 4
    assert "had not ended after 0.1 s; it goes on" in ended.err
    assert redis_client.hget(f"req:{{{ended.id}}}", "state") == b"active"


def test_waiting_ends_with_the_request(program: Program, redis_url: str):
    with program.start("submit", program.file(b"a\nb\n"), "--wait") as process:
        assert process.stdout
        process.stdout.readline()
        assert sorted(settle(redis_url, lambda _, body: body)) == [b"a", b"b"]
        ended = finish(process)
    assert (ended.code, ended.err) == (0, "")


REPEATS = b'a\nb\na\n7\n{"meta": {"id": "7"}}\nb\n'


@pytest.mark.parametrize("way", ["file", "pipe", "pipe with an id"])
def test_repeats_are_left_out_and_counted(way: str, program: Program, redis_client: redis.Redis):
    words = ("--id", "mine") if way == "pipe with an id" else ()
    name = program.file(REPEATS) if way == "file" else "-"
    ended = program("submit", name, "--distinct", *words, stdin=REPEATS)
    shown = name if way == "file" else "standard input"
    assert (ended.code, ended.err) == (0, f"fairlane: left out as repeats: 3 lines of {shown}\n")
    assert bodies_of(redis_client, ended.id) == [b"a", b"b", b"7"]
    status = program("status", ended.id)
    assert b"3 of 6 bodies were left out as repeats" in status.out
    assert json.loads(program("status", ended.id, "--json").out)["left_out"] == 3
    assert b"0 done, 0 dead of 3; 3 bodies were left out as repeats" in program("why", ended.id).out


@pytest.mark.parametrize("name", ["-", "a file"])
def test_json_has_how_many_were_left_out(name: str, program: Program):
    source = "-" if name == "-" else program.file(REPEATS)
    ended = program("submit", source, "--distinct", "--json", stdin=REPEATS)
    found = json.loads(ended.out)
    assert (found["total"], found["left_out"]) == (3, 3)
    assert json.loads(program("status", found["id"], "--json").out)["left_out"] == 3
    lines = program.file(b"2:a:a:b\n1:a\n")
    ended = program("submit", lines, "--format", "requests", "--distinct", "--json")
    assert [json.loads(line)["left_out"] for line in ended.out.splitlines()] == [1, 0]


def test_without_repeats_nothing_is_printed_about_them(program: Program):
    ended = program("submit", program.file(b"a\nb\n"), "--distinct")
    assert (ended.code, ended.err) == (0, "")
    assert b"distinct" not in program("status", ended.id).out


def test_each_request_of_a_file_is_distinct_in_itself(program: Program, redis_client: redis.Redis):
    name = program.file(b"2:a:a:b\n1:a\n")
    ended = program("submit", name, "--format", "requests", "--distinct", "--id", "own")
    assert ended.code == 0
    assert bodies_of(redis_client, "own.1") == [b"a", b"b"]
    assert bodies_of(redis_client, "own.2") == [b"a"]


@pytest.mark.rest
def test_a_producer_that_was_killed_goes_on_and_no_line_comes_twice(
    program: Program, redis_client: redis.Redis
):
    lines = [b"line %d" % (number % 1_500) for number in range(3 * CHUNK_ENTRIES)]
    words = ("submit", "-", "--id", "mine", "--distinct")
    with program.start(*words, stdin=-1) as process:
        write(process, b"".join(line + b"\n" for line in lines[: 2 * CHUNK_ENTRIES + 1]))
        wait_until(lambda: has_two_chunks(redis_client), why="two chunks are there")
        process.kill()
    ended = program(*words, stdin=b"\n".join(lines))
    assert (ended.code, ended.out) == (0, b"mine\n")
    assert ended.err == "fairlane: left out as repeats: 1,500 lines of standard input\n"
    assert bodies_of(redis_client, "mine") == lines[:1_500]


@pytest.mark.parametrize(
    ("start", "is_past"), [("2020-01-01T00:00Z", True), ("2099-01-01T00:00Z", False)]
)
def test_a_start_in_the_past_is_named(program: Program, start: str, *, is_past: bool):
    ended = program("submit", program.file(b"a\n"), "--run-at", start)
    assert ended.code == 0
    assert ("--run-at 2020-01-01T00:00Z is in the past" in ended.err) == is_past
    assert ("the request may start now" in ended.err) == is_past
