"""Tests the script exchange: one call settles leases, dispatches tokens, pops and acquires."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.errors import FairlaneError
from fairlane.protocol import keys
from fairlane.protocol.steps import SingleServer
from tests.scripts.repair.test_full_and_forgotten import full
from tests.support.run.for_each import for_each
from tests.support.scripts.called import called
from tests.support.scripts.requests import (
    HOUR,
    Held,
    Lane,
    Tok,
    agree,
    listening,
    once,
    settlement,
    toks,
)

if TYPE_CHECKING:
    import redis

LANES = keys.lanes("req")
OWN, NEXT = LANES[5], LANES[6]
DISPATCH = (
    *(keys.active("req"), keys.logged("req"), keys.completed("req"), *keys.bound("req")),
    *(keys.taken("req", "w:1"), *keys.turns("req")),
)
MANY_BYTES = 500  # of a body: so few of them are too big to wait without a stream


@dataclass
class Exchanged:
    """What an exchange returned."""

    settled: list[Any]
    left: list[Any]
    unlogged: list[Any]
    tokens: list[bytes]
    held: list[Held]

    @property
    def words(self) -> list[str]:
        return [one.word for one in self.held]


def lease(
    held: Held, others: list[tuple[bytes, str, int]] | None = None, **changed: Any
) -> list[Any]:
    """Returns the arguments of one lease: all is done except what `others` names."""
    others = others or []
    done = [one for one in held.ids if one not in [other[0] for other in others]]
    given = {"id": "r1", "k": held.k, "fence": held.fence, "op": held.op} | changed
    return [*given.values(), len(done), len(others), *settlement(held, done, others)]


def exchange(
    lane: Lane,
    *leases: list[Any],
    op: str = "",
    want: Any = 1,
    lanes: tuple[bytes, ...] = LANES[:10],
    sizes: dict[str, Any] | None = None,
    shared: str = "",
    **changed: Any,
) -> Exchanged:
    sizes = {"r1": 1000} if sizes is None else sizes
    op = op or lane.new_op()
    given: dict[str, Any] = {
        "least": HOUR, "longest": 24 * HOUR, "most": 1000, "place": "x0", "op": op, "ttl": 60_000,
        "worker": "w:1", "started": "7", "want": want, "shared": shared, "measured": len(sizes),
    } | changed  # fmt: skip
    rest = [word for pair in sizes.items() for word in pair] + [
        word for one in leases for word in one
    ]
    script = lane.scripts["exchange"]
    call = called(script, (*DISPATCH, *lanes), now=lane.now, sizes=rest, **given)
    reply = lane.driver.run(once(SingleServer(call)))
    agree(script, reply)
    if lane.checked:
        assert lane.check() == []
    settled, left, unlogged, tokens, acquired = reply
    held = [_held(*pair, op) for pair in zip(tokens, acquired, strict=True)]
    return Exchanged([one[0] if one else b"" for one in settled], left, unlogged, tokens, held)


def _held(token: bytes, reply: Any, op: str) -> Held:
    k, _, g = token.rpartition(b"#")[2].decode().partition(".")
    held = Held(reply[0].decode() if reply else "", k, g, op, "w:1", "7", reply=reply)
    if held.word == "ok":
        held.fence, held.attempt, held.policy = reply[1].decode(), reply[2], reply[3]
        held.entries = [(entry_id, pair[1]) for entry_id, pair in reply[4]]
    return held


def dispatch(lane: Lane, tokens: list[Tok], request_id: str = "r1") -> None:
    """Puts tokens into their lanes; the first one is popped first."""
    for token in tokens:
        lane.client.lpush(LANES[token.lane], f"{request_id}#{token.k}.{token.g}")


def other(lane: Lane, request_id: str = "r2") -> Lane:
    """Returns another request of the same queue, at the same time."""
    return Lane(lane.driver, lane.client, request_id=request_id)


def in_single_steps(lane: Lane, held: Held, others: list[Any], op: str) -> Held | None:
    """Does the same by complete, insert_tokens or retire, a pop, and acquire."""
    done = [one for one in held.ids if one not in [other[0] for other in others]]
    reply = lane.complete(held, done, others, is_unbegun=True)
    if reply[0] == b"ended":
        log = {"least": HOUR, "longest": 24 * HOUR, "most": 1000}
        lane.call("retire", DISPATCH[:5], endings=[lane.id, *reply[1]], **log)
    else:
        words = [f"r1#{one.k}.{one.g}" for one in toks(reply[2]) if not one.delay]
        if words:
            names = (keys.delayed("req"), OWN)
            lane.call("insert_tokens", names, tokens=[5, len(words), 0, *words])
    word = lane.client.rpop(OWN)
    lane.client.hset(DISPATCH[5], "x0", f"{op} {word.decode() if word else ''}")
    lane.client.pexpire(DISPATCH[5], 60_000)
    if not word:
        return None
    k, _, g = word.decode().partition("#")[2].partition(".")
    return lane.acquire(Tok(5, k, g), op=op)


def seen(lane: Lane) -> tuple[Any, ...]:
    """Returns all that is stored; of streams only the contents, because ids contain the time."""
    stream, results, dead, log = lane.names[0], lane.names[6], lane.names[7], DISPATCH[2]
    dumped = {
        key: what for key, what in lane.dump().items() if key not in {stream, results, dead, log}
    }
    waiting = lane.client.xrange(stream) if lane.client.exists(stream) else []
    pending = lane.pending() if waiting else {}
    dead_ones = [{name: what for name, what in one.items() if name != "out"} for one in lane.dead()]
    logged = [fields for _, fields in lane.client.xrange(log)]
    return dumped, waiting, pending, lane.results(), dead_ones, logged


# ------------------------------------------------------------------ the effect


@pytest.mark.parametrize(
    ("bodies", "options", "count", "verdicts"),
    [
        pytest.param(6, {"limit": 1}, 2, [], id="some wait"),
        pytest.param(6, {"limit": 3}, 2, [], id="others hold some"),
        pytest.param(1, {"limit": 1}, 1, [], id="a request of one"),
        pytest.param(3, {"limit": 1}, 1, [], id="a small request"),
        pytest.param([b"x" * MANY_BYTES] * 6, {"limit": 1}, 2, [], id="a large one"),
        pytest.param(8, {"limit": 1}, 3, [("retry", 0)], id="one fails and is due"),
        pytest.param(8, {"limit": 1}, 3, [("dead", 0), ("release", 0)], id="one is dead"),
    ],
)
def test_it_leaves_what_the_single_steps_leave(
    one: Lane, bodies: Any, options: dict[str, Any], count: int, verdicts: list[tuple[str, int]]
):
    """It also grants the same slice, under the same fence."""
    found = []
    for way in ("single steps", "one call"):
        one.client.zadd(DISPATCH[0], {"r1": 1})
        tokens = one.start(bodies, **options)
        held = one.take(tokens[0], count=count, op="a" * 32)
        others = [(held.ids[i], *verdict) for i, verdict in enumerate(verdicts)]
        if way == "single steps":
            following = in_single_steps(one, held, others, "b" * 32)
        else:
            following = next(iter(exchange(one, lease(held, others), op="b" * 32).held), None)
        entries = following.entries if following else None
        found.append((seen(one), entries, following and following.fence))
        for key in one.dump():
            one.client.delete(key)
    assert found[0] == found[1]


def test_leases_of_several_requests_are_settled_and_the_next_ones_acquired(one: Lane):
    """One request ends, the other one queues behind a third one, which waited longer."""
    two, three = other(one), other(one, "r3")
    first = one.begin(1, limit=1)
    second = two.begin(4, limit=1, count=2)
    dispatch(three, three.start(1, limit=1), "r3")
    reply = exchange(one, lease(first), lease(second, id="r2"), want=5)
    assert reply.settled == [b"ended", b"ok"]
    assert [token.partition(b"#")[0] for token in reply.tokens] == [b"r3", b"r2"]
    assert [held.bodies for held in reply.held] == [[b"b0"], [b"b2"]]
    assert (reply.left, reply.unlogged, one.client.exists(OWN)) == ([], [], 0)


def test_the_end_of_a_request_is_published_and_logged_once(one: Lane, redis_client: redis.Redis):
    one.client.zadd(DISPATCH[0], {"r1": 1})
    held = one.begin(2, limit=1)
    with listening(redis_client, "done:{r1}") as published:
        assert exchange(one, lease(held)).settled == [b"ended"]
        assert exchange(one, lease(held)).settled == [b"ended"]
        assert published() == [b"done"]
    (entry,) = one.client.xrange(DISPATCH[2])
    assert (entry[1][b"id"], entry[1][b"done"], entry[1][b"born"]) == (b"r1", b"2", b"%d" % one.now)
    assert one.client.zscore(DISPATCH[0], "r1") is None
    assert one.client.zrange(DISPATCH[1], 0, -1, withscores=True) == [
        (b"r1|%d" % one.now, one.now + 2 * HOUR)
    ]


def test_an_ended_request_counts_no_more_towards_the_bound(one: Lane):
    one.client.hset(DISPATCH[4], "r1", "2:1:0")
    one.client.hset(DISPATCH[3], "waiting", 7)
    exchange(one, lease(one.begin(2, limit=1)))
    assert one.client.hget(DISPATCH[3], "waiting") == b"5"
    assert one.client.exists(DISPATCH[4]) == 0


def test_more_urgent_tokens_come_first_and_no_later_lane_is_touched(one: Lane):
    """Tokens are popped lane by lane, oldest first, up to the last lane in the keys."""
    later, urgent = other(one, "r7"), other(one, "r2")
    dispatch(later, later.start(1, limit=1, priority=7), "r7")
    dispatch(one, one.start(3, limit=2))
    dispatch(urgent, urgent.start(1, limit=1, priority=2), "r2")
    reply = exchange(one, want=9, lanes=LANES[:7])
    assert [token.partition(b".")[0] for token in reply.tokens] == [b"r2#0", b"r1#0", b"r1#1"]
    assert one.client.llen(LANES[7]) == 1


def test_requests_of_one_lane_take_turns(one: Lane):
    """The token of the request that was settled goes behind the other's."""
    two = other(one)
    dispatch(two, two.start(4, limit=1), "r2")
    held, order = one.begin(4, limit=1, count=1), []
    for name in ("r1", "r2", "r1", "r2"):
        reply = exchange(one, lease(held, id=name), sizes={})
        (held,) = reply.held
        order.append(reply.tokens[0].partition(b"#")[0])
    assert order == [b"r2", b"r1", b"r2", b"r1"]


