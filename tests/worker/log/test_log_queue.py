"""Tests the supervisor's log queue: a slow or absent reader does not block the supervisor."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import select
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.cli.log import StderrHandler
from fairlane.protocol import keys
from fairlane.worker import Worker, log, termination
from fairlane.worker.log import LogQueue
from tests.support.processes.prepared import ROOT
from tests.support.processes.workers import FOLDER, Folder
from tests.support.wait import PATIENCE_S, wait_until
from tests.worker.parts import ON_SINGLE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import redis

    from fairlane.queue import Queue

LOG = logging.getLogger("fairlane.worker")


class Gated(logging.Handler):
    """Keeps messages; each waits until the gate is open, as a write to a full pipe does."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.began = threading.Event()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Waits, and keeps the message."""
        self.began.set()
        self.gate.wait()
        self.messages.append(record.getMessage())


@pytest.fixture
def gated() -> Iterator[Gated]:
    """The only handler of the worker's log."""
    made = Gated()
    LOG.addHandler(made)
    LOG.propagate = False
    yield made
    made.gate.set()
    LOG.propagate = True
    LOG.removeHandler(made)


@pytest.fixture(autouse=True)
def level() -> Iterator[None]:
    """Sets the level so that everything is logged."""
    before = LOG.level
    LOG.setLevel(logging.INFO)
    yield
    LOG.setLevel(before)


# ------------------------------------------------------------------ the queue


def test_records_are_written_in_order_by_another_thread(gated: Gated):
    """All of them are written before the queue is closed."""
    with LogQueue():
        for i in range(50):
            LOG.info("line %d", i)
        gated.gate.set()
    assert gated.messages == [f"line {i}" for i in range(50)]


def test_what_finds_the_queue_full_is_dropped_and_counted(gated: Gated):
    """The count replaces the lost lines."""
    with LogQueue():
        LOG.info("first")
        gated.began.wait()
        for i in range(log._MAX_QUEUED + 7):
            LOG.info("line %d", i)
        gated.gate.set()
        wait_until(lambda: len(gated.messages) == log._MAX_QUEUED + 2, why="all is written")
        LOG.info("last")
    dropped = "7 lines of this log were dropped: its reader is slow"
    kept = [f"line {i}" for i in range(log._MAX_QUEUED)]
    assert gated.messages == ["first", *kept, dropped, "last"]


def test_a_line_after_dropped_ones_follows_their_count(gated: Gated):
    """Also when there is room again before all is written."""
    with LogQueue():
        LOG.info("first")
        gated.began.wait()
        for i in range(log._MAX_QUEUED + 1):
            LOG.info("line %d", i)
        gated.gate.set()
        wait_until(lambda: len(gated.messages) > 1, why="there is room")
        LOG.info("last")
    place = gated.messages.index("1 lines of this log were dropped: its reader is slow")
    assert gated.messages[place - 1 :: 2] == [f"line {log._MAX_QUEUED - 1}", "last"]


def test_a_queue_whose_reader_never_reads_is_left_in_bounded_time(
    gated: Gated, monkeypatch: pytest.MonkeyPatch
):
    """What waits is lost with the process, or written if the reader reads before its end."""
    monkeypatch.setattr(log, "_STUCK_S", 0.05)
    with LogQueue() as queue:
        LOG.info("first")
        gated.began.wait()
        LOG.info("second")
    assert gated.messages == []
    gated.gate.set()
    queue._thread.join()
    assert gated.messages == ["first", "second"]


def test_after_the_queue_records_go_their_usual_way(gated: Gated):
    """They are written in the thread that logs them."""
    gated.gate.set()
    with LogQueue():
        LOG.info("queued")
    LOG.info("plain")
    assert gated.messages == ["queued", "plain"]
    assert LOG.filters == []


def test_a_forked_process_writes_its_own_records(gated: Gated):
    """It has no thread of the queue, even if it was forked while another thread held its lock."""
    gated.gate.set()
    with LogQueue() as queue, queue._changed:
        pid = os.fork()
        if not pid:
            LOG.info("forked")
            os._exit(0 if gated.messages == ["forked"] else 1)
        assert os.waitpid(pid, 0)[1] == 0


