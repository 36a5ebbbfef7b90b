"""Tests leases of a request with rates: in steps on a cluster, in one call elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane.common.rate import Shared, rate_of
from fairlane.errors import InvalidArgument
from fairlane.operations import rates
from fairlane.operations.lease import acquire
from fairlane.operations.submit import submit
from fairlane.operations.tokens import follow_up, parse
from fairlane.options import Policy, policy_of
from fairlane.protocol import keys, scripts
from fairlane.protocol.steps import Batch
from tests.support.run.for_each import for_each
from tests.support.scripts.requests import once

if TYPE_CHECKING:
    from fairlane.model import Slice
    from fairlane.queue import Queue
    from tests.support.scripts.requests import Lane

HOUR: Any = {"rate": "5/h", "burst": 3}


def next_slice(lane: Lane, count: int = 1000) -> tuple[str, Slice | None]:
    """Pops the next token and acquires with it; dispatches the tokens that return."""
    raw = lane.client.rpop(keys.lanes("req")[5])
    token = parse(raw)
    assert token is not None
    reply, held = lane.run(acquire(token, "w:1", "7", count))
    if calls := follow_up("req", (token.request_id, reply)):
        lane.driver.run(once(Batch(calls)))
    return reply.word, held


def test_a_slice_has_no_more_than_the_rate_allows(lane: Lane, queue: Queue):
    queue.submit_request(["a"] * 50, id="r1", limit=2, **HOUR)
    word, held = next_slice(lane)
    assert word == "ok"
    assert held is not None
    assert len(held.entries) == 2


def test_a_request_without_room_waits_and_its_token_is_not_lost(lane: Lane, queue: Queue):
    queue.submit_request(["a"], id="r1", rate="5/h", burst=1, rate_key="api")
    queue.submit_request(["a"], id="r2", rate="5/h", burst=1, rate_key="api")
    assert next_slice(lane)[0] == "ok"
    assert next_slice(lane)[0] == "limited"
    progress = queue.request("r2").progress()
    assert (progress.held, (progress.opens_ms or 0) > progress.submitted_ms) == (0, True)
    assert lane.client.zcard(keys.delayed("req")) == 1


def test_what_a_lease_does_not_use_is_returned(lane: Lane, queue: Queue):
    """Three may start; two requests of one and one more use exactly these."""
    for name in ("r1", "r2", "r3", "r4"):
        queue.submit_request(["a"], id=name, rate_key="api", **HOUR)
    assert [next_slice(lane)[0] for _ in range(4)] == ["ok", "ok", "limited", "limited"]


def test_a_request_with_two_rates_takes_from_both_or_from_none(lane: Lane):
    both = (rate_of("5/h", 3), rate_of("5/h", 1, 1, Shared("req", "api")))
    for name in ("r1", "r2"):
        policy = Policy(limit=1, rates=both)
        lane.driver.run(submit(name, policy), iter([[b"a"] * 20]))
    assert [next_slice(lane)[0] for _ in range(2)] == ["ok", "limited"]
    lane.client.delete(keys.bucket(both[1].bucket))
    assert lane.client.exists(keys.bucket("r2")) == 1


def test_a_hold_closes_the_shared_bucket_too(lane: Lane, queue: Queue):
    queue.submit_request(["a"], id="r1", rate_key="api", **HOUR)
    queue.submit_request(["a"], id="r2", rate_key="api", **HOUR)
    lane.run(rates.hold("req", "r1", 60_000))
    assert next_slice(lane)[0] == "stale"
    assert next_slice(lane)[0] == "limited"
    assert queue.request("r1").progress().opens_ms is not None


@for_each(
    "other",
    [
        {"rate": "1/h", "burst": 24, "weight": 24},
        {"rate": "5/h", "burst": 100, "weight": 100},
        {"rate": "5/h", "burst": 3, "rate_key": "other"},
        {"rate": "5/h", "burst": 3, "queue": "other"},
    ],
)
def test_another_rate_does_not_slow_those_that_share_a_key(lane: Lane, queue: Queue, other: Any):
    """A request with other terms has a bucket of its own, however much it takes from that."""
    given = {"rate_key": "api", "queue": "req"} | other
    policy = policy_of(given.pop("queue"), limit=1, **given)
    held = rates.take(policy.rates, 9, "r2", waits=rates.Waits.NEVER)
    assert lane.driver.run(held).allowed > 0
    queue.submit_request(["a"], id="r1", rate_key="api", limit=1, **HOUR)
    assert next_slice(lane)[0] == "ok"


def test_an_old_and_a_new_rate_of_a_key_add_up_until_all_have_the_new_one(lane: Lane, queue: Queue):
    for name, rate in (("r1", "5/h"), ("r2", "6/h")):
        queue.submit_request(["a"] * 9, id=name, limit=2, rate=rate, burst=3, rate_key="api")
    slices = [held for _, held in (next_slice(lane), next_slice(lane)) if held is not None]
    assert [len(held.entries) for held in slices] == [2, 2]
    queue.request("r1").set_rate("6/h", 3)
    assert next_slice(lane)[0] == "limited"


def test_a_heavy_sub_request_takes_no_more_than_the_burst_of_its_key(queue: Queue):
    with pytest.raises(InvalidArgument, match="weight 4 is not valid: with a burst of 3"):
        queue.submit_request(["a"], rate_key="api", weight=4, **HOUR)


@for_each("held_ms", [60_000, 10])
def test_what_is_returned_does_not_shorten_a_hold(lane: Lane, held_ms: int):
    """A worker that took ten before the hold has used one of them."""
    rate = rate_of("1/s", 11, 1, Shared("req", "api"))
    lane.driver.run(rates.take([rate], 10, waits=rates.Waits.NOT_YET))
    bucket, terms = keys.bucket(rate.bucket), {"interval": 1_000_000, "burst": 10, "weight": 1}
    lane.driver.run(once(scripts.hold_rate((bucket,), ms=held_ms, **terms)))
    lane.driver.run(rates.refund([(rate, 9)]))
    taken, wait_ms = lane.driver.run(rates.take([rate], 9, waits=rates.Waits.NEVER))
    if held_ms == 60_000:
        assert (taken, 50_000 < wait_ms <= 60_000) == (0, True)
    else:
        assert taken <= 1  # the rate goes on without a burst


def test_a_hold_of_a_request_that_ended_does_nothing(lane: Lane, queue: Queue):
    queue.submit_request([], id="r1")
    lane.run(rates.hold("req", "r1", 60_000))
    assert lane.client.exists(keys.bucket("r1")) == 0


@for_each("wanted", [1, 2])
def test_a_worker_asks_for_no_more_than_it_may_handle(lane: Lane, queue: Queue, wanted: int):
    queue.submit_request(["a"] * 50, id="r1", limit=1, **HOUR)
    _, held = next_slice(lane, wanted)
    assert held is not None
    assert len(held.entries) == wanted
