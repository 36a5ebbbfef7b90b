"""Tests the script acquire: a token becomes a permit, a lease and a slice, or comes back."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.run.for_each import for_each
from tests.support.scripts.requests import HOUR, Held, Lane, Tok, toks

MIB = 1 << 20


def take_all(lane: Lane, tokens: list[Tok], **given: Any) -> list[Held]:
    """Acquires with every token, and with the tokens that come back, until none is left."""
    queue, held = list(tokens), []
    while queue:
        answer = lane.acquire(queue.pop(0), **given)
        queue += answer.tokens
        if answer.word == "ok":
            held.append(answer)
    return held


def test_acquire_brings_fence_policy_and_bodies(lane: Lane):
    bodies = [b"0" * 600, b"1" * 600]
    (token,) = lane.start(bodies, limit=1, attempts=4, priority=9)
    lane.later(50)
    held = lane.take(token)
    assert held.bodies == bodies
    assert held.attempt == 1
    assert held.policy == [lane.now, lane.now - 50, 30_000, 4, 1_000, 10_000, 9, 0, 0, 0, b""]
    assert lane.client.zscore(lane.names[4], "0") == lane.now + 30_000
    assert lane.pending() == {"w:1/0": 2}


def test_acquire_brings_the_trace_of_the_submission_each_time(lane: Lane):
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01 vendor=a,b=c"
    (token,) = lane.start(1, extras=f"trace={trace}")
    held = lane.take(token)
    traced: Any = held.policy[10]
    assert traced == trace.encode()
    traced = lane.acquire(token, op=held.op).policy[10]
    assert traced == trace.encode()


@pytest.mark.parametrize("size", [3, 900], ids=["few", "stream"])
def test_acquire_returns_how_many_have_not_been_delivered(lane: Lane, size: int):
    (token,) = lane.start([b"a" * size, b"b" * size, b"c" * size], limit=1)
    first = lane.take(token, count=2)
    assert (len(first.bodies), first.policy[9]) == (2, 1)
    assert lane.acquire(token, op=first.op, count=2).policy[9] == 1
    (again,) = toks(lane.complete(first)[-1])
    rest = lane.take(again, count=2)
    assert (len(rest.bodies), rest.policy[9]) == (1, 0)


@for_each("bodies, limit", [(1, 1), (7, 1), (7, 3), (3, 7), (40, 8)])
def test_the_limit_is_never_exceeded(lane: Lane, bodies: int, limit: int):
    """At most `limit` permits are leased, however many tokens are used, also twice and old ones."""
    tokens = lane.start(bodies, limit=limit)
    held = take_all(lane, tokens * 2, count=1)
    assert len(held) == min(bodies, limit)
    assert lane.client.zcard(lane.names[4]) == min(bodies, limit)


def test_a_permit_above_the_limit_is_refused_busy(lane: Lane):
    """If more permits are queued than may run, the guard at acquire still holds."""
    tokens = lane.start(6, limit=3)
    for token in tokens[:2]:
        lane.take(token, count=1)
    lane.change("limit", 2)  # as when a limit is lowered under a queued token
    lane.checked = False
    refused = lane.acquire(tokens[2])
    assert (refused.word, refused.tokens) == ("busy", [])
    assert lane.client.zcard(lane.names[4]) == 2


def test_fences_grow(lane: Lane):
    tokens = lane.start(12, limit=2)
    fences = []
    while tokens:
        held = lane.take(tokens.pop(0), count=1)
        fences.append(int(held.fence))
        reply = lane.complete(held)
        if reply[0] == b"ok":
            tokens += held.tokens + [Tok(5, *p.decode().split(".")) for p in reply[2][1::3]]
    assert len(fences) == 12
    assert fences == sorted(set(fences))


def test_a_fence_is_higher_than_those_a_failover_took_back(lane: Lane):
    """The new primary may lack the last leases: no later lease may have one of their numbers."""
    (token,) = lane.start(4, limit=1)
    kept = {key: lane.client.dump(key) for key in lane.names if lane.client.exists(key)}
    lost = [lane.take(token, count=1)]
    for _ in range(2):
        (following,) = toks(lane.complete(lost[-1])[2])
        lost.append(lane.take(following, count=1))
    lane.client.delete(*lane.names)
    for key, value in kept.items():
        lane.client.restore(key, 0, value)
    lane.later(1)
    assert int(lane.take(token, count=1).fence) > max(int(held.fence) for held in lost)


def test_fences_grow_whatever_the_clock_does(lane: Lane):
    """If the clock goes back by an hour, the next number is higher, but not by much."""
    first = lane.begin(3, limit=1, count=1)
    lane.later(-HOUR)
    (token,) = toks(lane.complete(first)[2])
    second = lane.take(token, count=1)
    assert 0 < int(second.fence) - int(first.fence) < 10


@for_each(
    "bodies, limit, share",
    [(10, 3, 4), (9, 3, 3), (1, 3, 1), (1000, 1, 1000), (11, 10, 2), (10, 10, 1)],
)
def test_a_slice_is_the_permits_share_of_what_is_ready(
    lane: Lane, bodies: int, limit: int, share: int
):
    """A slice has ceil(ready / limit) sub-requests, so that the permits share the rest."""
    tokens = lane.start(bodies, limit=limit)
    assert len(lane.take(tokens[0]).entries) == share


@pytest.mark.parametrize(("size", "most"), [(200_000, 21), (MIB, 4)])
def test_the_bytes_of_a_slice_are_bounded(lane: Lane, size: int, most: int):
    """One call returns about 4 MiB (in reads of 1 MiB), however many fit the count."""
    each = MIB // size or 1
    (token,) = lane.start([b"x" * size] * each, limit=1, open_ms=HOUR)
    chunks = 40 // each
    for chunk in range(2, chunks + 1):
        lane.append([b"x" * size] * each, chunk=chunk)
    held = lane.take(token)
    got = sum(map(len, held.bodies))
    assert 1 < len(held.entries) <= most + max(1, MIB // size)
    assert got <= 5 * MIB


def test_a_single_large_body_does_not_shrink_a_slice_to_nothing(lane: Lane):
    (token,) = lane.start([b"x" * MIB] + [b"small"] * 99, limit=1)
    assert len(lane.take(token).entries) == 100


def test_acquire_twice_with_one_op_gives_the_same_answer(lane: Lane):
    """If the reply was lost, the repeat returns the same fence and bodies, and leases nothing."""
    tokens = lane.start(6)
    first = lane.take(tokens[0], op="ab")
    lane.later(100)
    again = lane.take(tokens[0], op="ab")
    assert (again.fence, again.attempt, again.entries) == (
        first.fence,
        first.attempt,
        first.entries,
    )
    assert lane.client.zrange(lane.names[4], 0, -1, withscores=True) == [(b"0", lane.now + 30_000)]
    assert [(tok.k, tok.g) for tok in again.tokens] == [(tok.k, tok.g) for tok in tokens[1:]]


def test_acquire_twice_after_a_part_was_settled_brings_the_rest(lane: Lane):
    (token,) = lane.start(4, limit=1)
    held = lane.take(token, op="ab")
    lane.complete(held, held.ids[:3], keep=True)
    assert lane.take(token, op="ab").bodies == [b"b3"]


def test_acquire_twice_of_a_retry_reports_its_attempt(lane: Lane):
    held = lane.begin(1)
    reply = lane.complete(held, others=[(held.ids[0], "retry", 0)])
    (retry,) = (Tok(5, *p.decode().split(".")) for p in reply[2][1::3])
    assert lane.take(retry, op="cd").attempt == 2
    assert lane.take(retry, op="cd").attempt == 2


def test_a_token_is_valid_for_one_op_only(lane: Lane):
    tokens = lane.start(6)
    lane.take(tokens[0])
    with lane.unchanged():
        assert lane.acquire(tokens[0]).word == "stale"


@for_each("token", [Tok(5, "99", "1"), Tok(5, "x", "1"), Tok(5, "0", ""), Tok(5, "", "")])
def test_a_token_that_was_never_made_is_stale(lane: Lane, token: Tok):
    lane.start(6)
    with lane.unchanged():
        assert lane.acquire(token).word == "stale"


def test_only_the_first_permit_waits_without_a_field(lane: Lane):
    """A token of another permit with the first g was never made."""
    (token,) = lane.start(1, limit=2)
    with lane.unchanged():
        assert lane.acquire(token._replace(k="1")).word == "stale"


def sleeper_of(lane: Lane, delay: int = 5_000) -> Tok:
    """Returns the token of a request whose only sub-request waits for a retry."""
    held = lane.begin(1)
    flat = lane.complete(held, others=[(held.ids[0], "retry", delay)])[2]
    return toks(flat)[0]


def test_a_refusal_parks_the_permit_and_mints(lane: Lane):
    """A token used too early is refused `empty` and replaced by another one: none is lost."""
    sleeper = sleeper_of(lane)
    lane.later(2_000)
    refused = lane.acquire(sleeper)
    assert refused.word == "empty"
    assert [(token.k, token.delay) for token in refused.tokens] == [("0", 3_000)]
    assert refused.tokens[0].g != sleeper.g
    assert lane.acquire(sleeper).word == "stale"
    lane.later(3_000)
    assert lane.take(refused.tokens[0]).attempt == 2
