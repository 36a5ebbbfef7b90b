"""Tests that the lease of a taken sub-request is found by the sub-request's name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlane.operations.take import find_receipt
from tests.cli.program import hold
from tests.support.processes.takers import HOUR, take_again, take_one

if TYPE_CHECKING:
    from fairlane.operations.take import Receipt
    from fairlane.queue import Queue


def found(queue: Queue, index: int = 0, name: str = "r1") -> Receipt | None:
    return queue.driver.run(find_receipt(queue.name, name, index))


def text_of(queue: Queue, index: int = 0) -> str:
    """Returns the receipt without the time, which the permit has less exactly."""
    receipt = found(queue, index)
    assert receipt is not None
    return without_time(receipt.text)


def without_time(receipt: str) -> str:
    *parts, _, durable = receipt.rsplit(".", 2)
    return f"{parts[0]}.{durable}"


def test_it_is_the_receipt_of_the_take(queue: Queue):
    queue.submit_request(["a"], id="r1")
    taken = take_one(queue, visible_for=HOUR)
    assert text_of(queue) == without_time(taken.receipt)
    queue.taken(found(queue).text).done("A")  # type: ignore[union-attr]
    assert found(queue) is None
    assert [one.body for one in queue.request("r1").results()] == [b"A"]


def test_of_several_the_one_of_that_index_is_found(queue: Queue):
    queue.submit_request([b"x" * 2_000] * 12, id="r1", limit=12)
    held = {one.index: one.receipt for one in queue.take(12, visible_for=HOUR)}
    assert [text_of(queue, index) for index in range(12)] == [
        without_time(held[index]) for index in range(12)
    ]
    assert found(queue, 12) is None


def test_the_attempt_is_that_of_the_lease(queue: Queue, redis_client: Any):
    queue.submit_request(["a"], id="r1")
    again = take_again(queue, redis_client, take_one(queue, visible_for=HOUR), wait_s=20)
    assert again.attempt == 2
    assert text_of(queue) == without_time(again.receipt)


def test_what_no_program_holds_is_not_found(queue: Queue, redis_url: str):
    assert found(queue, name="nothing") is None
    queue.submit_request(["a"], id="r1")
    assert found(queue) is None
    hold(redis_url)  # as a worker does
    assert found(queue) is None


def test_a_request_of_another_queue_is_not_found(queue: Queue):
    queue.submit_request(["a"], id="r1")
    taken = take_one(queue, visible_for=HOUR)
    assert queue.driver.run(find_receipt("other", "r1", 0)) is None
    taken.done()
