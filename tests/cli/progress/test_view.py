"""Tests `fairlane wait` and `--watch`: their output while a request runs."""

from __future__ import annotations

import io
import json
import os
import pty
import signal
from contextlib import AbstractContextManager
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from fairlane import settings
from fairlane.cli import progress as view
from fairlane.cli.commands.submit import SubmitOptions, await_end
from fairlane.cli.files import open_source
from fairlane.cli.output import ago
from fairlane.cli.progress import CountPace, Lines, Meter, Reading, describe, eta, watch
from fairlane.errors import RedisUnreachable, RequestLost
from fairlane.options import Policy
from fairlane.queue import Queue
from fairlane.records import Progress
from tests.cli.program import (
    Dead,
    Program,
    beat,
    finish,
    next_message,
    settle,
)
from tests.support.run.for_each import for_each
from tests.support.run.params import rest_but
from tests.support.scripts.requests import listeners
from tests.support.servers.server_process import run_server
from tests.support.wait import PATIENCE_S, wait_until
from tests.worker.parts import ON_ONE_SERVER

if TYPE_CHECKING:
    from pathlib import Path

    import redis

UNSERVED = (
    "no worker takes from queue req: "
    "start one with rq-worker --app module:app, or --handler module:function"
)


def answer(_: int, body: bytes) -> bytes:
    if body == b"dead":
        raise Dead("it cannot be")
    return body


def test_wait_prints_the_final_state_and_counts_what_went_wrong(program: Program, redis_url: str):
    program("submit", "-", "--id", "well", stdin=b"a\n")
    program("submit", "-", "--id", "mine", stdin=b"a\ndead\n")
    settle(redis_url, answer)
    ended = program("wait", "well")
    assert (ended.code, ended.out, ended.err) == (0, b"done\n", "")
    ended = program("wait", "mine", "--json")
    assert ended.code == 1
    assert ended.err == (
        "fairlane: request mine is done: 1 done, 1 dead, 0 cancelled of 2; "
        "the dead: fairlane dead list mine\n"
    )
    found = json.loads(ended.out)
    assert [found[name] for name in ("state", "total", "done", "dead")] == ["done", 2, 1, 1]


def test_a_timeout_names_a_missing_worker_and_only_a_missing_one(
    program: Program, redis_client: redis.Redis
):
    program("submit", "-", "--id", "mine", stdin=b"a\n")
    program("wait", "mine", "--timeout", "0.05").refused(
        4, f"had not ended after 0.05 s; it goes on; {UNSERVED}"
    )
    beat(redis_client, "req")
    for word in ("wait", "results"):
        ended = program(word, "mine", "--timeout", "0.05")
        assert ended.code == 4
        assert "no worker" not in ended.err


@pytest.mark.parametrize("words", [("--wait",), ("--watch",), ("--out", "results")], ids=str)
def test_a_submission_that_times_out_names_the_missing_worker(
    words: tuple[str, ...], program: Program, redis_client: redis.Redis
):
    beat(redis_client, "req")
    submitted = ("submit", program.file(b"a\n"), "--queue", "slow", "--timeout", "50ms")
    ended = program(*submitted, *words)
    assert ended.code == 4
    missing = (
        "no worker takes from queue slow: "
        "start one with rq-worker --app module:app, or --handler module:function --queue slow\n"
    )
    assert ended.err.endswith(f"it goes on; {missing}")


@pytest.mark.rest
def test_an_interrupted_wait_names_the_command_that_goes_on(
    program: Program, redis_client: redis.Redis
):
    program("submit", "-", "--id", "mine", stdin=b"a\n")
    with program.start("wait", "mine") as process:
        wait_for_subscriber(redis_client)
        process.send_signal(signal.SIGINT)
        finish(process).refused(130, "goes on: fairlane wait mine")


def wait_for_subscriber(redis_client: redis.Redis) -> None:
    wait_until(lambda: listeners(redis_client, "done:{mine}"), why="a command waits for the end")


@pytest.mark.rest
def test_watch_prints_lines_where_there_is_no_terminal(program: Program, redis_url: str):
    words = ("submit", program.file(b"a\ndead\n"), "--id", "mine", "--watch")
    with program.start(*words) as process:
        assert process.stderr
        first = process.stderr.readline().decode()
        assert first == "fairlane: request mine active: 0/2 done, permits 0/3\n"
        settle(redis_url, answer)
        ended = finish(process)
    assert (ended.code, ended.out) == (1, b"mine\n")
    assert "request mine done: 1/2 done, 1 dead\n" in ended.err


