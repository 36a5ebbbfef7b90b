"""Tests complete and extend: only the holder settles, and everything is counted once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.run.for_each import for_each
from tests.support.scripts.requests import HOUR, Held, Lane, listening, toks

if TYPE_CHECKING:
    import redis


def proof_of(held: Held) -> dict[str, str]:
    """Returns what a complete proves its lease with."""
    return {"k": held.k, "fence": held.fence, "op": held.op, "keep": "0"}


def test_complete_counts_stores_and_returns_the_permit(lane: Lane):
    held = lane.begin(6)
    word, left, flat = lane.complete(held)
    assert (word, left) == (b"ok", 4)
    assert [(token.lane, token.k, token.delay) for token in toks(flat)] == [(5, "0", 0)]
    assert lane.results() == {
        0: ("d", 1, b"result of " + held.ids[0]),
        1: ("d", 1, b"result of " + held.ids[1]),
    }
    assert (lane.number("done"), lane.client.xlen(lane.names[0])) == (2, 4)
    assert lane.client.zcard(lane.names[4]) == 0


def test_the_last_complete_ends_the_request_with_one_publish(lane: Lane, redis_client: redis.Redis):
    tokens = lane.start(2, limit=2)
    helds = [lane.take(token) for token in tokens]
    with listening(redis_client, "done:{r1}") as published:
        assert lane.complete(helds[0])[:2] == [b"ok", 1]
        lane.later(500)
        word, summary = lane.complete(helds[1])
        assert published() == [b"done"]
    assert word == b"ended"
    assert summary == [b"done", lane.now - 500, 2, 2, 0, 0, lane.now, 5, b"", HOUR, b""]
    stored = lane.dump()
    assert set(stored) == {b"req:{r1}", b"out:{r1}"}
    assert all(has_ttl for _, has_ttl in stored.values())


def test_a_repeated_final_complete_returns_ended_and_publishes_nothing(
    lane: Lane, redis_client: redis.Redis
):
    held = lane.begin(1)
    lane.complete(held)
    with lane.unchanged(), listening(redis_client, "done:{r1}") as published:
        assert lane.complete(held)[0] == b"ended"
        assert published() == []


def test_a_repeated_complete_of_a_returned_permit_returns_already(lane: Lane):
    """It is counted once; the tokens are returned again, because the lost reply held one."""
    held = lane.begin(6)
    (minted,) = toks(lane.complete(held)[2])
    with lane.unchanged():
        word, again = lane.complete(held)
        assert word == b"already"
        assert minted in toks(again)


def test_a_repeat_returns_already_also_when_the_permit_is_leased_again(lane: Lane):
    first = lane.begin(2, limit=1, count=1)
    (token,) = toks(lane.complete(first)[2])
    second = lane.take(token, worker="w:2")
    with lane.unchanged():
        assert lane.complete(first)[0] == b"already"
    assert lane.complete(second)[0] == b"ended"


@for_each("wrong", [{"fence": "99"}, {"op": "ff"}, {"k": "1"}, {"k": "x"}])
def test_another_than_the_holder_settles_and_extends_nothing(lane: Lane, wrong: dict):
    held = lane.begin(6)
    with lane.unchanged():
        assert lane.complete(held, **wrong) == [b"lost"]
        lane.later(1_000)
        assert lane.extend(held, **wrong) == "lost"


def test_a_complete_after_the_lease_was_taken_back_is_lost(lane: Lane):
    """A worker with an expired lease must not believe that its results were counted."""
    held = lane.begin(6)
    lane.later(30_000)
    lane.reap()
    with lane.unchanged():
        assert lane.complete(held) == [b"lost"]


def test_a_late_complete_settles_nothing_of_the_next_holder(lane: Lane):
    """The same worker got the same permit again: its old slice is still lost."""
    old = lane.begin(2, limit=1)
    lane.later(30_000)
    (token,) = toks(lane.reap()[2])
    lane.take(token)
    with lane.unchanged():
        assert lane.complete(old) == [b"lost"]


def test_keep_settles_a_part_and_the_lease_goes_on(lane: Lane):
    held = lane.begin(4, limit=1)
    lane.later(1_000)
    assert lane.complete(held, held.ids[:3], keep=True) == [b"ok", 1, []]
    assert lane.client.zscore(lane.names[4], "0") == lane.now + 30_000
    assert lane.pending() == {"w:1/0": 1}
    assert lane.complete(held, held.ids[3:])[0] == b"ended"
    assert len(lane.results()) == 4


def test_keep_twice_with_the_same_ids_counts_once(lane: Lane):
    held = lane.begin(4, limit=1)
    lane.complete(held, held.ids[:2], keep=True)
    assert lane.complete(held, held.ids[:2], keep=True)[:2] == [b"ok", 2]
    assert lane.complete(held, held.ids[:3], keep=True)[:2] == [b"ok", 1]
    assert lane.number("done") == 3
    assert set(lane.results()) == {0, 1, 2}


def test_the_final_complete_after_a_keep_may_name_what_is_settled(lane: Lane):
    held = lane.begin(4, limit=1)
    lane.complete(held, held.ids[:2], keep=True)
    assert lane.complete(held)[0] == b"ended"
    assert lane.number("done") == 4
    assert set(lane.results()) == {0, 1, 2, 3}


def test_a_keep_that_settles_the_last_ends_the_request(lane: Lane):
    held = lane.begin(2, limit=1)
    assert lane.complete(held, keep=True)[0] == b"ended"
    assert lane.complete(held)[0] == b"ended"


def test_what_a_complete_leaves_over_comes_back_uncharged(lane: Lane):
    """Without keep the lease is over: the rest is due now, in its first attempt, each alone."""
    held = lane.begin(3, limit=1)
    word, left, flat = lane.complete(held, held.ids[:1])
    assert (word, left, len(flat)) == (b"ok", 2, 3)
    assert lane.pending()["-"] == 2
    again = lane.take(toks(flat)[0])
    assert (again.attempt, again.bodies) == (1, [b"b1"])


def test_entries_of_another_holder_are_skipped(lane: Lane):
    tokens = lane.start(6)
    mine, other = lane.take(tokens[0]), lane.take(tokens[1])
    lane.complete(mine, [mine.ids[0], other.ids[0]], keep=True)
    assert lane.number("done") == 1
    assert set(lane.results()) == {0}


def test_done_and_other_verdicts_go_in_one_call(lane: Lane):
    held = lane.begin(4, limit=1)
    others = [(held.ids[i], verdict, 0) for i, verdict in enumerate(("retry", "dead", "release"))]
    word, left, _ = lane.complete(held, held.ids[3:], others)
    assert (word, left) == (b"ok", 2)
    assert (lane.number("done"), lane.number("dead")) == (1, 1)
    assert lane.pending()["-"] == 2


def test_out_and_dead_have_a_ttl_after_the_end(lane: Lane):
    held = lane.begin(2, limit=1)
    lane.complete(held, held.ids[:1], [(held.ids[1], "dead", 0)])
    for name in (lane.names[2], lane.names[6], lane.names[7]):
        assert 0 < lane.client.pttl(name) <= HOUR


# ------------------------------------------------------------------ extend


def test_extend_renews_the_deadline(lane: Lane):
    held = lane.begin(6)
    lane.later(20_000)
    assert lane.extend(held) == "ok"
    assert lane.client.zscore(lane.names[4], "0") == lane.now + 30_000


def test_extend_after_complete_is_lost_and_after_the_end_ended(lane: Lane):
    """A keeper that comes too late must not restore a lease."""
    held = lane.begin(2, limit=1, count=1)
    (token,) = toks(lane.complete(held)[2])
    assert lane.extend(held) == "lost"
    assert lane.client.zcard(lane.names[4]) == 0
    held = lane.take(token)
    lane.complete(held)
    assert lane.extend(held) == "ended"
    assert not lane.client.exists(lane.names[4])


def test_extend_reports_that_the_request_is_cancelled(lane: Lane):
    held = lane.begin(6)
    lane.cancel()
    lane.later(20_000)
    assert lane.extend(held) == "cancelled"
    assert lane.client.zscore(lane.names[4], "0") == lane.now + 30_000


def test_a_settled_lease_leaves_no_consumer_behind(lane: Lane):
    """XINFO CONSUMERS shows the present holders, and does not grow with former ones."""
    tokens = lane.start(9)
    held = [lane.take(token) for token in tokens]
    lane.complete(held[0])
    names = {one["name"] for one in lane.client.xinfo_consumers(lane.names[0], lane.names[0])}
    assert names == {b"w:1/1", b"w:1/2"} | ({b"-"} & names)
