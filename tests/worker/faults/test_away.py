"""Tests workers while Redis is unreachable: an idle one still follows its supervisor."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from fairlane import settings
from fairlane.drivers.sync import SyncDriver
from fairlane.operations import workers
from fairlane.protocol import keys
from fairlane.queue import Queue
from tests.drivers.test_first_contact import Starting
from tests.support.servers import server_process
from tests.support.wait import wait_until

if TYPE_CHECKING:
    import redis

PROGRAM = """
import sys
from fairlane import Queue, Worker
sys.exit(Worker(Queue.from_url(sys.argv[1]), bytes.upper, processes=2, concurrency=2).run())
"""


def pops(client: redis.Redis) -> int:
    """Returns how many connections wait in a blocking pop."""
    return sum(one["cmd"] == "brpop" for one in client.client_list())


@pytest.mark.rest
@pytest.mark.slow
@pytest.mark.parametrize("concurrency", ["sync", "async"])
def test_an_idle_worker_stops_though_redis_is_away(concurrency: str):
    """No test waits two minutes for a pop that no longer matters."""
    program = PROGRAM
    if concurrency == "async":
        program = program.replace("bytes.upper", "handler").replace(
            "sys.exit", "async def handler(body):\n    return body\nsys.exit"
        )
    with server_process.run_server("single") as server:
        worker = subprocess.Popen([sys.executable, "-c", program, server.url])
        client = server.client()
        wait_until(lambda: pops(client) == 4, why="every unit waits for work")
        client.close()
    try:
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(settings.CALL_PATIENCE_S / 2) == 0
    finally:
        worker.kill()
        worker.wait()


@pytest.mark.rest
@pytest.mark.slow
def test_a_worker_waits_for_a_redis_that_is_started_with_it():
    """A server that loads its data refuses the first calls."""
    with contextlib.closing(Starting()) as server:
        url = f"redis://127.0.0.1:{server.port}"
        worker = subprocess.Popen([sys.executable, "-c", PROGRAM, url])
        try:
            wait_until(
                lambda: server.times(b"INFO") > Starting.refusals or worker.poll() is not None,
                why="its first contact succeeds",
            )
            assert server.times(b"INFO") > Starting.refusals
        finally:
            worker.kill()
            worker.wait()


def test_a_name_that_comes_back_on_another_host_leaves_the_old_leases_alone(
    redis_url: str, redis_client: redis.Redis
):
    """The other life may only be late. In the same place the port proves that it is dead."""
    driver = SyncDriver(redis_url)

    def former(where: str, pid: int, started: str) -> str:
        name = "127.0.0.1:1"
        reply, life = driver.run(workers.register_worker("req", name, where, pid, started))
        assert reply.is_ok
        return life

    assert former("box b1 net:[1]", 1, "10") == ""
    redis_client.hset(keys.worker("req", "127.0.0.1:1"), "renewed", 1)
    assert former("box b1 net:[2]", 2, "20") == ""
    redis_client.hset(keys.worker("req", "127.0.0.1:1"), "renewed", 1)
    assert former("box b1 net:[2]", 3, "30") == "20"
    driver.run(workers.unregister_worker("req", "127.0.0.1:1", "30"))
    driver.close()


def test_a_submission_taken_back_leaves_nothing_at_all(redis_url: str, redis_client: redis.Redis):
    """No token is in a lane, no entry in the log; the marker that refuses late intents expires."""

    def bodies():
        yield from [b"x"] * 2500
        raise KeyboardInterrupt

    with Queue.from_url(redis_url) as queue, pytest.raises(KeyboardInterrupt):
        queue.submit_request(bodies(), limit=7)
    [marker] = redis_client.keys()
    assert redis_client.hget(marker, "state") == b"abandoned"
    assert 0 < redis_client.pttl(marker) <= settings.MARKER_MS
