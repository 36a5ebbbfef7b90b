"""Tests refusals: one sentence, the right exit code, and nothing left behind in Redis."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.cli.program import NO_SERVER, Program
from tests.support.run.for_each import for_each
from tests.support.servers.server_process import run_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import redis

MIB = 1 << 20


@pytest.fixture(autouse=True)
def nothing_is_left(redis_client: redis.Redis) -> Iterator[None]:
    yield
    assert redis_client.dbsize() == 0


# ------------------------------------------------------------------ FILE


def test_a_file_that_is_not_there_or_is_a_folder_is_refused(program: Program, tmp_path: Path):
    program("submit", "missing").refused(2, "missing", "no such file")
    program("submit", tmp_path).refused(2, "is a directory")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(program: Program):
    path = program.file(b"a\n")
    path.chmod(0)
    program("submit", path).refused(2, "permission denied")


@for_each(
    "content, line",
    [
        (b"x" * (MIB + 1), 1),
        (b"ok\n" * 3 + b"x" * (MIB + 1) + b"\nok\n", 4),
        (b"a\n" * 700_000 + b"x" * (2 * MIB) + b"\n", 700_001),
        (b"y" * MIB + b"\n" + b"x" * (MIB + 1), 2),
    ],
)
def test_a_line_that_is_too_long_is_named(content: bytes, line: int, program: Program):
    path = program.file(content)
    program("submit", path).refused(2, f"line {line} of {path}", "1,048,576 bytes")


@for_each("before", [3, 5_000])
@for_each("words", [(), ("--id", "mine")])
def test_a_line_too_long_in_a_pipe_takes_the_request_back(
    before: int, words: tuple[str, ...], program: Program, redis_client: redis.Redis
):
    content = b"ok\n" * before + b"x" * (MIB + 1) + b"\nok\n"
    ended = program("submit", "-", *words, stdin=content)
    wanted = rb"mine\n" if words else rb"[0-9a-f]{20}\n"
    assert re.fullmatch(wanted, ended.out)  # printed before the pipe is read
    said = replace(ended, out=b"")
    said.refused(2, f"line {before + 1} of standard input", "1,048,576 bytes")
    # Of the request itself a marker is left, which expires.
    markers = redis_client.keys("req:{*}")
    assert all(redis_client.pttl(marker) > 0 for marker in markers)
    assert [redis_client.hget(marker, "state") for marker in markers] in ([], [b"abandoned"])
    redis_client.delete(*markers) if markers else None
    left = redis_client.keys()
    assert set(left) <= {b"{req}:5", b"{req}:logged", b"{req}:completed"}
    assert redis_client.zcard("{req}:active") == 0
    redis_client.delete(*left) if left else None


# ------------------------------------------------------------------ options


@for_each(
    "words, why",
    [
        (("--priority", "100"), "from 0 to 99"),
        (("--priority", "-1"), "from 0 to 99"),
        (("--priority", "high"), "--priority"),
        (("--limit", "0"), "from 1 to 10000"),
        (("--limit", "10001"), "from 1 to 10000"),
        (("--limit", "9" * 5000), "--limit"),
        (("--id", "a b"), "request id 'a b' is not valid"),
        (("--id", "{x}"), "is not valid"),
        (("--id", ""), "is not valid"),
        (
            ("--id", "x" * 129),
            "request id '" + "x" * 60 + "'... (129 characters) is not valid: use 1 to",
        ),
        (("--queue", "a{b"), "queue 'a{b' is not valid"),
        (("--attempts", "0"), "attempts 0"),
        (("--backoff", "5m..1s"), "--backoff '5m..1s' ends before it begins"),
        (("--backoff", "soon"), "--backoff 'soon' is not a duration"),
        (("--backoff", "1s..2d"), "--backoff 1s..2d is not valid: a time from 0s to 24h is"),
        (("--lease", "10ms"), "--lease 10ms is not valid: a time from 1s to 24h is expected"),
        (("--lease", "0"), "--lease 0 is not valid: a time from 1s to 24h is expected"),
        (("--lease", "9" * 400), "not a duration"),
        (("--retain", "367d"), "--retain 367d is not valid: a time from 0s to 366d is expected"),
        (("--deadline", "400d"), "--deadline 400d is not valid: a time from 1ms to 366d is"),
        (("--time-limit", "2d"), "--time-limit 2d is not valid: a time from 1ms to 24h is"),
        (("--max-wait", "3h"), "--max-wait 3h is not valid: a time from 0s to 40m is"),
        (("--max-wait", "x"), "--max-wait 'x' is not a duration"),
        (("--timeout", "5"), "--timeout needs"),
        (("--wait", "--timeout", "never"), "'never' is not a duration"),
        (("--wait", "--timeout", "9999d"), "more than a year"),
        (("--format", "csv"), "--format"),
        (("--order-key", ""), "--order-key '' is empty: give it a value, or leave it out"),
        (("--order-key", "k", "--limit", "3"), "limit 3 is not possible with --order-key"),
        (("--tenant", ""), "--tenant '' is empty"),
        (("--out", "-"), "standard output carries"),
        (("--out", "nowhere/results"), "nowhere/results cannot be written: no such file"),
        (("--out", "."), "cannot be written: it is a directory"),
        (("--redis", "http://localhost"), "Redis URL 'http://localhost' is not valid"),
    ],
)
def test_a_wrong_option_is_refused(words: tuple[str, ...], why: str, program: Program):
    program("submit", program.file(b"a\nb\n"), *words).refused(2, why)


def test_a_refused_submission_leaves_no_results_file(program: Program):
    program("submit", "missing", "--out", "results").refused(2, "missing")
    program("submit", program.file(b"a\n"), "--out", "results", "--redis", NO_SERVER).refused(5)
    assert [path.name for path in program.folder.iterdir()] == ["input"]


@for_each("name", ["wait", "results", "cancel", "status"])
def test_an_unknown_request_is_not_found_and_an_invalid_id_is_refused(name: str, program: Program):
    program(name, "absent").refused(3, "there is no request absent")
    program(name, "{x}").refused(2, "request id '{x}' is not valid")


# ------------------------------------------------------------------ Redis


@for_each("words", [("submit", "-"), ("wait", "x"), ("results", "x"), ("cancel", "x"), ("status",)])
def test_redis_that_is_off(words: tuple[str, ...], program: Program):
    ended = program(*words, "--redis", NO_SERVER)
    ended.refused(
        5, f"Redis at {NO_SERVER} does not answer", "is it running, and is the URL right?"
    )


@for_each(
    "words, why",
    [
        (("queue", "rate", "fast"), "rate 'fast' is not valid: write a rate such as 100/s"),
        (("queue", "rate", "10/s", "--burst", "0"), "burst 0 is not valid"),
        (("queue", "rate", "off", "--burst", "3"), "burst needs a rate"),
        (("queue", "set", "--shards", "99"), "99 shards are not possible"),
        (("queue", "pause", "--for", "soon"), "--for: 'soon' is not a duration"),
        (("set", "x", "--rate", "fast"), "rate 'fast' is not valid"),
        (("completions", "--since", "soon"), "--since soon is no place in the log"),
        (("schedule", "add", "n", "61 * * * *", "--body", "x"), "cron line '61 * * * *' is not"),
        (
            ("schedule", "add", "n", "* * * * *", "--tz", "Mars/Base", "--body", "x"),
            "time zone 'Mars/Base' does not exist",
        ),
    ],
)
def test_a_wrong_value_is_reported_before_redis_that_is_off(
    words: tuple[str, ...], why: str, program: Program
):
    program(*words, "--redis", NO_SERVER).refused(2, why)


def test_a_host_without_an_address_is_exit_5(program: Program):
    program("status", "--redis", "redis://absent.invalid:6379").refused(5, "does not answer")


def test_a_wrong_password_is_not_repeated_to_the_screen(program: Program):
    with run_server("single") as server, server.client() as client:
        client.config_set("requirepass", "right")
        for url in (server.node_url, f"redis://:sesame@127.0.0.1:{server.port}"):
            ended = program("status", "--redis", url)
            ended.refused(5, f"127.0.0.1:{server.port}", "check user and password")
            assert ".;" not in ended.err
            assert "sesame" not in ended.err


def test_a_redis_that_evicts(program: Program):
    with run_server("single", "--maxmemory-policy", "allkeys-lru") as server:
        ended = program("submit", program.file(b"a\n"), "--redis", server.node_url)
        ended.refused(5, "evicts keys", "allkeys-lru", "noeviction")
        with server.client() as client:
            assert client.dbsize() == 0


def test_a_full_redis_keeps_nothing_half_submitted(program: Program):
    with run_server("single", "--maxmemory", "4mb") as server:
        path = program.file(b"x" * 1000 + b"\n" + (b"y" * 1000 + b"\n") * 20_000)
        program("submit", path, "--redis", server.node_url).refused(5, "is full")
        with server.client() as client:
            assert client.keys("sub:*") == []
            assert client.zcard("{req}:active") == 0
