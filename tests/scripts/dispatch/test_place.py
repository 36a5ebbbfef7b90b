"""Tests the script place: it announces a request in the queue with the fewest unfinished ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane.errors import InvalidArgument
from fairlane.protocol import keys
from fairlane.protocol.steps import SingleServer
from tests.support.run.for_each import for_each
from tests.support.scripts.called import called

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.support.scripts.requests import Lane

QUEUES = ("a", "b", "c")
GRACE = 5_000


def place(lane: Lane, request: str = "r", among: Sequence[str] = QUEUES, **given: Any) -> Any:
    """Returns the index of the queue and the score; None from a cluster."""
    how = {"now": lane.now, "id": request, "grace": GRACE, "queues": among} | given
    names = (keys.request_hash(request or "r"), *map(keys.active, among))
    call = called(lane.scripts["place"], names, **how)

    async def step() -> Any:
        return await SingleServer(call)

    return lane.run(step())


@pytest.fixture
def filled(one: Lane) -> Lane:
    lane = one
    for queue, count in zip(QUEUES, (2, 0, 1), strict=True):
        for number in range(count):
            lane.client.zadd(keys.active(queue), {f"{queue}{number}": lane.now})
    return lane


def test_requests_fill_the_shortest_queue_first(filled: Lane):
    found = [place(filled, f"r{number}")[0] for number in range(6)]
    assert found == [1, 1, 2, 0, 1, 2]
    assert [filled.client.zcard(keys.active(queue)) for queue in QUEUES] == [3, 3, 3]


def test_what_is_announced_is_an_intent(filled: Lane):
    at, score = place(filled)
    assert (at, score) == (1, b"%d" % (filled.now + GRACE))
    assert filled.client.zscore(keys.active("b"), "r") == filled.now + GRACE


def test_a_repeat_finds_the_same_queue_and_intent(filled: Lane):
    first = place(filled)
    filled.client.zadd(keys.active("b"), {"x": 1, "y": 1, "z": 1})
    filled.later(10)
    assert place(filled) == first


def test_a_request_that_exists_stays_in_its_queue(filled: Lane):
    filled.client.hset(keys.request_hash("r"), mapping={"queue": "a", "state": "done"})
    assert place(filled) == [0, b""]
    filled.client.hset(keys.request_hash("r"), "queue", "elsewhere")
    assert place(filled)[0] == 1
    filled.client.delete(keys.request_hash("r"))


@for_each("given", [{"request": ""}, {"grace": 0}, {"grace": "x"}, {"queues": "a"}])
def test_malformed(one: Lane, given: dict[str, Any]):
    with pytest.raises(InvalidArgument, match="place wants a request"):
        place(one, **given)
    assert one.client.dbsize() == 0


@for_each("count", [0, 101])
def test_no_queue_and_too_many_are_refused(one: Lane, count: int):
    with pytest.raises(InvalidArgument, match="place wants a request"):
        place(one, among=[f"q{number}" for number in range(count)])
    assert one.client.dbsize() == 0