def test_a_slice_has_the_size_of_its_request_and_one_without_a_size(one: Lane):
    """Requests with a size share the time."""
    two, three = other(one), other(one, "r3")
    for lane in (one, two, three):
        dispatch(lane, lane.start(40, limit=1), lane.id)
    reply = exchange(one, want=3, sizes={"r1": 8, "r3": 1})
    assert [len(held.entries) for held in reply.held] == [4, 1, 1]


def test_tokens_that_are_not_due_or_of_another_lane_are_returned(one: Lane):
    """The caller dispatches these."""
    held = one.begin(1, limit=1)
    reply = exchange(one, lease(held, [(held.ids[0], "retry", 700)]))
    name, lane, permit, delay = reply.left
    assert (name, lane, delay) == (b"r1", b"5", 700)
    one.later(700)
    held = one.take(Tok(5, *permit.decode().split(".")))
    one.set_priority(50)
    reply = exchange(one, lease(held, [(held.ids[0], "retry", 0)]))
    assert reply.left[:2] == [b"r1", b"50"]
    assert reply.left[3] == 0


def test_a_due_retry_among_several_leases_stays_the_next_of_its_lane(one: Lane):
    """The retry must be acquired alone, so that the death of its worker is charged."""
    two = other(one)
    held = one.begin(2, limit=1)
    dispatch(two, two.start(1, limit=1), "r2")
    others = [(entry_id, "retry", 0) for entry_id in held.ids]
    reply = exchange(one, lease(held, others), want=5)
    assert reply.words == ["ok", "alone"]
    assert one.client.lrange(OWN, 0, -1) == [reply.tokens[1]]
    (alone,) = exchange(one).held
    assert (alone.ids, alone.attempt) == (held.ids[:1], 2)


