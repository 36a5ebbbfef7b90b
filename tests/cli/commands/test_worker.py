"""Tests `rq-worker`: handlers by name, and the whole way from a file to its results."""

from __future__ import annotations

import json
import re
import signal
import socket
import time
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.cli.program import ON_EVERY_KIND, Program, finish, next_message
from tests.support.run.for_each import for_each
from tests.support.servers.server_process import run_server
from tests.support.wait import wait_until

if TYPE_CHECKING:
    import redis

HANDLERS = b"""
def shout(body):
    if body == b"fail":
        raise ValueError("no such thing")
    return body.upper()

def refuse(body):
    if body == b"no":
        import fairlane
        raise fairlane.Reject("not for us")
    while body == b"stuck":
        pass

ready = 5
def three(a, b, c): ...
def stream(body):
    yield body
"""


@ON_EVERY_KIND
def test_the_whole_way_on_every_kind_of_server(program: Program):
    program.file(HANDLERS, "mine.py")
    content = b"".join(b"line %d\n" % number for number in range(2_000))
    request = program("submit", program.file(content)).id
    ended = program("worker", "--handler", "mine:shout", "--concurrency", 2, "--until-idle")
    assert ended.code == 0, ended.err
    assert "no --handler" not in ended.err
    assert program("wait", request, "--timeout", 5).out == b"done\n"
    assert program("results", request).out == content.upper()
    assert program("status", request).code == 0
    assert b"1 in the log" in program("status").out


@pytest.mark.rest
def test_a_worker_without_a_handler_prints_json_and_reports_that(program: Program):
    program("submit", "-", "--id", "mine", "--queue", "later", stdin=b"a\n\xff\n")
    ended = program("worker", "--queue", "later", "--until-idle")
    assert ended.code == 0
    assert ended.err.splitlines()[0] == (
        "fairlane: no --handler: prints each sub-request of queue later and marks it as done"
    )
    rows = sorted((json.loads(line) for line in ended.out.splitlines()), key=lambda r: r["index"])
    assert [row["request"] for row in rows] == ["mine", "mine"]
    assert rows[0]["body"] == "a"
    assert rows[1]["body_base64"] == "/w=="


def test_a_failure_is_logged_and_the_sub_request_is_dead(program: Program):
    program.file(HANDLERS, "mine.py")
    program("submit", "-", "--id", "mine", "--attempts", 1, stdin=b"ok\nfail\n")
    worker = program("worker", "--handler", "mine:shout", "--until-idle")
    assert worker.code == 0
    said = "fairlane: sub-request 1 of request mine failed at attempt 1 of 1, it is dead: "
    assert said in worker.err
    assert '/mine.py", line ' in worker.err
    ended = program("results", "mine", "--json")
    assert ended.code == 1
    rows = [json.loads(line) for line in ended.out.splitlines()]
    assert [row["status"] for row in rows] == ["done", "dead"]
    assert "no such thing" in rows[1]["error"]


@pytest.mark.rest
def test_a_call_beyond_its_time_limit_is_ended_and_logged(program: Program):
    program.file(HANDLERS, "mine.py")
    program("submit", "-", "--id", "mine", "--attempts", 1, stdin=b"ok\nstuck\nno\n")
    words = ("--handler", "mine:refuse", "--time-limit", "500ms", "--until-idle")
    ended = program("worker", *words)
    assert ended.code == 0
    said = "the handler took longer than its time limit of 0.5 s in sub-request 1 of request mine"
    assert said in ended.err
    rows = [json.loads(line) for line in program("results", "mine", "--json").out.splitlines()]
    assert [row["status"] for row in rows] == ["done", "dead", "dead"]
    assert rows[1]["error"].startswith("the handler took longer than its time limit of 0.5 s\n")
    assert rows[2]["error"] == "not for us"


