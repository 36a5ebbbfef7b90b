"""submit: a small submission's three steps at once, where one server has all keys."""

from __future__ import annotations

from typing import Any

import pytest

from fairlane.errors import LayoutTooNew, RedisFull
from fairlane.protocol import keys
from fairlane.protocol.steps import SingleServer
from tests.scripts.test_full_and_forgotten import full
from tests.support.requests import HOUR, Lane, numbered, once, toks, with_policy

ACTIVE, CONF = keys.active("req"), keys.conf("req")
GRACE = 30_000
HOW: dict[str, Any] = {
    "priority": 5,
    "limit": 3,
    "digest": "d1",
    "grace": GRACE,
    "open_ms": 0,
    "attempts": 3,
    "backoff_min": 1_000,
    "backoff_max": 10_000,
    "lease_ms": 30_000,
    "retain_ms": HOUR,
    "deadline_ms": 0,
    "time_limit_ms": 0,
    "durable": 0,
    "parent": "",
}


def asked(lane: Lane, bodies: list[bytes] | int, **given: Any) -> Any:
    """What the script says; None of a cluster. A number stands for so many bodies."""
    how: dict[str, Any] = {"now": lane.now, "queue": lane.queue, "id": lane.id} | HOW | given
    chunk = numbered(bodies) if isinstance(bodies, int) else bodies
    lanes = keys.lanes(lane.queue)
    at = how["priority"] if how["priority"] in range(100) else 0
    names = (*keys.request_keys(lane.id), ACTIVE, CONF, lanes[at])
    told = lane.driver.run(
        once(SingleServer(lane.scripts.submit(names, bodies=chunk, **with_policy(how))))
    )
    if told is not None and lane.checked:
        assert lane.check() == []
    return told


def in_three_steps(lane: Lane, bodies: list[bytes] | int, **given: Any) -> None:
    """The same as producers do it in a cluster."""
    how = HOW | given
    grace = how.pop("grace")
    _, _, intent, _ = lane.call("intend", (ACTIVE, CONF), ids=[lane.id], grace=grace, above=0)
    reply = lane.enqueue(bodies, **how | {"intent": intent})
    if reply[0] != b"ok":
        return
    made = [f"{lane.id}#{t.k}.{t.g}" for t in toks(reply[1])]
    if made:
        names = [keys.delayed("req"), keys.lanes("req")[how["priority"]]]
        lane.call("insert_tokens", names, tokens=[how["priority"], len(made), 0, *made])


def forget(lane: Lane) -> None:
    for key in lane.dump():
        lane.client.delete(key)


@pytest.mark.parametrize(
    ("bodies", "given"),
    [
        (1, {}),
        (20, {}),
        ([b"x" * 2_000, b"", b"\x00\xff"], {"priority": 0, "limit": 1}),
        (1_000, {"priority": 99, "limit": 900}),
        (3, {"open_ms": HOUR}),
        ([], {"open_ms": HOUR}),
        ([], {}),
        (2, {"deadline_ms": 5_000, "time_limit_ms": 7, "durable": 1, "parent": "r0", "grace": 9}),
    ],
    ids=["one", "some", "bytes", "many", "open", "open and empty", "empty", "all terms"],
)
def test_it_leaves_what_the_three_steps_leave(
    one: Lane, bodies: list[bytes] | int, given: dict[str, Any]
):
    """Byte for byte, in every key."""
    in_three_steps(one, bodies, **given)
    expected = one.dump()
    forget(one)
    assert one.dump() == {}
    asked(one, bodies, **given)
    assert one.dump() == expected


def test_it_says_what_intend_and_enqueue_say_but_for_the_tokens_it_dispatched(one: Lane):
    """No bound, no shards, the intent, none before; then ok, nothing to dispatch, and its birth."""
    assert asked(one, 4) == [0, b"", one.now + GRACE, b"0", [b"ok", [], one.now]]
    assert one.client.lrange("{req}:5", 0, -1) == [b"r1#2.3", b"r1#1.2", b"r1#0.1"]
    assert one.client.zscore(ACTIVE, "r1") == one.now + GRACE


