"""Tests set_rate on requests that wait or run: one, many, or those that share a key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane import Change
from fairlane.common.rate import parse_rates
from fairlane.errors import InvalidArgument, RequestEnded, RequestNotFound
from fairlane.operations import rates, workers
from fairlane.operations.rates import set_rate
from fairlane.protocol import keys
from fairlane.protocol.request_hash import read
from tests.operations.lease.test_rates import next_slice
from tests.support.both_faces import both_faces
from tests.support.operations.lost_replies import Forgetful
from tests.support.run.for_each import for_each
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from fairlane.queue import Queue
    from tests.support.scripts.requests import Lane

SLOW: Any = {"rate": "5/h", "burst": 1}


def words(queue: Queue, name: str = "r1") -> list[str]:
    return list(queue.request(name).progress().rates)


@for_each("key", [{}, {"rate_key": "api"}])
@for_each("lost", [-1, 0, 1, 2, 3, 4, 5])
def test_a_request_that_waits_for_a_slow_rate_starts_with_a_faster_one(
    lane: Lane, queue: Queue, lost: int, key: Any
):
    queue.submit_request(["a"] * 9, id="r1", limit=1, **SLOW, **key)
    assert next_slice(lane)[0] == "ok"
    queue.request("r1").set_limit(2)
    assert next_slice(lane)[0] == "limited"
    Forgetful(queue.driver, None, lost).run(set_rate("r1", "1000/s", 100))

    def starts() -> bool:
        """Checks that the next start follows after an interval of the new rate."""
        lane.driver.run(workers.promote("req"))
        return lane.client.llen(keys.lanes("req")[5]) > 0 and next_slice(lane)[0] == "ok"

    wait_until(starts)


def test_the_key_and_the_weight_of_a_request_stay(queue: Queue):
    queue.submit_request(["a"], id="r1", rate="5/h", burst=9, rate_key="api", weight=2)
    queue.request("r1").set_rate("3/s", 4)
    assert words(queue) == ["3/s, shared as api, each counts for 2"]


@both_faces
def test_a_request_without_a_rate_is_given_one(queue: Queue):
    request = queue.submit_request(["a"], id="r1")
    request.set_rate("3/s")
    assert words(queue) == ["3/s"]


def test_many_are_given_a_rate_and_what_refuses_it_is_named(queue: Queue):
    for name, more in (("r1", {}), ("r2", {"rate_key": "api"}), ("r3", {"weight": 5})):
        queue.submit_request(["a"], id=name, rate="5/h", burst=9, **more)
    selected = queue.select(Change.set(rate="50/s", burst=4, limit=7), everything=True)
    report = queue.change(selected)
    assert (report.changed, list(report.failed)) == (2, ["r3"])
    assert "weight 5 is not valid" in str(report.failed["r3"])
    assert [words(queue, name) for name in ("r1", "r2")] == [["50/s"], ["50/s, shared as api"]]
    assert queue.request("r1").progress().limit == 7


@for_each(
    "given, sentence",
    [
        ({"rate": "5"}, "write a rate such as"),
        ({"rate": "5/s", "burst": 0}, "burst 0 is not valid"),
        ({"burst": 5}, "burst needs a rate"),
        ({}, "there is nothing to set"),
    ],
)
def test_what_is_no_rate_is_refused_first(given: Any, sentence: str):
    with pytest.raises(InvalidArgument, match=sentence):
        Change.set(**given)


def test_a_rate_of_what_ended_or_is_not_there_is_refused(queue: Queue):
    request = queue.submit_request(["a"], id="r1")
    request.cancel()
    with pytest.raises(RequestEnded, match=r"r1 has ended \(cancelled\): it cannot be given"):
        request.set_rate("3/s")
    with pytest.raises(RequestNotFound, match="there is no request r2"):
        queue.request("r2").set_rate("3/s")


# ------------------------------------------------------------------ weights and shares


@both_faces
def test_a_weight_alone_changes_and_the_rate_stays(queue: Queue):
    queue.submit_request(["a"], id="r1", rate="5/h", burst=2)
    queue.request("r1").set_rate(weight=4)
    assert words(queue) == ["5/h, each counts for 4"]
    (stored,) = queue.driver.run(read("r1", "rates"))
    assert parse_rates(stored)[0].burst == 4  # else it would never start


def test_a_weight_above_a_burst_that_others_share_is_refused(queue: Queue):
    """Else the others would wait for as long as this weight takes."""
    queue.submit_request(["a"], id="r1", rate="5/h", burst=2, rate_key="api")
    with pytest.raises(InvalidArgument, match="weight 4 is not valid: with a burst of 2"):
        queue.request("r1").set_rate(weight=4)
    queue.request("r1").set_rate(weight=2)
    assert words(queue) == ["5/h, shared as api, each counts for 2"]


def test_a_request_that_is_given_another_rate_shares_it_with_its_equals(lane: Lane, queue: Queue):
    terms: Any = {"rate_key": "api", "burst": 1}
    queue.submit_request(["a"], id="r1", rate="5/h", **terms)
    assert next_slice(lane)[0] == "ok"
    queue.submit_request(["a"], id="r2", rate="6/h", **terms)
    queue.request("r2").set_rate("5/h", 1)
    assert next_slice(lane)[0] == "limited"


def test_another_rate_of_one_request_ends_no_hold_of_the_others(lane: Lane, queue: Queue):
    for name in ("r1", "r2"):
        queue.submit_request(["a"], id=name, rate="5/h", burst=1, rate_key="api", limit=1)
    lane.run(rates.hold("req", "r1", 3_600_000))
    queue.submit_request(["a"], id="r3", rate="6/h", burst=1, rate_key="api", priority=4)
    queue.request("r3").set_rate("5/h", 1)
    assert next_slice(lane)[0] == "stale"
    assert next_slice(lane)[0] == "limited"


def test_a_weight_without_a_rate_is_refused(queue: Queue):
    request = queue.submit_request(["a"], id="r1")
    with pytest.raises(InvalidArgument, match="request r1 has no rate, so its weight has no use"):
        request.set_rate(weight=4)
    with pytest.raises(InvalidArgument, match="nothing to set"):
        request.set_rate()
    with pytest.raises(InvalidArgument, match="weight 0 is not valid"):
        request.set_rate("5/s", weight=0)
    with pytest.raises(RequestNotFound):
        queue.request("absent").set_rate(weight=4)


@both_faces
def test_many_requests_get_another_weight_and_share(queue: Queue):
    queue.submit_request(["a"], id="r1", rate="5/s", burst=9, tenant="t")
    queue.submit_request(["a"], id="r2", tenant="t")
    queue.submit_request(["a"], id="r3")
    report = queue.change(queue.select(Change.set(share=3), ["r1", "r2", "r3"]))
    assert (report.changed, list(report.failed)) == (2, ["r3"])
    assert "names no tenant" in str(report.failed["r3"])
    assert [queue.request(name).progress().share for name in ("r1", "r2", "r3")] == [3, 3, None]
    report = queue.change(queue.select(Change.set(weight=2), ["r1", "r2"]))
    assert (report.changed, list(report.failed)) == (1, ["r2"])
    assert words(queue) == ["5/s, each counts for 2"]


def test_a_share_of_a_request_without_a_tenant_is_refused(queue: Queue):
    request = queue.submit_request(["a"], id="r1")
    with pytest.raises(InvalidArgument, match="request r1 names no tenant, so it has no share"):
        request.set_share(2)
    with pytest.raises(InvalidArgument, match="share 1000 is not valid"):
        request.set_share(1000)