NO_FILE = "results was not written; request mine goes on: fairlane results mine --out results"
DETACHED = "fairlane: detached; request mine goes on: fairlane status mine\n"


@pytest.mark.rest
@for_each(
    "number, words, said",
    [
        (signal.SIGINT, (), DETACHED),
        (signal.SIGTERM, (), DETACHED),
        (signal.SIGHUP, (), DETACHED),
        (signal.SIGINT, ("--out", "results"), f"fairlane: {NO_FILE}\n"),
        (signal.SIGTERM, ("--out", "results"), f"fairlane: {NO_FILE}\n"),
    ],
)
def test_a_signal_detaches_from_a_watched_request(
    number: int, words: tuple[str, ...], said: str, program: Program, redis_client: redis.Redis
):
    given = ("submit", program.file(b"a\n"), "--id", "mine", "--watch", *words)
    with program.start(*given) as process:
        assert process.stderr
        process.stderr.readline()
        process.send_signal(number)
        ended = finish(process)
    assert (ended.code, ended.out, ended.err) == (130, b"mine\n", said)
    assert redis_client.hget("req:{mine}", "state") == b"active"
    assert [path.name for path in program.folder.iterdir()] == ["input"]


@pytest.mark.rest
def test_an_interrupt_within_the_timeout_reports_how_to_get_the_file(
    program: Program, redis_client: redis.Redis
):
    words = ("submit", program.file(b"a\n"), "--id", "mine", "--out", "results", "--timeout", "1m")
    with program.start(*words) as process:
        wait_for_subscriber(redis_client)
        process.send_signal(signal.SIGINT)
        ended = finish(process)
    assert ended.code == 130
    assert NO_FILE.partition(":")[0] in ended.err


@pytest.fixture
def terminal(program: Program) -> Program:
    """Returns the program on a terminal with colours."""
    pytest.importorskip("rich")
    program.env |= {"TERM": "xterm-256color", "COLUMNS": "120"}
    program.env.pop("NO_COLOR", None)
    return program


@pytest.mark.parametrize("colour", [True, False])
def test_watch_draws_a_bar_on_a_terminal(
    colour: bool, terminal: Program, redis_url: str, redis_client: redis.Redis
):
    if not colour:
        terminal.env["NO_COLOR"] = "1"
    drawn = draw(terminal, redis_url, redis_client)
    assert "2/2" in drawn
    assert "permits 0/3" in drawn
    assert ("\x1b[38;" in drawn) == colour


@pytest.mark.rest
def test_watch_needs_no_rich(program: Program, redis_url: str, redis_client: redis.Redis):
    program.file(b"raise ImportError", "rich.py")
    assert "request mine done: 2/2 done" in draw(program, redis_url, redis_client)


@pytest.mark.rest
def test_a_pipe_that_is_watched_draws_a_bar_until_it_is_read(
    terminal: Program, redis_url: str, redis_client: redis.Redis
):
    drawn = draw(terminal, redis_url, redis_client, b"a\nb\n")
    before, _, after = drawn.rpartition("lines read")
    assert "request mine" in before
    assert "submitting" in before
    assert "2/2" in after


def draw(
    program: Program, redis_url: str, redis_client: redis.Redis, pipe: bytes | None = None
) -> str:
    """Returns what a terminal shows while a file or a pipe is watched to its end."""
    screen, terminal = pty.openpty()
    file = program.file(b"a\nb\n") if pipe is None else "-"
    words = ("submit", file, "--id", "mine", "--watch")
    with program.start(*words, stdin=-1, stderr=terminal) as process:
        os.close(terminal)
        assert process.stdin
        process.stdin.write(pipe or b"")
        process.stdin.close()
        wait_for_subscriber(redis_client)
        settle(redis_url, answer)
        drawn = read_all(screen)
        assert process.wait(PATIENCE_S) == 0
    return drawn


def read_all(screen: int) -> str:
    found = b""
    try:
        while piece := os.read(screen, 1 << 16):
            found += piece
    except OSError:  # the other side is closed
        pass
    finally:
        os.close(screen)
    return found.decode()


# ------------------------------------------------------------------ Redis is unreachable


GONE = (
    "fairlane: request mine is gone from Redis: a failover or a flush took it, "
    "or it was deleted, or its retention is over\n"
)


