"""Tests signals that the supervisor counts: two signals of one stop count once."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fairlane.worker.termination import Signals
from tests.support.run.for_each import for_each
from tests.support.wait import PATIENCE_S, wait_until
from tests.worker.parts import ON_SINGLE

if TYPE_CHECKING:
    from fairlane.queue import Queue
    from tests.support.processes.workers import Folder, Workers


@for_each(
    "moments, count",
    [([0.1], 1), ([0.1, 0.1], 1), ([0.1, 0.39], 1), ([0.1, 0.41], 2), ([0.1, 0.3, 0.45], 2)],
)
def test_a_second_signal_that_comes_immediately_does_not_count(
    moments: list[float], count: int, monkeypatch: pytest.MonkeyPatch
):
    """A terminal sends one, and a program that runs the worker passes its own on."""
    now = [0.0]
    monkeypatch.setattr("fairlane.common.clock.mono_s", lambda: now[0])
    with Signals() as signals:
        for now[0] in moments:
            os.kill(os.getpid(), signal.SIGTERM)
        assert signals.count == count


@pytest.mark.usefixtures("hangup")
@pytest.mark.parametrize(("disposition", "count"), [(signal.SIG_DFL, 1), (signal.SIG_IGN, 0)])
def test_a_closed_terminal_counts_as_a_stop_unless_nohup_ignores_it(
    disposition: signal.Handlers, count: int
):
    signal.signal(signal.SIGHUP, disposition)
    with Signals() as signals:
        os.kill(os.getpid(), signal.SIGHUP)
        assert signals.count == count
    assert signal.getsignal(signal.SIGHUP) == disposition


@pytest.mark.rest
@ON_SINGLE
@pytest.mark.usefixtures("hangup")
def test_a_worker_whose_terminal_closes_finishes_what_it_holds(
    queue: Queue, workers: Workers, folder: Folder
):
    """A hang-up reaches its processes, too, and does not end them."""
    request = queue.submit_request([b"1"], limit=1)
    worker = workers.start("hold")
    pid = int(folder.wait_noted("began")[0][1])
    worker.send(signal.SIGHUP)
    os.kill(pid, signal.SIGHUP)
    wait_until(lambda: "drains" in worker.said(), why="it drains")
    folder.open_gate()
    assert request.wait(timeout=PATIENCE_S) == "done"
    assert worker.wait() == 0


def state(pid: int) -> str:
    """Returns the state of a process as a letter: T for a stopped one."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@ON_SINGLE
def test_a_worker_that_a_terminal_stops_stops_its_processes_too(
    queue: Queue, workers: Workers, folder: Folder
):
    """They continue with it: they are in groups of their own, which the terminal does not stop."""
    request = queue.submit_request([b"1"], limit=1)
    worker = workers.start("hold")
    pid = int(folder.wait_noted("began")[0][1])
    worker.send(signal.SIGTSTP)
    wait_until(lambda: state(worker.pid) == state(pid) == "T", why="both are stopped")
    worker.send(signal.SIGCONT)
    wait_until(lambda: "T" not in {state(worker.pid), state(pid)}, why="both go on")
    folder.open_gate()
    assert request.wait(timeout=PATIENCE_S) == "done"
