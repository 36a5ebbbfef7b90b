"""Tests a request that is submitted piece by piece: work begins early, producers may resume."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from fairlane import (
    InvalidArgument,
    QueueFull,
    RedisUnreachable,
    RequestClosed,
    RequestEnded,
    RequestExists,
    RequestLost,
    RequestNotFound,
    aio,
)
from fairlane.protocol import keys
from tests.support.both_faces import both_faces
from tests.support.run.for_each import for_each
from tests.support.scripts.requests import next_slice, once, settle, work_off
from tests.support.wait import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable

    import redis

    from fairlane import Queue, Request
    from fairlane.model import Slice


def bodies_of(request: Request) -> list[bytes | None]:
    return [result.body for result in request.results(timeout=PATIENCE_S)]


@pytest.mark.rest
@both_faces
def test_workers_have_the_first_sub_requests_before_the_last_is_added(queue: Queue):
    with queue.open(priority=3, limit=2) as request:
        assert request.state() == "active"
        assert [request.add("a"), request.add(b"b")] == [0, 1]
        work_off(queue.driver)
        assert next(request.results(timeout=PATIENCE_S)).body == b"done a"
        assert request.add_many(f"{n}" for n in range(2_500)) == request.added == 2_502
        assert request.progress().is_open
    assert not request.progress().is_open
    assert request.total == 2_502
    work_off(queue.driver)
    assert request.wait(5) == "done"
    assert len(bodies_of(request)) == 2_502


def test_a_request_without_an_addition_is_done_at_its_seal(queue: Queue):
    with queue.open(id="none") as request:
        pass
    assert (request.state(), request.total) == ("done", 0)


def test_a_producer_that_died_resumes_where_it_was(queue: Queue):
    lines = [f"line {n}" for n in range(30)]
    queue.open(id="resumed", limit=2).add_many(lines[:11])  # and then it dies
    with queue.open(id="resumed", limit=2) as request:
        assert request.added == 11
        request.add_many(lines[request.added :])
    again = queue.open(id="resumed", limit=2)
    assert again.added == 30
    assert again.seal() == 30
    work_off(queue.driver)
    assert bodies_of(request) == [f"done {line}".encode() for line in lines]


@both_faces
def test_nothing_is_added_after_the_seal(queue: Queue):
    request = queue.open(id="sealed")
    request.add("a")
    other = queue.open(id="sealed")
    assert request.seal() == request.seal() == 1
    for late in (request, queue.open(id="sealed")):
        with pytest.raises(RequestClosed, match="request sealed is sealed"):
            late.add("b")
    with pytest.raises(RequestClosed):
        other.add("c")
    assert request.progress().total == 1


def test_two_producers_of_one_request_do_not_mix(queue: Queue):
    one, other = queue.open(id="mixed"), queue.open(id="mixed")
    one.add("a")
    with pytest.raises(RequestExists, match="exists with other content"):
        other.add("b")
    assert (one.added, one.progress().total) == (1, 1)
    with pytest.raises(RequestExists):
        queue.open(id="mixed", limit=7)


@both_faces
def test_an_error_in_the_block_withdraws_the_request(queue: Queue, redis_client: redis.Redis):
    with pytest.raises(ZeroDivisionError):
        add_and_fail(queue, "whole")
    with pytest.raises(RequestNotFound):
        queue.request("whole").state()
    assert redis_client.llen(keys.lanes(queue.name)[5]) == 0


@both_faces
def test_nothing_is_added_to_what_was_withdrawn(queue: Queue):
    request = queue.open(id="given-up")
    request.add("a")
    with contextlib.suppress(ZeroDivisionError), request:
        raise ZeroDivisionError
    for late in (lambda: request.add("b"), request.seal):
        with pytest.raises(RequestClosed, match="request given-up was withdrawn after an error"):
            late()


def test_an_error_in_the_block_cancels_what_a_worker_holds(queue: Queue):
    held: list[Slice] = []
    with pytest.raises(ZeroDivisionError):
        add_and_fail(queue, "held", lambda: held.append(next_slice(queue.driver)))
    assert queue.request("held").state() == "cancelling"
    settle(queue.driver, held[0])
    assert queue.request("held").state() == "cancelled"


def add_and_fail(queue: Queue, request_id: str, then: Callable[[], None] = lambda: None) -> None:
    with queue.open(id=request_id) as request:
        request.add_many(["a", "b"])
        then()
        raise ZeroDivisionError


def test_a_full_queue_refuses_and_a_repeat_adds_it_once(queue: Queue):
    queue.set_max_waiting(3)
    request = queue.open(id="full")
    request.add_many(["a", "b", "c"])
    with pytest.raises(QueueFull):
        request.add("d")
    assert request.added == 3
    queue.set_max_waiting(0)
    assert request.add("d") == 3
    request.seal()
    work_off(queue.driver)
    assert bodies_of(request) == [b"done a", b"done b", b"done c", b"done d"]


@for_each("lost", ["the call", "the reply", "the tokens"])
def test_after_an_error_the_same_addition_adds_nothing_twice(queue: Queue, lost: str):
    """This holds whatever Redis has of it. The auditor finds lost tokens."""
    request = queue.open(id="again")
    own = request._submission.add([b"a"])
    step = own.send(None)
    if lost != "the call":
        reply = queue.driver.run(once(step))
    if lost == "the tokens":
        own.send(reply)
    with contextlib.suppress(StopIteration, RedisUnreachable):
        own.throw(RedisUnreachable("no answer"))
    assert request.added == (lost == "the tokens")
    if not request.added:
        assert request.add("a") == 0
    assert request.add("b") == 1
    assert request.seal() == 2


def test_after_an_interrupt_the_same_addition_succeeds(queue: Queue):
    request = queue.open(id="interrupted")
    own = request._submission.add([b"a"])
    queue.driver.run(once(own.send(None)))
    with pytest.raises(KeyboardInterrupt):
        own.throw(KeyboardInterrupt())
    assert request.add("a") == 0
    assert request.seal() == 1


def test_a_request_that_was_cancelled_takes_nothing(queue: Queue):
    request = queue.open(id="stopped")
    request.add("a")
    request.cancel("by a test")
    with pytest.raises(RequestEnded, match="by a test"):
        request.add("b")
    with pytest.raises(RequestEnded):
        request.seal()
    with pytest.raises(RequestEnded):
        queue.open(id="stopped")


def test_a_request_that_is_gone_is_reported(queue: Queue, redis_client: redis.Redis):
    request = queue.open(id="gone")
    request.add("a")
    redis_client.delete(*keys.request_keys("gone"))
    with pytest.raises(RequestLost):
        request.add("b")


@for_each("bodies", [7, "text", [7], [b"x" * ((1 << 20) + 1)], None])
def test_bad_bodies_are_refused_and_nothing_is_added(queue: Queue, bodies: Any):
    request = queue.open()
    with pytest.raises(InvalidArgument):
        request.add_many(bodies)
    assert (request.added, request.progress().total) == (0, 0)
    request.seal()


@both_faces
def test_bad_options_are_refused_before_anything_is_written(queue: Queue):
    for options in ({"limit": 0}, {"priority": 100}, {"id": "a b"}, {"max_wait": -1}):
        with pytest.raises(InvalidArgument):
            queue.open(**options)
    assert queue.status().requests == ()


def test_an_opening_of_asyncio_is_entered_or_awaited(queue: Queue):
    async def numbers() -> Any:
        for n in range(3):
            yield f"{n}"

    async def main() -> None:
        async with aio.Queue.from_url(queue.driver.url, name=queue.name) as own:
            async with own.open(id="a", limit=1) as request:
                assert await asyncio.gather(*map(request.add, "xy")) == [0, 1]
                assert await request.add_many(numbers()) == 5
            assert request.total == 5
            async with await own.open(id="b") as opened:  # awaited first, as without a block
                await opened.add("x")
            assert (opened.total, await opened.state()) == (1, "active")

    asyncio.run(main())
    work_off(queue.driver)
    assert bodies_of(queue.request("a")) == [f"done {body}".encode() for body in "xy012"]
