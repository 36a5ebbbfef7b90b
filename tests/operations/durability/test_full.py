"""Tests a Redis at its maxmemory: submissions are refused completely, and work continues."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

import pytest

from fairlane import Change
from fairlane.drivers.sync import SyncDriver
from fairlane.errors import RedisFull
from fairlane.operations import tokens
from fairlane.operations import workers as registry
from fairlane.protocol import keys
from fairlane.queue import Queue
from tests.support.processes.workers import check_requests, check_settled_once, workers_of
from tests.support.scripts.requests import Lane, dump, numbered, work_off
from tests.support.servers import server_process
from tests.support.wait import PATIENCE_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import redis

    from fairlane.request import Request

pytestmark = pytest.mark.server
BODY = b"x" * 900
COUNT = 500
RETRIED = 900
MANY = 200  # requests: ten times what there is room for


@pytest.fixture(scope="module", params=["single", "system_redis"])
def server(request: pytest.FixtureRequest) -> Iterator[server_process.Server]:
    """Starts a server with room for only a few more requests than it begins with."""
    server_process.skip_unless_there(request.param)
    with server_process.run_server(request.param) as made:
        yield made


@pytest.fixture
def client(server: server_process.Server) -> Iterator[Any]:
    """Makes a raw client; the server is empty and has room for about 8 MiB."""
    with contextlib.closing(server.client()) as made:
        made.config_set("maxmemory", 0)
        made.flushall()
        made.config_set("maxmemory", made.info("memory")["used_memory"] + (8 << 20))
        yield made


@pytest.fixture
def queue(server: server_process.Server, client: redis.Redis) -> Iterator[Queue]:
    """Makes the queue on that server."""
    del client
    with Queue.from_url(server.url) as made:
        yield made


def bodies() -> list[bytes]:
    """Returns half a megabyte of bodies."""
    return [BODY + b"%d" % i for i in range(COUNT)]


def fill(queue: Queue, client: Any) -> list[Request]:
    """Submits until Redis refuses; the refusal left nothing. Returns what was accepted."""
    accepted: list[Request] = []
    before: dict[bytes, tuple[bytes, bool]] = {}

    def submit_many() -> None:
        for i in range(MANY):
            before.clear()
            before.update(dump(client))
            accepted.append(queue.submit_request(bodies(), id=f"r{i}"))

    with pytest.raises(RedisFull, match="full") as refused:
        submit_many()
    for command in ("fairlane delete --state ended", "fairlane dead drop", "fairlane dead requeue"):
        assert command in str(refused.value)
    assert dump(client) == before
    assert len(accepted) > 5
    return accepted


def overfill(client: Any) -> None:
    """Fills the server: from now on twice as much is stored as there is room for."""
    client.config_set("maxmemory", client.info("memory")["used_memory"] // 2)


def test_a_full_redis_refuses_submissions_whole_and_is_worked_off(queue: Queue, client: Any):
    accepted = fill(queue, client)
    before = dump(client)
    for _ in range(3):
        with pytest.raises(RedisFull):
            queue.submit_request(bodies(), id="late")
        with pytest.raises(RedisFull):
            queue.submit_request((BODY for _ in range(5000)), id="stream")
    assert dump(client) == before
    seen = work_off(queue.driver, count=100)
    assert sorted(seen) == sorted(bodies() * len(accepted))
    for request in accepted:
        assert request.wait(5) == "done"
        check_settled_once(request)
    client.config_set("maxmemory", 0)  # results take as much room as the bodies did, for a day
    assert queue.submit_request(bodies(), id="late").state() == "active"


@pytest.mark.rest
def test_what_the_refusal_names_makes_room(queue: Queue, client: Any):
    """After all work is done, results and dead sub-requests are kept for their retention."""
    fill(queue, client)
    work_off(queue.driver, count=100)
    with pytest.raises(RedisFull):
        queue.submit_request(bodies(), id="late")
    queue.change(queue.select(Change.delete(), states=["ended"]))
    wait_until(
        lambda: client.info("memory")["used_memory"] < client.info("memory")["maxmemory"] / 2
    )
    assert queue.submit_request(bodies(), id="late").state() == "active"


def test_a_stream_that_fills_redis_is_taken_back(queue: Queue, client: Any):
    first = queue.submit_request(numbered(10), id="first")
    before = dump(client)
    with pytest.raises(RedisFull):
        queue.submit_request((BODY + b"%d" % i for i in range(50_000)), id="stream")
    marker = keys.request_hash("stream")
    wait_until(
        lambda: {key: one for key, one in dump(client).items() if key != marker} == before,
        5,
        why="keys are freed",
    )
    assert client.hget(marker, "state") == b"abandoned"
    assert client.pttl(marker) > 0
    assert sorted(work_off(queue.driver)) == numbered(10)
    assert first.wait(5) == "done"


def test_tokens_are_dispatched_one_key_at_a_time_on_a_full_redis(queue: Queue, client: Any):
    """In a cluster that moves the queue's slot this happens now and then."""
    overfill(client)
    (call,) = tokens.insert("req", "r0", [b"5", b"1.2", 0, b"6", b"2.3", 0, b"5", b"3.4", 60_000])
    assert call.apart is not None
    assert queue.driver.run(call.apart()) == 3
    assert client.lrange("{req}:6", 0, -1) == [b"r0#2.3"]
    assert client.lrange("{req}:5", 0, -1) == [b"r0#1.2"]
    (seconds, _) = client.time()
    ((member, due),) = client.zrange("{req}:delayed", 0, -1, withscores=True)
    assert member == b"5|r0#3.4"
    assert 0 < due / 1000 - seconds <= 61


