"""Tests which requests a change selects: each once, and only those that it can change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane import Change
from fairlane.errors import InvalidArgument, RequestNotFound
from fairlane.operations import change as selection
from fairlane.operations import lease
from fairlane.protocol import keys
from tests.operations.find.test_requests import listed, make_older
from tests.support.run.for_each import for_each
from tests.support.scripts.requests import dead, next_slice, once, work_off

if TYPE_CHECKING:
    import redis

    from fairlane.queue import Queue


def chosen(queue: Queue, change: Change, **wanted: Any) -> list[str]:
    return queue.select(change, **(wanted or {"everything": True})).ids


def label(client: redis.Redis, name: str, tags: str, tenant: str) -> None:
    client.hset(keys.request_hash(name), mapping={"tags": tags, "tenant": tenant})


def three(queue: Queue) -> None:
    """Makes done, paused and active requests; the last one is urgent."""
    queue.submit_request([b"x"], id="done-1")
    work_off(queue.driver)
    queue.submit_request([b"x"], id="paused-1", priority=7).pause()
    queue.submit_request([b"x"], id="active-1", priority=2)


@for_each(
    "change, ids",
    [
        (Change.cancel(), ["active-1", "paused-1"]),
        (Change.pause(), ["active-1"]),
        (Change.resume(), ["paused-1"]),
        (Change.set(limit=1), ["active-1", "paused-1"]),
        (Change.delete(), ["done-1"]),
        (Change.delete(cancel=True), ["active-1", "paused-1", "done-1"]),
        (Change.requeue_dead(), []),
    ],
)
def test_a_change_is_for_those_that_it_can_change(queue: Queue, change: Change, ids: list[str]):
    three(queue)
    assert chosen(queue, change) == ids


def test_the_filters_are_those_of_a_list(queue: Queue, redis_client: redis.Redis):
    three(queue)
    make_older(redis_client, queue, "active-1", 60_000)
    cancel = Change.cancel()
    assert chosen(queue, cancel, priorities=range(5, 10)) == ["paused-1"]
    assert chosen(queue, cancel, states=["running"], older_s=30) == ["active-1"]
    assert chosen(queue, cancel, id_prefix="act") == ["active-1"]
    assert chosen(queue, cancel, newer_s=30) == ["paused-1"]
    assert chosen(queue, Change.delete(), states=["ended"]) == ["done-1"]
    assert chosen(queue, cancel, priorities=[99]) == []


def test_tags_and_tenants_choose_running_and_ended_requests(
    queue: Queue, redis_client: redis.Redis
):
    three(queue)
    label(redis_client, "done-1", "red,big", "acme")
    label(redis_client, "active-1", "red", "acme")
    label(redis_client, "paused-1", "reddish", "other")
    assert listed(queue, tags=["red"]) == ["active-1", "done-1"]
    assert listed(queue, tags=["red", "big"]) == ["done-1"]
    assert listed(queue, tenants=["other"]) == ["paused-1"]
    assert listed(queue, tags=["red"], tenants=["other"]) == []
    assert sorted(listed(queue, tenants=["other", "acme"])) == ["active-1", "done-1", "paused-1"]
    assert chosen(queue, Change.cancel(), tags=["red"]) == ["active-1"]
    assert chosen(queue, Change.delete(), tags=["big"], tenants=["acme"]) == ["done-1"]


def test_an_ending_whose_request_is_gone_is_not_chosen(queue: Queue, redis_client: redis.Redis):
    """The log keeps ends longer; nothing is left to change."""
    three(queue)
    redis_client.delete(keys.request_hash("done-1"))
    assert chosen(queue, Change.delete()) == []
    assert listed(queue, states=["done"]) == ["done-1"]
    assert listed(queue, tags=["red"], states=["done"]) == []


def test_the_ending_of_an_earlier_life_is_not_chosen(queue: Queue):
    three(queue)
    queue.change(queue.select(Change.delete(), everything=True))
    queue.submit_request([b"x"], id="done-1")
    assert chosen(queue, Change.delete()) == []


def test_each_request_is_chosen_once_however_many_pages_there_are(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(selection, "_PART", 10)
    ids = [f"r{number:03}" for number in range(300)]
    queue.submit_many([[b"x"]] * 300, ids=ids)
    assert sorted(chosen(queue, Change.cancel())) == ids
    queue.change(queue.select(Change.cancel(), everything=True))
    found = chosen(queue, Change.delete())
    assert sorted(found) == ids
    assert len(queue.select(Change.delete(), everything=True)) == 300


def test_ids_are_each_taken_once_in_any_state(queue: Queue):
    three(queue)
    assert chosen(queue, Change.cancel(), ids=["done-1", "active-1", "done-1"]) == [
        "done-1",
        "active-1",
    ]


def test_an_unknown_id_is_refused_before_anything_is_changed(queue: Queue):
    three(queue)
    with pytest.raises(RequestNotFound, match="there is no request typo"):
        queue.select(Change.cancel(), ["active-1", "typo"])


def test_requests_with_dead_sub_requests_are_chosen_for_a_requeue(queue: Queue):
    queue.submit_request([b"a", b"b"], id="bad", limit=1)
    queue.submit_request([b"a"], id="good")
    held = next_slice(queue.driver, count=1)
    assert held.request_id == "bad"
    queue.driver.run(once(lease.complete(held, [], [], [dead(held.entries[0][0])], keep=False)))
    assert chosen(queue, Change.requeue_dead()) == ["bad"]


def test_a_single_one_needs_no_list(queue: Queue):
    queue.submit_request([b"a"], id="r1", tags="nightly", tenant="acme", priority=7)
    queue.submit_request([b"a"], id="r2")
    change = Change.set(limit=1)
    assert [one.id for one in queue.select(change, "r1").requests] == ["r1"]
    for wanted in ({"tags": "nightly"}, {"tenants": "acme"}, {"priorities": 7}):
        assert chosen(queue, change, **wanted) == ["r1"]
    assert len(queue.select(change, states="active").requests) == 2


@for_each(
    "given, problem",
    [
        ({}, "no request is chosen: give ids, or filters"),
        ({"older_s": 0}, "no request is chosen"),
        ({"ids": ["r1"], "everything": True}, "two ways of choice"),
        ({"states": ["running"], "everything": True}, "two ways of choice"),
        ({"ids": ["r 1"]}, "request id 'r 1' is not valid"),
        ({"states": ["done"]}, "state done is not valid: only requests in state active or paused"),
        ({"states": ["pausd"]}, "did you mean paused"),
        ({"priorities": [100]}, "priority 100 is not valid"),
        ({"tags": ["a b"]}, "tag 'a b' is not valid"),
        ({"tenants": b"acme"}, "tenants b'acme' is not valid: give one, or a list"),
    ],
)
def test_a_wrong_choice_is_refused(queue: Queue, given: dict[str, Any], problem: str):
    with pytest.raises(InvalidArgument, match=problem):
        queue.select(Change.set(limit=1), **given)


@for_each("values", [{}, {"limit": 0}, {"priority": 100}, {"deadline": -1}, {"deadline": "soon"}])
def test_a_wrong_value_is_refused(values: dict[str, Any]):
    with pytest.raises(InvalidArgument):
        Change.set(**values)
