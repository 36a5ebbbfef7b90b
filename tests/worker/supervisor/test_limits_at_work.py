"""Tests handlers that exceed their time limit: they are ended and charged, and delay no other.

The workers of most of these tests run in the test's own process; their children are forked from it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import subprocess
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from fairlane import time_limit
from fairlane.protocol import keys
from fairlane.worker import Worker, batch_handler, calls, pool
from tests.support.processes.workers import Folder, broken, check_settled_once, is_alive
from tests.support.wait import PATIENCE_S, wait_until
from tests.worker.handlers import spend, spend_async
from tests.worker.parts import ON_SINGLE

if TYPE_CHECKING:
    from pathlib import Path

    import redis

    from fairlane.queue import Queue
    from fairlane.request import Request
    from fairlane.worker import Context
    from tests.support.processes.workers import Workers

LIMIT_S = 0.5
STUCK = 3  # the index of the body that never ends

pytestmark = ON_SINGLE


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """Returns the folder that a test and its handlers share."""
    return Folder(tmp_path)


@pytest.fixture(autouse=True)
def _short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shortens the time that a cancelled task has to end."""
    monkeypatch.setattr(calls, "GRACE_S", 0.3)


def bodies(count: int = 8) -> list[bytes]:
    """Returns some bodies, one of which never ends."""
    return [b"stuck" if i == STUCK else b"%d" % i for i in range(count)]


def check_only_stuck_is_dead(request: Request, attempts: int, client: Any) -> str:
    """Asserts that it alone was charged, and returns its error."""
    results = list(request.results())
    assert [result.index for result in results if result.status == "dead"] == [STUCK]
    assert [result.attempt for result in results] == [
        attempts if i == STUCK else 1 for i in range(len(results))
    ]
    ((_, dead),) = client.xrange(keys.request_keys(request.id)[7])
    assert dead[b"reason"] == b"timeout"
    assert client.hget(keys.request_hash(request.id), "timeouts") == b"%d" % attempts
    error = results[STUCK].error or ""
    assert error.startswith(f"the handler took longer than its time limit of {LIMIT_S} s")
    check_settled_once(request)
    return error


# ------------------------------------------------------------------ sync


def wait_for_ever(body: bytes) -> bytes:
    """Waits for ever, in Python."""
    if body == b"stuck":
        threading.Event().wait()
    return body


def search_for_ever(body: bytes) -> bytes:
    """Searches for ever, in C, and with the interpreter's lock."""
    if body == b"stuck":
        re.match("(a+)+$", "a" * 40 + "b")
    return body


def spin(body: bytes) -> bytes:
    """Ignores whatever a signal handler raises."""
    while body == b"stuck":
        try:
            spend(1)
        except BaseException:  # noqa: BLE001
            continue
    return body


@pytest.mark.parametrize(
    ("handler", "where"),
    [(wait_for_ever, "wait_for_ever"), (search_for_ever, "match"), (spin, "spin")],
    ids=["Python", "C", "deaf"],
)
def test_a_sync_handler_is_killed_when_its_time_is_over(
    handler: Any, where: str, queue: Queue, redis_client: redis.Redis,
    caplog: pytest.LogCaptureFixture,
):  # fmt: skip
    """Its sub-request is charged with its stack; the request's others are done."""
    caplog.set_level(logging.INFO)
    request = queue.submit_request(
        bodies(), limit=1, attempts=2, backoff=(0.01, 0.02), time_limit=LIMIT_S
    )
    Worker(queue, handler).run(until_idle=True)
    error = check_only_stuck_is_dead(request, 2, redis_client)
    assert "\nStack (most recent call first):\n  File " in error
    assert f" in {where}\n" in error
    assert "runner.py" not in error
    said = [one.message for one in caplog.records if "was killed" in one.message]
    assert len(said) == 2
    began = f"time limit of 0.5 s in sub-request {STUCK} of request {request.id}; attempt"
    assert f"{began} 1 of 2 is charged, the next is due in 0.0 s" in said[0]
    assert said[1].endswith(f"{began} 2 of 2 is charged, it is dead")
    (_, last) = [vars(one) for one in caplog.records if "was killed" in one.message]
    assert (last["index"], last["attempt"], last["dead"], last["next_s"]) == (STUCK, 2, True, None)


def test_of_several_threads_only_the_one_that_overstays_is_charged(
    queue: Queue, folder: Folder, redis_client: redis.Redis
):
    """The others of its process die with it, and run again at the same attempt."""

    def handler(body: bytes, context: Context) -> bytes:
        folder.note("began", context.index)
        if body == b"stuck":
            threading.Event().wait()
        spend(0.05)
        return body

    request = queue.submit_request(bodies(40), limit=3, attempts=1, time_limit=LIMIT_S)
    Worker(queue, handler, concurrency=3).run(until_idle=True)
    check_only_stuck_is_dead(request, 1, redis_client)
    began = [index for (index,) in folder.noted("began")]
    assert 40 <= len(began) <= 42, "what the others of the process had begun, began again"


