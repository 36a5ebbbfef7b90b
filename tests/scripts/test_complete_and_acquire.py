"""complete_and_acquire: one call settles a lease and takes the permit's next slice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane.errors import FairlaneError
from fairlane.protocol import keys
from fairlane.protocol.steps import SingleServer
from tests.scripts.test_full_and_forgotten import full
from tests.support.requests import HOUR, Held, Lane, Tok, listening, once, settlement, toks

if TYPE_CHECKING:
    import redis

OWN, ABOVE, BELOW = b"{req}:5", b"{req}:4", b"{req}:6"
OTHER = b"r2#0.1"
MANY_BYTES = 500  # of a body: so few of them are too big to wait without a stream


def go_on(
    lane: Lane,
    held: Held,
    named: list[bytes] | None = None,
    others: list[tuple[bytes, str, int]] | None = None,
    *,
    from_lane: bytes = OWN,
    next_op: str = "",
    count: int = 1000,
    **changed: Any,
) -> tuple[list[Any], Held | None]:
    """What it says of the slice, and what it went on with; all is done, or what is named."""
    done = held.ids if named is None else named
    op = next_op or lane.new_op()
    given: dict[str, Any] = {
        "now": lane.now,
        "k": held.k,
        "fence": held.fence,
        "op": held.op,
        "done": len(done),
        "id": lane.id,
        "lane": keys.number_of(from_lane),
        "next_op": op,
        "worker": held.worker,
        "started": held.started,
        "count": count,
        "verdicts": settlement(held, done, others or []),
    } | changed
    names = lane.names + keys.from_lane_up(from_lane)
    call = lane.scripts.complete_and_acquire(names, **given)
    completed, *more = lane.driver.run(once(SingleServer(call)))
    if lane.checked:
        assert lane.check() == []
    return completed, _held(held, op, more[0]) if more else None


def _held(before: Held, op: str, reply: list[Any]) -> Held:
    held = Held(reply[0].decode(), before.k, "", op, before.worker, before.started, reply=reply)
    if held.word == "ok":
        held.fence, held.attempt, held.policy = reply[1].decode(), reply[2], reply[3]
        held.entries = [(entry_id, pair[1]) for entry_id, pair in reply[4]]
        held.tokens = toks(reply[5])
    return held


def in_four_steps(
    lane: Lane, held: Held, others: list[tuple[bytes, str, int]], op: str, count: int
) -> Held:
    """The same as workers do it in a cluster: complete, insert_tokens, pop, acquire."""
    done = [one for one in held.ids if one not in [other[0] for other in others]]
    (own, *_) = toks(lane.complete(held, done, others, is_unbegun=True)[2])
    return lane.take(own, op=op, count=count, worker=held.worker)


def others_lane(lane: Lane, key: bytes, *tokens: bytes) -> list[bytes]:
    """Tokens that wait in a lane, the first of them for the longest time; as they stand there."""
    lane.client.lpush(key, *tokens)
    found: list[bytes] = lane.client.lrange(key, 0, -1)
    return found


def queued(lane: Lane) -> dict[bytes, bytes]:
    """The permits that are queued, as they are written down."""
    found = lane.client.hgetall(lane.names[3])
    return {k: text for k, text in found.items() if text.startswith(b"q:")}


def seen(lane: Lane) -> tuple[Any, ...]:
    """All there is: but of streams, which note when Redis did something, what they say."""
    stream, results, dead = lane.names[0], lane.names[6], lane.names[7]
    streams = {stream, results, dead}
    dumped = {key: what for key, what in lane.dump().items() if key not in streams}
    waiting = lane.client.xrange(stream) if lane.client.exists(stream) else []
    pending = lane.pending() if waiting else {}
    dead_ones = [{name: what for name, what in one.items() if name != "out"} for one in lane.dead()]
    return dumped, waiting, pending, lane.results(), dead_ones


# ------------------------------------------------------------------ it goes on


@pytest.mark.parametrize(
    ("bodies", "options", "count", "verdicts"),
    [
        (6, {"limit": 1}, 2, []),
        (6, {"limit": 3}, 2, []),
        (3, {"limit": 1}, 1, []),
        ([b"x" * MANY_BYTES] * 6, {"limit": 1}, 2, []),
        (8, {"limit": 1}, 3, [("retry", 5_000)]),
        (8, {"limit": 1}, 3, [("retry", 0)]),
        (8, {"limit": 1}, 3, [("dead", 0), ("release", 0)]),
        (8, {"limit": 1}, 3, [("timeout", 0), ("retry", 9_000)]),
    ],
    ids=[
        *("all of it", "others hold some", "a small request", "a large one", "one fails"),
        *("one fails and is due", "one is dead", "a timeout"),
    ],
)
def test_it_leaves_what_the_four_steps_leave(
    one: Lane, bodies: Any, options: dict[str, Any], count: int, verdicts: list[tuple[str, int]]
):
    """And grants the same slice, under the same fence."""
    found = []
    for way in ("four steps", "one call"):
        tokens = one.start(bodies, **options)
        held = one.take(tokens[0], count=count, op="a" * 32)
        others = [(held.ids[i], *verdict) for i, verdict in enumerate(verdicts)]
        if way == "four steps":
            following = in_four_steps(one, held, others, "b" * 32, count)
        else:
            done = held.ids[len(others) :]
            _, gone_on = go_on(one, held, done, others, next_op="b" * 32, count=count)
            assert gone_on is not None
            following = gone_on
        found.append((seen(one), following.reply))
        for key in one.dump():
            one.client.delete(key)
    assert found[0] == found[1]


def test_its_token_is_not_dispatched_but_used(one: Lane):
    """What was settled is counted, and the next slice is held under a new lease."""
    (token,) = one.start(5, limit=1)
    held = one.take(token, count=2)
    completed, following = go_on(one, held, count=2)
    assert completed == [b"ok", 3, []]
    assert following is not None
    assert following.bodies == [b"b2", b"b3"]
    assert int(following.fence) > int(held.fence)
    assert one.client.exists(OWN) == 0
    assert (one.number("done"), one.client.zcard(one.names[4])) == (2, 1)


def test_it_goes_on_to_the_end_and_publishes_it_once(one: Lane, redis_client: redis.Redis):
    """With one publish, and all results."""
    (token,) = one.start(5, limit=1)
    held: Held | None = one.take(token, count=2)
    with listening(redis_client, "done:{r1}") as published:
        while held is not None:
            completed, held = go_on(one, held, count=2)
        assert published() == [b"done"]
    assert (completed[0], completed[1][:3]) == (b"ended", [b"done", one.now, 5])
    assert sorted(one.results()) == [0, 1, 2, 3, 4]


def test_it_does_not_wait_for_less_urgent_ones(one: Lane):
    """Lanes behind its own are not looked at."""
    (token,) = one.start(5, limit=1)
    before = others_lane(one, BELOW, OTHER)
    _, following = go_on(one, one.take(token, count=2))
    assert following is not None
    assert one.client.lrange(BELOW, 0, -1) == before


def test_a_token_of_its_own_request_takes_its_place_in_the_lane(one: Lane):
    """Tokens of one request are interchangeable, so the next one goes on in place of this one."""
    tokens = one.start(9, limit=3)
    waiting = [b"r1#%b.%b" % (t.k.encode(), t.g.encode()) for t in tokens[1:]]
    others_lane(one, OWN, waiting[0], OTHER, waiting[1])
    _, following = go_on(one, one.take(tokens[0], count=2))
    assert following is not None
    assert one.client.lrange(OWN, 0, -1) == [waiting[0], waiting[1], OTHER]


def test_a_token_that_changed_places_was_queued_just_now(one: Lane):
    """Else the auditor would look for it, however often it goes round."""
    tokens = one.start(9, limit=3)
    others_lane(one, OWN, *[b"r1#%b.%b" % (t.k.encode(), t.g.encode()) for t in tokens[1:]])
    held = one.take(tokens[0], count=2)
    one.later(7_000)
    go_on(one, held)
    since = {k: int(text.split(b":")[2]) for k, text in queued(one).items()}
    assert since == {b"1": one.now, b"2": one.now - 7_000}


def test_a_retry_that_is_due_comes_alone_and_with_its_attempt(one: Lane):
    """As whenever a token is shown."""
    (token,) = one.start(5, limit=1)
    held = one.take(token, count=2)
    _, following = go_on(one, held, [held.ids[1]], [(held.ids[0], "retry", 0)])
    assert following is not None
    assert (following.ids, following.attempt) == ([held.ids[0]], 2)


def test_tokens_for_other_permits_are_returned(one: Lane):
    """Two retries are due, and another worker may have one."""
    tokens = one.start(6, limit=3)
    held = one.take(tokens[0], count=2)
    for token in tokens[1:]:
        one.complete(one.take(token, count=1000))
    others = [(entry_id, "retry", 0) for entry_id in held.ids]
    completed, following = go_on(one, held, [], others)
    assert following is not None
    assert (following.ids, following.tokens) == (held.ids[:1], [])
    assert [(t.lane, t.delay) for t in toks(completed[2])] == [(5, 0)]


def test_thousands_of_retries_that_are_due_together_have_their_tokens(one: Lane):
    """More than Lua can take apart in one go."""
    (token,) = one.start(1_000, limit=1, open_ms=HOUR)
    for chunk, count in enumerate((1_000, 1_000, 4), 2):
        one.append(count, chunk=chunk)
    for _ in range(3):
        held = one.take(token)
        completed = one.complete(held, [], [(entry_id, "retry", 5_000) for entry_id in held.ids])
        token, *_ = toks(completed[2])
    held = one.take(token, count=1)
    awake = toks(one.set_limit(5_000)[-1])
    one.later(5_000)
    completed, following = go_on(one, held)
    assert following is not None
    assert (len(awake), len(toks(completed[2]))) == (3, 3_000 - 1)


# ------------------------------------------------------------------ it does not


@pytest.mark.parametrize(
    ("key", "token"),
    [
        (OWN, OTHER),
        (ABOVE, OTHER),
        (b"{req}:0", OTHER),
        (OWN, b"r11#0.1"),
        (OWN, b"r1#2.1"),
        (OWN, b"r1#nonsense"),
        (OWN, b""),
    ],
    ids=[
        *("another request's", "a more urgent one", "the most urgent one", "a longer id"),
        *("a copy of a former one", "no token of ours", "nothing"),
    ],
)
def test_where_it_is_the_turn_of_another_the_token_is_returned(one: Lane, key: bytes, token: bytes):
    """The lane is as it was, and the permit is queued."""
    (own,) = one.start(5, limit=1)
    held = one.take(own, count=2)
    before = others_lane(one, key, token)
    completed, following = go_on(one, held)
    assert (completed[0], following) == (b"ok", None)
    (minted,) = toks(completed[2])
    assert (minted.lane, minted.k, minted.delay) == (5, held.k, 0)
    assert one.client.lrange(key, 0, -1) == before
    assert one.take(minted).bodies == [b"b2", b"b3", b"b4"]


@pytest.mark.parametrize("other", [b"r2", b"R1", b"r1#"])
def test_anothers_token_is_not_taken_for_one_of_its_own(one: Lane, other: bytes):
    """Though a permit of the same number and generation is queued."""
    tokens = one.start(9, limit=3)
    before = others_lane(
        one, OWN, b"%b#%b.%b" % (other, tokens[1].k.encode(), tokens[1].g.encode())
    )
    _, following = go_on(one, one.take(tokens[0], count=2))
    assert following is None
    assert one.client.lrange(OWN, 0, -1) == before


def test_nothing_is_left_to_begin(one: Lane):
    """Others hold the rest."""
    tokens = one.start(2, limit=2)
    helds = [one.take(token) for token in tokens]
    assert go_on(one, helds[0]) == ([b"ok", 1, []], None)


def test_a_retry_that_is_not_due_sleeps(one: Lane):
    """Its token is completed with a delay."""
    (token,) = one.start(1, limit=1)
    held = one.take(token)
    completed, following = go_on(one, held, [], [(held.ids[0], "retry", 700)])
    assert following is None
    assert [t.delay for t in toks(completed[2])] == [700]


@pytest.mark.parametrize("age", ["used", "older"])
def test_a_copy_of_its_own_token_is_not_taken_for_a_live_one(one: Lane, age: str):
    """The permit is held under it, or queued under a later one: it would be stale when shown."""
    tokens = one.start(9, limit=3)
    held, other = one.take(tokens[0], count=2), tokens[1]
    if age == "used":
        one.take(other, count=1)
    g = int(other.g) - (age == "older")
    before = others_lane(one, OWN, b"r1#%b.%d" % (other.k.encode(), g))
    _, following = go_on(one, held)
    assert following is None
    assert one.client.lrange(OWN, 0, -1) == before


def test_a_request_of_the_most_urgent_priority_goes_on(one: Lane):
    """No lane is more urgent than its own."""
    (token,) = one.start(5, limit=1, priority=0)
    _, following = go_on(one, one.take(token, count=2), from_lane=b"{req}:0")
    assert following is not None


def test_a_sleeper_that_wakes_is_returned(one: Lane):
    """Its token goes round instead of this permit's, which is parked."""
    tokens = one.start(2, limit=2)
    first, second = (one.take(token) for token in tokens)
    one.complete(first, [], [(first.ids[0], "retry", 5_000)])
    completed, following = go_on(one, second, [], [(second.ids[0], "release", 0)])
    assert following is None
    (woken,) = toks(completed[2])
    assert (woken.k, woken.delay) == (first.k, 0)
    assert one.take(woken).ids == second.ids