def test_a_draining_worker_is_woken_on_a_full_redis(queue: Queue, client: Any):
    overfill(client)
    queue.driver.run(registry.wake("req", "w:1", 3))
    key = keys.wake("req", "w:1")
    assert client.lrange(key, 0, -1) == [b"wake"] * 3
    assert client.pttl(key) > 0


@pytest.mark.rest
def test_a_full_redis_is_looked_after(queue: Queue, client: Any):
    accepted = fill(queue, client)
    accepted[0].cancel()
    lane = Lane(SyncDriver(queue.driver.url), client, request_id=accepted[1].id)
    assert lane.is_whole()
    most = client.config_get("maxmemory")["maxmemory"]
    client.config_set("maxmemory", 0)  # the test's own writes are not refused
    for name in client.zrange("{req}:active", 0, -1):
        client.zadd("{req}:active", {name: 1})
    client.config_set("maxmemory", most)
    queue.driver.run(registry.look_after("req"))
    queue.driver.run(registry.promote("req"))
    assert accepted[0].state() == "cancelled"
    assert len(work_off(queue.driver)) == COUNT * (len(accepted) - 1)


@pytest.mark.rest
def test_many_retries_on_a_full_redis_wait_for_no_auditor(
    queue: Queue, client: Any, tmp_path: Path
):
    """Tokens whose retries must run alone go back into their lane, and are not lost."""
    retried = queue.submit_many([[b"x"]] * RETRIED, limit=1, backoff=(0.001, 0.001))
    overfill(client)
    with workers_of(queue, client, tmp_path) as workers:
        workers.start("fail_first", audit_s=3600)
        for request in retried:
            assert request.wait(120) == "done"


@pytest.mark.rest
def test_a_real_worker_drains_a_full_redis(queue: Queue, client: Any, tmp_path: Path):
    accepted = fill(queue, client)
    late: list[Request] = []

    def produce() -> None:
        with Queue.from_url(queue.driver.url) as own:
            late.append(own.submit_request(numbered(3), id="late", max_wait=60))

    producer = threading.Thread(target=produce)
    producer.start()
    with workers_of(queue, client, tmp_path) as workers:
        workers.start("busy_noted", concurrency=2)
        for request in accepted:
            assert request.wait(PATIENCE_S) == "done"
        producer.join(PATIENCE_S)
        assert late[0].wait(PATIENCE_S) == "done"
    check_requests(queue, client)
    for request in [*accepted, *late]:
        check_settled_once(request)