@pytest.mark.rest
@ON_ONE_SERVER  # one node of a cluster after another would be flushed
@pytest.mark.parametrize(
    "words",
    rest_but(1, zip([("wait",), ("submit", "input", "--wait"), ("submit", "input", "--watch")])),
    ids=str,
)
def test_waiting_for_a_request_that_was_flushed_ends_with_one_sentence(
    words: tuple[str, ...], program: Program, redis_client: redis.Redis
):
    submitted = ("submit", program.file(b"a\n"), "--id", "mine")
    program(*submitted)
    named = ("--id", "mine") if words[0] == "submit" else ("mine",)
    with program.start(*words, *named) as process:
        wait_for_subscriber(redis_client)
        wait_until(lambda: has_sent(redis_client, "hmget", "zcard"), why="it has seen the request")
        redis_client.flushall()
        ended = finish(process)
    assert (ended.code, ended.err.splitlines(keepends=True)[-1]) == (3, GONE)


@pytest.mark.rest
@ON_ONE_SERVER
def test_reading_results_of_a_request_that_was_flushed_ends_with_the_same_sentence(
    program: Program, redis_client: redis.Redis
):
    program("submit", program.file(b"a\n"), "--id", "mine")
    with program.start("results", "mine") as process:
        wait_until(lambda: has_sent(redis_client, "xread"), why="it waits for a result")
        redis_client.flushall()
        ended = finish(process)
    assert (ended.code, ended.err) == (3, GONE)


@pytest.mark.rest
def test_a_watch_notices_that_another_request_has_the_id(
    program: Program, redis_url: str, redis_client: redis.Redis
):
    """The watched request was withdrawn, and another producer submitted its own under that id."""
    words = ("submit", program.file(b"a\n"), "--id", "mine", "--watch")
    with program.start(*words) as process, Queue.from_url(redis_url) as queue:
        assert process.stderr
        assert b"request mine active" in process.stderr.readline()
        redis_client.flushall()
        queue.submit_request([b"b", b"c"], id="mine")
        ended = finish(process)
    assert (ended.code, ended.err) == (
        *(3, "fairlane: request mine is gone: another request has its id by now\n"),
    )


def has_sent(redis_client: redis.Redis, *commands: str) -> bool:
    """Returns True if this is the last command of one of the clients."""
    return any(client["cmd"] in commands for client in redis_client.client_list())


@pytest.mark.parametrize("words", [("--wait",), ("--watch",), ("--out", "results")], ids=str)
def test_a_request_that_vanishes_before_the_first_look_was_there(
    words: tuple[str, ...], redis_url: str, redis_client: redis.Redis
):
    with Queue.from_url(redis_url) as queue:
        request = queue.submit_request([b"a"], id="mine")
        redis_client.flushall()
        has_file = "--out" in words
        wish = SubmitOptions(
            Policy(), "mine", as_json=False, watch="--watch" in words, waits=True, timeout=None,
            out="results" if has_file else None,
        )  # fmt: skip
        with pytest.raises(RequestLost, match="is gone from Redis"):
            await_end(wish, request, io.BytesIO() if has_file else None)


@pytest.mark.rest
@pytest.mark.slow
def test_watch_shows_that_redis_is_away_and_that_it_is_back(alone: Program):
    """Redis hangs, then continues, then is killed; the wait ends with the sentence of an outage."""
    with run_server() as server:
        alone.env["FAIRLANE_REDIS"] = server.url
        with alone.start("submit", alone.file(b"a\n"), "--id", "mine", "--watch") as process:
            assert process.stderr
            assert b"request mine active: 0/1 done" in process.stderr.readline()
            os.kill(server.pid, signal.SIGSTOP)
            away = f"fairlane: Redis at {server.url} does not answer: trying for up to 30 s\n"
            assert next_message(process, "request mine") == away
            os.kill(server.pid, signal.SIGCONT)
            assert next_message(process, "request mine") == "fairlane: Redis answers again\n"
            server.process.kill()
            assert next_message(process, "request mine") == away
            process.send_signal(signal.SIGINT)
            ended = finish(process)
    assert (ended.code, ended.err) == (130, DETACHED)


