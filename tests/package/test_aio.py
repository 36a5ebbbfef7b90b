"""Tests that the asyncio API does what the blocking one does."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.aio import Queue
from fairlane.errors import (
    RequestExists,
    RequestLost,
    RequestNotFound,
    WaitTimeout,
)
from fairlane.protocol import keys
from fairlane.queue import Queue as BlockingQueue
from tests.support.scripts.requests import listeners, numbered, publish, work_off
from tests.support.wait import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from fairlane.drivers.sync import SyncDriver
    from tests.support.scripts.requests import Lane


@pytest.fixture
def run(redis_url: str) -> Callable[[Callable[[Queue], Awaitable[Any]]], Any]:
    """Runs an async test body with a queue of its own."""

    async def main(body: Callable[[Queue], Awaitable[Any]]) -> Any:
        async with Queue.from_url(redis_url, patience_s=0) as queue:
            return await body(queue)

    return lambda body: asyncio.run(main(body))


async def until(holds: Callable[[], Any]) -> None:
    """Lets the other tasks run until a condition holds; the test's own timeout ends it."""
    while not holds():  # noqa: ASYNC110  the server sends no event
        await asyncio.sleep(0)


async def bodies(count: int, fail_at: int = -1) -> AsyncIterator[bytes]:
    for i, body in enumerate(numbered(count)):
        await asyncio.sleep(0)
        if i == fail_at:
            raise KeyError(i)
        yield body


def test_groups_of_bodies_are_one_request(run: Callable, lane: Lane):
    async def groups() -> AsyncIterator[list[str]]:
        yield ["a", "b"]
        yield ["c"]

    async def body(queue: Queue) -> None:
        request = await queue.submit_chunks(groups(), id="r1")
        assert request.total == 3
        assert (await queue.submit_chunks([["a", "b"], ["c"]], id="r1")).total == 3

    run(body)
    assert (lane.number("total"), lane.number("chunks")) == (3, 2)


def test_each_of_many_requests_is_yielded_before_the_error(run: Callable):
    async def body(queue: Queue) -> None:
        await queue.submit_request(["other"], id="r1")
        each = queue.submit_each([["a", "b"], ["c"]], ids=["r0", "r1"], limit=[1, 2])
        submitted = await anext(each)
        assert (submitted.id, submitted.total) == ("r0", 2)
        with pytest.raises(RequestExists):
            await anext(each)

    run(body)


def test_a_request_is_submitted_worked_off_and_read(run: Callable, driver: SyncDriver, lane: Lane):
    async def body(queue: Queue) -> None:
        request = await queue.submit_request(bodies(2500), id="r1")
        assert (await request.progress()).total == 2500
        assert lane.number("chunks") == 3
        await asyncio.to_thread(work_off, driver, count=300)
        assert await request.wait() == "done"
        found = [result async for result in request.results()]
        assert [result.index for result in found] == list(range(2500))
        assert [result.body for result in found] == [b"done " + b for b in numbered(2500)]
        in_done_order = [result.index async for result in request.results("done")]
        assert sorted(in_done_order) == list(range(2500))

    run(body)


def test_both_apis_submit_the_same_request(run: Callable, driver: SyncDriver):
    """Each resumes what the other began, because the digest is the same."""

    BlockingQueue(driver).submit_request(numbered(1500), id="r1")

    async def body(queue: Queue) -> None:
        await queue.submit_request(numbered(1500), id="r1")
        await queue.submit_request(bodies(1500), id="r1")
        with pytest.raises(RequestExists):
            await queue.submit_request(bodies(1499), id="r1")

    run(body)
    assert len(work_off(driver)) == 1500


def test_a_producer_that_fails_leaves_a_marker_at_most(run: Callable, lane: Lane):
    async def body(queue: Queue) -> None:
        with pytest.raises(KeyError):
            await queue.submit_request(bodies(4000, fail_at=3500), id="r1")

    run(body)
    assert [key for key in lane.names if lane.client.exists(key)] == [lane.names[2]]
    assert lane.hash()["state"] == "abandoned"
    assert lane.client.zcard(keys.active("req")) == 0


def test_a_producer_that_is_cancelled_leaves_a_marker_at_most(run: Callable, lane: Lane):
    async def stuck() -> AsyncIterator[bytes]:
        for one in numbered(3500):
            yield one
        await asyncio.Event().wait()

    async def body(queue: Queue) -> None:
        task = asyncio.create_task(queue.submit_request(stuck(), id="r1"))
        await until(lambda: lane.hash().get("total") == "3000")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(body)
    assert [key for key in lane.names if lane.client.exists(key)] == [lane.names[2]]
    assert lane.hash()["state"] == "abandoned"


def test_wait_returns_when_the_request_ends(run: Callable, driver: SyncDriver, lane: Lane):
    """The subscription wakes it, long before the slow poll."""

    async def body(queue: Queue) -> str:
        request = await queue.submit_request(numbered(3), id="r1")
        waiter = asyncio.create_task(request.wait(PATIENCE_S))
        await until(lambda: listeners(lane.client, "done:{r1}"))
        await asyncio.to_thread(work_off, driver)
        return await asyncio.wait_for(waiter, 4)

    assert run(body) == "done"


def test_wait_raises_what_went_wrong(run: Callable, lane: Lane):
    async def body(queue: Queue) -> None:
        request = await queue.submit_request(numbered(3), id="r1")
        for timeout in (0, 0.02):
            with pytest.raises(WaitTimeout):
                await request.wait(timeout)
        with pytest.raises(RequestNotFound):
            await queue.request("r0").wait()
        lane.client.config_resetstat()
        waiter = asyncio.create_task(request.wait(PATIENCE_S))
        await until(lambda: "cmdstat_hmget" in lane.client.info("commandstats"))
        lane.client.delete(*lane.names)
        publish(lane.client, "done:{r1}", "look")
        with pytest.raises(RequestLost):
            await asyncio.wait_for(waiter, 8)

    run(body)


def test_wait_survives_a_broken_subscription(run: Callable, driver: SyncDriver, lane: Lane):
    """The connection is killed: it subscribes again and reads the state again."""

    async def body(queue: Queue) -> str:
        request = await queue.submit_request(numbered(3), id="r1")
        waiter = asyncio.create_task(request.wait(PATIENCE_S))
        await until(lambda: listeners(lane.client, "done:{r1}"))
        lane.client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        await asyncio.to_thread(work_off, driver)
        return await asyncio.wait_for(waiter, 8)

    assert run(body) == "done"


def test_many_tasks_share_one_queue(run: Callable, driver: SyncDriver):
    async def body(queue: Queue) -> list[str]:
        requests = await asyncio.gather(
            *(queue.submit_request([f"{i}"], id=f"r{i}") for i in range(50))
        )
        await asyncio.to_thread(work_off, driver)
        return list(await asyncio.gather(*(request.wait(PATIENCE_S) for request in requests)))

    assert run(body) == ["done"] * 50
