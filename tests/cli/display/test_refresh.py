"""Tests `fairlane status --watch`: drawn in place on a terminal, else a line for each change."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

import pytest

from tests.cli.display.terminals import on_terminal
from tests.cli.program import finish, settle
from tests.support.servers.server_process import run_server

if TYPE_CHECKING:
    from tests.cli.program import Program


def test_a_watched_queue_prints_a_line_for_each_change(program: Program, redis_url: str):
    program("submit", "-", "--id", "mine", stdin=b"a\nb\n")
    with program.start("status", "--watch") as process:
        assert process.stdout
        first = process.stdout.readline().decode()
        settle(redis_url, lambda _, body: body)
        second = process.stdout.readline().decode()
        process.send_signal(signal.SIGINT)
        ended = finish(process)
    assert first == (
        "queue req: 2 waiting, nothing works on them now; 1 active; 2 tokens in lanes, "
        "0 tokens delayed; 0 workers; 0 ended\n"
    )
    assert second.endswith("0 workers; 1 ended\n")
    assert (ended.code, ended.out, ended.err) == (130, b"", "fairlane: interrupted\n")


@pytest.mark.rest
def test_a_watched_request_is_shown_until_it_ends(program: Program, redis_url: str):
    program("submit", "-", "--id", "mine", stdin=b"a\nb\n")
    with program.start("status", "mine", "--watch") as process:
        assert process.stdout
        assert process.stdout.readline() == b"request mine active: 0/2 done, permits 0/3\n"
        settle(redis_url, lambda _, body: body)
        ended = finish(process)
    assert ended.out.splitlines()[-1] == b"request mine done: 2/2 done"
    assert (ended.code, ended.err) == (0, "")


@pytest.mark.rest
def test_json_has_a_value_for_each_change(program: Program, redis_url: str):
    program("submit", "-", "--id", "mine", stdin=b"a\n")
    with program.start("status", "mine", "--watch", "--json") as process:
        assert process.stdout
        assert json.loads(process.stdout.readline())["state"] == "active"
        settle(redis_url, lambda _, body: body)
        ended = finish(process)
    (last,) = map(json.loads, ended.out.splitlines())
    assert (last["state"], last["done"]) == ("done", 1)


@pytest.mark.rest
def test_a_terminal_is_drawn_in_place(program: Program, redis_url: str):
    program("submit", "-", "--id", "mine", stdin=b"a\n")
    shown = on_terminal(program, "status", "mine", "--watch")
    shown.wait_for("Ctrl-C ends")
    settle(redis_url, lambda _, body: body)
    shown.wait_for("1 done, 0 dead")
    assert shown.end() == 0
    frames = shown.drawn.decode().split("\x1b[H")
    assert frames[0] == "\x1b[2J"  # cleared once; each frame begins in the first line
    assert all(frame.endswith("\x1b[J\x1b[?7h") for frame in frames[1:])
    assert "Ctrl-C ends" not in frames[-1]


def test_ctrl_c_ends_a_drawn_view(program: Program):
    program("submit", "-", stdin=b"a\n")
    shown = on_terminal(program, "status", "--watch")
    shown.wait_for("Ctrl-C ends")
    shown.process.send_signal(signal.SIGINT)
    assert shown.end() == 130


def test_a_view_that_is_too_high_is_cut_off(program: Program):
    program("submit", "-", "--format", "requests", stdin=b"1:a\n" * 40)
    shown = on_terminal(program, "status", "--watch", LINES="12")
    shown.wait_for("Ctrl-C ends")
    shown.process.send_signal(signal.SIGINT)
    shown.end()
    frame = shown.drawn.decode().split("\x1b[H")[1].partition("\x1b[J")[0]
    assert frame.count("\n") == 11
    assert "REQUEST" in frame


@pytest.mark.rest
@pytest.mark.slow
def test_an_outage_is_reported_and_the_view_goes_on(alone: Program):
    with run_server() as server:
        alone.env["FAIRLANE_REDIS"] = server.url
        alone("submit", "-", "--id", "mine", stdin=b"a\n")
        with alone.start("status", "--watch") as process:
            assert process.stdout
            assert process.stderr
            assert b"1 active" in process.stdout.readline()
            server.process.send_signal(signal.SIGSTOP)
            assert b"does not answer" in process.stderr.readline()
            server.process.send_signal(signal.SIGCONT)
            assert process.stderr.readline() == b"fairlane: Redis answers again\n"
            process.send_signal(signal.SIGINT)
            assert finish(process).code == 130