@pytest.mark.rest
@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
@pytest.mark.slow
def test_the_bar_shows_that_redis_is_away(number: signal.Signals, alone: Program):
    pytest.importorskip("rich")
    alone.env |= {"TERM": "xterm-256color", "COLUMNS": "120"}
    screen, terminal = pty.openpty()
    with run_server() as server:
        alone.env["FAIRLANE_REDIS"] = server.url
        words = ("submit", alone.file(b"a\n"), "--id", "mine", "--watch")
        with alone.start(*words, stderr=terminal) as process:
            os.close(terminal)
            read_until(screen, b"0/1")
            os.kill(server.pid, number)
            read_until(screen, b"Redis does not answer for ")
            process.send_signal(signal.SIGINT)
            assert b"detached" in read_all(screen).encode()
            assert process.wait(PATIENCE_S) == 130


def read_until(screen: int, words: bytes) -> None:
    found = b""
    while words not in found:
        found += os.read(screen, 1 << 16)


def test_an_outage_that_lasts_too_long_ends_the_watch(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(settings, "PATIENCE_S", 0.0)
    with run_server() as server, Queue.from_url(server.url) as queue:
        request = queue.submit_request([b"a"], id="mine")
        server.process.kill()
        server.process.wait()
        with pytest.raises(RedisUnreachable, match="does not answer"):
            watch(request, None)


# ------------------------------------------------------------------ what is shown


def progress(done: int = 0, dead: int = 0, left_out: int = 0) -> Progress:
    left = 1_000 - done - dead
    return Progress(
        id="mine", queue="req", state="active", priority=5, total=1_000, done=done, dead=dead,
        left=left, held=2, limit=3, left_out=left_out,
    )  # fmt: skip


def test_a_line_has_rate_eta_and_permits():
    line = describe(progress(done=400, dead=1), 50.0)
    assert line == ("request mine active: 400/1,000 done, 1 dead, 50/s, ETA 0:00:12, permits 2/3")
    line = describe(replace(progress(done=400), is_open=True), 50.0)
    assert line == "request mine active: 400/1,000 done so far, 50/s, permits 2/3"
    line = describe(progress(left_out=1_234), None)
    assert line == "request mine active: 0/1,000 done, 1,234 left out, permits 2/3"


def test_the_rate_is_that_of_the_last_seconds():
    pace = CountPace()
    assert pace.add(0.0, 0) is None
    assert pace.add(1.0, 100) == 100.0
    assert pace.add(20.0, 100) == 0.0
    assert pace.add(21.0, 300) == 200.0


@for_each("rate, said", [(None, "-:--:--"), (0.0, "-:--:--"), (0.25, "1:06:40"), (1e9, "0:00:00")])
def test_without_a_rate_there_is_no_eta(rate: float | None, said: str):
    assert eta(1_000, rate) == said


@for_each(
    "ms, said",
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (1_000, "1s"),
        (90_000, "1m 30s"),
        (300_000, "5m"),
        (86_400_000, "1d"),
        (90_061_000, "1d 1h"),
        (86_405_000, "1d"),
    ],
)
def test_durations_are_shown_in_two_units_at_most(ms: int, said: str):
    assert ago(ms) == said


class Shown(AbstractContextManager["Shown"]):
    """A view that keeps its lines, and asks for the next after a second."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __exit__(self, *_: object) -> None:
        self.lines.append("closed")

    def show_reading(self, now: Reading, rate: float | None) -> float:
        self.lines.append(", ".join(now.figures(rate)))
        return 1.0


def test_a_large_file_is_shown_being_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """It shows share, rate and ETA, from half a second on and then as often as the view asks."""
    clock, shown = iter((0.0, 0.4, 0.5, 1.4, 2.0)), Shown()
    monkeypatch.setattr(view, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr(view, "_view", lambda **_: shown)
    path = tmp_path / "input"
    path.write_bytes(b"a\n" * 5_000)
    with open_source(str(path)) as source, Meter(source, "input", "checking") as meter:
        for at in (200, 250, 700, 1_000):
            source.stream.seek(at * 2)
            meter.look(at)
    assert shown.lines == [
        "250 lines read (5%), 500/s, ETA 0:00:10",
        "1,000 lines read (20%), 500/s, ETA 0:00:08",
        "closed",
    ]


def test_a_line_reports_how_far_a_pipe_has_been_read(capsys: pytest.CaptureFixture[str]):
    assert Lines().show_reading(Reading("request mine", "submitting", 1_200, None), 60.0) == 1.0
    said = "fairlane: request mine: submitting, 1,200 lines read, 60/s\n"
    assert capsys.readouterr().err == said
