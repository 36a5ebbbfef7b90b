"""Tests the script set_share: a request's tenant gets another share, and its tokens name it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane.protocol import keys

if TYPE_CHECKING:
    from fairlane.queue import Queue
    from tests.support.scripts.requests import Lane

NAMES = keys.request_keys("r1")


def set_share(lane: Lane, share: int) -> list[Any]:
    return list(lane.call("set_share", NAMES, share=share))


def suffixes(reply: list[Any]) -> set[bytes]:
    return {token.partition(b"@")[2] for token in reply[1][1::3]}


def test_all_that_is_queued_is_queued_again_with_the_new_share(lane: Lane, queue: Queue):
    request = queue.submit_request([b"x"] * 30, id="r1", limit=3, tenant="a")
    reply = set_share(lane, 7)
    assert (reply[0], len(reply[1]), suffixes(reply)) == (b"ok", 9, {b"7:a"})
    assert (request.progress().tenant, request.progress().share) == ("a", 7)


def test_the_same_share_twice_queues_nothing_anew(lane: Lane, queue: Queue):
    queue.submit_request([b"x"] * 30, id="r1", limit=3, tenant="a")
    permits = lane.client.hgetall(keys.permits("r1"))
    assert set_share(lane, 1)[0] == b"ok"
    assert lane.client.hgetall(keys.permits("r1")) == permits
    first, second = set_share(lane, 7), set_share(lane, 7)
    assert first[1] == second[1]  # the reply to the first may be lost


def test_a_delayed_request_stays_delayed(lane: Lane, queue: Queue):
    request = queue.submit_request([b"x"], id="r1", tenant="a", share=2, delay=60)
    opens_ms = request.progress().opens_ms
    assert suffixes(set_share(lane, 3)) == {b"3:a"}
    assert (request.progress().opens_ms, request.progress().share) == (opens_ms, 3)


@pytest.mark.parametrize("options", [{}, {"rate": "5/s"}])
def test_a_request_without_a_tenant_has_no_share(lane: Lane, queue: Queue, options: Any):
    queue.submit_request([b"x"], id="r1", **options)
    with lane.unchanged():
        assert set_share(lane, 7) == [b"plain"]


def test_what_has_ended_or_is_gone_is_reported(lane: Lane, queue: Queue):
    assert set_share(lane, 7) == [b"gone"]
    queue.submit_request([b"x"], id="r1", tenant="a").cancel()
    with lane.unchanged():
        assert set_share(lane, 7)[0] == b"ended"