@pytest.mark.rest
@for_each(
    "words, why",
    [
        (("--handler", "mine"), "write module:function"),
        (("--handler", "nowhere:shout"), "'nowhere': it is neither in the current folder, /"),
        (("--handler", "mine:whisper"), "mine has no whisper"),
        (("--handler", "mine:ready"), "not something to call"),
        (("--handler", "mine:three"), "takes 3 arguments"),
        (("--handler", "mine:stream"), "is a generator function"),
        (("--handler", "script:main"), "cannot be imported: SystemExit: 3"),
        (("--concurrency", "0"), "concurrency 0"),
        (("--processes", "-1"), "processes -1"),
        (("--slice", "-1"), "--slice: '-1' is not a duration"),
        (("--slice", "20"), "--slice 20 is not valid: a time from 0s to 10s is expected"),
        (("--tokens", "0"), "tokens 0 is not valid: a whole number from 1 to 128"),
        (("--tokens", "129"), "tokens 129"),
        (("--time-limit", "0s"), "--time-limit 0s is no time"),
        (("--time-limit", "2d"), "--time-limit 2d is not valid: a time from 1ms to 24h"),
        (("--cancel-grace", "-1s"), "--cancel-grace: '-1s' is not a duration"),
        (("--cancel-grace", "2d"), "--cancel-grace 2d is not valid: a time from 0s to 24h"),
        (("--time-limit", "soon"), "'soon' is not a duration"),
        (("--id", "nonsense"), "nonsense"),
        (("--id", "127.0.0.1:99999"), "99999"),
        (("--id", "0.0.0.0:7101"), "cannot be reached from other machines: give an address"),
        (("--id", "::1"), "worker id '::1' is not valid: host:port is expected"),
        (("--queue", "a{b"), "queue 'a{b'"),
    ],
)
def test_wrong_arguments_of_a_worker_are_refused(
    words: tuple[str, ...], why: str, program: Program, redis_client: redis.Redis
):
    program.file(HANDLERS, "mine.py")
    program.file(b"import sys; sys.exit(3)", "script.py")
    program("worker", *words, "--until-idle").refused(2, why)
    assert redis_client.dbsize() == 0


def test_a_port_that_is_taken(program: Program):
    program.file(HANDLERS, "mine.py")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        words = ("--id", f"127.0.0.1:{port}", "--handler", "mine:shout")
        program("worker", *words).refused(2, f"port {port}", "is taken")


@pytest.mark.rest
def test_log_lines_of_a_handler_show_their_time_level_and_name(program: Program):
    program.file(
        b"import logging\n"
        b"def note(body):\n"
        b"    logging.getLogger('mine').info('worked on %s', body)\n",
        "noting.py",
    )
    program("submit", "-", stdin=b"a\n")
    lines = program("worker", "--handler", "noting:note", "--until-idle").err.splitlines()
    (noted,) = [line for line in lines if "worked on" in line]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} INFO mine: worked on b'a'", noted)
    assert [line for line in lines if line is not noted and not line.startswith("fairlane: ")] == []


@pytest.mark.rest
def test_a_handler_may_set_up_its_own_logging(program: Program):
    program.file(
        b"import logging\n"
        b"logging.basicConfig(level='INFO', format='mine says %(message)s')\n"
        b"def note(body):\n"
        b"    logging.info('hello')\n",
        "noting.py",
    )
    program("submit", "-", stdin=b"a\n")
    said = program("worker", "--handler", "noting:note", "--until-idle").err
    assert said.count("\nmine says hello\n") == 1
    assert "mine says worker" not in said, "our lines are written once, in our form"


@pytest.mark.rest
@pytest.mark.usefixtures("hangup")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_a_worker(
    number: signal.Signals, program: Program, redis_client: redis.Redis
):
    with program.start("worker") as process:
        wait_until(lambda: redis_client.zcard("{req}:workers"), why="it is registered")
        assert b"workers   127.0.0.1:" in program("status").out
        process.send_signal(number)
        ended = finish(process)
    assert ended.code == 0, ended.err


@pytest.mark.rest
@pytest.mark.slow
@pytest.mark.server
def test_a_worker_that_drains_while_redis_is_away_reports_what_it_could_not_settle(alone: Program):
    alone.file(HANDLERS, "mine.py")
    with run_server() as server:
        alone.env["FAIRLANE_REDIS"] = server.url
        alone("submit", "-", "--id", "mine", stdin=b"stuck\n")
        with alone.start("worker", "--handler", "mine:refuse") as process:
            assert "takes from queue" in next_message(process, "drains")
            status = partial(alone, "status", "mine")
            wait_until(lambda: b"1 held of 3" in status().out, why="it holds a lease")
            server.process.kill()
            assert "does not answer" in next_message(process, "drains")
            sent = time.monotonic()
            process.send_signal(signal.SIGTERM)
            assert next_message(process, "trying again").endswith(
                " drains: it finishes what it holds, and tries for up to 120 s to settle it while "
                "Redis does not answer; a second signal stops it now\n"
            )
            wait_until(lambda: time.monotonic() > sent + 0.5, why="a signal counts for itself")
            process.send_signal(signal.SIGTERM)
            ended = finish(process)
    (line,) = [line for line in ended.err.splitlines() if "not settled" in line]
    assert re.fullmatch(
        r"fairlane: Redis does not answer: 1 sub-request of request mine is not settled; when the "
        r"leases expire, in \d+ s at the latest, another worker takes them",
        line,
    )
    assert ended.code == 0
