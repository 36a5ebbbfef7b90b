"""Tests workers of a queue of several shards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane.operations import shards
from fairlane.protocol import keys
from tests.support.wait import PATIENCE_S, wait_until

if TYPE_CHECKING:
    import redis

    from fairlane.queue import Queue
    from tests.support.processes.workers import Folder, Workers


def tokens_in(client: redis.Redis, shard: int) -> int:
    return sum(client.llen(lane) for lane in keys.lanes("req", shard))


def test_a_spread_queue_is_worked_off(queue: Queue, workers: Workers, redis_client: redis.Redis):
    """Fewer workers than shards do all of it; nothing goes to its own lanes."""
    queue.set_shards(4)
    requests = [queue.submit_request([b"x"] * 50, limit=3, priority=p) for p in (3, 7)]
    requests += list(queue.submit_many([[b"one"]] * 30))
    workers.start("echo")
    assert [request.wait(timeout=PATIENCE_S) for request in requests] == ["done"] * len(requests)
    assert tokens_in(redis_client, 0) == 0


@pytest.mark.rest
def test_what_is_urgent_goes_first_in_every_shard(queue: Queue, workers: Workers, folder: Folder):
    """One unit runs one at a time: at most a slice of each other shard comes before."""
    queue.set_shards(3)
    for name, lane in (("late", 9), ("early", 8)):
        for i in range(3):
            queue.submit_request([b"x"] * 10, id=f"{name}{i}", priority=lane, limit=1)
    workers.run("echo_noted", slice_s=0)
    order = [name[:-1] for _, _, name in folder.noted("ran")]
    last = len(order) - 1 - order[::-1].index("early")
    assert order[:last].count("late") <= 2
    assert sorted(order) == ["early"] * 30 + ["late"] * 30


@pytest.mark.rest
def test_shards_may_be_changed_while_workers_run(
    queue: Queue, workers: Workers, redis_client: redis.Redis, folder: Folder
):
    """What waits is moved, what is left is served and then forgotten, and back again."""
    request = queue.submit_request([b"x"] * 40, limit=2)
    workers.start("hold", processes=2, slice_s=0)
    folder.wait_noted("began", 2)
    for count in (3, 1, 0):
        spread = queue.set_shards(count)
        waiting = queue.submit_request([b"y"] * 2, id=f"waits{count}", limit=2, priority=9)
        wait_until(
            lambda: all(queue.driver.run(shards.move("req")) == 0 for _ in range(2)),
            why="all requests are moved",
        )
        numbers = spread.present.numbers or (0,)
        held = {int(lane) // 100 for lane in lanes_of(redis_client, waiting.id)}
        assert held <= set(numbers)
    folder.open_gate()
    assert request.wait(timeout=PATIENCE_S) == "done"
    for count in (3, 1, 0):
        assert queue.request(f"waits{count}").wait(timeout=PATIENCE_S) == "done"


def lanes_of(client: Any, request_id: str) -> list[bytes]:
    """Returns the lanes that a request's queued permits name."""
    texts = client.hvals(keys.permits(request_id))
    return [text.split(b":")[3] for text in texts if text.startswith(b"q:")]


def test_a_retry_in_a_shard_is_promoted(queue: Queue, workers: Workers, folder: Folder):
    """The leader reads the delayed tokens of every shard."""
    queue.set_shards(3)
    requests = [
        queue.submit_request([b"x"], limit=1, backoff=(0.001, 0.001), id=f"r{i}") for i in range(6)
    ]
    workers.start("fail_first")
    assert [request.wait(timeout=PATIENCE_S) for request in requests] == ["done"] * 6
