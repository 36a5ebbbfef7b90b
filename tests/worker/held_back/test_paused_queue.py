"""Tests workers of a paused queue: they finish their leases and take nothing until the resume."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.protocol import keys
from fairlane.queue import Queue
from tests.support.wait import PATIENCE_S, wait_until

if TYPE_CHECKING:
    import redis

    from tests.support.processes.workers import Folder, Running, Workers

BEAT_S = 10.0  # a heartbeat and the check of a unit take about a second; a busy machine, longer


def wait_paused(worker: Running) -> None:
    """Returns when the worker has read the pause."""
    wait_until(lambda: "this worker takes nothing" in worker.said(), why="the pause is read")


def wait_idle(worker: Running, client: Any) -> None:
    """Returns when the worker has read the pause and none of its units is left in a pop."""
    wait_paused(worker)
    # The keys may be empty for a moment: a unit that pops all words puts those of others back.
    wait_until(lambda: not client.info("clients")["blocked_clients"], why="all are woken")


def beats_of(client: Any, worker: Running) -> bytes:
    found: bytes = client.hget(keys.worker("req", worker.id), "renewed")
    return found


def wait_beats(client: Any, worker: Running, count: int = 2) -> None:
    """Waits for so many further heartbeats of the worker."""
    seen: set[bytes] = set()

    def has_beaten() -> bool:
        seen.add(beats_of(client, worker))
        return len(seen) > count

    wait_until(has_beaten, why=f"{count} beats")


def test_a_lease_that_runs_ends_in_a_paused_queue_and_nothing_follows(
    queue: Queue, workers: Workers, folder: Folder, redis_client: redis.Redis
):
    """Submissions continue, and after the resume all is done."""
    request = queue.submit_request([b"a"] * 6, limit=1)
    worker = workers.start("hold", slice_s=0)
    folder.wait_noted("began")
    queue.pause()
    wait_paused(worker)
    other = queue.submit_request([b"b"])
    folder.open_gate()
    wait_until(lambda: request.progress().done == 1, why="what ran is done")
    wait_beats(redis_client, worker)
    assert (request.progress().done, other.progress().done) == (1, 0)
    assert len(folder.noted("began")) == 1
    assert queue.resume()
    assert (request.wait(timeout=PATIENCE_S), other.wait(timeout=PATIENCE_S)) == ("done", "done")


@pytest.mark.rest
@pytest.mark.parametrize("shards", [0, 3])
def test_idle_units_that_wait_in_a_pop_take_nothing(
    queue: Queue, workers: Workers, folder: Folder, redis_client: redis.Redis, shards: int
):
    """They are woken when the pause is read, and take work within a heartbeat of the resume."""
    queue.set_shards(shards)
    worker = workers.start("echo_noted", concurrency=3, processes=2)
    queue.submit_request([b"first"]).wait(timeout=PATIENCE_S)
    queue.pause()
    wait_idle(worker, redis_client)
    request = queue.submit_request([b"x"] * 50, limit=10)
    wait_beats(redis_client, worker)
    assert request.progress().done == 0
    assert len(folder.noted("ran")) == 1
    resumed = time.monotonic()
    queue.resume()
    folder.wait_noted("ran", 2)
    assert time.monotonic() - resumed < BEAT_S
    assert request.wait(timeout=PATIENCE_S) == "done"


@pytest.mark.rest
def test_a_pause_for_a_time_ends_without_a_call(
    queue: Queue, workers: Workers, redis_client: redis.Redis
):
    worker = workers.start("echo_noted")
    queue.submit_request([b"first"]).wait(timeout=PATIENCE_S)
    before = time.monotonic()
    pause = queue.pause(for_s=3)
    assert pause.until_ms == pause.now_ms + 3_000
    wait_idle(worker, redis_client)
    request = queue.submit_request([b"x"])
    assert request.wait(timeout=PATIENCE_S) == "done"
    assert 3 <= time.monotonic() - before < 3 + BEAT_S
    assert not queue.resume()


def test_a_worker_that_starts_in_a_paused_queue_takes_nothing(
    queue: Queue, workers: Workers, folder: Folder, redis_client: redis.Redis
):
    """It also drains quickly."""
    queue.pause()
    request = queue.submit_request([b"x"] * 5)
    worker = workers.start("echo_noted", processes=2)
    wait_beats(redis_client, worker)
    before = time.monotonic()
    worker.stop()
    assert time.monotonic() - before < BEAT_S
    assert (request.progress().done, folder.noted("ran")) == (0, [])


def test_other_queues_go_on(queue: Queue, workers: Workers, redis_url: str):
    with Queue.from_url(redis_url, name="other") as other:
        other.pause()
        workers.start("echo")
        assert queue.submit_request([b"x"]).wait(timeout=PATIENCE_S) == "done"
        other.resume()


@pytest.mark.rest
def test_a_worker_that_ends_when_idle_reports_that_its_queue_is_paused(
    queue: Queue, workers: Workers
):
    """Work in a paused queue is unfinished; without any the queue is idle."""
    queue.pause()
    workers.run("echo")
    request = queue.submit_request([b"x"])
    worker = workers.start("echo", until_idle=True)
    why = f"nothing can start: waiting for request {request.id} (queue req is paused until it is"
    wait_until(lambda: why in worker.said(), why="the idle report")
    queue.resume()
    assert worker.wait() == 0
    assert request.state() == "done"


@pytest.mark.rest
def test_a_paused_queue_gets_only_beats(queue: Queue, workers: Workers, redis_client: redis.Redis):
    """Its units send nothing, not even a pop."""
    queue.pause()
    queue.submit_request([b"x"])
    worker = workers.start("echo", concurrency=4)
    wait_beats(redis_client, worker)
    before = pops(redis_client)
    wait_beats(redis_client, worker, 3)
    assert pops(redis_client) == before


def pops(client: Any) -> int:
    stats = client.info("commandstats")
    names = ("brpop", "blmpop", "lmpop", "rpop")
    return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in names)


@pytest.mark.rest
@pytest.mark.parametrize("handler", ["echo", "busy_noted"])
def test_quick_handlers_stop_soon_after_a_pause(queue: Queue, workers: Workers, handler: str):
    """This holds also for units that acquire further leases while they handle the first ones."""
    request = queue.submit_request([b"x"] * 200_000, limit=4)
    worker = workers.start(handler, processes=2)
    wait_until(lambda: request.progress().done > 1_000, why="work is done")
    queue.pause()
    wait_paused(worker)
    wait_until(lambda: request.progress().held == 0, why="nothing is held")
    stopped = request.progress().done
    assert 0 < stopped < 200_000
    worker.stop()
    assert request.progress().done == stopped
    request.cancel()