@pytest.mark.parametrize("change", ["pause", "cancel", "deadline"])
def test_a_request_that_must_not_go_on_does_not(one: Lane, change: str):
    """What was settled counts all the same."""
    (token,) = one.start(5, limit=1, deadline_ms=1_000 if change == "deadline" else 0)
    held = one.take(token, count=2)
    if change == "deadline":
        one.later(1_000)
    else:
        getattr(one, change)()
    completed, following = go_on(one, held)
    assert following is None
    assert completed[0] == (b"ended" if change == "cancel" else b"ok")
    assert len(one.results()) == 2


def test_a_permit_above_a_lowered_limit_leaves(one: Lane):
    """The others are enough."""
    tokens = one.start(9, limit=3)
    helds = [one.take(token, count=1) for token in tokens]
    one.set_limit(1)
    assert go_on(one, helds[2]) == ([b"ok", 8, []], None)
    assert go_on(one, helds[1]) == ([b"ok", 7, []], None)
    completed, following = go_on(one, helds[0])
    assert (completed, following is None) == ([b"ok", 6, []], False)


def test_a_request_in_another_lane_now_waits_there(one: Lane):
    """Its priority was changed while the slice was worked on."""
    (token,) = one.start(5, limit=1)
    held = one.take(token, count=2)
    one.set_priority(9)
    completed, following = go_on(one, held)
    assert following is None
    assert [t.lane for t in toks(completed[2])] == [9]


