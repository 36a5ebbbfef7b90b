"""Tests workers that are killed, stopped or blocked: nothing is lost or counted twice."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.protocol import keys
from tests.support.processes.workers import check_settled_once, is_alive
from tests.support.wait import PATIENCE_S, wait_until
from tests.worker.parts import ON_SINGLE

if TYPE_CHECKING:
    import redis

    from fairlane.queue import Queue
    from tests.support.processes.workers import Folder, Workers


def numbers(count: int) -> list[bytes]:
    """Returns bodies 0, 1, 2 ..."""
    return [b"%d" % i for i in range(count)]


# ------------------------------------------------------------------ kill -9


@ON_SINGLE
def test_a_killed_processs_sub_request_runs_again(queue: Queue, workers: Workers, folder: Folder):
    """It runs immediately as attempt 2, in a new process, and has one result."""
    request = queue.submit_request(numbers(5), limit=1)
    worker = workers.start("hold")
    index, pid, attempt = folder.wait_noted("began")[0]
    os.kill(int(pid), signal.SIGKILL)
    folder.open_gate()
    assert request.wait(timeout=PATIENCE_S) == "done"
    assert (index, attempt) == ("0", "1")
    assert [result.attempt for result in request.results()] == [2, 1, 1, 1, 1]
    assert [began[0] for began in folder.noted("began")].count("0") == 2
    assert worker.health()["restarts"] == 1
    said = f"process {pid} of the worker ended by signal 9 (SIGKILL) "
    said += f"in sub-request 0 of request {request.id} at attempt 1 of 5; "
    assert said + "its work is taken back\n" in worker.said()
    assert worker.health()["crashes"] == 1
    check_settled_once(request)


@ON_SINGLE
def test_only_the_body_that_kills_is_charged(queue: Queue, workers: Workers, folder: Folder):
    """The slice's others run at attempt 1; it runs alone, and is dead when its attempts are over.

    The first death is not charged, because any of the slice may have caused it.
    """
    bodies = numbers(200)
    bodies[150] = b"poison"
    request = queue.submit_request(bodies, limit=1, attempts=2)
    worker = workers.start("poison", slice_s=5)  # on a busy machine a slice might have one body
    assert request.wait(timeout=PATIENCE_S) == "done"
    results = list(request.results())
    assert [result.index for result in results if result.status == "dead"] == [150]
    assert results[150].error == "the process of the handler ended by signal 9 (SIGKILL)"
    assert {result.attempt for result in results if result.status == "done"} == {1}
    assert folder.noted("died") == [["1"], ["1"], ["2"]]
    assert (request.progress().done, request.progress().dead) == (199, 1)
    worker.wait_health(restarts=3)
    check_settled_once(request)


@ON_SINGLE
@pytest.mark.slow
def test_a_killed_workers_handlers_stop_and_another_takes_over(
    queue: Queue, workers: Workers, folder: Folder
):
    """Its children die with it; its port refuses, so no worker waits for the lease of 30 s."""
    request = queue.submit_request(numbers(6), limit=2)
    first = workers.start("append_first", processes=2)
    pids = {int(pid) for _, pid, _ in folder.wait_noted("began", 2)}
    name = first.id
    folder.wait_noted("appends", 10)
    first.send(signal.SIGKILL)
    first.process.wait()
    wait_until(lambda: not any(map(is_alive, pids)), 2.0, why="the children are gone")
    appended = len(folder.noted("appends"))
    folder.open_gate()
    second = workers.start("append_first", processes=2)
    assert request.wait(timeout=PATIENCE_S) == "done"
    assert len(folder.noted("appends")) == appended
    assert sorted(result.attempt for result in request.results()) == [1, 1, 1, 1, 2, 2]
    assert {result.worker for result in request.results()} == {second.id}
    assert f"worker {name} is dead: looked in 1 request for what it held" in second.said()
    check_settled_once(request)


@ON_SINGLE
@pytest.mark.slow
def test_a_killed_worker_starts_again_under_its_id(queue: Queue, workers: Workers, folder: Folder):
    """It starts once its former heartbeat is late, and immediately takes back its former leases."""
    request = queue.submit_request(numbers(3), limit=1)
    first = workers.start("hold")
    folder.wait_noted("began")
    name = first.id
    first.send(signal.SIGKILL)
    first.process.wait()
    folder.open_gate()
    second = workers.start("hold", id=name)
    assert request.wait(timeout=PATIENCE_S) == "done"
    assert second.id == name
    assert f"worker {name} was here before: looked in 1 request" in second.said()
    assert [result.attempt for result in request.results()] == [2, 1, 1]
    check_settled_once(request)


@ON_SINGLE
@pytest.mark.parametrize("handler", ["hold_some", "hold_some_async"])
def test_all_that_a_killed_worker_held_runs_again_however_long_ago_it_was_taken(
    handler: str, queue: Queue, workers: Workers, folder: Folder
):
    """Units that share their exchanges went on meanwhile. No lease is waited for."""
    bodies = [*[b"x"] * 8, *[b"hold"] * 3, *[b"x"] * 20]
    requests = [queue.submit_request([body], limit=1, lease=600) for body in bodies]
    first = workers.start(handler, concurrency=4)
    folder.wait_noted("holds", 3)
    folder.wait_noted("passed", 28)
    assert first.id
    first.send(signal.SIGKILL)
    first.process.wait()
    workers.start(handler, concurrency=4)
    folder.wait_noted("holds", 6)
    folder.open_gate()
    for request in requests:
        assert request.wait(timeout=PATIENCE_S) == "done"
        check_settled_once(request)


# ------------------------------------------------------------------ stopped, blocked


@ON_SINGLE
@pytest.mark.slow
def test_a_worker_that_was_stopped_for_too_long_is_refused(
    queue: Queue, workers: Workers, folder: Folder
):
    """Its lease expired, another worker took over, and its late result is not counted."""
    request = queue.submit_request([b"gate1", b"gate2"], limit=1, lease=1)
    first = workers.start("until_cancelled")
    late = folder.wait_noted("began")[0][1]
    assert first.health()["held"] == 1
    first.send_all(signal.SIGSTOP)
    second = workers.start("until_cancelled")
    assert second.id
    workers.hurry()
    (index, pid, attempt) = folder.wait_noted("began", 2)[1]
    assert (index, attempt) == ("0", "2")
    assert pid != late
    folder.open_gate("gate1")
    folder.wait_noted("began", 3)
    assert request.progress().done == 1
    first.send_all(signal.SIGCONT)
    wait_until(
        lambda: late in [pid for _, pid in folder.noted("cancelled") + folder.noted("passed")],
        why="the stopped handler ends",
    )
    first.wait_health(slices=1)
    assert (request.progress().done, request.progress().held) == (1, 1)
    folder.open_gate("gate2")
    assert request.wait(timeout=PATIENCE_S) == "done"
    assert [result.body for result in request.results()] == [b"by " + pid.encode()] * 2
    assert [result.worker for result in request.results()] == [second.id] * 2
    check_settled_once(request)


@pytest.mark.rest
@ON_SINGLE
def test_a_deaf_handler_keeps_its_lease(
    queue: Queue, workers: Workers, folder: Folder, redis_client: redis.Redis
):
    """It holds the interpreter lock for 2.5 leases, and is not taken for dead."""
    request = queue.submit_request([b"2500"], lease=1)
    workers.start("deaf")
    workers.start("deaf")
    folder.wait_noted("began")
    workers.hurry()
    left = []
    while not request.progress().ended:
        found: Any = redis_client.zrange(keys.leases(request.id), 0, 0, withscores=True)
        seconds, micros = redis_client.time()
        left += [score - seconds * 1000 - micros / 1000 for _, score in found]
    (result,) = request.results()
    assert min(left) > 0
    assert float(result.body or 0) > 2.4, "no other thread ran meanwhile"
    assert (result.attempt, len(folder.noted("began"))) == (1, 1)
    check_settled_once(request)


@pytest.mark.rest
@ON_SINGLE
def test_a_cancelled_requests_handler_sees_it(queue: Queue, workers: Workers, folder: Folder):
    """It sees this at the next extension of its lease; its result is not counted."""
    request = queue.submit_request([b"never"] * 5, limit=1, lease=1)
    workers.start("until_cancelled")
    folder.wait_noted("began")
    assert not request.cancel()
    assert request.wait(timeout=PATIENCE_S) == "cancelled"
    assert len(folder.noted("cancelled")) == 1
    assert len(folder.noted("began")) == 1
    progress = request.progress()
    assert progress.done + progress.cancelled == 5


@pytest.mark.rest
@ON_SINGLE
def test_a_stop_is_not_taken_for_one_of_the_next_request(
    queue: Queue, workers: Workers, folder: Folder
):
    """The fences of two requests are the same numbers: the second handler is not stopped."""
    first = queue.submit_request([b"never"], limit=1, lease=1)
    workers.start("until_cancelled")
    folder.wait_noted("began")
    first.cancel()
    folder.wait_noted("cancelled")
    second = queue.submit_request([b"gate"], limit=1, lease=1)
    folder.wait_noted("began", 2)
    before = time.monotonic()
    wait_until(lambda: folder.noted("passed") or time.monotonic() > before + 0.2, why="a while")
    folder.open_gate("gate")
    assert second.wait(timeout=PATIENCE_S) == "done"
    assert len(folder.noted("cancelled")) == 1
    assert len(folder.noted("passed")) == 1