def test_as_many_tokens_as_a_limit_allows_are_dispatched(one: Lane):
    """More than one call of Lua may push."""
    asked(one, 1_000, limit=10_000, open_ms=HOUR)
    assert one.client.llen("{req}:5") == 1_000


def test_an_empty_sealed_request_ends_at_once(one: Lane):
    """Its producer logs it."""
    word, summary = asked(one, [])[4]
    assert (word, summary[0]) == (b"ended", b"done")
    assert one.client.exists("{req}:5") == 0


def test_twice_it_exists_and_tells_the_tokens_again(one: Lane):
    """The intent is newer; what a lost reply would have brought is told, not dispatched twice."""
    first = asked(one, 6)[2]
    bound, shards, intent, before, reply = asked(one, 6)
    assert (bound, shards, intent, before) == (0, b"", first + 1, b"%d" % first)
    assert (reply[0], len(toks(reply[5]))) == (b"exists", 3)
    assert one.client.llen("{req}:5") == 3


def test_other_content_is_a_conflict(one: Lane):
    """Nothing of the request is written."""
    asked(one, 6)
    before = {key: what for key, what in one.dump().items() if key != ACTIVE}
    assert asked(one, 2, digest="d2")[4][0] == b"conflict"
    assert {key: what for key, what in one.dump().items() if key != ACTIVE} == before


def test_after_the_end_it_still_exists(one: Lane):
    """Nothing runs twice."""
    asked(one, 1, limit=1)
    one.complete(one.take(toks([b"5", b"0.1", 0])[0]))
    assert asked(one, 1, limit=1)[4][0] == b"exists"
    assert one.client.llen("{req}:5") == 1


def test_an_intent_that_was_given_up_is_late(one: Lane):
    """The auditor's mark stands; its producer announces it anew, and later."""
    one.abandon(one.now + HOUR)
    assert asked(one, 1)[4] == [b"late", one.now + HOUR]
    assert one.client.exists("{req}:5") == 0


@pytest.mark.parametrize(
    ("name", "value", "told"), [("max_waiting", 7, [7, b""]), ("shards", "0,1", [0, b"0,1"])]
)
def test_where_more_is_to_be_asked_it_announces_only(
    one: Lane, name: str, value: Any, told: list[Any]
):
    """A bound wants room, shards want a turn: the producer goes on from the intent."""
    one.client.hset(CONF, name, value)
    assert asked(one, 3) == [*told, one.now + GRACE, b"0"]
    assert set(one.dump()) == {ACTIVE, CONF}


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"priority": 100}, "BADPRIORITY"),
        ({"limit": 0}, "BADLIMIT"),
        ({"grace": "long"}, "BADARGUMENT"),
        ({"lease_ms": "long"}, "BADARGUMENT"),
    ],
    ids=str,
)
def test_what_is_malformed_is_refused_before_anything_is_written(
    one: Lane, given: dict[str, Any], word: str
):
    """Not even the intent."""
    with one.refuses(word):
        asked(one, 1, **given)


def test_a_chunk_over_a_thousand_is_refused(one: Lane):
    """As enqueue refuses it."""
    with one.refuses("BADCHUNK"):
        asked(one, 1_001)


def test_a_newer_layout_is_left_alone(one: Lane):
    """Its release knows keys that this one does not."""
    one.client.hset(CONF, "layout", 99)
    with one.unchanged(), pytest.raises(LayoutTooNew):
        asked(one, 1)


def test_a_full_redis_refuses_it_and_nothing_is_written(one: Lane):
    """The intent is its first write."""
    with full(one.client), one.unchanged(), pytest.raises(RedisFull):
        asked(one, 3)


def test_a_cluster_is_asked_nothing(lane: Lane):
    """Its producers take the three steps."""
    lane.driver.check()
    if not lane.driver.is_cluster:
        pytest.skip("one server has all keys here")
    assert asked(lane, 3) is None
    assert lane.dump() == {}