# ------------------------------------------------------------------ twice, too late, not the owner


def test_a_repeat_is_granted_the_same_again_and_counts_nothing_twice(one: Lane):
    """The reply was lost: same fence, same sub-requests, and the lease begins anew."""
    (token,) = one.start(7, limit=1)
    held = one.take(token, count=2)
    op = one.new_op()
    _, following = go_on(one, held, next_op=op, count=2)
    before = seen(one)
    completed, again = go_on(one, held, next_op=op, count=2)
    assert completed == [b"already", []]
    assert following is not None
    assert again is not None
    assert (again.fence, again.entries) == (following.fence, following.entries)
    assert seen(one) == before
    assert go_on(one, again)[0] == [b"ok", 3, []]


def test_acquire_with_its_op_returns_what_was_granted(one: Lane):
    """A process died with the answer on its way, and its supervisor asks for it with acquire."""
    (token,) = one.start(7, limit=1)
    held = one.take(token, count=2)
    op = one.new_op()
    _, following = go_on(one, held, next_op=op, count=2)
    assert following is not None
    found = one.take(Tok(5, held.k, "0"), op=op)
    assert (found.fence, found.entries) == (following.fence, following.entries)


def test_a_repeat_that_did_not_go_on_says_already(one: Lane):
    """As complete does, with the tokens; it takes nothing, though its turn has come now."""
    (token,) = one.start(5, limit=1)
    held = one.take(token, count=2)
    others_lane(one, OWN, OTHER)
    op = one.new_op()
    completed, _ = go_on(one, held, next_op=op)
    one.client.delete(OWN)
    assert go_on(one, held, next_op=op) == ([b"already", completed[2]], None)


