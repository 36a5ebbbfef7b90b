"""Tests the script discard: it removes an open request, if that is the life its producer wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.support.scripts.requests import HOUR, toks

if TYPE_CHECKING:
    from tests.support.scripts.requests import Lane


def discard(lane: Lane, **changed: Any) -> list[Any]:
    """Discards as the producer that wrote all that is there."""
    stored = lane.hash()
    given = {
        "born": stored.get("born", 0),
        "chain": stored.get("chain", ""),
        "before": "none",
        "reason": "its source failed",
        "seen": 0,
        "ttl": HOUR,
    }
    return lane.request("discard", **(given | changed))


def is_marked(lane: Lane) -> bool:
    """Returns whether only the marker is left that the request was discarded."""
    key = lane.names[2]
    fields = {b"state": b"abandoned", b"seen": b"0", b"discarded": b"1", b"was": b"withdrawn"}
    fields[b"over"] = b"%d" % lane.now
    is_alone: bool = [*lane.dump()] == [key]
    return is_alone and lane.client.hgetall(key) == fields and lane.client.pttl(key) > 0


def test_discard_leaves_a_marker_and_names_the_queued_tokens(lane: Lane):
    """Its caller takes the copies of these tokens out of the lanes."""
    tokens = lane.start(9, open_ms=HOUR)
    lane.append(1, chunk=2)
    word, queued = discard(lane)
    assert (word, sorted(toks(queued))) == (b"ok", sorted(tokens))
    assert is_marked(lane)


def test_discard_removes_a_request_whose_last_chunk_was_not_written(lane: Lane):
    lane.start(9, open_ms=HOUR)
    assert discard(lane, chain="c2", before="d1")[0] == b"ok"
    assert is_marked(lane)


def test_discard_is_no_loss_to_the_auditor(lane: Lane):
    """The entry in `active` is removed without a log entry; a new life removes the marker."""
    lane.start(9, open_ms=HOUR)
    discard(lane)
    assert [lane.abandon(lane.now) for _ in range(2)] == [[b"discarded"], [b"discarded"]]
    assert lane.enqueue(9, intent=lane.now) == [b"late", lane.now]
    assert lane.enqueue(9, intent=lane.now + 1)[0] == b"ok"
    assert "discarded" not in lane.hash()


def test_discard_leaves_the_next_life_of_the_id(lane: Lane):
    lane.start(9, open_ms=HOUR)
    born = lane.number("born")
    discard(lane)
    lane.later(1)
    lane.start(9, open_ms=HOUR)
    with lane.unchanged():
        assert discard(lane, born=born) == [b"kept"]


def test_discard_leaves_what_another_producer_sealed(lane: Lane):
    lane.start(9, open_ms=HOUR)
    lane.seal()
    with lane.unchanged():
        assert discard(lane) == [b"kept"]


def test_discard_leaves_what_another_producer_is_ahead_with(lane: Lane):
    lane.start(9, open_ms=HOUR)
    lane.append(1, chunk=2)
    with lane.unchanged():
        assert discard(lane, chain="d1", before="d0") == [b"kept"]


def test_discard_cancels_what_is_held(lane: Lane):
    first, *rest = lane.start(9, open_ms=HOUR, limit=2)
    held = lane.take(first, count=1)
    word, queued = discard(lane)
    assert (word, sorted(toks(queued))) == (b"held", sorted(rest))
    assert (lane.hash()["state"], lane.hash()["reason"]) == ("cancelling", "its source failed")
    assert discard(lane)[0] == b"held"
    assert lane.complete(held)[0] == b"ended"
    assert lane.hash()["state"] == "cancelled"
    assert lane.enqueue(9)[0] == b"abandoned"


def test_discard_of_nothing_is_gone(lane: Lane):
    """Only the marker is written, because its caller removes the entry in `active`."""
    assert discard(lane, seen=7) == [b"gone"]
    assert [*lane.dump()] == [lane.names[2]]
    assert lane.hash() == {"state": "abandoned", "seen": "7"}
    assert 0 < lane.client.pttl(lane.names[2]) <= HOUR


def test_discard_refuses_the_requests_of_older_intents(lane: Lane):
    """Another producer announced its request before, and submits it only now."""
    lane.start(9, open_ms=HOUR)
    discard(lane, seen=lane.now)
    assert lane.enqueue(9, intent=lane.now) == [b"late", lane.now]
    assert lane.enqueue(9, intent=lane.now + 1)[0] == b"ok"
