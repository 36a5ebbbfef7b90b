"""Tests next_forward, land and restart_forward: the target takes each message once, in order."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.scripts.requests import HOUR, MINUTE

if TYPE_CHECKING:
    from tests.support.scripts.requests import Lane

SOURCE, FLIGHT, STATE, TARGET, LANDED = (
    f"{{lists}}:{name}".encode() for name in ("from", "flight", "state", "to", "landed")
)
LEASE = 10_000


def push(lane: Lane, *messages: str) -> None:
    lane.client.lpush(SOURCE, *messages)


def rest(lane: Lane, key: bytes) -> list[bytes]:
    """Returns the messages of a list, oldest first."""
    return [*reversed(lane.client.lrange(key, 0, -1))]


def chain(*messages: bytes, begin: str = "") -> str:
    for message in messages:
        begin = hashlib.sha1(begin.encode() + message, usedforsecurity=False).hexdigest()
    return begin


def take(lane: Lane, owner: str = "a", most: int = 10, lease: int = LEASE) -> list[Any]:
    return settle(lane, "", 0, 0, "", owner=owner, most=most, lease=lease)


def settle(
    lane: Lane, epoch: Any, before: int, count: int, digest: str, owner: str = "a",
    most: int = 10, lease: int = LEASE,
) -> list[Any]:  # fmt: skip
    given = {"owner": owner, "lease": lease, "most": most, "fresh": f"epoch-of-{owner}"}
    given |= {"epoch": epoch, "before": before, "count": count, "chain": digest}
    found: list[Any] = lane.call("next_forward", (SOURCE, FLIGHT, STATE), **given)
    return found


def land(
    lane: Lane, *messages: bytes, before: int = 0, digest: str = "", epoch: str = "e"
) -> list[Any]:
    given = {"epoch": epoch, "before": before, "chain": digest, "messages": messages}
    found: list[Any] = lane.call("land", (TARGET, LANDED), **given)
    return found


# ------------------------------------------------------------------ next_forward


def test_a_source_that_holds_no_list_changes_nothing(lane: Lane):
    lane.client.set(SOURCE, "text")
    assert take(lane) == [b"wrongtype"]
    assert not lane.client.exists(STATE)
    lane.client.delete(SOURCE)


def test_the_first_batch_begins_an_epoch_and_has_the_oldest_messages(lane: Lane):
    push(lane, "a", "b", "c")
    assert take(lane, most=2) == [b"ok", b"epoch-of-a", 0, b"", 1, [b"a", b"b"]]
    assert rest(lane, FLIGHT) == [b"a", b"b"]


def test_a_repeat_returns_the_same_batch(lane: Lane):
    push(lane, "a", "b", "c")
    assert take(lane, most=2) == take(lane, most=2)


def test_a_batch_that_is_settled_leaves_and_the_next_one_has_the_next_numbers(lane: Lane):
    push(lane, "a", "b", "c")
    take(lane, most=2)
    digest = chain(b"a", b"b")
    wanted = [b"ok", b"epoch-of-a", 2, digest.encode(), 0, [b"c"]]
    assert settle(lane, "epoch-of-a", 0, 2, digest) == wanted
    assert settle(lane, "epoch-of-a", 0, 2, digest) == wanted  # a repeat
    assert rest(lane, FLIGHT) == [b"c"]


def test_a_batch_of_another_epoch_or_place_is_not_settled(lane: Lane):
    push(lane, "a", "b")
    take(lane)
    settle(lane, "other", 0, 2, "x")
    settle(lane, "epoch-of-a", 1, 2, "x")
    assert rest(lane, FLIGHT) == [b"a", b"b"]


def test_another_forwarder_waits_until_the_lease_ends(lane: Lane):
    push(lane, "a")
    take(lane)
    lane.later(LEASE - 1)
    assert take(lane, "b") == [b"held", 1]
    lane.later(1)
    assert take(lane, "b") == [b"ok", b"epoch-of-a", 0, b"", 0, [b"a"]]
    assert take(lane, "a") == [b"held", LEASE]


def test_a_lease_of_a_clock_that_went_back_is_void(lane: Lane):
    push(lane, "a")
    take(lane)
    lane.later(-MINUTE)
    assert take(lane, "b") == [b"held", LEASE + MINUTE]
    lane.later(-HOUR)
    assert take(lane, "b", lease=0) == [b"held", LEASE + MINUTE + HOUR]
    assert take(lane, "b")[5] == [b"a"]
    assert take(lane, "a") == [b"held", LEASE]


def test_a_long_lease_is_not_taken_for_one_of_a_clock_that_went_back(lane: Lane):
    take(lane, lease=HOUR)
    assert take(lane, "b", lease=HOUR) == [b"held", HOUR]


def test_each_batch_extends_the_lease(lane: Lane):
    for _ in range(3):
        take(lane)
        lane.later(LEASE - 1)
    assert take(lane, "b") == [b"held", 1]


def test_one_that_lost_its_lease_still_settles_what_has_landed(lane: Lane):
    push(lane, "a", "b")
    take(lane)
    lane.later(LEASE)
    take(lane, "b")
    assert settle(lane, "epoch-of-a", 0, 2, chain(b"a", b"b")) == [b"held", LEASE]
    assert rest(lane, FLIGHT) == []
    assert take(lane, "b") == [b"ok", b"epoch-of-a", 2, chain(b"a", b"b").encode(), 0, []]


def test_a_lease_that_is_given_up_is_free_and_takes_no_message(lane: Lane):
    take(lane)
    push(lane, "a")
    assert take(lane, lease=0) == [b"ok", b"epoch-of-a", 0, b"", 1, []]
    assert take(lane, "b")[5] == [b"a"]
    assert take(lane, "a", lease=0) == [b"held", LEASE]


# ------------------------------------------------------------------ land


def test_messages_land_in_order(lane: Lane):
    assert land(lane, b"a", b"b") == [b"ok", 2]
    assert land(lane, b"c", before=2, digest=chain(b"a", b"b")) == [b"ok", 1]
    assert rest(lane, TARGET) == [b"a", b"b", b"c"]
    known = f"3:{chain(b'a', b'b', b'c')}:{lane.now}"
    assert lane.client.hgetall(LANDED) == {b"e": known.encode()}


def test_a_batch_that_comes_twice_lands_once(lane: Lane):
    assert [land(lane, b"a", b"a"), land(lane, b"a", b"a")] == [[b"ok", 2], [b"ok", 0]]
    assert rest(lane, TARGET) == [b"a", b"a"]


def test_of_a_longer_batch_only_what_is_new_lands(lane: Lane):
    land(lane, b"a")
    assert land(lane, b"a", b"b", b"c") == [b"ok", 2]
    assert rest(lane, TARGET) == [b"a", b"b", b"c"]


def test_a_late_copy_of_an_old_batch_lands_nothing(lane: Lane):
    land(lane, b"a", b"b", b"c")
    assert land(lane, b"a") == [b"ok", 0]
    known = f"3:{chain(b'a', b'b', b'c')}:{lane.now}"
    assert lane.client.hget(LANDED, "e") == known.encode()


def test_a_target_that_lost_messages_refuses_the_next_ones(lane: Lane):
    assert land(lane, b"b", before=1, digest=chain(b"a")) == [b"gap"]
    assert not lane.client.exists(TARGET, LANDED)


@pytest.mark.parametrize(
    ("messages", "before", "digest"),
    [
        ((b"x", b"b", b"c"), 0, ""),
        ((b"a", b"x"), 0, ""),
        ((b"c",), 2, chain(b"a", b"x")),
    ],
)
def test_other_messages_under_the_same_numbers_are_refused(
    messages: tuple[bytes, ...], before: int, digest: str, lane: Lane
):
    land(lane, b"a", b"b")
    assert land(lane, *messages, before=before, digest=digest) == [b"diverged"]
    assert rest(lane, TARGET) == [b"a", b"b"]


def test_of_a_thousand_epochs_the_one_that_has_been_quiet_for_longest_goes(lane: Lane):
    """A source that was set back begins another epoch, and so does each new source."""
    came = {f"e{i}": f"1:{chain(b'a')}:{lane.now - 1000 + i}" for i in range(1000)}
    lane.client.hset(LANDED, mapping=came)
    for _ in range(2):
        assert land(lane, b"b", before=1, digest=chain(b"a"), epoch="e1")[0] == b"ok"
    assert lane.client.hlen(LANDED) == 1000
    assert land(lane, b"a", epoch="new") == [b"ok", 1]
    assert lane.client.hlen(LANDED) == 1000
    assert [*map(bool, lane.client.hmget(LANDED, "e0", "e1", "e2", "new"))] == [False, *[True] * 3]
    assert land(lane, b"c", before=1, digest=chain(b"a"), epoch="e0") == [b"gap"]


def test_epochs_beyond_the_bound_go_together_and_those_without_a_time_first(lane: Lane):
    """Earlier versions noted no time, and kept every epoch."""
    lane.client.hset(LANDED, mapping={f"e{i}": f"1:{chain(b'a')}" for i in range(1200)})
    assert land(lane, b"b", before=1, digest=chain(b"a"), epoch="e7") == [b"ok", 1]
    lane.later(1)
    assert land(lane, b"a", epoch="new") == [b"ok", 1]
    assert lane.client.hlen(LANDED) == 1000
    assert all(lane.client.hmget(LANDED, "e7", "new"))


def test_a_target_that_holds_no_list_is_refused(lane: Lane):
    lane.client.set(TARGET, "text")
    assert land(lane, b"a") == [b"wrongtype"]
    assert not lane.client.exists(LANDED)
    lane.client.delete(TARGET)


# ------------------------------------------------------------------ restart_forward


def restart(lane: Lane, epoch: str, fresh: str, reason: str = "gap") -> int:
    return int(lane.call("restart_forward", (STATE,), epoch=epoch, fresh=fresh, reason=reason))


def test_another_epoch_begins_at_zero_and_keeps_what_is_in_flight(lane: Lane):
    push(lane, "a", "b", "c")
    take(lane, most=1)
    settle(lane, "epoch-of-a", 0, 1, chain(b"a"), most=1)
    assert restart(lane, "epoch-of-a", "next") == 1
    assert restart(lane, "epoch-of-a", "other") == 0  # a repeat, or another forwarder
    assert take(lane) == [b"ok", b"next", 0, b"", 0, [b"b", b"c"]]
    assert lane.client.hmget(STATE, "restarts", "restarted", "reason", "earlier") == [
        *(b"1", b"%d" % lane.now, b"gap", b"1"),
    ]
