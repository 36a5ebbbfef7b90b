"""Tests a queue of several shards: where tokens go, how requests move, what is forgotten."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlane.protocol import keys

if TYPE_CHECKING:
    from tests.support.scripts.requests import Lane

CONF = keys.conf("req")


def set_shards(lane: Lane, shards: str, **given: Any) -> list[Any]:
    return list(lane.call("set_shards", (CONF,), **{"shards": shards, "since": ""} | given))


def move(lane: Lane, shards: str) -> list[Any]:
    return lane.request("change_shards", shards=shards)


def lanes_of(tokens: list[Any]) -> list[bytes]:
    return list(tokens[::3])


# ------------------------------------------------------------------ enqueue, mint


def test_tokens_go_to_the_shards_in_turn(lane: Lane):
    """Permit k goes to the k-th of them, and the hundreds of a lane's number are its shard."""
    tokens = lane.enqueue(5, limit=5, shards="7,1,12")[1]
    assert lanes_of(tokens) == [b"705", b"105", b"1205", b"705", b"105"]


def test_a_returned_permit_goes_to_its_own_shard_again(lane: Lane):
    first, _ = lane.start(12, limit=2, shards="3,4")
    held = lane.take(first, count=5)
    reply = lane.complete(held, held.ids)
    assert lanes_of(reply[-1]) == [b"305"]


def test_a_new_priority_stays_in_the_shards(lane: Lane):
    lane.enqueue(2, limit=2, shards="3,4")
    assert sorted(lanes_of(lane.request("set_priority", priority=9)[1])) == [b"309", b"409"]


# ------------------------------------------------------------------ move


def test_what_is_queued_moves_and_its_old_tokens_are_stale(lane: Lane):
    old = lane.start(2, limit=2)
    word, tokens = move(lane, "3,4")
    assert (word, sorted(lanes_of(tokens))) == (b"ok", [b"305", b"405"])
    assert lane.acquire(old[0]).word == "stale"


def test_what_is_held_stays_held_by_a_move(lane: Lane):
    held = lane.begin(12, limit=1, count=5)
    assert move(lane, "6") == [b"ok", []]
    assert lanes_of(lane.complete(held, held.ids)[-1]) == [b"605"]


# ------------------------------------------------------------------ set_shards


def test_what_is_no_longer_among_the_shards_is_left(lane: Lane):
    """Before any change that is the queue's own lanes, shard 0."""
    assert set_shards(lane, "1,7") == [b"ok", b"1,7", b"0", b"%d" % lane.now]
    lane.now += 5
    assert set_shards(lane, "7,9") == [b"ok", b"7,9", b"1,0", b"%d" % lane.now]
    lane.now += 5
    assert set_shards(lane, "") == [b"ok", b"", b"7,9,1", b"%d" % lane.now]


def test_the_same_shards_twice_change_nothing(lane: Lane):
    said = set_shards(lane, "1,7")
    with lane.unchanged():
        lane.now += 5
        assert set_shards(lane, "1,7") == set_shards(lane, "=") == said


def test_nothing_was_ever_spread(lane: Lane):
    assert set_shards(lane, "=") == [b"ok", b"", b"", b"0"]
    assert lane.dump() == {}


def test_what_is_left_is_forgotten_if_nothing_was_set_since(lane: Lane):
    """Otherwise requests may use what the later change has left."""
    since = set_shards(lane, "1,7")[3]
    lane.now += 5
    later = set_shards(lane, "9")
    assert set_shards(lane, "=", since=since) == later
    assert set_shards(lane, "=", since=later[3]) == [b"ok", b"9", b"", later[3]]
