"""Tests the script push: it adds words at the end of a list where the next pop takes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fairlane.protocol import keys

if TYPE_CHECKING:
    from tests.support.scripts.requests import Lane

LANE = keys.lanes("req")[5]
WAKE = keys.wake("req", "w:1")


def push(lane: Lane, *words: str, ttl: object = 0, key: bytes = LANE) -> int:
    return int(lane.call("push", (key,), ttl=ttl, words=words))


def test_what_is_pushed_is_popped_next(lane: Lane):
    """The last word is popped first, before older ones; and the list does not expire."""
    lane.client.lpush(LANE, "waits")
    assert push(lane, "a", "b") == 3
    assert lane.client.pttl(LANE) == -1
    assert [lane.client.rpop(LANE) for _ in range(3)] == [b"b", b"a", b"waits"]


@pytest.mark.parametrize("before", [[], ["first"]])
def test_a_list_with_a_ttl_expires_as_a_whole(lane: Lane, before: list[str]):
    for word in before:
        push(lane, word, ttl=900, key=WAKE)
    push(lane, "wake", ttl=60_000, key=WAKE)
    assert 900 < lane.client.pttl(WAKE) <= 60_000
    assert lane.client.llen(WAKE) == len(before) + 1
