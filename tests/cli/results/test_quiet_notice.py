"""`fairlane results` of a request that does not go on."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from fairlane.cli.results import quiet_notice
from fairlane.cli.results.quiet_notice import QuietNotice
from fairlane.cli.results.writer import write_results
from fairlane.errors import RequestLost, WaitTimeout
from fairlane.queue import Queue
from tests.cli.program import ON_ONE_KIND, Program, finish, settle

if TYPE_CHECKING:
    from pathlib import Path

    import redis

pytestmark = ON_ONE_KIND


def answer(_: int, body: bytes) -> bytes:
    return body


def submit(program: Program) -> None:
    program("submit", "-", "--id", "mine", stdin=b"a\nb\n")


def test_results_time_out(program: Program, redis_url: str):
    submit(program)
    settle(redis_url, answer, most=1)
    ended = program("results", "mine", "--order", "done", "--timeout", "300ms")
    assert (ended.code, ended.out.count(b"\n")) == (4, 1)
    assert ended.err == (
        "fairlane: request mine had not ended after 0.3 s; it goes on: 1/2 done; "
        "no worker takes from queue req: start one with rq-worker\n"
    )


def test_a_timeout_ends_a_blocking_read(program: Program, redis_url: str, tmp_path: Path):
    submit(program)
    with Queue.from_url(redis_url) as queue, (tmp_path / "out").open("wb") as out:
        request = queue.request("mine")
        began = time.monotonic()
        with pytest.raises(WaitTimeout, match=r"after 0\.1 s; it goes on: 0/2 done"):
            write_results(request, out, ndjson=False, timeout=0.1)
    assert time.monotonic() - began < 1.5


def test_what_has_ended_does_not_time_out(program: Program, redis_url: str):
    submit(program)
    settle(redis_url, answer)
    ended = program("results", "mine", "--timeout", "0")
    assert (ended.code, ended.out, ended.err) == (0, b"a\nb\n", "")


def test_a_request_that_vanished_before_the_notice_is_lost(
    program: Program, redis_url: str, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
):
    submit(program)
    monkeypatch.setattr(quiet_notice, "QUIET_S", 0.0)
    with Queue.from_url(redis_url) as queue:
        notice = QuietNotice(queue.request("mine"))
        redis_client.flushall()
        with pytest.raises(RequestLost, match="is gone from Redis"):
            notice.look()


def test_a_timeout_leaves_no_file(program: Program):
    submit(program)
    program("results", "mine", "--out", "results", "--timeout", "50ms").refused(4, "it goes on")
    assert list(program.folder.iterdir()) == []


@pytest.mark.parametrize("timeout", ["never", "9999d"])
def test_a_timeout_that_cannot_be(timeout: str, program: Program):
    program("results", "mine", "--timeout", timeout).refused(2, timeout)


def test_the_notice_is_printed_once(
    program: Program, redis_url: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
):
    monkeypatch.setattr(quiet_notice, "QUIET_S", 0.1)
    now = [0.0]
    monkeypatch.setattr("fairlane.common.clock.mono_s", lambda: now[0])
    submit(program)
    settle(redis_url, answer, most=1)
    with Queue.from_url(redis_url) as queue:
        notice = QuietNotice(queue.request("mine"))
        for _ in range(4):
            notice.look()
            now[0] += 0.1
    assert capfd.readouterr().err == (
        "fairlane: no result for 0.1 s: waiting for request mine to go on, "
        "it is active with 1/2 done; no worker takes from queue req: start one with rq-worker\n"
    )


@pytest.mark.slow
def test_after_five_seconds_results_say_what_they_wait_for(program: Program, redis_url: str):
    submit(program)
    with program.start("results", "mine") as process:
        assert process.stderr
        line = process.stderr.readline().decode()
        assert line.startswith("fairlane: no result for 5 s: waiting for request mine to go on")
        settle(redis_url, answer)
        ended = finish(process)
    assert (ended.code, ended.out, ended.err) == (0, b"a\nb\n", "")
