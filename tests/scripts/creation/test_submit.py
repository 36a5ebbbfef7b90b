"""Tests the script submit: it creates requests in one call, on a server that has all keys."""

from __future__ import annotations

from typing import Any

import pytest

from fairlane.errors import FairlaneError, LayoutTooNew, RedisFull
from fairlane.protocol import keys
from fairlane.protocol.steps import SingleServer
from tests.scripts.repair.test_full_and_forgotten import full
from tests.support.run.for_each import for_each
from tests.support.scripts.called import called
from tests.support.scripts.requests import HOUR, Lane, numbered, once, toks, with_policy

ACTIVE, CONF = keys.active("req"), keys.conf("req")
GRACE = 30_000
HOW: dict[str, Any] = {
    "priority": 5,
    "limit": 3,
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
    "extras": "",
}


def submit(lane: Lane, bodies: list[bytes] | int, **given: Any) -> Any:
    """Returns the script's reply for one request; None from a cluster. A number: so many bodies."""
    chunk = numbered(bodies) if isinstance(bodies, int) else bodies
    digest = given.pop("digest", "d1")
    return submit_all(lane, [(lane.id, digest, chunk)], **given)


def submit_all(lane: Lane, requests: list[tuple[str, str, list[bytes]]], **given: Any) -> Any:
    """Returns the script's reply for requests, each an id, a digest and its bodies."""
    contents = list[Any]()
    for _, digest, bodies in requests:
        contents += [digest, len(bodies), *bodies]
    return submit_contents(lane, [one[0] for one in requests], contents, **given)


def submit_contents(lane: Lane, ids: list[str], contents: list[Any], **given: Any) -> Any:
    how: dict[str, Any] = {"now": lane.now, "queue": lane.queue} | HOW | given
    lanes = keys.lanes(lane.queue)
    lane_key = lanes[how["priority"] if how["priority"] in range(100) else 0]
    names = (
        ACTIVE,
        CONF,
        lane_key,
        *keys.turns(lane.queue),
        *[keys.request_hash(one) for one in ids],
    )
    script = lane.scripts["submit"]
    reply = lane.driver.run(
        once(SingleServer(called(script, names, contents=contents, **with_policy(how))))
    )
    if reply is not None and lane.checked:
        assert lane.check() == []
    return reply


def in_three_steps(lane: Lane, bodies: list[bytes] | int, **given: Any) -> None:
    """Does the same in the steps that producers take in a cluster."""
    how = HOW | {"digest": "d1"} | given
    grace = how.pop("grace")
    _, _, intent, _ = lane.call(
        "intend", (ACTIVE, CONF), ids=[lane.id], grace=grace, above=0, named=""
    )
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


@for_each(
    "bodies, given",
    [
        (1, {}),
        (20, {}),
        ([b"x" * 2_000, b"", b"\x00\xff"], {"priority": 0, "limit": 1}),
        (1_000, {"priority": 99, "limit": 900}),
        (3, {"open_ms": HOUR}),
        ([], {"open_ms": HOUR}),
        ([], {}),
        (
            2,
            {
                "deadline_ms": 5_000,
                "time_limit_ms": 7,
                "durable": 1,
                "extras": "by=r0",
                "grace": 9,
            },
        ),
    ],
)
def test_it_leaves_what_the_three_steps_leave(
    one: Lane, bodies: list[bytes] | int, given: dict[str, Any]
):
    """Every key has the same bytes."""
    in_three_steps(one, bodies, **given)
    expected = one.dump()
    forget(one)
    assert one.dump() == {}
    submit(one, bodies, **given)
    assert one.dump() == expected


def test_it_returns_the_birth_of_a_request_that_it_created_and_dispatched(one: Lane):
    """It replies: no bound, no shards, the birth."""
    assert submit(one, 4) == [0, b"", one.now]
    assert one.client.lrange("{req}:5", 0, -1) == [b"r1#2.3", b"r1#1.2", b"r1#0.1"]
    assert one.client.zscore(ACTIVE, "r1") == one.now + GRACE