def test_a_repeat_has_the_same_replies_though_a_token_must_be_acquired_alone(one: Lane):
    two, op = other(one), one.new_op()
    held = one.begin(2, limit=1)
    dispatch(two, two.start(1, limit=1), "r2")
    settled = lease(held, [(entry_id, "retry", 0) for entry_id in held.ids])
    first = exchange(one, settled, want=5, op=op)
    again = exchange(one, settled, want=5, op=op)
    assert again.words == first.words == ["ok", "alone"]
    assert set(one.client.lrange(OWN, 0, -1)) == {first.tokens[1]}  # a repeat queues it again


@for_each("limit, shared, expected", [(2, "", [b"1", b"1"]), (1, "", [b""]), (1, "1", [b"1"])])
def test_leases_are_shared_if_their_holder_has_several(
    one: Lane, limit: int, shared: str, expected: list[bytes]
):
    """Their number becomes clear only now. A death is charged to the only lease of its holder."""
    dispatch(one, one.start(2, limit=limit))
    exchange(one, want=5, sizes={}, shared=shared)
    assert [text.split(b":")[6] for text in one.client.hvals(one.names[3])] == expected


@for_each("change", ["pause", "cancel", "deadline"])
def test_a_request_that_must_not_go_on_does_not(one: Lane, change: str):
    """What was settled still counts."""
    held = one.begin(5, limit=1, count=2, deadline_ms=1_000 if change == "deadline" else 0)
    if change == "deadline":
        one.later(1_000)
    else:
        getattr(one, change)()
    reply = exchange(one, lease(held))
    assert reply.settled == [b"ended" if change == "cancel" else b"ok"]
    assert (reply.tokens, len(one.results())) == ([], 2)


