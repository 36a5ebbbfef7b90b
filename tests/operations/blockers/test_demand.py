"""Tests the demand, which is the signal for autoscaling, against a count by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fairlane.operations import change, estimate
from fairlane.protocol import keys
from fairlane.protocol.steps import Batch, Command
from fairlane.records import Demand
from tests.support.operations.stepping import drive
from tests.support.operations.upkeep import server_ms
from tests.support.scripts.requests import next_slice, take_slice
from tests.support.servers import backends

if TYPE_CHECKING:
    import redis

    from fairlane.drivers.sync import SyncDriver
    from fairlane.protocol.steps import Step
    from fairlane.queue import Queue
    from tests.support.scripts.requests import Lane


def submit_all_kinds(queue: Queue, driver: SyncDriver) -> None:
    """Submits requests of every kind; three units hold a sub-request each."""
    held = queue.submit_request([b"x"] * 10, id="held", limit=3, priority=0)
    for _ in range(2):
        assert next_slice(driver, count=1).request_id == held.id
    full = queue.submit_request([b"x"] * 10, id="full", limit=1, priority=0)
    held.set_priority(1)
    assert next_slice(driver, count=1).request_id == full.id
    queue.submit_request([b"x"] * 10, id="limited", limit=4)
    queue.submit_request([b"x"] * 2, id="small", limit=50)
    queue.submit_request([b"x"] * 10, id="paused", limit=10).pause()
    queue.submit_request([b"x"] * 10, id="cancelled", limit=10).cancel()
    queue.submit_request([b"x"] * 10, id="delayed", limit=10, delay=60)
    queue.submit_request([b"x"] * 10, id="after", limit=10, after=["limited"])
    queue.submit_request([b"x"] * 10, id="rated", limit=10, rate="30/m")
    queue.submit_request([b"x"] * 10, id="lowered", limit=9).set_limit(2)


BY_HAND = {"held": 3 - 2, "full": 1 - 1, "limited": 4, "small": 2, "rated": 1, "lowered": 2}


def test_the_demand_is_the_sum_of_free_permits_or_ready_work(queue: Queue, driver: SyncDriver):
    """Paused, cancelled and delayed requests, and those that wait for others, add nothing."""
    submit_all_kinds(queue, driver)
    found = queue.demand()
    assert found == Demand(
        "req", found.backlog, sum(BY_HAND.values()), 3, 9, is_paused=False, is_exact=True
    )
    assert found.wanted == sum(BY_HAND.values()) + 3


def test_stale_and_lost_tokens_do_not_matter(
    queue: Queue, driver: SyncDriver, redis_client: redis.Redis
):
    submit_all_kinds(queue, driver)
    redis_client.lpush(keys.lanes("req")[7], *[f"cancelled#{k}.1" for k in range(30)])
    redis_client.delete(keys.lanes("req")[1])
    assert queue.demand().demand == sum(BY_HAND.values())
    redis_client.delete(keys.lanes("req")[7])


@pytest.mark.parametrize("redis_server", backends.one(), indirect=True)
def test_requests_of_a_key_count_only_as_far_as_it_has_room(queue: Queue, driver: SyncDriver):
    for n in range(30):
        queue.submit_request([b"x"] * 3, id=f"r{n}", limit=3, limits={"x": 2})
    queue.submit_request([b"x"] * 9, id="wide", limit=9, limits={"y": 4})
    queue.submit_request([b"x"], id="both", limits={"x": 2, "z": 1})
    assert queue.demand().demand == 2 + 4
    assert queue.snapshot().demand.demand == 2 + 4
    assert next_slice(driver, count=1).request_id == "r0"
    assert queue.demand().demand == 1 + 4
    queue.set_key("x", 5)
    assert queue.demand().demand == 4 + 4
    queue.set_key("x", None)


@pytest.mark.parametrize("redis_server", backends.one(), indirect=True)
def test_of_an_order_only_the_request_that_has_the_turn_counts(queue: Queue, driver: SyncDriver):
    for n in range(5):
        queue.submit_request([b"x"] * 3, id=f"r{n}", order_key="k", order_on_dead="stop")
        queue.submit_request([b"x"], id=f"s{n}", order_key="k2", limits={"x": 1})
    queue.submit_request([b"x"] * 3, id="t", order_key="k3", limits={"x": 1})
    assert queue.demand().demand == 2
    assert queue.snapshot().demand.demand == 2
    (one,) = queue.take(1, visible_for=60)
    assert (one.id, queue.demand().demand) == ("r0", 1)
    one.done(b"")
    assert queue.demand().demand == 2
    for _ in range(2):
        for taken in queue.take(10, visible_for=60):
            taken.dead("no") if taken.id == "r0" else taken.done(b"")
    assert (queue.request("r0").progress().ended, queue.demand().demand) == (True, 1)
    queue.resume_key("k")
    assert queue.demand().demand == 2


@pytest.mark.rest
def test_the_demand_of_very_many_requests_is_exact(
    queue: Queue, driver: SyncDriver, monkeypatch: pytest.MonkeyPatch
):
    """The walk reads them in parts; an entry that two parts have counts once."""
    submit_all_kinds(queue, driver)
    for kind in range(3):
        queue.submit_many([[b"x"] * 3] * 400, limit=1 + kind)
    monkeypatch.setattr(estimate, "_PART", 10)
    found = queue.demand()
    assert found == Demand(
        "req",
        found.backlog,
        sum(BY_HAND.values()) + 400 * (1 + 2 + 3),
        3,
        1_209,
        is_paused=False,
        is_exact=True,
    )


def test_a_request_that_waits_costs_one_command(queue: Queue):
    """Leases and retries are counted only of requests that are at work or have failed."""
    queue.submit_many([[b"x"] * 3] * 5, limit=2)
    take_slice(queue.driver, count=1)
    sent: list[object] = []

    def note(step: Step) -> bool:
        steps = step.steps if isinstance(step, Batch) else [step]
        sent.extend(one.args[0] for one in steps if isinstance(one, Command))
        return False

    found = drive(queue.driver, estimate.demand("req"), note)
    assert (found.demand, found.held) == (9, 1)
    assert [sent.count(name) for name in (b"HMGET", b"ZCARD")] == [
        5 + 1,
        1 + 1,
    ]  # of the workers, too


def test_retries_count_when_they_are_due(lane: Lane):
    lane.now = server_ms(lane.client)
    held = lane.begin(4, limit=1)  # takes all of them
    due, later = held.ids[:2], held.ids[2:]
    lane.complete(
        held,
        others=[*((one, "retry", 0) for one in due), *((one, "retry", 60_000) for one in later)],
    )
    lane.run(change.set_limit("r1", 3))
    assert lane.run(estimate.demand("req")).demand == 0  # not listed in `active` yet
    lane.client.zadd(keys.active("req"), {"r1": lane.now})
    assert lane.run(estimate.demand("req")).demand == 2


def test_a_request_past_its_deadline_starts_nothing(lane: Lane):
    lane.start(4, deadline_ms=1_000)
    lane.client.zadd(keys.active("req"), {"r1": lane.now})
    found = lane.run(estimate.demand("req"))
    assert (found.demand, found.held, found.requests) == (0, 0, 1)


def test_a_paused_queue_needs_no_more_workers(queue: Queue, driver: SyncDriver):
    """Leased sub-requests continue."""
    submit_all_kinds(queue, driver)
    queue.pause()
    found = queue.demand()
    assert (found.demand, found.held, found.is_paused) == (0, 3, True)
    queue.resume()


def test_a_rate_of_the_queue_bounds_the_demand_as_that_of_a_request(queue: Queue):
    queue.submit_request([b"x"] * 9, limit=9)
    queue.set_rate("300/s")
    assert queue.demand().demand == 3
    queue.set_rate(None)
    assert queue.demand().demand == 9


def test_an_empty_queue_has_no_demand(queue: Queue):
    found = queue.demand()
    assert (found.backlog.waiting, found.backlog.empty_ms, found.backlog.lanes) == (0, 0, {})
    assert found == Demand("req", found.backlog, 0, 0, 0, is_paused=False, is_exact=True)


def test_what_belongs_to_no_request_of_this_queue_is_left_out(
    queue: Queue, redis_client: redis.Redis
):
    """Such a request was announced and never submitted, or `active` is damaged."""
    queue.submit_request([b"x"])
    other = type(queue)(queue.driver, "other").submit_request([b"x"])
    redis_client.zadd(keys.active("req"), {"absent": 1, other.id: 1})
    found = queue.demand()
    assert (found.demand, found.held, found.requests) == (1, 0, 1)
    redis_client.zrem(keys.active("req"), "absent", other.id)