def test_a_repeat_after_the_new_lease_was_taken_back_takes_nothing(one: Lane):
    """Another worker has its sub-requests by then."""
    (token,) = one.start(5, limit=1)
    held = one.take(token, count=2)
    op = one.new_op()
    go_on(one, held, next_op=op)
    one.later(30_000)
    (token,) = toks(one.reap()[2])
    one.take(token, worker="w:2")
    before = seen(one)
    completed, following = go_on(one, held, next_op=op)
    assert (completed[0], following) == (b"already", None)
    assert seen(one) == before


@pytest.mark.parametrize("wrong", [{"fence": "99"}, {"op": "ff"}, {"k": "1"}, {"k": "x"}], ids=str)
def test_who_is_not_the_holder_gets_nothing(one: Lane, wrong: dict[str, Any]):
    """k, fence and op must all be the lease's."""
    held = one.take(one.start(5, limit=1)[0], count=2)
    with one.unchanged():
        assert go_on(one, held, **wrong) == ([b"lost"], None)


def test_who_was_taken_back_gets_nothing(one: Lane):
    """A zombie neither settles nor goes on."""
    held = one.take(one.start(5, limit=1)[0], count=2)
    one.later(30_000)
    one.reap()
    with one.unchanged():
        assert go_on(one, held) == ([b"lost"], None)


