"""Tests doctor's findings on topics and forwarded lists."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane.operations import lists
from fairlane.operations.check_result import NOTE, WARN, Finding
from fairlane.operations.doctor import Walk
from fairlane.operations.request_checks import check_messages
from fairlane.operations.topics import acknowledge, fetch, publish, set_retention, subscribe
from fairlane.protocol import keys
from tests.support.operations.upkeep import server_ms
from tests.support.scripts.requests import HOUR, MINUTE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.scripts.requests import Lane

CONF = keys.topic("news")[1]
ORDERS = keys.forward_state("orders")


@pytest.fixture
def lane(lane: Lane) -> Iterator[Lane]:
    """Makes a topic and a list without a TTL, and removes them before the keys are checked."""
    yield lane
    for key in (ORDERS, keys.in_flight("orders"), "orders"):
        lane.client.delete(key)
    for key in lane.client.scan_iter("topic:*"):
        lane.client.delete(key)


def found(lane: Lane, after_ms: int, *names: bytes) -> list[Finding]:
    """Returns the findings, so long after now."""
    now = server_ms(lane.client) + after_ms
    return list(lane.run(check_messages(names or (CONF, ORDERS), now)))


def the_one(lane: Lane, after_ms: int = 0) -> Finding:
    (one,) = found(lane, after_ms)
    return one


def test_a_subscriber_that_reads_and_acknowledges_is_well(lane: Lane):
    lane.run(subscribe("news", "mail", "new"))
    lane.run(publish("news", [b"a", b"b"]))
    taken = lane.run(fetch("news", "mail", 10, 60, 0))
    assert found(lane, 59 * MINUTE) == []
    lane.run(acknowledge("news", "mail", [one.id for one in taken]))
    assert found(lane, 999 * HOUR) == []


def test_a_topic_without_a_subscriber_is_a_note(lane: Lane):
    lane.run(publish("news", [b"a"]))
    one = the_one(lane)
    assert (one.severity, one.subject, one.what) == (
        *(NOTE, "topic news", "1 message and no subscriber"),
    )


def test_a_subscriber_that_never_reads_is_found_after_an_hour(lane: Lane):
    lane.run(subscribe("news", "mail", "new"))
    assert found(lane, 999 * HOUR) == []  # nothing waits
    lane.run(publish("news", [b"a", b"b"]))
    assert found(lane, 59 * MINUTE) == []
    one = the_one(lane, 2 * HOUR)
    assert (one.severity, one.subject) == (WARN, "topic news, subscriber mail")
    assert one.what.startswith("has never read: 2 messages not acknowledged, the oldest for ")
    assert one.remedy == "start its consumer, or fairlane topic unsubscribe news mail"


def test_a_subscriber_that_read_once_and_stopped_is_found(lane: Lane):
    lane.run(subscribe("news", "mail", "new"))
    lane.run(publish("news", [b"a"]))
    lane.run(fetch("news", "mail", 10, 60, 0))
    assert the_one(lane, 3 * HOUR).what.startswith("has not read for ")


def test_a_subscriber_that_is_close_to_the_end_of_the_retention_is_found(lane: Lane):
    lane.run(subscribe("news", "mail", "new"))
    lane.run(set_retention("news", None, 10))
    lane.run(publish("news", [b"a"] * 8))
    assert found(lane, 0) == []
    lane.run(publish("news", [b"a"]))
    one = the_one(lane)
    assert one.what.startswith("is close to the end of the retention: 9 messages not ack")
    assert "fairlane topic retain news --age or --count" in one.remedy
    lane.run(set_retention("news", 3600, 1_000))
    assert found(lane, 47 * MINUTE) == []
    assert the_one(lane, 49 * MINUTE).what.startswith("is close to the end of the retention")


def test_a_subscriber_whose_messages_were_deleted_unread_is_found_until_it_reads(lane: Lane):
    lane.run(subscribe("news", "mail", "new"))
    lane.run(set_retention("news", None, 3))
    lane.run(publish("news", [b"a"] * 10))
    one = the_one(lane)
    assert one.what == (
        "has missed 7 messages: the retention deleted them unread; it has never read, "
        "3 messages not acknowledged"
    )
    lane.run(fetch("news", "mail", 10, 60, 0))
    assert found(lane, 0) == []


def test_a_forwarded_list_without_a_forwarder_is_found(lane: Lane):
    lane.client.lpush("orders", "a", "b")
    lane.run(lists.next_forward("orders", "me", 10_000, "e"))
    assert found(lane, 0) == []  # it has the lease
    one = the_one(lane, MINUTE)
    assert (one.severity, one.subject) == (WARN, "list orders")
    assert one.what == "2 messages not forwarded, and no forwarder is active"
    assert one.remedy == "start one: fairlane forward --from URL/orders --to URL/LIST"
    lane.client.delete(keys.in_flight("orders"))
    assert found(lane, MINUTE) == []


@pytest.mark.parametrize(
    ("reason", "words"), [("gap", "the target had lost"), ("diverged", "the source was set back")]
)
def test_servers_that_disagreed_are_a_note(lane: Lane, reason: Any, words: str):
    lane.run(lists.next_forward("orders", "me", 0, "e"))
    lane.run(lists.restart_forward("orders", "e", "f", reason))
    one = the_one(lane, 2 * HOUR)
    assert (one.severity, one.remedy) == (NOTE, "")
    assert one.what.startswith("its numbers began again 1 time, last ")
    assert words in one.what


def test_keys_of_others_are_left_alone(lane: Lane):
    names = (b"{a}:forward", b"x{a}:forward", b"{}:forward", b"topic:{a b}:conf", b":forward", b"x")
    assert found(lane, HOUR, *names) == []
    lane.client.set("{a}:forward", "text")
    (one,) = found(lane, HOUR, b"{a}:forward")
    assert (one.severity, one.subject) == (NOTE, "list a")
    lane.client.delete("{a}:forward")


def test_the_walk_finds_both_and_a_quick_walk_neither(lane: Lane):
    lane.run(subscribe("news", "mail", "new"))
    lane.run(set_retention("news", None, 1))
    lane.run(publish("news", [b"a", b"b"]))
    lane.client.lpush("orders", "a")
    lane.client.hset(ORDERS, "epoch", "e")
    assert {one.check for one in walked(lane, thorough=True)} == {"topics", "forward"}
    assert walked(lane, thorough=False) == []


def walked(lane: Lane, **given: Any) -> list[Finding]:
    walk, findings = Walk("req", **given), list[Finding]()
    while not walk.is_over:
        findings += lane.run(walk.page())
    return findings
