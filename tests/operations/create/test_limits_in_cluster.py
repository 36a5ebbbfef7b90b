"""Tests what a cluster refuses of keys: an order key, and another limit for a key in use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fairlane.errors import InvalidArgument
from fairlane.operations.flows import Flow

if TYPE_CHECKING:
    from fairlane.queue import Queue
    from tests.support.scripts.requests import Lane

pytestmark = pytest.mark.parametrize("redis_server", ["cluster1"], indirect=True)


def test_a_cluster_refuses_an_order_key_before_anything_is_written(queue: Queue, lane: Lane):
    for submit in (
        lambda: queue.submit_request(["a"], order_key="x"),
        lambda: queue.submit_many([["a"], ["b"]], order_key="x"),
        lambda: queue.open(order_key="x"),
        lambda: queue.submit_flow(Flow("f").step("one", order_key="x"), ["a"]),
        lambda: queue.schedules.add("s", cron="* * * * *", bodies=["a"], order_key="x"),
        lambda: queue.submit_request(["a"], order_key="x", limits={"y": 1}),
    ):
        with pytest.raises(InvalidArgument, match="an order key needs a Redis where one server"):
            submit()
    with pytest.raises(InvalidArgument, match="an order key needs a Redis where one server"):
        queue.resume_key("x")
    assert lane.client.dbsize() == 0


def test_a_queue_with_keys_gets_no_shards(queue: Queue, lane: Lane):
    queue.submit_request(["a"], id="r1", limits={"x": 1})
    with pytest.raises(InvalidArgument, match="has requests with limits by key"):
        queue.set_shards(2)