def test_a_permit_above_a_lowered_limit_leaves(one: Lane):
    helds = [one.take(token, count=1) for token in one.start(9, limit=3)]
    one.set_limit(1)
    replies = [exchange(one, lease(held)) for held in reversed(helds)]
    assert [len(reply.held) for reply in replies] == [0, 0, 1]


def test_a_token_without_work_affects_no_other(one: Lane):
    """Stale tokens, ended requests, and invalid tokens affect no other token."""
    (token,) = one.start(2, limit=1)
    dispatch(one, [token._replace(g="99"), token])
    for name in ("ended", "paused"):
        lane = other(one, name)
        (own,) = lane.start(1, limit=1)
        dispatch(lane, [own], name)
        if name == "ended":
            lane.cancel()
        else:
            lane.pause()
    one.client.lpush(OWN, "never#0.1", "nonsense")
    reply = exchange(one, want=9)
    assert reply.words == ["stale", "ok", "ended", "stale", "gone", "gone"]


def test_a_token_that_is_popped_twice_acquires_once(one: Lane):
    """A repeat pushes a token again; a lease acquired twice in one call would be run twice."""
    (token,) = one.start(3, limit=1)
    dispatch(one, [token, token])
    op = one.new_op()
    for _ in range(2):  # also a repeat of the call
        reply = exchange(one, want=9, op=op)
        assert reply.words == ["ok", "stale"]
        assert len(reply.tokens) == 2


# ------------------------------------------------------------------ repeated, too late, no holder


def test_a_repeat_acquires_the_same_and_pops_nothing(one: Lane):
    """The reply was lost: same tokens, same fences, and nothing counts twice."""
    held, op = one.begin(9, limit=1, count=2), one.new_op()
    first = exchange(one, lease(held), op=op, sizes={"r1": 2})
    two = other(one)
    dispatch(two, two.start(1, limit=1), "r2")
    before = seen(one)
    again = exchange(one, lease(held), op=op, want=5)
    assert again.settled == [b"already"]
    assert again.tokens == first.tokens
    assert [(held.fence, held.entries) for held in again.held] == [
        (held.fence, held.entries) for held in first.held
    ]
    assert seen(one) == before


def test_a_repeat_dispatches_the_tokens_that_are_queued_again(one: Lane):
    """The first call may have been interrupted before it pushed them."""
    held = one.begin(9, limit=1, count=2)
    assert exchange(one, lease(held), want=0, sizes={}).settled == [b"ok"]
    (token,) = one.client.lrange(OWN, 0, -1)
    one.client.delete(OWN)
    assert exchange(one, lease(held), want=0, sizes={}).settled == [b"already"]
    assert one.client.lrange(OWN, 0, -1) == [token]


def test_a_placeholder_becomes_the_token_whose_turn_it_is(one: Lane):
    """One that finds no token is dropped."""
    (token,) = one.start(1, extras="tenant=a")
    whole = f"r1#{token.k}.{token.g}@1:a"
    one.call("add_turns", keys.turns("req"), lane=5, tokens=[whole])
    one.client.lpush(OWN, "@", "@")
    reply = exchange(one, want=2)
    assert reply.tokens == [whole.encode()]
    assert one.client.llen(OWN) == 0