def test_with_tokens_that_are_due_later_it_returns_what_intend_and_enqueue_return(one: Lane):
    """Its producer dispatches the one that begins."""
    bound, shards, (intent, before, reply) = submit(one, 4, extras="delay=5000")
    assert (bound, shards, intent, before) == (0, b"", one.now + GRACE, b"0")
    assert (reply[0], len(toks(reply[1])), reply[2]) == (b"ok", 1, one.now)
    assert one.client.exists("{req}:5") == 0


def test_as_many_tokens_as_a_limit_allows_are_dispatched(one: Lane):
    """More than one call of Lua may push."""
    submit(one, 1_000, limit=10_000, open_ms=HOUR)
    assert one.client.llen("{req}:5") == 1_000


def test_an_empty_sealed_request_ends_and_its_producer_logs_it(one: Lane):
    word, summary = submit(one, [])[2][2]
    assert (word, summary[0]) == (b"ended", b"done")
    assert one.client.exists("{req}:5") == 0


def test_twice_it_exists_and_its_tokens_are_returned_but_not_dispatched_again(one: Lane):
    """The first reply may be lost, so the second one has the tokens."""
    submit(one, 6)
    first = one.now + GRACE
    bound, shards, (intent, before, reply) = submit(one, 6)
    assert (bound, shards, intent, before) == (0, b"", first + 1, b"%d" % first)
    assert (reply[0], len(toks(reply[5]))) == (b"exists", 3)
    assert one.client.llen("{req}:5") == 3


def test_other_content_is_a_conflict(one: Lane):
    """Nothing of the request is written."""
    submit(one, 6)
    before = {key: what for key, what in one.dump().items() if key != ACTIVE}
    assert submit(one, 2, digest="d2")[2][2][0] == b"conflict"
    assert {key: what for key, what in one.dump().items() if key != ACTIVE} == before


def test_after_the_end_it_still_exists(one: Lane):
    """Nothing runs twice."""
    submit(one, 1, limit=1)
    one.complete(one.take(toks([b"5", b"0.1", 0])[0]))
    assert submit(one, 1, limit=1)[2][2][0] == b"exists"
    assert one.client.llen("{req}:5") == 1


def test_an_intent_that_was_given_up_is_late(one: Lane):
    """The auditor's mark holds; its producer announces it again, and later."""
    one.abandon(one.now + HOUR)
    assert submit(one, 1)[2][2] == [b"late", one.now + HOUR]
    assert one.client.exists("{req}:5") == 0


@for_each("name, value, expected", [("max_waiting", 7, [7, b""]), ("shards", "0,1", [0, b"0,1"])])
def test_with_a_bound_or_shards_it_announces_only(
    one: Lane, name: str, value: Any, expected: list[Any]
):
    """A bound needs room, and shards need a choice: the producer continues from the intent."""
    one.client.hset(CONF, name, value)
    assert submit(one, 3) == [*expected, [one.now + GRACE, b"0", b""]]
    assert set(one.dump()) == {ACTIVE, CONF}


@for_each(
    "given, word",
    [
        ({"priority": 100}, "BADPRIORITY"),
        ({"limit": 0}, "BADLIMIT"),
        ({"grace": "long"}, "BADARGUMENT"),
        ({"open_ms": "long"}, "BADARGUMENT"),
        ({"lease_ms": "long"}, "BADARGUMENT"),
    ],
)
def test_what_is_malformed_is_refused_before_anything_is_written(
    one: Lane, given: dict[str, Any], word: str
):
    """Not even the intent is written."""
    with one.refuses(word):
        submit(one, 1, **given)


@for_each("contents", [["d1"], ["d1", "x"], ["d1", -1], ["d1", 2, "a"], ["d1", 0, "a"]])
def test_a_request_without_exactly_its_bodies_is_refused(one: Lane, contents: list[Any]):
    with one.refuses("BADARGUMENT"):
        submit_contents(one, ["r1"], contents)


@for_each("count", [0, 401])
def test_a_call_takes_1_to_400_requests(one: Lane, count: int):
    with one.refuses("BADARGUMENT"):
        submit_all(one, [(f"r{n}", "d", []) for n in range(count)])