def test_a_handler_that_raises_stops_no_other_line(gated: Gated):
    """It is the handler's failure."""
    gated.gate.set()
    failing = logging.Handler()
    failing.emit = lambda _: 1 / 0  # type: ignore[assignment, method-assign]
    LOG.addHandler(failing)
    try:
        with LogQueue():
            LOG.info("one")
            LOG.info("two")
    finally:
        LOG.removeHandler(failing)
    assert gated.messages == ["one", "two"]


class Stuck(io.StringIO):
    """A stream whose flush waits until the gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.flushed = 0

    def flush(self) -> None:
        """Waits."""
        self.flushed += 1
        self.gate.wait()


def test_a_stream_that_cannot_be_flushed_delays_no_fork(monkeypatch: pytest.MonkeyPatch):
    """It is tried again only when the last try has ended."""
    stuck = Stuck()
    monkeypatch.setattr(sys, "stdout", stuck)
    termination.flush_before_fork()
    termination.flush_before_fork()
    assert stuck.flushed == 1
    stuck.gate.set()
    assert termination._flushing is not None
    termination._flushing.join()
    termination.flush_before_fork()
    assert stuck.flushed == 2


# ------------------------------------------------------------------ on stderr


def record_of(text: str) -> logging.LogRecord:
    """Returns a record of the worker's log."""
    return LOG.makeRecord(LOG.name, logging.INFO, "", 0, text, (), None)


def test_a_record_is_one_line_on_stderr(capfd: pytest.CaptureFixture[str]):
    """One that is no UTF-8 is a line, too."""
    StderrHandler().handle(record_of("a line\udcff"))
    assert capfd.readouterr().err == "fairlane: a line\\udcff\n"


def test_a_stderr_that_is_closed_or_unread_is_no_error(monkeypatch: pytest.MonkeyPatch):
    """The worker continues without its log."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as unread:
        for stream in (io.StringIO(), unread):
            monkeypatch.setattr(sys, "stderr", stream)
            StderrHandler().handle(record_of("a line"))


# ------------------------------------------------------------------ a worker with a full pipe

HANDLERS = """
import os, signal, threading
from tests.support.processes.workers import Folder

def act(body, context):
    folder = Folder.of_handler()
    folder.note(body.decode(), context.attempt)
    if body == b"fill":
        threading.Thread(target=os.write, args=(2, b"x" * 1_000_000), daemon=True).start()
        folder.pass_gate()
    if body == b"die" and context.attempt < 4:
        folder.pass_gate("full")
        os.kill(os.getpid(), signal.SIGKILL)
    return body
