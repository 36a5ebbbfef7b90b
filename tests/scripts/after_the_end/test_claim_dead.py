"""Tests claim_dead and drop_dead: each dead sub-request of an ended request gets one request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane.errors import RedisUnfit
from tests.scripts.repair.test_full_and_forgotten import full
from tests.scripts.repair.test_refused import ON_SINGLE, Guard, guard
from tests.support.scripts.requests import Lane, toks

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["guard"]
DEAD = "dead:{r1}"


def ended(lane: Lane, count: int = 4) -> list[bytes]:
    """Makes a request that ended with all of its sub-requests dead; returns their positions."""
    held = lane.begin(count, limit=1)
    reply = lane.complete(held, others=[(name, "dead", 0) for name in held.ids])
    while reply[0] == b"ok":
        held = lane.take(toks(reply[2])[0])
        reply = lane.complete(held, others=[(name, "dead", 0) for name in held.ids])
    assert lane.hash()["state"] == "done"
    return lane.dead_ids()


def claim(
    lane: Lane, ids: Sequence[Any], *, by: str = "r2", expected: int = 0, choice: str = "c0ffee"
) -> list[bytes]:
    return list(lane.request("claim_dead", id=by, choice=choice, expected=expected, ids=ids))


def drop(lane: Lane, ids: Sequence[Any], *, by: str = "", keep: int = 0) -> list[Any]:
    return list(lane.request("drop_dead", id=by, keep=keep, ids=ids))


def claims(lane: Lane) -> dict[bytes, bytes]:
    """Returns dead entry -> the new request that has claimed it."""
    return {row[0]: row[1] for row in lane.raw("XPENDING", DEAD, "requeue", "-", "+", 100)}


# ------------------------------------------------------------------ claim_dead


def test_the_last_call_makes_claims_final_and_notes_them(lane: Lane):
    """The mark counts the claims; the note is for a repeat of the choice; the TTL stays."""
    ids = ended(lane)
    ttl = lane.client.pttl("req:{r1}")
    assert claim(lane, ids[:2]) == [b"ok"]
    assert not [name for name in lane.hash() if name.startswith(("claimed:", "requeued:"))]
    assert claim(lane, ids[2:3], expected=3) == [b"ok"]
    assert claims(lane) == dict.fromkeys(ids[:3], b"r2")
    assert (lane.hash()["requeued:c0ffee"], lane.hash()["claimed:r2"]) == ("r2", "3")
    assert 0 < lane.client.pttl("req:{r1}") <= ttl
    assert 0 < lane.client.pttl(DEAD) <= ttl


def test_claimed_twice_is_once(lane: Lane):
    ids = ended(lane)
    for expected in (0, 4):
        assert claim(lane, ids, expected=expected) == [b"ok"]
        before = claims(lane), lane.hash()
        assert claim(lane, ids, expected=expected) == [b"ok"]
        assert (claims(lane), lane.hash()) == before


def test_a_repeat_after_the_new_request_took_some_changes_nothing(lane: Lane):
    """A late copy of the last call must not claim what lost its claim, nor reply `taken`."""
    ids = ended(lane)
    claim(lane, ids, expected=4)
    assert drop(lane, ids[:2], by="r2", keep=1) == [b"ok", 1, 0]
    with lane.unchanged():
        assert claim(lane, ids, expected=4) == [b"ok"]


def test_the_dead_of_a_cancelled_request_are_claimed(lane: Lane):
    held = lane.begin(20, limit=1, count=2)
    lane.complete(held, others=[(name, "dead", 0) for name in held.ids])
    lane.cancel()
    assert lane.hash()["state"] == "cancelled"
    ids = lane.dead_ids()
    assert claim(lane, ids, expected=2) == [b"ok"]
    assert claims(lane) == dict.fromkeys(ids, b"r2")


@ON_SINGLE
@pytest.mark.any_command
def test_a_claim_without_the_right_to_create_groups_names_that_right(guard: Guard, lane: Lane):
    """The refusal of XGROUP is reported, not the missing group that follows from it."""
    ids = ended(lane)
    with lane.unchanged():
        lane.driver = guard.driver
        guard.refuse("xgroup")
        for expected in (0, 4):
            with pytest.raises(RedisUnfit, match=r"NOPERM|ACL failure|user executing"):
                claim(lane, ids, expected=expected)
    guard.allow()
    assert claim(lane, ids, expected=4) == [b"ok"]


def test_what_is_not_final_goes_to_the_next_that_claims_it(lane: Lane):
    """A caller that died before its last call blocks no other; a live one gets an error."""
    ids = ended(lane)
    assert claim(lane, ids[:3]) == [b"ok"]
    assert claim(lane, ids[2:], by="r3", expected=2, choice="beef") == [b"ok"]
    assert claim(lane, [], expected=3) == [b"taken"]
    assert claims(lane) == {ids[0]: b"r2", ids[1]: b"r2", ids[2]: b"r3", ids[3]: b"r3"}
    assert "claimed:r2" not in lane.hash()


def test_a_final_claim_excludes_every_other(lane: Lane):
    ids = ended(lane)
    assert claim(lane, ids[:2], expected=2) == [b"ok"]
    assert claim(lane, ids, by="r3", expected=4) == [b"taken"]
    assert claims(lane) == {ids[0]: b"r2", ids[1]: b"r2", ids[2]: b"r3", ids[3]: b"r3"}
    assert claim(lane, ids[2:], by="r4", expected=2) == [b"ok"]


def test_what_is_not_among_the_dead_is_not_claimed(lane: Lane):
    ids = ended(lane)
    lane.client.xdel(DEAD, ids[0])
    assert claim(lane, ids[:2], expected=2) == [b"taken"]
    assert claims(lane) == {ids[1]: b"r2"}
    lane.client.delete(DEAD)
    assert claim(lane, ids[:2], expected=2) == [b"taken"]
    assert lane.client.exists(DEAD) == 0


def test_nothing_is_claimed_before_the_end(lane: Lane):
    lane.start(1)
    with lane.unchanged():
        assert claim(lane, ["1-1"], expected=1) == [b"alive"]


# ------------------------------------------------------------------ drop_dead


def test_what_is_not_claimed_is_dropped(lane: Lane):
    ids = ended(lane)
    assert drop(lane, ids[:1]) == [b"ok", 1, 0]
    with full(lane.client):
        assert drop(lane, ids[1:2]) == [b"ok", 1, 0]
    claim(lane, ids[2:])  # not for good
    assert drop(lane, ids) == [b"ok", 2, 0]
    assert (lane.dead_ids(), claims(lane)) == ([], {})
    assert (lane.number("dead"), len(lane.results())) == (4, 4)


def test_dropped_twice_is_once(lane: Lane):
    ids = ended(lane)
    claim(lane, ids[:2], expected=2)
    assert drop(lane, ids[2:]) == [b"ok", 2, 0]
    assert drop(lane, ids[:2], by="r2") == [b"ok", 2, 0]
    with lane.unchanged():
        assert drop(lane, ids[2:]) == [b"ok", 0, 0]
        assert drop(lane, ids[:2], by="r2") == [b"ok", 0, 0]


def test_only_the_new_request_drops_what_it_has_claimed(lane: Lane):
    ids = ended(lane)
    claim(lane, ids[:2], expected=2)
    assert drop(lane, ids[:3]) == [b"ok", 1, 2]
    assert drop(lane, ids[:2], by="r3") == [b"ok", 0, 2]
    assert drop(lane, [*ids[:2], ids[3]], by="r2") == [b"ok", 2, 0]
    assert lane.dead_ids() == [ids[3]]


def test_the_mark_goes_with_the_last_claim(lane: Lane):
    """The note stays: a repeat of the choice finds the new request."""
    ids = ended(lane)
    claim(lane, ids, expected=4)
    assert drop(lane, ids[2:], by="r2") == [b"ok", 2, 0]
    assert lane.hash()["claimed:r2"] == "4"
    assert drop(lane, ids[:2], by="r2") == [b"ok", 2, 0]
    assert "claimed:r2" not in lane.hash()
    assert lane.hash()["requeued:c0ffee"] == "r2"
    assert lane.client.xinfo_consumers(DEAD, "requeue") == []


def test_what_is_kept_only_loses_its_claim(lane: Lane):
    ids = ended(lane)
    claim(lane, ids, expected=4)
    assert drop(lane, [ids[1], ids[2], ids[0], ids[3]], by="r2", keep=2) == [b"ok", 2, 0]
    assert (lane.dead_ids(), claims(lane)) == (ids[1:3], {})
    assert claim(lane, ids[1:3], by="r3", expected=2) == [b"ok"]
    assert drop(lane, ids[1:3], by="r2", keep=2) == [b"ok", 0, 2]  # late, a second time
    assert claims(lane) == dict.fromkeys(ids[1:3], b"r3")


def test_a_mark_without_claims_goes(lane: Lane):
    """The mark is removed when the dead have expired."""
    ids = ended(lane)
    claim(lane, ids, expected=4)
    lane.client.delete(DEAD)
    assert drop(lane, [], by="r2") == [b"ok", 0, 0]
    assert "claimed:r2" not in lane.hash()