def test_a_repeat_without_leases_returns_what_was_acquired(one: Lane):
    """A supervisor sends this after the death of a process."""
    dispatch(one, one.start(2, limit=1))
    op = one.new_op()
    first = exchange(one, op=op)
    again = exchange(one, op=op, want=0, sizes={})
    assert [held.fence for held in again.held] == [held.fence for held in first.held]


def test_a_call_that_arrives_after_its_repeat_pops_nothing(one: Lane):
    """The supervisor's repeat came first, and returned nothing."""
    dispatch(one, one.start(2, limit=1))
    op = one.new_op()
    assert exchange(one, op=op, want=0).tokens == []
    assert exchange(one, op=op, want=5).tokens == []
    assert one.client.llen(OWN) == 1


def test_a_late_copy_of_an_earlier_call_pops_nothing(one: Lane):
    """Its unit has made other exchanges since, whose ops are greater."""
    dispatch(one, one.start(2, limit=1))
    early, late = one.new_op(), one.new_op()
    exchange(one, op=late, want=0)
    assert exchange(one, op=early, want=5).tokens == []
    assert one.client.hget(DISPATCH[5], "x0") == late.encode() + b" "


def test_ops_of_another_process_are_not_compared(one: Lane):
    """A process that replaced one that died draws other bits, which may be smaller."""
    dispatch(one, one.start(2, limit=1))
    exchange(one, op="f" * 32, want=0)
    assert len(exchange(one, op="1" * 32).held) == 1


def test_a_repeat_after_the_lease_was_taken_back_acquires_nothing(one: Lane):
    """Another worker has its sub-requests by then."""
    dispatch(one, one.start(5, limit=1))
    op = one.new_op()
    exchange(one, op=op)
    one.later(30_000)
    (token,) = toks(one.reap()[2])
    one.take(token, worker="w:2")
    assert exchange(one, op=op).words == ["stale"]


@for_each("wrong", [{"fence": "99"}, {"op": "ff"}, {"k": "1"}, {"k": "x"}])
def test_what_is_not_the_holder_settles_nothing(one: Lane, wrong: dict[str, Any]):
    """k, fence and op must all be the lease's."""
    held = one.begin(5, limit=1, count=2)
    assert exchange(one, lease(held, **wrong)).settled == [b"lost"]
    assert (one.results(), one.number("done")) == ({}, 0)


def test_after_the_end_there_is_nothing_to_settle(one: Lane):
    held = one.begin(2, limit=1)
    exchange(one, lease(held))
    assert exchange(one, lease(held)).settled == [b"ended"]
    one.client.delete(one.names[2])
    one.checked = False
    assert exchange(one, lease(held)).settled == [b"gone"]


# ------------------------------------------------------------------ several units


SEVERAL: dict[str, Any] = {"place": "x3 x1 x7"}


def notes(lane: Lane) -> dict[bytes, list[bytes]]:
    """Returns unit -> the words of its note: the op, and the tokens."""
    return {place: note.split() for place, note in lane.client.hgetall(DISPATCH[5]).items()}


def three_requests(lane: Lane) -> list[bytes]:
    """Makes three requests of one sub-request; returns their tokens in the order of their lane."""
    for request in (lane, other(lane), other(lane, "r3")):
        dispatch(lane, request.start(1, limit=1), request.id)
    return [*reversed(lane.client.lrange(OWN, 0, -1))]


def test_each_of_several_units_takes_one_token_and_has_a_note_of_its_own(one: Lane):
    """A later call of some of them leaves the notes of the others, which still hold theirs."""
    tokens, op, later = three_requests(one), one.new_op(), one.new_op()
    reply = exchange(one, want=3, sizes={}, op=op, **SEVERAL)
    assert reply.tokens == tokens
    expected = {b"x3": tokens[0], b"x1": tokens[1], b"x7": tokens[2]}
    assert notes(one) == {place: [op.encode(), token] for place, token in expected.items()}
    assert one.client.pttl(DISPATCH[5]) > 0
    exchange(one, want=1, op=later, place="x1")
    assert notes(one)[b"x3"] == [op.encode(), tokens[0]]
    assert notes(one)[b"x1"] == [later.encode()]


