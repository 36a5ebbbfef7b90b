"""Tests workers at requests that name keys: by the handlers' own clocks, also beside kill -9."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlane.protocol import keys
from tests.support.wait import PATIENCE_S
from tests.worker.parts import ON_SINGLE

if TYPE_CHECKING:
    import redis

    from fairlane.queue import Queue
    from tests.support.processes.workers import Folder, Workers

pytestmark = ON_SINGLE


def most_at_a_time(folder: Folder, name: str) -> int:
    """Returns how many calls with this key in their bodies ran at a time at most."""
    found = most = 0
    for what, body in folder.noted("interval"):
        if name in body.rstrip("!").split("+"):
            found += 1 if what == "begin" else -1
            most = max(most, found)
    return most


def submit(queue: Queue, count: int) -> list[str]:
    limits = {"a": 1, "b": 2}
    chosen = [("a",), ("b",), ("a", "b"), ("b", "a")]
    ids = []
    for n in range(count):
        names = chosen[n % len(chosen)]
        request = queue.submit_request(
            ["+".join(names)], limits={name: limits[name] for name in names}, priority=n % 3,
            lease=1, attempts=20, backoff=0,
        )  # fmt: skip
        ids.append(request.id)
    return ids


def test_no_more_calls_than_the_limit_run_at_a_time(
    queue: Queue, workers: Workers, folder: Folder, redis_client: redis.Redis
):
    ids = submit(queue, 60)
    workers.run("note_interval", processes=2, concurrency=3)
    assert {queue.request(name).wait(PATIENCE_S) for name in ids} == {"done"}
    assert most_at_a_time(folder, "a") == 1
    assert most_at_a_time(folder, "b") <= 2
    assert not redis_client.exists(keys.of_limits("req")[3])


def test_as_many_calls_as_the_limit_run_at_a_time(queue: Queue, workers: Workers):
    """Each waits for the other one."""
    requests = [queue.submit_request(["2"], limits={"b": 2}) for _ in range(2)]
    workers.run("meet", processes=2, concurrency=3)
    assert {request.wait(PATIENCE_S) for request in requests} == {"done"}


def test_a_killed_call_gives_its_keys_to_the_next(
    queue: Queue, workers: Workers, folder: Folder, redis_client: redis.Redis
):
    limits = {"a": 1, "b": 1}
    requests = [
        queue.submit_request([body], limits=limits, lease=1, attempts=20)
        for body in ("a+b!", "a+b", "a+b!", "a+b")
    ]
    workers.run("note_interval", processes=2, concurrency=2)
    assert {request.wait(PATIENCE_S) for request in requests} == {"done"}
    assert len(folder.noted("interval")) == 2 * 5
    assert most_at_a_time(folder, "a") == most_at_a_time(folder, "b") == 1
    assert not redis_client.exists(keys.of_limits("req")[3])
