"""Tests that a cluster refuses limits and orders by key."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fairlane.errors import InvalidArgument
from fairlane.operations.flows import Flow

if TYPE_CHECKING:
    from fairlane.queue import Queue
    from tests.support.scripts.requests import Lane


@pytest.mark.parametrize("redis_server", ["cluster1"], indirect=True)
def test_a_cluster_refuses_keys_before_anything_is_written(queue: Queue, lane: Lane):
    for submit in (
        lambda: queue.submit_request(["a"], limits={"x": 1}),
        lambda: queue.submit_many([["a"], ["b"]], limits={"x": 1}),
        lambda: queue.submit_request(["a"], order_key="x"),
        lambda: queue.submit_many([["a"], ["b"]], order_key="x"),
        lambda: queue.open(order_key="x"),
        lambda: queue.submit_flow(Flow("f").step("one", order_key="x"), ["a"]),
        lambda: queue.schedules.add("s", cron="* * * * *", bodies=["a"], order_key="x"),
        lambda: queue.resume_key("x"),
    ):
        with pytest.raises(InvalidArgument, match="a Redis where one server has all keys"):
            submit()
    assert lane.client.dbsize() == 0
