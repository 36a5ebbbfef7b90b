"""Tests retries, releases and deaths: each attempt is charged to the right sub-request."""

from __future__ import annotations

import pytest

from tests.support.scripts.requests import HOUR, Held, Lane, Tok, toks


def fail(lane: Lane, held: Held, delay: int, verdict: str = "retry") -> list[Tok]:
    """Gives the same verdict on all of a slice; returns the tokens."""
    reply = lane.complete(held, others=[(entry_id, verdict, delay) for entry_id in held.ids])
    return toks(reply[2]) if reply[0] == b"ok" else []


def test_a_retry_waits_in_retry_and_a_sleeper_is_minted_with_its_delay(lane: Lane):
    held = lane.begin(1)
    (sleeper,) = fail(lane, held, 5_000)
    assert (sleeper.lane, sleeper.delay) == (5, 5_000)
    assert lane.client.zrange(lane.names[5], 0, -1, withscores=True) == [
        (held.ids[0], lane.now + 5_000)
    ]
    assert lane.pending()["-"] == 1


def test_no_sleeper_is_minted_while_other_work_is_ready(lane: Lane):
    """The token that is awake will find the retry when it is due."""
    (token,) = lane.start(2, limit=1)
    held = lane.take(token, count=1)
    tokens = fail(lane, held, 5_000)
    assert [token.delay for token in tokens] == [0]
    assert lane.hash()["sleeper"] == ""


def test_an_earlier_retry_moves_the_sleeper(lane: Lane):
    first, second = lane.start(2, limit=2)
    one, two = lane.take(first), lane.take(second)
    (sleeper,) = fail(lane, one, 9_000)
    (moved,) = fail(lane, two, 4_000)
    assert (sleeper.delay, moved.delay, moved.k) == (9_000, 4_000, sleeper.k)
    lane.later(4_000)
    assert lane.acquire(sleeper).word == "stale"
    assert lane.take(moved).ids == two.ids


def test_a_later_retry_leaves_the_sleeper_where_it_is(lane: Lane):
    first, second = lane.start(2, limit=2)
    one, two = lane.take(first), lane.take(second)
    (sleeper,) = fail(lane, one, 4_000)
    assert fail(lane, two, 9_000) == []
    lane.later(4_000)
    taken = lane.take(sleeper)
    assert taken.ids == one.ids
    assert [token.delay for token in taken.tokens] == [5_000]


def test_fresh_work_wakes_the_sleeper(lane: Lane):
    (token,) = lane.start(1, limit=1, open_ms=HOUR)
    (sleeper,) = fail(lane, lane.take(token), 5_000)
    (awake,) = toks(lane.append([b"new"], chunk=2)[1])
    assert (awake.k, awake.delay) == (sleeper.k, 0)
    assert lane.acquire(sleeper).word == "stale"
    assert lane.take(awake).bodies == [b"new"]


def test_a_due_retry_is_delivered_alone_with_attempt_2(lane: Lane):
    """Fresh work is ready, too, but a death must be charged to the retried one alone."""
    held = lane.begin(9, limit=1, count=1)
    (token,) = fail(lane, held, 1_000)
    lane.later(1_000)
    again = lane.take(token, count=1000)
    assert (again.ids, again.attempt, again.bodies) == (held.ids, 2, [b"b0"])
    assert lane.client.zcard(lane.names[5]) == 0


def test_the_earliest_of_several_due_retries_comes_first(lane: Lane):
    held = lane.begin(3, limit=1)
    delays = [3_000, 1_000, 2_000]
    others = [(i, "retry", delay) for i, delay in zip(held.ids, delays, strict=True)]
    (token,) = toks(lane.complete(held, others=others)[2])
    lane.later(3_000)
    seen = []
    for _ in held.ids:
        taken = lane.take(token)
        seen += taken.bodies
        reply = lane.complete(taken)
        token = toks(reply[2])[0] if reply[0] == b"ok" else token
    assert seen == [b"b1", b"b2", b"b0"]


