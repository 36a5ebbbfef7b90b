"""Tests requeue_dead after the end: it opens the request again, and each opening ends once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane.errors import RedisFull
from fairlane.operations.after import NEVER_MS
from fairlane.protocol import keys
from tests.scripts.repair.test_full_and_forgotten import full
from tests.support.run.for_each import for_each
from tests.support.scripts.requests import HOUR, MINUTE, Lane, toks

if TYPE_CHECKING:
    from tests.support.scripts.requests import Tok

KEPT = ("request", "results", "dead", "errors")


def ended(lane: Lane, count: int = 4, **given: Any) -> list[bytes]:
    """Makes a request that ended with all of its sub-requests dead; returns their ids."""
    held = lane.begin(count, limit=1, **given)
    reply = lane.complete(held, others=[(name, "dead", 0) for name in held.ids])
    while reply[0] == b"ok":
        held = lane.take(toks(reply[2])[0])
        reply = lane.complete(held, others=[(name, "dead", 0) for name in held.ids])
    assert lane.hash()["state"] == "done"
    return lane.dead_ids()


def work_off(lane: Lane, tokens: list[Tok]) -> list[Any]:
    """Works a request off that has one permit; returns the reply of its end."""
    reply: list[Any] = [b"ok", 0, []]
    while tokens:
        reply = lane.complete(lane.take(tokens[0]))
        tokens = toks(reply[2]) if reply[0] == b"ok" else []
    assert reply[0] == b"ended"
    return list(reply[1])


def counts(lane: Lane) -> dict[str, int]:
    names = ("total", "done", "dead", "cancelled")
    return {name: lane.number(name) if name in lane.hash() else 0 for name in names}


# ------------------------------------------------------------------ open again


def test_an_ended_request_is_opened_and_ends_once_more(lane: Lane):
    ids = ended(lane)
    before = lane.hash()
    last = lane.client.xrevrange("out:{r1}", count=1)[0][0].decode()
    lane.later(MINUTE)
    reply = lane.reopen(ids[1:3])
    assert reply[:3] == [b"ok", 2, 2]
    assert lane.check() == []
    now = lane.hash()
    assert (now["state"], now["reopened"], now["since"]) == ("active", "1", last)
    assert "ended" not in now
    assert {name: now[name] for name in ("born", "queue", "digest")} == {
        name: before[name] for name in ("born", "queue", "digest")
    }
    assert counts(lane) == {"total": 4, "done": 0, "dead": 2, "cancelled": 0}
    held = lane.take(toks(reply[3])[0])
    assert (held.bodies, held.attempt) == ([b"b1", b"b2"], 1)
    assert int(held.fence) > int(before["seq"])
    word, summary = lane.complete(held)
    assert (word, summary[2:6], summary[-1]) == (b"ended", [4, 2, 2, 0], f"1:{last}".encode())
    assert lane.check() == []
    assert {index: found[0] for index, found in lane.results().items()} == {
        0: "x", 1: "d", 2: "d", 3: "x",
    }  # fmt: skip


def test_what_would_have_expired_stays_until_the_next_end(lane: Lane):
    """Without that a running request vanishes with the retention of its first end."""
    ended(lane)
    names = [name for name in lane.names if lane.client.exists(name)]
    assert all(lane.client.pttl(name) > 0 for name in names)
    reply = lane.reopen(lane.dead_ids()[:1])
    assert [lane.client.pttl(name) for name in names] == [-1] * len(names)
    work_off(lane, toks(reply[3]))
    assert all(lane.client.pttl(name) > 0 for name in names)


def test_it_may_be_opened_again_and_again(lane: Lane):
    ids = ended(lane)
    for number, one in enumerate(ids, 1):
        summary = work_off(lane, toks(lane.reopen([one])[3]))
        assert summary[-1].startswith(b"%d:" % number)
    assert counts(lane) == {"total": 4, "done": 4, "dead": 0, "cancelled": 0}
    assert [row.split(":")[0] for row in lane.hash()["repairs"].split()] == ["4", "3", "2", "1"]


def test_an_index_has_one_result(lane: Lane):
    ids = ended(lane)
    work_off(lane, toks(lane.reopen(ids)[3]))
    heads = [fields[2] for _, fields in lane.raw("XRANGE", "out:{r1}", "-", "+")]
    assert sorted(head.split(b":")[0] for head in heads) == sorted(
        {head.split(b":")[0] for head in heads}
    )


def test_tokens_and_leases_of_the_former_opening_are_stale(lane: Lane):
    (token,) = lane.start(1, limit=1)
    held = lane.take(token)
    lane.complete(held, others=[(held.ids[0], "dead", 0)])
    reply = lane.reopen()
    with lane.unchanged():
        assert lane.complete(held) == [b"lost"]
        assert lane.acquire(token).word == "stale"
    work_off(lane, toks(reply[3]))


# ------------------------------------------------------------------ refused


@for_each("ending", ["", "7", "born|1"])
def test_another_end_than_the_logged_one_is_not_opened(lane: Lane, ending: str):
    """Two requeue the same: the second has logged an end that the first one took back since."""
    ids = ended(lane)
    wrong = ending.replace("born", lane.hash()["born"])
    with lane.unchanged():
        assert lane.reopen(ids, ending=wrong)[0] == b"ended"


def test_an_intent_that_the_auditor_gave_up_opens_nothing(lane: Lane):
    ids = ended(lane)
    lane.abandon(lane.now)
    with lane.unchanged():
        assert lane.reopen(ids, intent=lane.now) == [b"late", lane.now]
    assert lane.reopen(ids, intent=lane.now + 1)[0] == b"ok"


def test_without_anything_to_run_it_stays_ended(lane: Lane):
    ids = ended(lane)
    lane.call("drop_dead", lane.names, ids=ids)
    with lane.unchanged():
        assert lane.reopen(ids) == [b"ok", 4, 0, []]


def test_a_request_whose_results_have_expired_stays_ended(lane: Lane):
    """Its next end would count results that are gone."""
    ids = ended(lane)
    lane.client.delete("out:{r1}")
    with lane.unchanged():
        assert lane.reopen(ids) == [b"expired"]


def test_an_abandoned_request_stays_ended(lane: Lane):
    """Its id may be submitted again, as a request that is whole."""
    held = lane.begin(3, limit=1, open_ms=1, count=1)
    lane.complete(held, others=[(held.ids[0], "dead", 0)])
    lane.later(HOUR)
    assert lane.reap()[0] == b"ended"
    with lane.unchanged():
        assert lane.reopen() == [b"abandoned"]


def test_a_full_redis_opens_nothing(lane: Lane):
    ids = ended(lane)
    with lane.unchanged(), full(lane.client), pytest.raises(RedisFull):
        lane.reopen(ids)


# ------------------------------------------------------------------ settings


@for_each("way", ["has passed", "lies ahead"])
def test_a_deadline_that_has_passed_counts_no_more(lane: Lane, way: str):
    ids = ended(lane, deadline_ms=HOUR)
    lane.later(2 * HOUR if way == "has passed" else MINUTE)
    due = lane.number("deadline")
    reply = lane.reopen(ids)
    assert lane.number("deadline") == (0 if way == "has passed" else due)
    work_off(lane, toks(reply[3]))


def test_one_that_waited_for_others_until_its_deadline_waits_no_more(lane: Lane):
    lane.start(2, limit=1, extras="after=done:r0|7|req", deadline_ms=MINUTE)
    assert lane.number("opens") == NEVER_MS
    lane.later(HOUR)
    lane.reap()
    assert lane.hash()["reason"] == "deadline"
    reply = lane.reopen()
    assert lane.number("opens") == 0
    assert "reason" not in lane.hash()
    assert work_off(lane, toks(reply[3]))[8] == b""


def test_one_with_ageing_has_not_waited_since_its_end(lane: Lane):
    """Otherwise its first token would go to the first lane."""
    ids = ended(lane, extras=f"ageing={MINUTE}")
    lane.later(HOUR)
    reply = lane.reopen(ids)
    assert lane.number("aged") == lane.now
    assert lane.request("hasten") == [b"early"]
    work_off(lane, toks(reply[3]))


def test_its_tokens_go_to_the_shards_of_today(lane: Lane):
    ids = ended(lane)
    reply = lane.reopen(ids, shards="2")
    assert lane.hash()["shards"] == "2"
    assert reply[3][0] == b"%d" % (200 + lane.number("priority"))


def test_who_repairs_is_noted_with_how_many(lane: Lane):
    ids = ended(lane)
    tokens = toks(lane.reopen(ids[:1], by="ann", more="1", holder="aa")[3])
    assert lane.requeue(ids[1:3], by="ann", holder="aa")[:3] == [b"ok", 2, 2]
    assert lane.hash()["repairs"].split() == [f"1:{lane.now}:3:ann"]
    work_off(lane, tokens)


# ------------------------------------------------------------------ cancelled


def cancelled(lane: Lane) -> list[bytes]:
    """Makes a request with one dead, one done and two cancelled."""
    held = lane.begin(4, limit=1, count=2)
    lane.complete(held, done=held.ids[:1], others=[(held.ids[1], "dead", 0)])
    lane.cancel("enough")
    assert counts(lane) == {"total": 4, "done": 1, "dead": 1, "cancelled": 2}
    return lane.dead_ids()


def test_what_was_cancelled_stays_cancelled(lane: Lane):
    """Its bodies are gone. So the request ends as cancelled again, for the same reason."""
    cancelled(lane)
    reply = lane.reopen()
    assert lane.check() == []
    assert counts(lane) == {"total": 4, "done": 1, "dead": 0, "cancelled": 2}
    summary = work_off(lane, toks(reply[3]))
    assert (summary[0], summary[2:6], summary[8]) == (b"cancelled", [4, 2, 0, 2], b"enough")
    assert lane.check() == []


def test_what_is_cancelled_while_it_is_open_again_adds_up(lane: Lane):
    cancelled(lane)
    lane.reopen()
    assert lane.cancel("again")[0] == b"ended"
    assert counts(lane) == {"total": 4, "done": 1, "dead": 0, "cancelled": 3}
    assert lane.check() == []


# ------------------------------------------------------------------ held


def test_a_requeue_of_several_calls_keeps_the_request_from_ending(lane: Lane):
    """Otherwise one repair may have several ends."""
    ids = ended(lane)
    tokens = toks(lane.reopen(ids[:2], more="1", holder="aa")[3])
    reply = lane.complete(lane.take(tokens[0]))
    assert reply[:2] == [b"ok", 0]
    assert lane.check() == []
    tokens = toks(lane.requeue(ids[2:], holder="aa")[3])
    assert lane.check() == []
    assert work_off(lane, tokens)[-1].startswith(b"1:")


def test_the_last_call_may_be_the_end(lane: Lane):
    ids = ended(lane)
    tokens = toks(lane.reopen(ids[:2], more="1", holder="aa")[3])
    lane.call("drop_dead", lane.names, ids=ids[2:])
    lane.complete(lane.take(tokens[0]))
    op = lane.new_op()
    reply = lane.requeue(ids[2:], holder="aa", op=op)
    assert (reply[:3], reply[3][0]) == ([b"over", 2, 0], b"done")
    with lane.unchanged():
        assert lane.requeue(ids[2:], holder="aa", op=op) == reply


def test_a_call_that_stops_early_holds_too(lane: Lane):
    tokens = lane.start([b"x" * (1 << 20)] * 6, limit=1)
    while tokens:
        held = lane.take(tokens[0])
        reply = lane.complete(held, others=[(name, "dead", 0) for name in held.ids])
        tokens = toks(reply[2]) if reply[0] == b"ok" else []
    ids = lane.dead_ids()
    reply = lane.reopen(ids, holder="aa")
    assert reply[:3] == [b"ok", 4, 4]
    assert lane.number("hold") == lane.now + MINUTE
    assert lane.requeue(ids[4:], holder="aa")[:3] == [b"ok", 2, 2]
    assert not lane.hash()["hold"]
    assert lane.check() == []


def test_only_the_requeue_that_holds_lets_it_end(lane: Lane):
    ids = ended(lane)
    lane.reopen(ids[:1], more="1", holder="aa")
    for given in ({"holder": "bb"}, {"holder": "bb", "more": "1"}):
        lane.requeue(ids[1:2], **given)
        assert (lane.hash()["holder"], lane.check()) == ("aa", [])
    lane.requeue(ids[2:], holder="aa")
    assert not lane.hash()["hold"]


def test_a_requeue_that_died_holds_for_a_minute_and_nothing_is_cancelled(lane: Lane):
    ids = ended(lane)
    tokens = toks(lane.reopen(ids[:2], more="1", holder="aa")[3])
    lane.complete(lane.take(tokens[0]))
    word, look, *_ = lane.request("glance", queue="req", grace="")
    assert (word, look) == (b"ok", MINUTE + 1)
    lane.later(MINUTE)
    assert lane.reap()[0] == b"ok"
    lane.later(1)
    word, summary = lane.reap()
    assert (word, summary[0], summary[2:6]) == (b"ended", b"done", [4, 2, 2, 0])
    assert lane.check() == []


def test_a_running_request_is_held_too(lane: Lane):
    held = lane.begin(3, limit=1, count=2)
    (token,) = toks(lane.complete(held, others=[(name, "dead", 0) for name in held.ids])[2])
    first, second = lane.dead_ids()
    lane.requeue([first], more="1", holder="aa")
    assert "reopened" not in lane.hash() or lane.hash()["reopened"] == "0"
    for _ in range(2):
        reply = lane.complete(lane.take(token))
        assert reply[0] == b"ok"
        (token,) = toks(reply[2]) or (token,)
        if reply[1] == 0:
            break
    tokens = toks(lane.requeue([second], holder="aa")[3])
    assert work_off(lane, tokens)[-1] == b""


@for_each("way", ["cancelled", "past its deadline"])
def test_a_held_request_ends_if_nothing_of_it_may_run(lane: Lane, way: str):
    ids = ended(lane, deadline_ms=HOUR)
    lane.reopen(ids[:2], more="1", holder="aa")
    if way == "cancelled":
        assert lane.cancel()[0] == b"ended"
    else:
        lane.later(HOUR)
        lane.checked = False
        assert lane.reap()[0] == b"ended"
    assert lane.check() == []
    assert lane.requeue(ids[2:], holder="aa")[0] == b"ended"


# ------------------------------------------------------------------ repeats


def test_a_repeat_changes_nothing(lane: Lane):
    ids = ended(lane)
    ending = lane.hash()["born"]
    reply = lane.reopen(ids[:2], op="aa")
    with lane.unchanged():
        assert lane.requeue(ids[:2], op="aa", ending=ending, intent=lane.now) == reply
    summary = work_off(lane, toks(reply[3]))
    with lane.unchanged():
        again = lane.requeue(ids[:2], op="aa", ending=ending, intent=lane.now)
    assert again == [b"over", 2, 2, summary]


def test_a_late_copy_of_a_former_opening_changes_nothing(lane: Lane):
    ids = ended(lane)
    ending = lane.hash()["born"]
    for one in ids[:2]:
        work_off(lane, toks(lane.reopen([one])[3]))
    with lane.unchanged():
        assert lane.requeue(ids[2:], ending=ending, intent=lane.now)[0] == b"ended"


def test_only_keys_of_the_request_are_left_behind_the_next_end(lane: Lane):
    ids = ended(lane)
    work_off(lane, toks(lane.reopen(ids)[3]))
    left = {name for name in lane.names if lane.client.exists(name)}
    own = keys.request_keys(lane.id)
    assert left <= {own[2], own[6], own[7], own[9]}