def test_a_chunk_over_a_thousand_is_refused(one: Lane):
    """As enqueue refuses it."""
    with one.refuses("BADCHUNK"):
        submit(one, 1_001)


def test_a_newer_layout_is_left_alone(one: Lane):
    """Its release may have keys that this one lacks."""
    one.client.hset(CONF, "layout", 99)
    with one.unchanged(), pytest.raises(LayoutTooNew):
        submit(one, 1)


def test_a_full_redis_refuses_it_and_nothing_is_written(one: Lane):
    """The intent is its first write."""
    with full(one.client), one.unchanged(), pytest.raises(RedisFull):
        submit(one, 3)


def test_nothing_is_sent_to_a_cluster(lane: Lane):
    lane.driver.check()
    if not lane.driver.is_cluster:
        pytest.skip("one server has all keys here")
    assert submit(lane, 3) is None
    assert lane.dump() == {}


# ------------------------------------------------------------------ several requests

SEVERAL = [("r1", "d1", [b"a"]), ("r2", "d2", [b"b", b"c"]), ("r3", "d3", [])]


def test_several_requests_leave_what_each_alone_leaves(one: Lane):
    for request in SEVERAL:
        submit_all(one, [request], limit=2)
    expected = one.dump()
    forget(one)
    submit_all(one, SEVERAL, limit=2)
    assert one.dump() == expected
    assert one.client.lrange("{req}:5", 0, -1) == [b"r2#1.2", b"r2#0.1", b"r1#0.1"]


def test_several_twice_exist_each_with_its_tokens(one: Lane):
    submit_all(one, SEVERAL)
    replies = [reply for _, _, reply in submit_all(one, SEVERAL)[2:]]
    assert [reply[0] for reply in replies] == [b"exists"] * 3
    assert [len(toks(reply[5])) for reply in replies] == [1, 2, 0]


def test_a_conflict_among_several_leaves_the_others_created(one: Lane):
    submit_all(one, [("r2", "other", [b"x"])])
    born, conflict, ended = submit_all(one, SEVERAL)[2:]
    assert (born, conflict[2][0], ended[2][0]) == (one.now, b"conflict", b"ended")


def test_an_unreadable_request_among_several_is_announced_only(one: Lane):
    """Its producer continues with it alone, and so it gets its own error."""
    one.client.lpush("few:{r2}", "a key of another type")
    one.client.set("req:{r2}", "a key of another type")
    born, announced, ended = submit_all(one, SEVERAL)[2:]
    assert (born, announced[2], ended[2][0]) == (one.now, b"", b"ended")
    assert one.client.zscore(ACTIVE, "r2") == one.now + GRACE
    one.client.delete("few:{r2}", "req:{r2}")


def test_an_unreadable_request_alone_is_its_own_error(one: Lane):
    one.checked = False  # the check could not read the request either
    one.client.set("req:{r1}", "a key of another type")
    with pytest.raises(FairlaneError, match="WRONGTYPE"):
        submit(one, 1)
    one.client.delete("req:{r1}")


def test_more_tokens_than_one_push_may_have_are_dispatched(one: Lane):
    requests = [(f"r{n}", "d", numbered(10)) for n in range(300)]
    submit_all(one, requests, limit=10)
    assert one.client.llen("{req}:5") == 3_000


def test_the_token_of_a_tenant_waits_for_its_turn(lane: Lane):
    if submit(lane, 1, extras="tenant=acme") is None:
        pytest.skip("no server of a cluster has all keys")
    turns, _ = keys.turns(lane.queue)
    assert lane.client.lrange(keys.lanes(lane.queue)[5], 0, -1) == [b"@"]
    assert lane.client.zcard(turns) == 1


def test_a_number_of_bodies_below_zero_is_refused(lane: Lane):
    if submit(lane, 1) is None:
        pytest.skip("no server of a cluster has all keys")
    with pytest.raises(FairlaneError, match="the number of bodies"):
        submit_contents(lane, ["r2", "r3"], ["d1", -1, 1, "a"])
    assert not lane.client.exists(*map(keys.request_hash, ("r2", "r3")))
