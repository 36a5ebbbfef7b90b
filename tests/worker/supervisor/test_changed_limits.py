"""Tests `set_time_limit` while calls of the request run: they end sooner, or go on for longer."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.processes.workers import Folder
from tests.support.wait import PATIENCE_S, wait_until
from tests.worker.handlers import spend
from tests.worker.parts import ON_SINGLE
from tests.worker.supervisor.test_orders import running, working

if TYPE_CHECKING:
    from pathlib import Path

    from fairlane.queue import Queue
    from fairlane.worker import Context

pytestmark = ON_SINGLE


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """Returns the folder that a test and its handlers share."""
    return Folder(tmp_path)


def hang(body: bytes, context: Context) -> bytes:
    """Hangs at its first attempt."""
    if context.attempt == 1:
        threading.Event().wait()
    return body


async def hang_async(body: bytes, context: Context) -> bytes:
    """Hangs at its first attempt, and can be cancelled."""
    if context.attempt == 1:
        await asyncio.Event().wait()
    return body


@pytest.mark.parametrize("before", [0, 3600], ids=["none before", "a longer one before"])
@pytest.mark.parametrize("handler", [hang, hang_async], ids=["sync", "async"])
def test_a_call_that_runs_is_ended_by_a_new_limit(handler: Any, before: float, queue: Queue):
    """It is charged as any call that takes too long."""
    request = queue.submit_request([b"x"], attempts=2, backoff=(0.01, 0.02), time_limit=before)
    with working(queue, handler):
        running(request)
        request.set_time_limit(0.5)
        assert request.wait(timeout=PATIENCE_S) == "done"
    (result,) = request.results()
    assert (result.status, result.attempt) == ("done", 2)
    progress = request.progress()
    assert (progress.timeouts, progress.time_limit_ms) == (1, 500)
    assert "time limit of 0.5 s" in (progress.last_failure.error if progress.last_failure else "")


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_call_that_runs_has_more_time_after_a_longer_limit(
    is_async: bool, queue: Queue, folder: Folder
):
    """It is neither ended nor late when it returns after its first limit."""

    def sync(body: bytes) -> bytes:
        folder.note("began")
        folder.pass_gate()
        return body

    async def awaits(body: bytes) -> bytes:
        folder.note("began")
        await asyncio.to_thread(folder.pass_gate)
        return body

    request = queue.submit_request([b"x"], attempts=1, time_limit=5)
    with working(queue, awaits if is_async else sync):
        (call,) = running(request)
        request.set_time_limit(3600)
        wait_until(
            lambda: running(request)[0].limit_ms == 3_600_000, why="the worker has read the limit"
        )
        wait_until(lambda: running(request)[0].ran_ms > 6_000 + call.ran_ms, why="the time is over")
        folder.open_gate()
        assert request.wait(timeout=PATIENCE_S) == "done"
    (result,) = request.results()
    assert result.status == "done"


def test_a_limit_that_is_removed_ends_nothing(queue: Queue):
    """Nor does one that is longer than the call; a later call of the slice has it, too."""
    request = queue.submit_request([b"a", b"b"], limit=1, attempts=1, time_limit=60)

    def handler(body: bytes) -> bytes:
        spend(0.01)
        return body

    request.set_time_limit(0)
    with working(queue, handler):
        assert request.wait(timeout=PATIENCE_S) == "done"
    assert request.progress().time_limit_ms is None