@pytest.mark.rest
@pytest.mark.parametrize("attempts", [1, 2])
def test_a_batch_of_several_is_not_charged_and_its_stuck_body_alone_is(
    attempts: int, queue: Queue, folder: Folder, redis_client: redis.Redis
):
    """The first time any may be the cause; then each runs alone."""

    @batch_handler
    def handler(found: list[bytes]) -> list[bytes]:
        folder.note("batch", len(found))
        if b"stuck" in found:
            threading.Event().wait()
        return found

    request = queue.submit_request(
        bodies(17), limit=1, attempts=attempts, backoff=(0.01, 0.02),
        time_limit=LIMIT_S,
    )  # fmt: skip
    Worker(queue, handler, slice_s=5).run(until_idle=True)
    check_only_stuck_is_dead(request, attempts, redis_client)
    sizes = [int(size) for (size,) in folder.noted("batch")]
    assert sizes[:2] == [1, 16]
    assert set(sizes[2:]) == {1}


@pytest.mark.rest
@pytest.mark.parametrize(
    "given", [{"time_limit_s": 0.2}, {}, {"time_limit_s": 60}], ids=["worker's", "own", "own again"]
)
def test_the_smallest_of_all_limits_applies(given: dict[str, Any], queue: Queue):
    """The worker's, the handler's and the request's."""

    @time_limit(60 if given.get("time_limit_s") == 0.2 else 0.2)
    def handler(body: bytes) -> bytes:
        return wait_for_ever(body)

    request = queue.submit_request([b"stuck"], attempts=1, time_limit=50)
    Worker(queue, handler, **given).run(until_idle=True)
    (result,) = request.results()
    assert (result.error or "").startswith("the handler took longer than its time limit of 0.2 s")


def test_a_handler_that_ends_in_time_is_left_alone(queue: Queue):
    """The limit is for one call, however often it is called."""
    request = queue.submit_request([b"x"] * 20, limit=1, attempts=1, time_limit=0.6)

    def handler(body: bytes) -> bytes:
        spend(0.05)
        return body

    Worker(queue, handler).run(until_idle=True)
    assert {result.status for result in request.results()} == {"done"}


def start_and_hang(folder: Folder, how: str) -> Any:
    """Starts a program, and never ends or dies immediately."""

    def handler(body: bytes) -> None:
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as program:
            folder.note("program", program.pid)
            if how == "died":
                os._exit(3)
            threading.Event().wait()

    return handler


@pytest.mark.parametrize("how", ["late", "died"])
def test_a_program_that_a_handler_started_ends_with_its_process(
    how: str, queue: Queue, folder: Folder
):
    """It was killed, or died of another cause."""
    request = queue.submit_request([b"x"], attempts=1, time_limit=0.3)
    Worker(queue, start_and_hang(folder, how)).run(until_idle=True)
    ((pid,),) = folder.noted("program")
    wait_until(lambda: not is_alive(int(pid)), why="the program is gone")
    assert request.progress().dead == 1


def test_a_program_that_a_handler_started_ends_when_its_worker_stops_now(
    queue: Queue, folder: Folder, monkeypatch: pytest.MonkeyPatch
):
    """It ends with the process that started it."""

    def fail(worker: Worker, *, until_idle: bool) -> None:
        if folder.noted("program"):
            raise RuntimeError("broken supervisor")

    request = queue.submit_request([b"x"])
    monkeypatch.setattr(Worker, "_tick", fail)
    with pytest.raises(RuntimeError, match="broken supervisor"):
        Worker(queue, start_and_hang(folder, "late")).run()
    ((pid,),) = folder.noted("program")
    wait_until(lambda: not is_alive(int(pid)), why="the program is gone")
    assert request.cancel()


@pytest.mark.rest
def test_a_worker_that_drains_waits_for_a_stuck_handler_no_longer_than_its_limit(
    queue: Queue, workers: Workers
):
    """The stuck sub-request is charged and waits for its next attempt."""
    request = queue.submit_request([b"0", b"1"], limit=1, backoff=(60, 60))
    worker = workers.start("hold", time_limit_s=1.0)
    workers.folder.wait_noted("began")
    began = time.monotonic()
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    assert time.monotonic() - began < 5
    progress = request.progress()
    assert (progress.held, progress.left) == (0, 2)
    assert broken(queue, request.id) == []
    assert queue.driver.run(_timeouts(request.id)) == b"1"
    workers.folder.open_gate()
    request.cancel()


def _timeouts(request_id: str) -> Any:
    from fairlane.protocol.steps import Command
    from tests.support.scripts.requests import once

    return once(Command(b"HGET", keys.request_hash(request_id), b"timeouts"))


