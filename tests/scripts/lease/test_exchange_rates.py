"""Tests exchange with rates: it takes from all buckets of a request, and refunds the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fairlane.protocol import keys
from tests.scripts.lease.test_exchange import dispatch, exchange
from tests.support.scripts.requests import toks

if TYPE_CHECKING:
    from tests.support.scripts.requests import Lane

FIRST, SECOND, THIRD = ("= 10000 5 1", "key/b 20000 2 1", "key/c 10000 5 1")
OWN, OTHER, LAST = keys.bucket("r1"), keys.bucket("key/b"), keys.bucket("key/c")


def left(lane: Lane, bucket: bytes, interval: int, burst: int) -> int:
    """Takes all that a bucket has; returns how many it allowed."""
    rate = {"interval": interval, "burst": burst, "weight": 1}
    granted: int = lane.call("take", (bucket,), want=9, waited="", **rate)[0]
    return granted


@pytest.fixture
def rated(one: Lane) -> Lane:
    """Makes a request with three rates, whose first token is in its lane."""
    dispatch(one, one.start(20, limit=1, extras=f"rates=1 {FIRST} {SECOND} {THIRD}"))
    return one


def test_the_narrowest_bucket_decides_and_the_others_are_refunded(rated: Lane):
    (held,) = exchange(rated, sizes={"r1": 4}).held
    assert (held.word, len(held.ids)) == ("ok", 2)
    assert left(rated, OTHER, 20_000, 2) == 0
    assert left(rated, OWN, 10_000, 5) == 3
    assert left(rated, LAST, 10_000, 5) == 3


def test_an_empty_bucket_closes_the_gate_and_nothing_is_taken_from_the_others(rated: Lane):
    assert left(rated, OTHER, 20_000, 2) == 2
    reply = exchange(rated, sizes={"r1": 4})
    assert reply.words == ["limited"]
    assert (reply.left[0], reply.left[3:]) == (b"r1", [20])
    assert rated.number("opens") == rated.now + 20
    assert left(rated, OWN, 10_000, 5) == 5
    assert left(rated, LAST, 10_000, 5) == 5


def test_what_a_slice_does_not_use_is_refunded(one: Lane):
    dispatch(one, one.start(1, limit=1, extras=f"rates=1 {FIRST}"))
    (held,) = exchange(one, sizes={"r1": 4}).held
    assert (held.word, len(held.ids)) == ("ok", 1)
    assert left(one, OWN, 10_000, 5) == 4


def test_what_a_slice_of_returned_sub_requests_does_not_use_is_refunded(one: Lane):
    """They come without the fresh ones, so the slice is smaller than what the buckets allowed."""
    (token,) = one.start(4, limit=1, extras=f"rates=1 {FIRST}")
    returned = one.take(token, count=2, allowance=2, wait=0)
    dispatch(one, toks(one.complete(returned, [], is_unbegun=True)[2]))
    (held,) = exchange(one, sizes={"r1": 4}).held
    assert held.ids == returned.ids
    assert left(one, OWN, 10_000, 5) == 3