@for_each("word", ["no token", ""])
def test_a_repeat_for_several_units_gives_each_its_own_token_beside_a_damaged_word(
    one: Lane, word: str
):
    tokens, op = three_requests(one), one.new_op()
    one.client.linsert(OWN, "AFTER", tokens[1], word)
    first = exchange(one, want=3, sizes={}, op=op, **SEVERAL)
    assert first.tokens == [tokens[0], word.encode(), tokens[1]]
    assert exchange(one, want=3, sizes={}, op=op, **SEVERAL).tokens == first.tokens


def test_the_leases_of_several_units_are_not_shared(one: Lane):
    """Each unit has one, so a retry whose death must be charged need not come alone."""
    held = one.begin(1, limit=1)
    dispatch(one, toks(one.complete(held, [], [(held.ids[0], "retry", 0)])[2]))
    two = other(one)
    dispatch(two, two.start(2, limit=2), "r2")
    reply = exchange(one, want=3, sizes={}, **SEVERAL)
    assert reply.words == ["ok"] * 3
    for request in (one, two):
        held_ones = [text for text in request.permits().values() if text.startswith("h:")]
        assert {text.split(":")[6] for text in held_ones} == {""}


def test_the_units_that_get_no_token_have_an_empty_note(one: Lane):
    """So a repeat pops nothing for them, whatever has come meanwhile."""
    tokens, op = three_requests(one), one.new_op()
    one.client.lpop(OWN)
    first = exchange(one, want=3, sizes={}, op=op, **SEVERAL)
    assert first.tokens == tokens[:2]
    dispatch(one, [Tok(5, "4", "9")], "r4")
    again = exchange(one, want=3, sizes={}, op=op, **SEVERAL)
    assert again.tokens == tokens[:2]
    assert [held.fence for held in again.held] == [held.fence for held in first.held]
    assert one.client.llen(OWN) == 1


def test_a_supervisor_asks_for_the_lease_of_one_of_several_units(one: Lane):
    """It sends the op with this unit alone."""
    tokens, op = three_requests(one), one.new_op()
    first = exchange(one, want=3, sizes={}, op=op, **SEVERAL)
    again = exchange(one, want=0, sizes={}, op=op, place="x1")
    assert again.tokens == tokens[1:2]
    assert again.held[0].fence == first.held[1].fence


@for_each("place", ["x3", "x1", "x7"])
def test_a_call_of_several_units_that_comes_too_late_pops_nothing(one: Lane, place: str):
    """The supervisor asked for one of them before, or one of them has made another call since."""
    three_requests(one)
    early, late = one.new_op(), one.new_op()
    for op in (early, late):
        exchange(one, want=0, op=op, place=place)
        assert exchange(one, want=3, sizes={}, op=early, **SEVERAL).tokens == []
    assert one.client.llen(OWN) == 3


def test_several_units_settle_and_those_that_take_nothing_note_nothing(one: Lane):
    """The first ones take a token."""
    held = one.begin(2, limit=1, count=1)
    two, op = other(one), one.new_op()
    dispatch(two, (tokens := two.start(1, limit=1)), "r2")
    reply = exchange(one, lease(held), want=1, sizes={}, op=op, place="x2 x4")
    assert reply.settled == [b"ok"]
    taken = f"r2#{tokens[0].k}.{tokens[0].g}".encode()
    assert notes(one) == {b"x2": [op.encode(), taken], b"x4": [op.encode()]}


# ------------------------------------------------------------------ malformed, damaged, full


