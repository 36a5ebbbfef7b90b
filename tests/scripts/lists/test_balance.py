"""Tests the script push_shortest: each message goes to the list that is then the shortest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.support.scripts.requests import Lane

A, B, C = LISTS = [b"{lists}:a", b"{lists}:b", b"{lists}:c"]


def push(lane: Lane, *messages: str, op: str = "1") -> list[Any]:
    marker = f"{{lists}}:balanced:{op}".encode()
    found: list[Any] = lane.call("push_shortest", (marker, *LISTS), ttl=60_000, messages=messages)
    return found


def rest(lane: Lane) -> list[list[bytes]]:
    """Returns the messages of each list, oldest first."""
    return [[*reversed(lane.client.lrange(key, 0, -1))] for key in LISTS]


def test_messages_are_spread_evenly_and_in_order(lane: Lane):
    assert push(lane, *"abcde") == [b"ok", [2, 2, 1]]
    assert rest(lane) == [[b"a", b"d"], [b"b", b"e"], [b"c"]]


def test_a_shorter_list_is_filled_first(lane: Lane):
    lane.client.lpush(A, "x", "y")
    lane.client.lpush(B, "x")
    assert push(lane, *"abcd") == [b"ok", [1, 1, 2]]
    assert rest(lane) == [[b"x", b"y", b"d"], [b"x", b"b"], [b"a", b"c"]]


def test_a_repeat_pushes_nothing_and_has_the_same_reply(lane: Lane):
    assert push(lane, *"ab") == push(lane, *"ab") == [b"ok", [1, 1, 0]]
    assert rest(lane) == [[b"a"], [b"b"], []]


def test_another_call_pushes_the_same_message_again(lane: Lane):
    push(lane, "a")
    assert push(lane, "a", op="2") == [b"ok", [0, 1, 0]]


def test_the_marker_of_a_call_expires(lane: Lane):
    push(lane, "a")
    assert 0 < lane.client.pttl("{lists}:balanced:1") <= 60_000


@pytest.mark.parametrize("count", [0, 1_001])
def test_a_call_with_no_list_or_too_many_is_refused(count: int, lane: Lane):
    names = [b"{lists}:%d" % number for number in range(count)]
    with lane.refuses("BADARGUMENT"):
        lane.call("push_shortest", (b"{lists}:op", *names), ttl=60_000, messages=["a"])
    assert lane.client.dbsize() == 0


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_key_that_holds_no_list_is_refused_before_anything_is_written(at: int, lane: Lane):
    lane.client.set(LISTS[at], "text")
    assert push(lane, *"abc") == [b"wrongtype", at]
    assert lane.client.keys("*") == [LISTS[at]]