def test_a_killed_process_is_counted_as_a_timeout_and_not_as_a_crash(
    queue: Queue, workers: Workers
):
    """The health port counts it; the process is restarted immediately."""
    request = queue.submit_request([b"0"], attempts=2, backoff=(0.01, 0.01), time_limit=0.2)
    worker = workers.start("hold")
    assert request.wait(timeout=PATIENCE_S) == "done"
    report = worker.wait_health(restarts=2, processes=1)
    counts = [report[name] for name in ("timeouts", "failed", "crashes", "done", "retries")]
    assert counts == [2, 2, 0, 0, 1]
    wait_until(lambda: _measured(queue) == {"failed": 2, "timeouts": 2}, why="stats count it")


def _measured(queue: Queue) -> dict[str, int]:
    return queue.stats()[5].counts if queue.stats() else {}


# ------------------------------------------------------------------ async


async def await_for_ever(body: bytes) -> bytes:
    """Lets others run, and can be cancelled."""
    if body == b"stuck":
        await asyncio.get_running_loop().create_future()
    await spend_async(0.01)
    return body


async def swallow(body: bytes) -> bytes:
    """Lets others run, but never ends."""
    while body == b"stuck":
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            continue
    return body


async def block(body: bytes) -> bytes:
    """Never releases the event loop."""
    return wait_for_ever(body)


@pytest.mark.parametrize("concurrency", [1, 4])
def test_an_async_handler_is_cancelled(concurrency: int, queue: Queue, redis_client: redis.Redis):
    """No process is killed for it, and the other tasks of its loop continue."""
    request = queue.submit_request(
        bodies(40), limit=4, attempts=2, backoff=(0.01, 0.02), time_limit=LIMIT_S
    )
    worker = Worker(queue, await_for_ever, concurrency=concurrency)
    worker.run(until_idle=True)
    error = check_only_stuck_is_dead(request, 2, redis_client)
    assert " in await_for_ever\n" in error
    assert worker._children.restarts == 0


@pytest.mark.rest
@pytest.mark.parametrize(("handler", "where"), [(swallow, ""), (block, " in block\n")])
def test_an_async_handler_that_cannot_be_cancelled_is_killed(
    handler: Any, where: str, queue: Queue, redis_client: redis.Redis
):
    """It happens a moment after its time: the loop may be blocked, the supervisor is not."""
    request = queue.submit_request(
        bodies(), limit=1, attempts=2, backoff=(0.01, 0.02), time_limit=LIMIT_S
    )
    worker = Worker(queue, handler)
    worker.run(until_idle=True)
    assert where in check_only_stuck_is_dead(request, 2, redis_client)
    assert worker._children.restarts == 2
    assert worker._children.crashes == 0


@pytest.mark.rest
def test_of_several_tasks_in_a_loop_that_stands_still_none_is_charged_at_first(
    queue: Queue, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):  # fmt: skip
    """Their time expires, too, and they can't report it. Then one task works alone."""
    monkeypatch.setattr(pool, "_STEADY_S", 3.0)

    async def handler(body: bytes) -> bytes:
        if body == b"stuck":
            await spend_async(0.02)  # meanwhile the others begin
            wait_for_ever(body)
        await spend_async(0.05)
        return body

    request = queue.submit_request(bodies(40), limit=4, attempts=1, time_limit=1.5)
    Worker(queue, handler, concurrency=4).run(until_idle=True)
    check_settled_once(request)
    results = list(request.results())
    assert [result.index for result in results if result.status == "dead"] == [STUCK]
    assert {result.attempt for result in results} == {1}
    said = [one.message for one in caplog.records if "was killed" in one.message]
    assert any("no attempt is charged" in message for message in said)
    assert [message for message in said if "1 of 1 is charged, it is dead" in message] == said[-1:]


def test_a_call_left_in_a_thread_does_not_keep_a_worker_from_ending(queue: Queue):
    """asyncio would wait for it when its loop closes."""

    async def handler(body: bytes) -> bytes:
        if body == b"stuck":
            await asyncio.to_thread(threading.Event().wait)
        return body

    request = queue.submit_request(bodies(5), attempts=1, time_limit=0.2)
    Worker(queue, handler).run(until_idle=True)
    assert [result.index for result in request.results() if result.status == "dead"] == [STUCK]


def test_what_async_handlers_left_running_is_cancelled_at_the_end(queue: Queue, folder: Folder):
    """So it can clean up, but not for long."""
    left: list[Any] = []

    async def linger() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            folder.note("cancelled")
            raise

    async def handler(body: bytes) -> bytes:
        left.append(asyncio.create_task(linger()))
        return body

    request = queue.submit_request([b"x"])
    Worker(queue, handler).run(until_idle=True)
    assert request.wait(timeout=PATIENCE_S) == "done"
    assert len(folder.noted("cancelled")) == 1