def test_a_retry_on_the_last_attempt_is_dead(lane: Lane):
    (token,) = lane.start([b"poison"], attempts=3)
    for attempt in (1, 2):
        held = lane.take(token)
        assert held.attempt == attempt
        (token,) = fail(lane, held, 0)
    held = lane.take(token)
    assert held.attempt == 3
    reply = lane.complete(held, others=[(held.ids[0], "retry", 0)])
    assert reply[0] == b"ended"
    assert reply[1][2:6] == [1, 0, 1, 0]
    (dead,) = lane.dead()
    assert (dead["reason"], dead["error"], dead["body"]) == ("attempts", "why retry", "poison")
    assert (dead["head"], dead["worker"]) == ("0:x:3:0:0", "w:1")
    assert lane.results() == {0: ("x", 3, b"why retry")}


def test_a_repeated_verdict_counts_once(lane: Lane):
    held = lane.begin(3, limit=1)
    others = [(held.ids[0], "dead", 0), (held.ids[1], "retry", 1_000)]
    assert lane.complete(held, others=others, keep=True)[:2] == [b"ok", 2]
    lane.later(10)
    before, noted = lane.client.zscore(lane.names[5], held.ids[1]), lane.hash()["failure"]
    assert lane.complete(held, others=others, keep=True)[:2] == [b"ok", 2]
    assert lane.client.zscore(lane.names[5], held.ids[1]) == before
    assert (lane.number("failures"), lane.hash()["failure"]) == (2, noted)
    assert (lane.number("dead"), len(lane.dead())) == (1, 1)


@pytest.mark.parametrize("times", [1, 5])
def test_a_release_charges_no_attempt(lane: Lane, times: int):
    (token,) = lane.start(1, attempts=2)
    for _ in range(times):
        held = lane.take(token)
        assert held.attempt == 1
        (token,) = fail(lane, held, 0, "release")
    assert lane.take(token).attempt == 1


def test_a_release_of_a_retry_keeps_its_attempt(lane: Lane):
    (token,) = lane.start(1)
    (token,) = fail(lane, lane.take(token), 0)
    held = lane.take(token)
    (token,) = fail(lane, held, 0, "release")
    assert (held.attempt, lane.take(token).attempt) == (2, 2)


def test_a_release_with_a_delay_waits_that_long_uncharged(lane: Lane):
    held = lane.begin(1, attempts=1)
    (sleeper,) = fail(lane, held, 5_000, "release")
    assert (sleeper.lane, sleeper.delay) == (5, 5_000)
    due = lane.client.zrange(lane.names[5], 0, -1, withscores=True)
    assert due == [(held.ids[0], lane.now + 5_000)]
    lane.later(5_000)
    assert lane.take(sleeper).attempt == 1


def test_other_verdicts_on_foreign_entries_are_skipped(lane: Lane):
    tokens = lane.start(6)
    mine, other = lane.take(tokens[0]), lane.take(tokens[1])
    others = [(other.ids[0], "dead", 0), (other.ids[1], "release", 0), (b"1-99", "retry", 0)]
    assert lane.complete(mine, others=others, keep=True)[:2] == [b"ok", 6]
    assert lane.pending() == {"w:1/0": 2, "w:1/1": 2}
    assert not {"failures", "failure"} & set(lane.hash())


@pytest.mark.parametrize(("verdict", "reason"), [("dead", b"rejected"), ("killed", b"killed")])
def test_what_is_given_up_at_its_first_attempt_is_dead_with_its_reason(
    verdict: str, reason: bytes, lane: Lane
):
    """No pause of its request follows from it."""
    held = lane.begin(1, attempts=5)
    fail(lane, held, 9_000_000, verdict)
    ((_, dead),) = lane.client.xrange(lane.names[7])
    assert dead[b"reason"] == reason
    assert lane.hash()["state"] == "done"
