"""Tests workers at requests that wait: for a time, for a rate, for a remote service."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from fairlane.protocol import keys
from tests.support.wait import PATIENCE_S, wait_until

if TYPE_CHECKING:
    import redis

    from fairlane.queue import Queue
    from tests.support.processes.workers import Folder, Workers

SOON_S = PATIENCE_S


def starts(folder: Folder) -> list[float]:
    """Returns when the handler was called, in s, in order."""
    return sorted(float(at) for _, at in folder.noted("called"))


def too_early_s(times: list[float], since: float, rate: float, burst: float) -> float:
    """Returns by how many seconds a call came before a bucket that was full at `since` allows it.

    A process that the system stops for a moment calls late, and then more in a short time. So the
    time since the beginning is what counts.
    """
    return max(since + (i - burst) / rate - at for i, at in enumerate(times, 1))


def test_no_call_comes_before_the_rate_allows_it(queue: Queue, workers: Workers, folder: Folder):
    """The handlers' clocks measure it, in several processes."""
    folder.open_gate("busy")
    since = time.time()
    request = queue.submit_request([b"x"] * 60, limit=4, rate="100/s", burst=10)
    workers.run("busy_once", processes=2, concurrency=2)
    assert request.wait(SOON_S) == "done"
    assert len(starts(folder)) == 60
    assert too_early_s(starts(folder), since, 100, 10) <= 0


def test_requests_share_the_rate_of_a_key(queue: Queue, workers: Workers, folder: Folder):
    folder.open_gate("busy")
    since = time.time()
    requests = [
        queue.submit_request([b"x"] * 15, rate="50/s", burst=5, rate_key="api") for _ in range(4)
    ]
    workers.run("busy_once", concurrency=2)
    assert {request.wait(SOON_S) for request in requests} == {"done"}
    assert len(starts(folder)) == 60
    assert too_early_s(starts(folder), since, 50, 5) <= 0


def test_a_delayed_request_starts_on_time(queue: Queue, workers: Workers, folder: Folder):
    folder.open_gate("busy")
    request = queue.submit_request([b"x"], delay=0.7)
    opens_s = (request.progress().opens_ms or 0) / 1000
    workers.run("busy_once")
    assert request.wait(SOON_S) == "done"
    (called,) = starts(folder)
    assert called >= opens_s - 0.01


@pytest.mark.rest
def test_the_whole_request_pauses_when_the_other_side_asks(
    queue: Queue, workers: Workers, folder: Folder
):
    request = queue.submit_request([b"x"] * 6, limit=1)
    workers.run("busy_once")
    assert request.wait(SOON_S) == "done"
    first, *others = starts(folder)
    assert len(others) == 6
    assert min(others) - first >= 0.99
    assert [result.attempt for result in request.results()].count(2) == 1


def test_a_request_that_waits_holds_no_worker(
    queue: Queue, workers: Workers, redis_client: redis.Redis
):
    waits = queue.submit_request([b"x"] * 9, id="waits", rate="5/h", burst=1)
    workers.start("echo")
    wait_until(lambda: waits.progress().done == 1, SOON_S)
    assert queue.submit_request([b"y"]).wait(SOON_S) == "done"
    wait_until(lambda: waits.progress().held == 0, SOON_S)
    assert redis_client.zcard(keys.delayed("req")) == 1
    waits.cancel()


def test_a_request_starts_after_another(queue: Queue, workers: Workers):
    first = queue.submit_request([b"1"], id="first")
    second = queue.submit_request([b"2"], id="second", after=["first"])
    workers.start("echo")
    assert first.wait(SOON_S) == "done"
    assert second.wait(SOON_S) == "done"