"""


class Noisy:
    """A worker whose stderr is a pipe, which the test may read."""

    def __init__(self, queue: Queue, folder: Path) -> None:
        self.reader, self.writer = os.pipe()
        words = ["-m", "fairlane", "worker", "--handler", "filling:act", "--processes", "2"]
        self.process = subprocess.Popen(
            [sys.executable, *words, "--redis", queue.driver.url, "--slice", "0"],
            cwd=folder,
            env=os.environ | {FOLDER: str(folder), "PYTHONPATH": str(ROOT)},
            stderr=self.writer,
        )

    def is_full(self) -> bool:
        """Returns True when a write would block."""
        return not select.select([], [self.writer], [], 0)[1]

    def read_to_the_end(self) -> bytes:
        """Returns all that is written until every writer has ended."""
        os.close(self.writer)
        self.writer = -1
        said = b""
        while select.select([self.reader], [], [], 20)[0]:
            part = os.read(self.reader, 1 << 16)
            if not part:
                return said
            said += part
        raise AssertionError("the pipe stays open")

    def end(self) -> None:
        """Ends the worker, and closes the pipe."""
        self.process.kill()
        self.process.wait()
        for file in (self.reader, self.writer):
            with contextlib.suppress(OSError):
                os.close(file)


@pytest.fixture
def noisy(queue: Queue, tmp_path: Path) -> Iterator[Noisy]:
    """Makes a worker of two processes."""
    (tmp_path / "filling.py").write_text(HANDLERS)
    made = Noisy(queue, tmp_path)
    yield made
    made.end()


def fill(noisy: Noisy, queue: Queue, folder: Folder, client: Any) -> Any:
    """Submits a request whose handler fills the pipe, while the supervisor logs three deaths."""
    filling = queue.submit_request([b"fill"], lease=1)
    folder.wait_noted("fill")
    wait_until(noisy.is_full, why="the pipe is full")
    dying = queue.submit_request([b"die"], attempts=4, backoff=(0.01, 0.02))
    folder.open_gate("full")
    assert dying.wait(timeout=PATIENCE_S) == "done"
    leases = keys.leases(filling.id)
    ((permit, first),) = client.zrange(leases, 0, -1, withscores=True)
    wait_until(lambda: client.zscore(leases, permit) > first + 2_000, why="it is extended")
    folder.open_gate()
    assert filling.wait(timeout=PATIENCE_S) == "done"
    assert folder.noted("fill") == [["1"]], "it ran once"


@pytest.mark.rest
@ON_SINGLE
def test_a_full_pipe_costs_no_lease_and_keeps_no_worker_from_ending(
    noisy: Noisy, queue: Queue, tmp_path: Path, redis_client: redis.Redis
):
    """Nothing is ever read: the processes are restarted, leases extended, and the worker drains."""
    fill(noisy, queue, Folder(tmp_path), redis_client)
    assert noisy.is_full()
    noisy.process.send_signal(signal.SIGTERM)
    assert noisy.process.wait(PATIENCE_S) == 0


@pytest.mark.rest
@ON_SINGLE
def test_the_last_lines_come_out_when_the_reader_reads_again(
    noisy: Noisy, queue: Queue, tmp_path: Path, redis_client: redis.Redis
):
    """Those that waited, in order."""
    fill(noisy, queue, Folder(tmp_path), redis_client)
    noisy.process.send_signal(signal.SIGTERM)
    said = noisy.read_to_the_end().replace(b"x", b"").decode().splitlines()
    assert noisy.process.wait(PATIENCE_S) == 0
    assert sum("ended by signal 9 (SIGKILL)" in line for line in said) == 3
    assert said[-2].endswith("drains: it finishes what it holds; a second signal stops it now")
    assert said[-1].startswith("fairlane: worker 127.0.0.1:")
    assert " has stopped: " in said[-1]


# ------------------------------------------------------------------ forks


def test_no_process_is_forked_while_a_line_is_written(gated: Gated):
    """The new process would wait for ever for the lock of the stream."""
    written_at_fork: list[int] = []

    def fork() -> None:
        with log.between_lines():
            written_at_fork.append(len(gated.messages))

    with LogQueue():
        LOG.warning("a line")
        assert gated.began.wait(PATIENCE_S)
        assert log._writing.locked()
        forking = threading.Thread(target=fork)
        forking.start()
        gated.gate.set()
        forking.join(PATIENCE_S)
    assert written_at_fork == [1]


def test_a_line_that_is_not_read_delays_a_fork_for_a_bounded_time(
    gated: Gated, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(log, "_FORK_S", 0.01)
    with LogQueue():
        LOG.warning("a line")
        assert gated.began.wait(PATIENCE_S)
        with log.between_lines():
            assert gated.messages == []
        gated.gate.set()


@ON_SINGLE
def test_each_process_of_a_worker_is_forked_between_lines(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
):
    is_between, fork = [], os.fork

    def noting() -> int:
        is_between.append(log._writing.locked())
        return fork()

    monkeypatch.setattr(os, "fork", noting)
    queue.submit_request([b"x"], id="r1")
    Worker(queue, print, processes=2).run(until_idle=True)
    assert is_between == [True, True]
