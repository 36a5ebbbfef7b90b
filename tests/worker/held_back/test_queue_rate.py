"""Tests workers of a queue that has a rate."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from fairlane.protocol import keys
from tests.support.wait import wait_until
from tests.worker.held_back.test_rates import SOON_S, starts, too_early_s

if TYPE_CHECKING:
    import redis

    from fairlane.queue import Queue
    from tests.support.processes.workers import Folder, Workers


def test_no_start_of_a_queue_comes_before_its_rate_allows_it(
    queue: Queue, workers: Workers, folder: Folder, redis_client: redis.Redis
):
    """Several requests run, one with a tenant and one with a rate of its own, in two processes."""
    folder.open_gate("busy")
    since = time.time()
    queue.set_rate("100/s", 10)
    requests = [
        queue.submit_request([b"x"] * 25, limit=4),
        queue.submit_request([b"x"] * 25, limit=4, tenant="t"),
        queue.submit_request([b"x"] * 10, rate="50/s"),
    ]
    workers.run("busy_once", processes=2, concurrency=2)
    assert {request.wait(SOON_S) for request in requests} == {"done"}
    assert len(starts(folder)) == 60
    assert too_early_s(starts(folder), since, 100, 10) <= 0
    assert redis_client.zcard(keys.turns("req")[0]) == 0


@pytest.mark.rest
def test_a_rate_that_is_set_and_removed_holds_for_what_waits_already(
    queue: Queue, workers: Workers, folder: Folder
):
    folder.open_gate("busy")
    worker = workers.start("busy_once", concurrency=2)
    queue.set_rate("1/h", 1)
    wait_until(lambda: "starts at most 1/h" in worker.said(), SOON_S)
    request = queue.submit_request([b"x"] * 6, limit=3)
    wait_until(lambda: request.progress().done == 1, SOON_S)
    wait_until(lambda: request.why().causes[0].kind == "queue_rate", SOON_S)
    assert request.progress().held == 0
    queue.set_rate(None)
    assert request.wait(SOON_S) == "done"


def test_the_most_urgent_request_starts_next(queue: Queue, workers: Workers, folder: Folder):
    """A worker that waits for its turn holds no token, so the bulk does not start first."""
    folder.open_gate("busy")
    queue.set_rate("1/h", 1)
    bulk = queue.submit_request([b"x"] * 9, limit=9, priority=50)
    workers.start("busy_once", concurrency=3)
    wait_until(lambda: bulk.progress().done == 1, SOON_S)
    urgent = queue.submit_request([b"y"], priority=1)
    queue.set_rate("2/s", 1)
    assert urgent.wait(SOON_S) == "done"
    assert bulk.progress().done <= 3
    bulk.cancel()


def test_a_worker_that_waits_for_a_rate_drains(queue: Queue, workers: Workers):
    """Its turn is an hour away: only the drain ends the wait."""
    queue.set_rate("1/h", 1)
    request = queue.submit_request([b"x"] * 9)
    worker = workers.start("echo")
    wait_until(lambda: request.progress().done == 1, SOON_S)
    wait_until(lambda: request.why().causes[0].kind == "queue_rate", SOON_S)
    worker.stop()
    assert request.progress().held == 0
    request.cancel()