@for_each(
    "changed, code",
    [
        ({"want": -1}, "BADARGUMENT"),
        ({"want": 1_001}, "BADARGUMENT"),
        ({"want": 0.5}, "BADARGUMENT"),
        ({"measured": -1}, "BADARGUMENT"),
        ({"measured": 0.5}, "BADARGUMENT"),
        ({"want": "some"}, "BADARGUMENT"),
        ({"place": ""}, "BADARGUMENT"),
        ({"place": "x0 x1", "want": 3}, "BADARGUMENT"),
        ({"place": " ".join(f"x{i}" for i in range(401)), "want": 1}, "BADARGUMENT"),
        ({"least": "x"}, "BADARGUMENT"),
        ({"longest": "x"}, "BADARGUMENT"),
        ({"most": "x"}, "BADARGUMENT"),
        ({"measured": "x"}, "BADARGUMENT"),
        ({"sizes": {"r1": 0}}, "BADCOUNT"),
        ({"sizes": {"r1": 1_001}}, "BADCOUNT"),
    ],
)
def test_malformed_numbers_are_refused_before_anything_is_written(
    one: Lane, changed: dict[str, Any], code: str
):
    held = one.begin(5, limit=1, count=2)
    with one.refuses(code):
        exchange(one, lease(held), **changed)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        pytest.param(["r1"], "BADARGUMENT", id="cut off"),
        pytest.param(["r1", "0", "1", "ff", "x", 0], "BADARGUMENT", id="no count"),
        pytest.param(["r1", "0", "1", "ff", 0, "x"], "BADARGUMENT", id="no count of others"),
        pytest.param(["r1", "0", "1", "ff", 1, 0, "1-0"], "BADARGUMENT", id="too few results"),
        pytest.param(["r1", "0", "1", "ff", -1, 1, "1-0", "dead"], "BADARGUMENT", id="below zero"),
        pytest.param(["r1", "0", "1", "ff", 0.5, 0, "1-0"], "BADARGUMENT", id="a fraction"),
        pytest.param(
            ["r1", "0", "1", "ff", 0, 1, "1-0", "again", 0, "", ""], "BADVERDICT", id="a verdict"
        ),
    ],
)
def test_a_malformed_lease_is_refused_before_any_is_settled(one: Lane, words: Any, code: str):
    held = one.begin(5, limit=1, count=2)
    with one.refuses(code):
        exchange(one, lease(held), words)


def test_a_damaged_request_does_not_affect_the_others(one: Lane):
    """Its lease and its token have an empty reply; the caller repeats these alone."""
    two, one.checked = other(one), False
    held, good = one.begin(4, limit=2, count=1), two.begin(1, limit=1)
    dispatch(one, [held.tokens[0] if held.tokens else Tok(5, "1", "2")])
    one.client.hset(one.names[2], "counts", "damaged")
    reply = exchange(one, lease(held), lease(good, id="r2"), want=3)
    assert reply.settled == [b"", b"ended"]
    assert reply.words == [""]


def test_an_ending_that_the_log_refuses_is_returned(one: Lane):
    """So its caller logs the end itself, and reports the cause."""
    one.client.set(DISPATCH[2], "another program's")
    reply = exchange(one, lease(one.begin(1, limit=1)))
    assert reply.settled == [b"ended"]
    assert (reply.unlogged[0], reply.unlogged[1][0]) == (b"r1", b"done")
    assert one.client.zcard(DISPATCH[1]) == 0


def test_a_damaged_lane_is_an_error_and_what_was_settled_counts_once(one: Lane):
    held = one.begin(2, limit=1)
    one.client.set(OWN, "x")
    with pytest.raises(FairlaneError, match="WRONGTYPE"):
        exchange(one, lease(held))
    assert one.complete(held)[0] == b"ended"
    assert sorted(one.results()) == [0, 1]


def test_a_damaged_later_lane_does_not_lose_what_was_popped(one: Lane):
    """It is reported once the earlier lanes are empty."""
    dispatch(one, one.start(1, limit=1))
    one.client.set(LANES[7], "x")
    reply = exchange(one, want=5)
    assert reply.words == ["ok"]
    with pytest.raises(FairlaneError, match="WRONGTYPE"):
        exchange(one, want=5)


def test_a_lease_that_is_refused_leaves_no_state_for_the_next_acquire(one: Lane):
    """Both leases are of one request, whose stream another program has replaced."""
    helds = [one.take(token, count=1) for token in one.start(6, limit=3)]
    one.checked = False
    one.client.delete(one.names[0])
    one.client.set(one.names[0], "damaged")
    reply = exchange(one, lease(helds[0]), lease(helds[1]), want=5)
    assert reply.settled == [b"", b""]
    assert set(reply.words) <= {""}


def test_it_drains_a_full_redis(one: Lane):
    """Calls that free memory are never refused."""
    held = one.begin(5, limit=1, count=2)
    with full(one.client):
        reply = exchange(one, lease(held))
    assert (reply.settled, len(reply.held)) == ([b"ok"], 1)


def test_old_markers_of_the_log_are_deleted(one: Lane):
    one.client.zadd(DISPATCH[1], {f"old|{i}": 1 for i in range(20)})
    exchange(one, lease(one.begin(1, limit=1)))
    assert one.client.zcard(DISPATCH[1]) == 20 - 12 + 1
