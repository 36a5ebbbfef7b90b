"""Tests workers whose Redis forgets scripts, closes connections, ends and restarts."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.drivers.aio import AsyncDriver
from fairlane.drivers.sync import SyncDriver
from fairlane.operations import tokens
from fairlane.protocol import keys
from fairlane.protocol.lua import Dialect, library
from fairlane.protocol.steps import Batch
from fairlane.queue import Queue
from tests.support.processes.prepared import ROOT
from tests.support.processes.workers import check_requests, check_settled_once, workers_of
from tests.support.servers import server_process
from tests.support.servers.backends import at
from tests.support.wait import PATIENCE_S, wait_until
from tests.worker.parts import ON_SINGLE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import redis

    from fairlane.request import Request
    from tests.support.processes.workers import Workers

UNITS = 4
POPS = ("BRPOP ", "BLMPOP ")  # of one token, and of several


def wait_done(request: Request, count: int) -> None:
    """Waits until so many sub-requests are done, or all of them."""
    wait_until(lambda: _is_done(request, count), why=f"{count} are done")


def _is_done(request: Request, count: int) -> bool:
    progress = request.progress()
    return progress.done >= count or progress.ended


def _measured(queue: Queue) -> int:
    return sum(one.ran.count for one in queue.stats().values())


# ------------------------------------------------------------------ idle


@ON_SINGLE
def test_an_idle_worker_sends_only_heartbeats_and_pops(
    queue: Queue, workers: Workers, redis_client: redis.Redis
):
    """After work, too: no token of an ended request circulates, nothing polls."""
    worker = workers.start("echo", processes=2, concurrency=2)
    request = queue.submit_request([b"x"] * 50, limit=4)
    assert request.wait(timeout=PATIENCE_S) == "done"
    wait_until(lambda: not redis_client.zcard(keys.active("req")), why="the ending is logged")
    assert worker.wait_health(held=0)["done"] == 50
    wait_until(lambda: _measured(queue) == 50, why="all measures are sent")
    dialect = Dialect.of(redis_client.info("server"))
    beat = f"EVALSHA {library()['heartbeat'].shas[dialect].decode()} "
    sent = list(commands_until(redis_client, beat, 4))
    beats = [at for at, command in sent if command.startswith(beat)]
    pops = [at for at, command in sent if command.startswith(POPS)]
    assert [command for _, command in sent if not command.startswith((beat, *POPS))] == []
    assert beats[-1] - beats[0] > 3 * 0.9, "one beat a second"
    assert len(pops) <= UNITS * 3, "each unit's pop blocks for two seconds"


def commands_until(client: redis.Redis, begin: str, count: int) -> Iterator[tuple[float, str]]:
    """Returns when and what clients send, until so many such commands; not what scripts do."""
    home = at(client, keys.conf("req"))
    sentinels = {one["addr"] for one in home.client_list() if one["name"].startswith("sentinel-")}
    with home.monitor() as monitor:
        while count:
            seen = monitor.next_command()
            said_by = f"{seen['client_address']}:{seen['client_port']}"
            if seen["client_type"] != "lua" and said_by not in sentinels:
                yield seen["time"], seen["command"]
                count -= seen["command"].startswith(begin)


# ------------------------------------------------------------------ forgotten scripts, cut lines


@pytest.mark.rest
@pytest.mark.any_command
@pytest.mark.parametrize("handler", ["step", "step_async"])
@ON_SINGLE
def test_forgotten_scripts_and_cut_connections_cost_nothing(
    handler: str, queue: Queue, workers: Workers, redis_client: redis.Redis
):
    """This happens in the middle of the work, repeatedly: every result is there, once."""
    request = queue.submit_request([b"%d" % i for i in range(2000)], limit=UNITS)
    worker = workers.start(handler, processes=2, concurrency=2)
    for done in range(200, 1800, 200):
        wait_done(request, done)
        redis_client.script_flush()
        redis_client.client_kill_filter(_type="normal", skipme=True)
    assert request.wait(timeout=PATIENCE_S) == "done"
    results = list(request.results())
    assert [result.body for result in results] == [b"%d" % i for i in range(2000)]
    assert {result.status for result in results} == {"done"}
    assert worker.health()["restarts"] == 0
    check_settled_once(request)


async def dispatch_and_pop() -> list[Any]:
    """Does what a worker sends after a slice: dispatches returned tokens, and pops."""
    calls = tokens.insert("req", "r1", [b"5", b"0.1", 0])
    replies: list[Any] = await Batch([*calls, tokens.pop("req", 2000)])
    return replies


def run_sync(url: str) -> list[Any]:
    """Runs it by the blocking driver."""
    with contextlib.closing(SyncDriver(url)) as driver:
        return driver.run(dispatch_and_pop())


def run_async(url: str) -> list[Any]:
    """Runs it by the driver of an event loop."""

    async def scene() -> list[Any]:
        driver = AsyncDriver(url)
        try:
            return await driver.run(dispatch_and_pop())
        finally:
            await driver.close()

    return asyncio.run(scene())


@pytest.mark.any_command
@pytest.mark.parametrize("run", [run_sync, run_async])
def test_a_forgotten_script_does_not_wait_for_the_pop_behind_it(
    run: Callable[[str], list[Any]], redis_url: str, redis_client: redis.Redis
):
    """The tokens are dispatched while the pop of the same round trip blocks: it finds them."""
    redis_client.script_flush()
    count, popped = run(redis_url)
    assert (count, popped.lane, popped.tokens) == (1, b"{req}:5", [b"r1#0.1"])


# ------------------------------------------------------------------ a server that ends


@contextlib.contextmanager
def started_again(server: server_process.Server) -> Iterator[None]:
    """Kills the server and starts it again: same port, same append-only file."""
    server.process.kill()
    server.process.wait()
    with (server.folder / "server.log").open("ab") as log:
        process = subprocess.Popen(
            server.process.args,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=server_process._die_with_parent,  # noqa: PLW1509 - runs one system call
        )
    try:
        yield
    finally:
        process.kill()
        process.wait()


@pytest.mark.server
@pytest.mark.slow
def test_workers_outlive_a_server_that_is_killed_and_started_again(tmp_path: Path):
    """They wait for it and continue; what it had acknowledged is there."""
    options = ("--appendonly", "yes", "--appendfsync", "always")
    with (
        server_process.run_server("single", *options) as server,
        contextlib.closing(server.client()) as client,
        Queue.from_url(server.url) as queue,
        contextlib.ExitStack() as later,
    ):
        workers = later.enter_context(workers_of(queue, client, tmp_path))
        request = queue.submit_request([b"%d" % i for i in range(1500)], limit=UNITS)
        pair = [workers.start("step", concurrency=2) for _ in range(2)]
        wait_done(request, 300)
        with started_again(server):
            assert request.wait(timeout=PATIENCE_S) == "done"
            results = list(request.results())
            assert [result.body for result in results] == [b"%d" % i for i in range(1500)]
            check_settled_once(request)
            assert [worker.health()["restarts"] for worker in pair] == [0, 0]
            later.close()
            check_requests(queue, client)


# ------------------------------------------------------------------ the producer's memory

SUBMIT = """
import sys
from fairlane.queue import Queue
with Queue.from_url(sys.argv[1]) as queue:
    queue.submit_request((b"%0400d" % i for i in range(200_000)), id="lazy")
with open("/proc/self/status") as status:
    print(next(line.split()[1] for line in status if line.startswith("VmHWM")))
"""


@pytest.mark.rest
@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
@pytest.mark.slow
@ON_SINGLE
def test_a_lazy_submission_is_never_in_memory_as_a_whole(queue: Queue):
    """200,000 bodies of 400 bytes are 87 MB as objects alone; the peak stays below 80 MB."""
    said = subprocess.run(
        [sys.executable, "-c", SUBMIT, queue.driver.url],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(said.stdout) < 80 * 1024
    assert queue.request("lazy").progress().total == 200_000
