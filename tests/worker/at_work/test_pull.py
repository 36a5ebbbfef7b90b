"""Tests programs that take sub-requests, beside workers and each other, some of them killed."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.protocol import keys
from fairlane.queue import Queue
from tests.support.processes.prepared import ROOT, Forked
from tests.support.processes.takers import take_one
from tests.support.processes.workers import check_settled_once
from tests.support.scripts.requests import numbered
from tests.support.wait import PATIENCE_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fairlane.request import Request
    from tests.support.processes.workers import Workers

HOUR = 3_600


@pytest.fixture
def taker(queue: Queue) -> Iterator[Callable[[float], Forked]]:
    """Starts programs that take, and hold each sub-request for so many seconds."""
    running: list[Forked] = []
    with contextlib.ExitStack() as later:

        def start(visible_for: float) -> Forked:
            with Path(os.devnull).open("rb") as nothing:
                fds = (nothing.fileno(), 1, 2)
                words = [queue.driver.url, str(visible_for)]
                taker = "tests.support.processes.takers:main"
                made = Forked(taker, words, env=os.environ, cwd=ROOT, fds=fds)
            running.append(made)
            later.callback(made.kill)
            return made

        yield start
        for one in running:
            one.kill()
            one.wait(PATIENCE_S)


def held(request: Request) -> int:
    return request.progress().held


@pytest.mark.rest
@pytest.mark.slow
def test_what_a_killed_program_had_is_taken_by_another(
    queue: Queue, taker: Callable[[float], Forked]
):
    """There is no worker: the other program takes the leases back itself."""
    request = queue.submit_request(numbered(12), limit=12)
    first = taker(1)
    wait_until(lambda: held(request) and request.progress().done, why="some are held, some done")
    first.kill()
    first.wait(PATIENCE_S)
    while not request.progress().ended:
        for one in queue.take(100, wait_s=1):
            one.done(one.body)
    check_settled_once(request)
    assert [one.body for one in request.results()] == numbered(12)
    assert max(one.attempt for one in request.results()) > 1


@pytest.mark.slow
def test_a_worker_takes_back_and_does_what_a_killed_program_had(
    queue: Queue, workers: Workers, taker: Callable[[float], Forked]
):
    request = queue.submit_request(numbered(12), limit=12)
    first = taker(1)
    wait_until(lambda: held(request) and request.progress().done, why="some are held, some done")
    first.kill()
    first.wait(PATIENCE_S)
    workers.start("echo")
    assert request.wait(timeout=PATIENCE_S) == "done"
    check_settled_once(request)
    assert [one.body for one in request.results()] == numbered(12)


@pytest.mark.rest
@pytest.mark.slow
def test_programs_and_workers_share_requests_and_each_sub_request_counts_once(
    queue: Queue, redis_url: str, workers: Workers, taker: Callable[[float], Forked]
):
    """One program is killed meanwhile."""
    requests = [queue.submit_request(numbered(150), limit=limit) for limit in (2, 10)]
    requests += [queue.post(str(n)) for n in range(100)]
    killed = taker(1)

    def drain() -> None:
        with Queue.from_url(redis_url) as own:
            while not all(request.progress().ended for request in requests):
                for one in own.take(5, wait_s=0.1):
                    one.done(one.body)

    threads = [threading.Thread(target=drain) for _ in range(2)]
    for thread in threads:
        thread.start()
    wait_until(lambda: requests[0].progress().done > 10, why="some are done")
    killed.kill()
    workers.start("echo")
    for thread in threads:
        thread.join()
    for request in requests:
        assert request.wait(timeout=PATIENCE_S) == "done"
        check_settled_once(request)


@pytest.mark.rest
def test_a_worker_leads_soon_after_a_program_stood_in(
    queue: Queue, workers: Workers, redis_client: Any
):
    """The program continues to take all the time, but does not renew the lock."""
    request = queue.post("a")
    taken = take_one(queue, visible_for=HOUR)
    worker = workers.start("echo")

    def leads() -> bool:
        queue.take()
        lock: bytes = redis_client.hget(keys.conf("req"), "lock")
        return lock == worker.id.encode()

    assert redis_client.hget(keys.conf("req"), "lock").startswith(b"taker:")
    wait_until(leads, why="the worker leads")
    taken.done()
    assert request.state() == "done"


@pytest.mark.rest
def test_a_worker_and_a_program_together_keep_the_limit(queue: Queue, workers: Workers):
    request = queue.submit_request(numbered(2), limit=1)
    taken = take_one(queue, visible_for=HOUR)
    workers.start("echo")
    other = queue.post("b")
    assert other.wait(timeout=PATIENCE_S) == "done"
    assert (request.progress().done, held(request)) == (0, 1)
    taken.done()
    assert request.wait(timeout=PATIENCE_S) == "done"
    check_settled_once(request)
