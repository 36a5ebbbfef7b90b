"""Tests publish, subscribe, take_messages, unsubscribe: every subscriber gets every message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane.protocol import keys
from tests.support.scripts.requests import HOUR, T0
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from tests.support.scripts.requests import Lane

BOTH = STREAM, CONF = keys.topic("t")
REDELIVER = 1_000


def publish(lane: Lane, *messages: str, op: str = "", **given: Any) -> list[int]:
    marker = keys.topic_op("t", op or lane.new_op())
    retention = {"retain_ms": HOUR, "retain_count": 1_000} | given
    found: list[int] = lane.call(
        "publish", (*BOTH, marker), ttl=60_000, messages=messages, **retention
    )
    return found


def subscribe(lane: Lane, name: str = "s", start: str = "new", most: int = 10) -> bytes:
    (word,) = lane.call("subscribe", BOTH, subscriber=name, start=start, most=most)
    return bytes(word)


def take(lane: Lane, name: str = "s", most: int = 10, redeliver: int = REDELIVER) -> Any:
    """Takes messages: those that are delivered again, and those that are new."""
    word, *rest = lane.call("take_messages", BOTH, subscriber=name, most=most, redeliver=redeliver)
    if word == b"gone":
        return "gone"
    _, again, fresh = rest
    return again[1::2], fresh[1::2]


def missed(lane: Lane, name: str = "s") -> int:
    return int(lane.client.hget(CONF, f"missed:{name}") or 0)


def ack_all(lane: Lane, name: str = "s") -> None:
    ids = [entry for entry, _ in lane.client.xrange(STREAM)]
    lane.client.xack(STREAM, name, *ids)


# ------------------------------------------------------------------ publish


def test_messages_are_numbered_in_their_order(lane: Lane):
    assert publish(lane, "a", "b") == [1, 2]
    lane.later(5)
    assert publish(lane, "c") == [3, 3]
    assert lane.client.xrange(STREAM) == [
        (b"%d-1" % T0, {b"m": b"a"}),
        (b"%d-2" % T0, {b"m": b"b"}),
        (b"%d-3" % (T0 + 5), {b"m": b"c"}),
    ]


def test_a_repeat_adds_nothing_and_has_the_same_reply(lane: Lane):
    assert publish(lane, "a", "b", op="x") == publish(lane, "a", "b", op="x") == [1, 2]
    assert lane.client.xlen(STREAM) == 2
    assert 0 < lane.client.pttl(keys.topic_op("t", "x")) <= 60_000


def test_a_clock_that_was_set_back_stops_no_publication(lane: Lane):
    publish(lane, "a")
    lane.later(-10_000)
    assert publish(lane, "b") == [2, 2]
    assert lane.client.xrange(STREAM)[1][0] == b"%d-2" % T0


def test_what_is_older_than_the_retention_goes(lane: Lane):
    publish(lane, "a", retain_ms=1_000)
    lane.later(1_000)
    publish(lane, "b", retain_ms=1_000)
    assert lane.client.xlen(STREAM) == 2
    lane.later(1)
    publish(lane, "c", retain_ms=1_000)
    assert lane.client.xlen(STREAM) == 2


def test_what_is_more_than_the_retention_goes(lane: Lane):
    publish(lane, *"abcde", retain_count=3)
    assert [fields[b"m"] for _, fields in lane.client.xrange(STREAM)] == [b"c", b"d", b"e"]


def test_the_retention_of_the_topic_goes_before_that_of_the_caller(lane: Lane):
    lane.client.hset(CONF, mapping={"retain_ms": 500, "retain_count": 2})
    publish(lane, *"abc")
    assert lane.client.xlen(STREAM) == 2
    lane.later(501)
    publish(lane, "d")
    assert lane.client.xlen(STREAM) == 1


# ------------------------------------------------------------------ subscribe


def test_a_subscriber_gets_what_is_published_from_then_on(lane: Lane):
    publish(lane, "a")
    assert subscribe(lane) == b"ok"
    publish(lane, "b")
    assert take(lane) == ([], [b"b"])
    assert missed(lane) == 0


def test_a_subscriber_may_begin_with_what_the_topic_still_has(lane: Lane):
    publish(lane, *"abc", retain_count=2)
    assert subscribe(lane, start="first") == b"ok"
    assert lane.client.hget(CONF, "read:s") == b"1"  # two wait for it
    assert take(lane) == ([], [b"b", b"c"])
    assert missed(lane) == 0


@pytest.mark.parametrize("start", ["first", "new"])
def test_a_subscriber_of_a_topic_without_messages(lane: Lane, start: str):
    assert subscribe(lane, start=start) == b"ok"
    assert take(lane) == ([], [])
    publish(lane, "a")
    assert take(lane) == ([], [b"a"])
    assert missed(lane) == 0


def test_a_subscriber_that_is_there_keeps_its_place(lane: Lane):
    subscribe(lane)
    publish(lane, "a", "b")
    take(lane, most=1)
    assert subscribe(lane, start="first") == b"already"
    assert take(lane) == ([], [b"b"])


def test_a_topic_has_no_more_subscribers_than_it_may_have(lane: Lane):
    assert [subscribe(lane, name, most=2) for name in "abc"] == [b"ok", b"ok", b"full"]
    assert take(lane, "c") == "gone"
    lane.call("unsubscribe", BOTH, subscriber="a")
    assert subscribe(lane, "c", most=2) == b"ok"


# ------------------------------------------------------------------ take_messages


def test_every_subscriber_gets_every_message(lane: Lane):
    subscribe(lane, "a")
    subscribe(lane, "b")
    publish(lane, "x", "y")
    assert take(lane, "a") == take(lane, "b") == ([], [b"x", b"y"])


def test_consumers_of_one_subscriber_share_its_messages(lane: Lane):
    subscribe(lane)
    publish(lane, *"abc")
    assert [take(lane, most=2), take(lane, most=2)] == [([], [b"a", b"b"]), ([], [b"c"])]


def test_what_is_not_acknowledged_in_time_is_delivered_again(lane: Lane):
    subscribe(lane)
    publish(lane, "a", "b")
    take(lane)
    assert take(lane) == ([], [])
    lane.client.xack(STREAM, "s", f"{T0}-1")
    assert take(lane, redeliver=0) == ([b"b"], [])
    ack_all(lane)
    assert take(lane, redeliver=0) == ([], [])


def test_what_comes_again_goes_before_what_is_new_and_counts_for_the_bound(lane: Lane):
    subscribe(lane)
    publish(lane, "a", "b")
    take(lane)
    publish(lane, "c", "d")
    assert take(lane, most=3, redeliver=0) == ([b"a", b"b"], [b"c"])


def test_a_page_that_is_full_of_repeats_goes_on_behind_them(lane: Lane):
    """Otherwise the first ones would be delivered again and again."""
    subscribe(lane)
    publish(lane, *"abcd")
    take(lane)
    pages = [take(lane, most=2, redeliver=0)[0] for _ in range(3)]
    assert pages == [[b"a", b"b"], [b"c", b"d"], [b"a", b"b"]]


@pytest.mark.parametrize("count", [1, 2_500])
def test_what_was_delivered_before_the_clock_went_back_comes_again(lane: Lane, count: int):
    subscribe(lane)
    for _ in range(0, count, 500):
        publish(lane, *["a"] * min(count, 500))
    lane.later(2 * HOUR)
    while take(lane, most=1_000)[1]:
        pass
    deliver_later(lane, 2 * HOUR)
    lane.later(-2 * HOUR)
    for _ in range(0, count, 1_000):
        take(lane, most=1)
    assert not lane.client.hexists(CONF, "back:s")
    again: list[bytes] = []

    def has_come() -> bool:
        again.extend(take(lane, most=1_000, redeliver=1)[0])
        return len(again) >= count

    wait_until(has_come)


def deliver_later(lane: Lane, ms: int) -> None:
    """Makes Redis believe that it delivered all messages of the topic so much later."""
    now = 1000 * int(lane.client.time()[0])
    payload = bytearray(lane.client.dump(STREAM)[:-8])
    at = 0
    while at <= len(payload) - 8:
        time = int.from_bytes(payload[at : at + 8], "little")
        if now - HOUR < time < now + HOUR:
            payload[at : at + 8] = (time + ms).to_bytes(8, "little")
            at += 7
        at += 1
    lane.client.restore(STREAM, 0, bytes(payload) + crc64(payload), replace=True)


def crc64(payload: bytes | bytearray) -> bytes:
    """Returns the checksum of a value as DUMP writes it."""
    found = 0
    for byte in payload:
        found ^= byte
        for _ in range(8):
            found = found >> 1 ^ (0x95AC9329AC4BC9B5 if found & 1 else 0)
    return found.to_bytes(8, "little")


def test_what_the_retention_deleted_unread_is_counted_as_missed(lane: Lane):
    subscribe(lane)
    publish(lane, *"abcde", retain_count=2)
    assert take(lane) == ([], [b"d", b"e"])
    assert missed(lane) == 3
    publish(lane, "f")
    take(lane)
    assert missed(lane) == 3


def test_what_the_retention_deleted_before_it_was_acknowledged_is_counted_as_missed(lane: Lane):
    subscribe(lane)
    publish(lane, "a", "b")
    take(lane)
    publish(lane, "c", retain_count=2)
    assert take(lane, redeliver=0) == ([b"b"], [b"c"])
    assert missed(lane) == 1


def test_a_subscriber_that_is_not_there_takes_nothing(lane: Lane):
    publish(lane, "a")
    assert take(lane, "another") == "gone"
    subscribe(lane)
    lane.client.delete(STREAM)
    assert take(lane) == "gone"


# ------------------------------------------------------------------ unsubscribe


def unsubscribe(lane: Lane, name: str = "s") -> bytes:
    (word,) = lane.call("unsubscribe", BOTH, subscriber=name)
    return bytes(word)


def fill_pending(lane: Lane, count: int) -> None:
    """Adds messages and delivers all of them to the subscriber s."""
    subscribe(lane)
    for start in range(0, count, 1_000):
        publish(lane, *["m"] * min(1_000, count - start), retain_count=count)
        take(lane, most=1_000)


def test_a_subscriber_that_is_removed_leaves_nothing(lane: Lane):
    subscribe(lane, "a")
    subscribe(lane, "b")
    publish(lane, *"xyz", retain_count=2)
    take(lane, "a")
    assert [unsubscribe(lane, "a"), unsubscribe(lane, "a")] == [b"removed", b"gone"]
    assert not [name for name in lane.client.hkeys(CONF) if name.endswith(b":a")]
    assert [group["name"] for group in lane.client.xinfo_groups(STREAM)] == [b"b"]
    assert lane.client.hget(CONF, "subscribers") == b"1"
    assert take(lane, "b") == ([], [b"y", b"z"])


def test_a_subscriber_of_a_topic_that_was_deleted_is_removed(lane: Lane):
    subscribe(lane)
    lane.client.delete(STREAM)
    assert unsubscribe(lane) == b"removed"


def test_a_subscriber_of_many_messages_is_removed_a_thousand_at_a_time(lane: Lane):
    fill_pending(lane, 2_500)
    assert unsubscribe(lane) == b"more"
    assert lane.client.xpending(STREAM, "s")["pending"] == 1_500
    assert take(lane) == "gone"
    assert lane.client.hget(CONF, "subscribers") == b"0"
    assert [unsubscribe(lane) for _ in range(3)] == [b"more", b"removed", b"gone"]
    assert not lane.client.xinfo_groups(STREAM)
    assert not [name for name in lane.client.hkeys(CONF) if name.endswith(b":s")]


def test_a_name_whose_removal_is_not_over_is_not_subscribed_again(lane: Lane):
    fill_pending(lane, 1_000)
    assert unsubscribe(lane) == b"more"
    assert subscribe(lane) == b"leaving"
    assert unsubscribe(lane) == b"removed"
    assert subscribe(lane) == b"ok"
    assert take(lane) == ([], [])


def test_a_subscriber_whose_group_is_gone_is_removed(lane: Lane):
    subscribe(lane)
    publish(lane, "a")
    lane.client.xgroup_destroy(STREAM, "s")
    assert unsubscribe(lane) == b"removed"


def test_a_removal_that_broke_off_ends_though_the_stream_was_deleted(lane: Lane):
    fill_pending(lane, 1_000)
    assert unsubscribe(lane) == b"more"
    lane.client.delete(STREAM)
    assert [unsubscribe(lane), unsubscribe(lane)] == [b"removed", b"gone"]
    assert not [name for name in lane.client.hkeys(CONF) if name.endswith(b":s")]
