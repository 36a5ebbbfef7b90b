"""Tests the scripts order and answer: an order waits for one worker until its answer is there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlane.protocol import keys

if TYPE_CHECKING:
    from tests.support.scripts.requests import Lane

CONF = keys.conf("req")
ORDERS = keys.orders("req", "w:1")
TTL = 60_000


def order(lane: Lane, name: str = "a1", text: str = "{}", most: int = 3) -> list[Any]:
    names = (ORDERS, CONF, keys.answer("req", name))
    return list(lane.call("order", names, order=name, text=text, ttl=TTL, most=most))


def answer(lane: Lane, name: str = "a1", text: str = "done") -> list[Any]:
    names = (ORDERS, keys.answer("req", name))
    return list(lane.call("answer", names, order=name, text=text, ttl=TTL))


def test_an_order_waits_and_the_count_grows(lane: Lane):
    """Both expire by themselves: the worker may be gone, and so may the asker."""
    assert order(lane) == [b"ok"]
    assert order(lane, "b2", "[1]") == [b"ok"]
    assert lane.client.hgetall(ORDERS) == {b"a1": b"{}", b"b2": b"[1]"}
    assert lane.client.hget(CONF, "orders") == b"2"
    assert 0 < lane.client.pttl(ORDERS) <= TTL


def test_an_answer_removes_its_order_only(lane: Lane):
    order(lane)
    order(lane, "b2")
    assert answer(lane) == [b"ok"]
    assert lane.client.hkeys(ORDERS) == [b"b2"]
    ((_, fields),) = lane.client.xrange(keys.answer("req", "a1"))
    assert fields == {b"answer": b"done"}
    assert 0 < lane.client.pttl(keys.answer("req", "a1")) <= TTL


def test_an_order_twice_is_one_order(lane: Lane):
    order(lane)
    assert order(lane) == [b"ok"]
    assert (lane.client.hlen(ORDERS), lane.client.hget(CONF, "orders")) == (1, b"1")


def test_a_late_copy_of_an_answered_order_does_nothing(lane: Lane):
    """Otherwise the worker would carry it out again."""
    order(lane)
    answer(lane)
    with lane.unchanged():
        assert order(lane) == [b"answered"]


def test_an_answer_twice_is_one_answer(lane: Lane):
    order(lane)
    answer(lane)
    with lane.unchanged():
        assert answer(lane, text="again") == [b"gone"]


def test_an_answer_to_an_order_that_has_expired_is_not_kept(lane: Lane):
    """Nor one of another worker, which has no such order."""
    with lane.unchanged():
        assert answer(lane) == [b"gone"]


def test_a_worker_has_a_bounded_number_of_orders(lane: Lane):
    """One that waits already may be repeated."""
    for name in ("a", "b", "c"):
        order(lane, name)
    with lane.unchanged():
        assert order(lane, "d") == [b"full"]
    assert order(lane, "a") == [b"ok"]
