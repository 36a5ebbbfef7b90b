"""Tests the overview of a queue: live workers, startable work, and the first requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fairlane import settings
from fairlane.operations import queues, tokens
from fairlane.protocol import keys
from fairlane.protocol.steps import Batch
from tests.support.operations.stepping import drive
from tests.support.scripts.requests import take_slice

if TYPE_CHECKING:
    import redis

    from fairlane.model import Slice
    from fairlane.protocol.steps import Step
    from fairlane.queue import Queue


def test_a_worker_in_time_is_listed_with_its_beats_age(queue: Queue, redis_client: redis.Redis):
    seconds, _ = redis_client.time()
    ages = {"w:1": 0, "w:2": 2 * settings.LATE_MS + 1_000, "w:3": settings.WORKER_TTL_MS + 1_000}
    redis_client.zadd(
        keys.workers("req"), {name: int(seconds) * 1000 - age for name, age in ages.items()}
    )
    status = queue.status()
    assert status.workers == ("w:1",)
    assert sorted(status.beats) == ["w:1", "w:2"]
    for name, age_ms in status.beats.items():
        assert ages[name] <= age_ms < ages[name] + 2_000


def test_tokens_of_a_request_that_is_over_are_stale(queue: Queue):
    """They wait in their lane until a worker drops them, and nothing starts from them."""
    queue.submit_request([b"x"] * 12, limit=12)
    queue.submit_request([b"x"] * 12, limit=12, priority=7).cancel("enough")
    status = queue.status()
    assert (status.lanes, status.stale) == ({5: 12}, 12)


def test_tokens_of_a_paused_request_are_stale_until_it_goes_on(queue: Queue):
    request = queue.submit_request([b"x"] * 4, limit=4)
    request.pause()
    assert queue.status().lanes == {}
    request.resume()
    assert (queue.status().lanes, queue.status().stale) == ({5: 4}, 4)


def test_tokens_in_a_lane_that_was_left_are_stale(queue: Queue):
    """A request has its tokens in one lane."""
    request = queue.submit_request([b"x"] * 4, limit=4)
    request.set_priority(1)
    status = queue.status()
    assert (status.lanes, status.stale) == ({1: 4}, 4)


def test_foreign_words_in_a_lane_are_stale(queue: Queue, redis_client: redis.Redis):
    lane = keys.lane("req", 3)
    redis_client.rpush(lane, b"\xff", b"no token", b"#1.2", b"gone#1.2")
    status = queue.status()
    assert (status.lanes, status.stale) == ({}, 4)
    redis_client.delete(lane)


def test_stale_tokens_that_are_due_later_are_not_counted(queue: Queue, redis_client: redis.Redis):
    redis_client.zadd(keys.delayed("req"), {"5|gone#0.1": 9e12})
    status = queue.status()
    assert (status.delayed, status.stale) == (0, 1)
    redis_client.delete(keys.delayed("req"))


def test_a_token_that_is_popped_while_it_is_looked_at_is_not_stale(queue: Queue):
    """Its permit is leased by then, but the token is not in its lane any more."""
    queue.submit_request([b"x"] * 2, limit=2)
    taken: list[Slice | None] = []

    def take_one_before_permits_are_read(step: Step) -> bool:
        if not taken and isinstance(step, Batch) and step.steps[0].args[0] == b"HGET":
            taken.append(take_slice(queue.driver, count=1))
        return False

    status = drive(queue.driver, queues.queue_status("req"), take_one_before_permits_are_read)
    assert len(taken) == 1
    assert (taken != [None], status.stale) == (True, 0)


@pytest.mark.parametrize("read", [1_000, 20])
def test_urgent_requests_come_first_however_many_others_there_are(
    read: int, queue: Queue, monkeypatch: pytest.MonkeyPatch
):
    """The lanes lead to those that wait, also if only few of all requests are read."""
    monkeypatch.setattr(tokens, "MOST_READ", read)
    queue.submit_many([[b"x"]] * 60, priority=7, limit=1)
    urgent = queue.submit_many([[b"x"]] * 5, priority=0, limit=1)
    status = queue.driver.run(queues.queue_status("req", max_requests=10))
    found = status.requests
    assert {one.id for one in found[:5]} == {one.id for one in urgent}
    assert [one.priority for one in found] == [0] * 5 + [7] * 5
    assert status.more == 55


def test_an_urgent_request_without_a_token_comes_first(queue: Queue):
    queue.submit_many([[b"x"]] * 20, priority=7, limit=1)
    queue.submit_request([b"x"], id="held", priority=0)
    assert take_slice(queue.driver, count=1) is not None
    queue.submit_request([b"x"], id="paused", priority=1).pause()
    status = queue.driver.run(queues.queue_status("req", max_requests=3))
    assert [one.id for one in status.requests][:2] == ["held", "paused"]


def test_a_request_that_has_ended_leaves_the_list_with_its_tokens_in_the_lane(queue: Queue):
    queue.submit_request([b"x"], id="over", priority=0).cancel("enough")
    assert queue.status().requests == ()
