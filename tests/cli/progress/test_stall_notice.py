"""Tests the notice of commands that wait: why their request makes no progress."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from fairlane.cli import progress
from fairlane.cli.commands.results import write_results
from fairlane.cli.progress import StallNotice
from fairlane.errors import RequestLost, WaitTimeout
from fairlane.queue import Queue
from tests.cli.program import Program, beat, finish, settle

if TYPE_CHECKING:
    from pathlib import Path

    import redis

OWN = ("submit", "input", "--id", "mine")
REST = (
    "done; no worker takes from queue req: "
    "start one with rq-worker --app module:app, or --handler module:function\n"
)
READERS = [("results", "mine"), (*OWN, "--out", "out")]
WAITERS = [("wait", "mine"), (*OWN, "--wait"), (*OWN, "--watch")]
SHORT = [READERS[0]]  # the others take as long, and differ in what they print later
ALL = [
    pytest.param(words, marks=() if words in SHORT else pytest.mark.rest, id=" ".join(words))
    for words in (*READERS, *WAITERS)
]


def answer(_: int, body: bytes) -> bytes:
    return body


def submit(program: Program) -> None:
    program("submit", "-", "--id", "mine", stdin=b"a\nb\n")


def test_a_timeout_prints_the_progress_and_an_ended_request_has_none(
    program: Program, redis_url: str
):
    submit(program)
    settle(redis_url, answer, most=1)
    ended = program("results", "mine", "--order", "done", "--timeout", "300ms")
    assert (ended.code, ended.out.count(b"\n")) == (4, 1)
    assert ended.err == f"fairlane: request mine had not ended after 0.3 s; it goes on: 1/2 {REST}"
    settle(redis_url, answer)
    ended = program("results", "mine", "--timeout", "0")
    assert (ended.code, ended.out, ended.err) == (0, b"a\nb\n", "")


def test_a_timeout_ends_a_blocking_read(
    program: Program, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Without it the read would block for a minute here."""
    monkeypatch.setattr("fairlane.operations.results.BLOCK_MS", 60_000)
    submit(program)
    with Queue.from_url(redis_url) as queue, (tmp_path / "out").open("wb") as out:
        request = queue.request("mine")
        began = time.monotonic()
        with pytest.raises(WaitTimeout, match=r"after 0\.1 s; it goes on: 0/2 done"):
            write_results(request, out, ndjson=False, timeout=0.1)
    assert time.monotonic() - began < 30


def test_a_request_that_vanished_before_the_notice_is_lost(
    program: Program, redis_url: str, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
):
    submit(program)
    monkeypatch.setattr(progress, "QUIET_S", 0.0)
    with Queue.from_url(redis_url) as queue:
        notice = StallNotice("mine", reads=True)
        redis_client.flushall()
        with pytest.raises(RequestLost, match="is gone from Redis"):
            queue.driver.run(notice.look())


def test_a_timeout_leaves_no_file_and_must_be_a_time(program: Program):
    submit(program)
    program("results", "mine", "--out", "results", "--timeout", "50ms").refused(4, "it goes on")
    assert list(program.folder.iterdir()) == []
    for timeout in ("never", "9999d"):
        program("results", "mine", "--timeout", timeout).refused(2, timeout)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Returns the time of the notices, in a list to be changed; they are due after 0.1 s."""
    monkeypatch.setattr(progress, "QUIET_S", 0.1)
    monkeypatch.setattr(progress, "AGAIN_S", 0.1)
    now = [0.0]
    monkeypatch.setattr("fairlane.common.clock.mono_s", lambda: now[0])
    return now


@pytest.mark.parametrize("reads", [True, False])
def test_the_notice_is_printed_once(
    reads: bool, now: list[float], program: Program, redis_url: str, capfd: pytest.CaptureFixture
):
    submit(program)
    settle(redis_url, answer, most=1)
    with Queue.from_url(redis_url) as queue:
        notice = StallNotice("mine", reads=reads)
        for _ in range(5):
            queue.driver.run(notice.look())
            now[0] += 0.11
    quiet = "no result for 0.1 s: " * reads
    assert capfd.readouterr().err == f"fairlane: {quiet}request mine is active with 1/2 {REST}"


@pytest.mark.parametrize("case", ["a late heartbeat", "a worker"])
def test_a_wait_reports_no_worker_that_is_late_for_a_moment(
    case: str, now: list[float], program: Program, redis_url: str, redis_client: redis.Redis,
    capfd: pytest.CaptureFixture,
):  # fmt: skip
    submit(program)
    with Queue.from_url(redis_url) as queue:
        notice = StallNotice("mine")
        for number in range(5):
            now[0] += 0.11
            if case == "a worker" or number:
                beat(redis_client, "req")
            queue.driver.run(notice.look())
    assert capfd.readouterr().err == ""


def test_a_wait_names_what_resumes_a_paused_request(
    now: list[float], program: Program, redis_url: str, capfd: pytest.CaptureFixture
):
    submit(program)
    program("pause", "mine")
    with Queue.from_url(redis_url) as queue:
        notice = StallNotice("mine")
        for _ in range(5):
            queue.driver.run(notice.look())
            now[0] += 0.11
        with pytest.raises(WaitTimeout, match=r"after 0 s; fairlane resume mine lets it go on"):
            queue.request("mine").wait(0)
    assert capfd.readouterr().err == (
        "fairlane: request mine is paused with 0/2 done; fairlane resume mine lets it go on\n"
    )


@pytest.mark.rest
@pytest.mark.slow
@pytest.mark.parametrize("words", ALL)
def test_after_some_seconds_all_that_waits_reports_the_missing_worker_once(
    words: tuple[str, ...], program: Program, redis_url: str
):
    submit(program)
    if words[0] == "submit":
        program.file(b"a\nb\n")
    with program.start(*words) as process:
        assert process.stderr
        lines = iter(process.stderr.readline, b"")
        line = next(line for line in lines if b"no worker" in line).decode()
        quiet = "no result for 5 s: " if words in READERS else ""
        assert line == f"fairlane: {quiet}request mine is active with 0/2 {REST}"
        settle(redis_url, answer)
        ended = finish(process)
    assert (ended.code, "no worker" in ended.err) == (0, False)