def test_after_the_end_it_says_how_that_was(one: Lane):
    """The tombstone's summary; without a tombstone it is gone."""
    held = one.take(one.start(2, limit=1)[0])
    completed, _ = go_on(one, held)
    assert go_on(one, held) == (completed, None)
    one.client.delete(one.names[2])
    assert go_on(one, held) == ([b"gone"], None)


# ------------------------------------------------------------------ malformed, full


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"done": 2, "verdicts": []}, "BADVERDICT"),
        ({"done": "x", "verdicts": []}, "BADVERDICT"),
        ({"done": 0, "verdicts": ["1-0", "again", 0, "", ""]}, "BADVERDICT"),
        ({"count": 0}, "BADCOUNT"),
        ({"count": 1_001}, "BADCOUNT"),
        ({"count": "some"}, "BADCOUNT"),
    ],
)
def test_what_is_malformed_is_refused_before_anything_is_written(
    one: Lane, changed: dict[str, Any], code: str
):
    """Neither half is done."""
    held = one.take(one.start(5, limit=1)[0], count=2)
    with one.refuses(code):
        go_on(one, held, **changed)


def test_a_damaged_lane_is_reported_before_anything_is_written(one: Lane):
    """Another program keeps something else under its name."""
    held = one.take(one.start(5, limit=1)[0], count=2)
    one.client.set(OWN, "x")
    with one.unchanged(), pytest.raises(FairlaneError, match="WRONGTYPE"):
        go_on(one, held)


def test_it_drains_a_full_redis(one: Lane):
    """What frees memory is never refused."""
    held = one.take(one.start(5, limit=1)[0], count=2)
    with full(one.client):
        completed, following = go_on(one, held)
    assert (completed[:2], following is None) == ([b"ok", 3], False)
