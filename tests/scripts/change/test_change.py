"""Tests pause, resume, set_limit and set_priority: a request changes while it runs."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.run.for_each import for_each
from tests.support.scripts.requests import HOUR, MINUTE, Lane, listening, toks

if TYPE_CHECKING:
    import redis

    from tests.support.scripts.requests import Held, Tok


# ------------------------------------------------------------------ pause, resume


def test_a_paused_request_starts_nothing_and_goes_on_after_resume(lane: Lane):
    tokens = lane.start(9)
    assert lane.pause() == [b"ok", b"paused", []]
    assert lane.hash()["state"] == "paused"
    assert {lane.acquire(token).word for token in tokens} == {"stale"}
    word, state, more = lane.resume()
    assert (word, state) == (b"ok", b"active")
    assert len(toks(more)) == 3
    assert all(lane.take(token).ids for token in toks(more))


def test_what_is_leased_while_paused_ends_as_usual(lane: Lane):
    held = lane.begin(9)
    lane.pause()
    assert lane.extend(held) == "ok"
    assert lane.complete(held, held.ids[:1], keep=True) == [b"ok", 8, []]
    assert lane.complete(held) == [b"ok", 6, []]
    assert lane.number("done") == 3
    assert len(toks(lane.resume()[2])) == 3


def test_a_paused_request_ends_when_nothing_is_left(lane: Lane, redis_client: redis.Redis):
    held = lane.begin(2, limit=1)
    lane.pause()
    with listening(redis_client, "done:{r1}") as published:
        word, summary = lane.complete(held)
        assert published() == [b"done"]
    assert (word, summary[0], summary[2:6]) == (b"ended", b"done", [2, 2, 0, 0])


def test_pause_and_resume_twice_are_once(lane: Lane):
    """The second resume returns the tokens again, because the first reply may be lost."""
    lane.start(9)
    assert lane.resume()[:2] == [b"ok", b"active"]
    lane.pause()
    with lane.unchanged():
        assert lane.pause() == [b"ok", b"paused", []]
    first = lane.resume()
    with lane.unchanged():
        again = lane.resume()
        assert sorted(toks(again[2])) == sorted(toks(first[2]))


def test_a_retry_that_comes_due_while_paused_waits_for_resume(lane: Lane):
    held = lane.begin(1)
    (sleeper,) = toks(lane.complete(held, others=[(held.ids[0], "retry", 5_000)])[2])
    assert lane.pause()[1] == b"paused"
    assert toks(lane.resume()[2])[0].delay == 5_000
    lane.pause()
    lane.later(5_000)
    assert lane.acquire(sleeper).word == "stale"
    (awake,) = toks(lane.resume()[2])
    assert awake.delay == 0
    assert lane.take(awake).attempt == 2


def test_chunks_and_the_seal_come_while_paused(lane: Lane):
    lane.start(2, open_ms=HOUR)
    lane.pause()
    assert lane.append(4, chunk=2) == [b"ok", []]
    assert lane.seal(2) == [b"ok", []]
    (token, *_) = toks(lane.resume()[2])
    assert lane.take(token).bodies == [b"b0", b"b1"]


def test_cancel_ends_a_paused_request(lane: Lane):
    held = lane.begin(9)
    lane.pause()
    assert lane.cancel("enough") == [b"ok", []]
    assert lane.pause() == [b"ok", b"cancelling", []]
    assert lane.resume() == [b"ok", b"cancelling", []]
    assert lane.hash()["reason"] == "enough"
    assert lane.complete(held)[1][2:6] == [9, 3, 0, 6]


def test_the_deadline_passes_while_paused(lane: Lane):
    lane.start(3, deadline_ms=MINUTE)
    lane.pause()
    lane.later(MINUTE)
    word, summary = lane.reap()
    assert (word, summary[0], summary[2:6]) == (b"ended", b"done", [3, 0, 3, 0])


def test_what_expires_is_neither_paused_nor_resumed(lane: Lane):
    held = lane.begin(9, deadline_ms=20_000)
    lane.pause()
    lane.later(20_000)
    assert lane.resume() == [b"ok", b"active", []]
    lane.pause()
    assert lane.reap()[0] == b"stopped"
    assert lane.pause() == [b"ok", b"expiring", []]
    assert lane.resume() == [b"ok", b"expiring", []]
    assert lane.complete(held)[0] == b"ended"


def test_a_paused_request_whose_producer_is_gone_is_abandoned(lane: Lane):
    lane.start(2, open_ms=HOUR)
    lane.pause()
    lane.later(HOUR + 1)
    word, summary = lane.reap()
    assert (word, summary[0], summary[8]) == (b"ended", b"cancelled", b"abandoned")


def test_a_lease_that_dies_while_paused_waits_for_resume(lane: Lane):
    lane.begin(2, limit=1)
    lane.pause()
    lane.later(30_000)
    assert lane.reap() == [b"ok", 0, []]
    (again,) = toks(lane.resume()[2])
    assert lane.take(again).bodies == [b"b0"]


# ------------------------------------------------------------------ set_limit


def test_a_raised_limit_mints_immediately(lane: Lane):
    lane.start(9, limit=1)
    word, more = lane.set_limit(3)
    assert (word, len(toks(more)), lane.number("limit")) == (b"ok", 2, 3)
    assert all(lane.take(token).ids for token in toks(more))


def test_a_lowered_limit_parks_the_newest_tokens(lane: Lane):
    """The oldest tokens stay, because they are popped next."""
    tokens = lane.start(9, limit=4)
    assert lane.set_limit(2) == [b"ok", []]
    assert [lane.acquire(token).word for token in tokens] == ["ok", "ok", "stale", "stale"]


def test_what_is_held_above_a_lowered_limit_drains(lane: Lane):
    held = [lane.take(token, count=1) for token in lane.start(12, limit=4)]
    assert lane.set_limit(1) == [b"ok", []]
    assert [lane.complete(one)[2] for one in held[:3]] == [[], [], []]
    (token,) = toks(lane.complete(held[3])[2])
    assert (token.k, lane.number("limit")) == ("0", 1)
    assert lane.take(token).ids


def test_a_limit_lowered_and_raised_gives_no_permit_twice(lane: Lane):
    """Permits 2 and 3 are still leased when the limit is raised again: 0 and 1 are free."""
    held = [lane.take(token, count=1) for token in lane.start(20, limit=4)]
    lane.set_limit(2)
    lane.complete(held[0])
    lane.complete(held[1])
    found = toks(lane.set_limit(4)[1])
    assert sorted(token.k for token in found) == ["0", "1"]
    for token in found:
        lane.take(token, count=1)
    assert sorted(lane.client.zrange("lease:{r1}", 0, -1)) == [b"0", b"1", b"2", b"3"]
    assert lane.complete(held[2])[0] == b"ok"


def test_permits_that_left_come_back_when_the_limit_does(lane: Lane):
    """The permits were released above the limit and have no field any more."""
    held = [lane.take(token, count=1) for token in lane.start(20, limit=4)]
    lane.set_limit(1)
    for one in held:
        lane.complete(one)
    found = toks(lane.set_limit(4)[1])
    assert sorted(token.k for token in found) == ["1", "2", "3"]
    assert all(lane.take(token, count=1).ids for token in found)


def test_the_limit_falls_below_a_sleeper(lane: Lane):
    one, two = (lane.take(token) for token in lane.start(2, limit=2))
    (sleeper,) = toks(lane.complete(two, others=[(two.ids[0], "retry", 5_000)])[2])
    assert sleeper.k == "1"
    assert lane.set_limit(1) == [b"ok", []]
    assert lane.acquire(sleeper).word == "stale"
    (again,) = toks(lane.complete(one)[2])
    assert (again.k, again.delay) == ("0", 5_000)


def test_the_limit_of_a_paused_request_counts_after_resume(lane: Lane):
    lane.start(9, limit=3)
    lane.pause()
    assert lane.set_limit(5) == [b"ok", []]
    assert lane.set_limit(2) == [b"ok", []]
    assert len(toks(lane.resume()[2])) == 2


@pytest.mark.rest
def test_the_greatest_limit_up_and_down(lane: Lane):
    lane.start(1000, limit=1, open_ms=HOUR)
    for chunk in range(2, 11):
        lane.append(1000, chunk=chunk)
    tokens = toks(lane.set_limit(10_000)[1])
    assert len(tokens) == 9_999
    held = [lane.take(token) for token in tokens[-3:]]
    assert lane.set_limit(1) == [b"ok", []]
    assert len(toks(lane.set_limit(10_000)[1])) == 9_997
    assert all(lane.complete(one)[0] == b"ok" for one in held)


# ------------------------------------------------------------------ set_priority


def test_another_priority_moves_the_tokens(lane: Lane):
    old = lane.start(9, limit=2)
    word, more = lane.set_priority(0)
    new = toks(more)
    assert (word, [token.lane for token in new]) == (b"ok", [0, 0])
    assert {lane.acquire(token).word for token in old} == {"stale"}
    held = lane.take(new[0])
    assert held.policy[6] == 0
    assert toks(lane.complete(held)[2])[0].lane == 0


def test_a_sleepers_due_is_kept(lane: Lane):
    held = lane.begin(1)
    lane.complete(held, others=[(held.ids[0], "retry", 5_000)])
    lane.later(2_000)
    (token,) = toks(lane.set_priority(9)[1])
    assert (token.lane, token.delay) == (9, 3_000)
    lane.later(3_000)
    assert lane.take(token).attempt == 2


def test_the_summary_has_the_last_priority(lane: Lane):
    lane.start(1)
    lane.set_priority(8)
    assert lane.cancel()[1][7] == 8


# ------------------------------------------------------------------ all of them


@for_each("seed", range(4))
def test_whatever_is_changed_while_it_runs_it_ends(lane: Lane, seed: int):
    """`check` follows every step; at the end everything is counted once."""
    dice = random.Random(seed)
    tokens: list[Tok] = lane.start(15, limit=3)
    held: list[Held] = []
    while lane.hash()["state"] not in {"done", "cancelled"}:
        reply = _something(lane, dice, tokens, held)
        if reply and isinstance(reply[-1], list) and reply[0] == b"ok":
            tokens += toks(reply[-1])
        assert lane.client.zcard("lease:{r1}") == len(held)
    assert [lane.number(name) for name in ("done", "dead", "cancelled")] == [15, 0, 0]


def _something(lane: Lane, dice: random.Random, tokens: list[Tok], held: list[Held]) -> list[Any]:
    what = dice.choice(["acquire"] * 5 + ["complete"] * 4 + ["retry", "limit", "lane", "pause"])
    reply: list[Any] = []
    if what == "acquire" and tokens:
        one = lane.acquire(tokens.pop(dice.randrange(len(tokens))), count=2)
        tokens += one.tokens
        if one.word == "ok":
            held.append(one)
            assert len(held) <= lane.number("limit")
    elif what in {"complete", "retry"} and held:
        one = held.pop(dice.randrange(len(held)))
        failed = one.ids[:1] if what == "retry" and one.attempt < 3 else []
        others = [(entry_id, "retry", dice.choice([0, 1_000])) for entry_id in failed]
        reply = lane.complete(one, one.ids[len(failed) :], others)
    elif what == "limit":
        reply = lane.set_limit(dice.randint(1, 6))
    elif what == "lane":
        reply = lane.set_priority(dice.randint(0, 99))
    elif what == "pause":
        lane.pause()
        lane.later(500)
        reply = lane.resume()
    return reply
