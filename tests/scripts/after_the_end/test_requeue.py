"""Tests the script requeue_dead: dead sub-requests wait again, each counted once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.scripts.requests import HOUR, MINUTE, Lane, toks

if TYPE_CHECKING:
    from tests.support.scripts.requests import Held, Tok

MIB = 1 << 20


def bury(lane: Lane, *indexes: int, of: int = 9, limit: int = 1) -> Tok:
    """Makes a request with these sub-requests dead, the rest released; returns its one token."""
    (token,) = lane.start(of, limit=limit)[:1]
    held = lane.take(token)
    names = [entry_id for entry_id in held.ids if int(entry_id.split(b"-")[1]) in indexes]
    (token,) = toks(lane.complete(held, others=[(name, "dead", 0) for name in names])[2])
    return token


def finish(lane: Lane, token: Tok | None) -> list[Held]:
    """Works the request off, one permit at a time."""
    seen = []
    while token is not None:
        held = lane.take(token)
        seen.append(held)
        reply = lane.complete(held)
        found = toks(reply[2]) if reply[0] == b"ok" else []
        token = found[0] if found else None
    return seen


def test_a_requeued_sub_request_runs_again_as_if_new(lane: Lane):
    token = bury(lane, 1, 4, of=6)
    assert sorted(lane.results()) == [1, 4]
    assert lane.requeue() == [b"ok", 2, 2, []]
    assert (lane.number("dead"), lane.dead(), lane.results()) == (0, [], {})
    seen = finish(lane, token)
    again = [held for held in seen if set(held.bodies) & {b"b1", b"b4"}]
    assert [held.attempt for held in again] == [1]
    assert again[0].bodies == [b"b1", b"b4"]
    assert [entry_id.split(b"-")[1] for entry_id in again[0].ids] == [b"1", b"4"]
    assert lane.hash()["state"] == "done"
    assert [lane.number(name) for name in ("total", "done", "dead")] == [6, 6, 0]
    assert {index: found[0] for index, found in lane.results().items()} == dict.fromkeys(
        range(6), "d"
    )


def test_it_may_die_again_and_be_requeued_again(lane: Lane):
    (token,) = lane.start(1, open_ms=HOUR)
    for _ in range(3):
        held = lane.take(token)
        assert (held.bodies, held.attempt) == ([b"b0"], 1)
        assert lane.complete(held, others=[(held.ids[0], "dead", 0)])[0] == b"ok"
        assert (lane.number("dead"), len(lane.dead()), len(lane.results())) == (1, 1, 1)
        (token,) = toks(lane.requeue()[3])
    lane.seal()
    finish(lane, token)
    assert [lane.number(name) for name in ("done", "dead")] == [1, 0]


def test_a_repeat_of_a_call_returns_what_the_first_one_did(lane: Lane):
    """The op identifies the call, also after another call and after the end. Nothing is written."""
    held = lane.begin(2, limit=1, open_ms=HOUR)
    lane.complete(held, others=[(name, "dead", 0) for name in held.ids])
    first, second = lane.dead_ids()
    reply = lane.requeue([first], op="aa")
    assert reply[:3] == [b"ok", 1, 1]
    assert lane.requeue([second], op="bb")[:3] == [b"ok", 1, 1]
    with lane.unchanged():
        assert lane.requeue([first], op="aa") == reply
        assert lane.requeue([first], op="cc")[:3] == [b"ok", 1, 0]
    lane.seal()
    finish(lane, toks(reply[3])[0])
    assert lane.hash()["state"] == "done"
    with lane.unchanged():
        assert lane.requeue([first], op="aa")[:3] == [b"over", 1, 1]
        assert lane.requeue([first], op="cc")[0] == b"ended"


def test_the_last_calls_are_remembered(lane: Lane):
    held = lane.begin(8, limit=1, open_ms=HOUR)
    lane.complete(held, others=[(name, "dead", 0) for name in held.ids])
    ids = lane.dead_ids()
    for number, dead_id in enumerate(ids):
        lane.requeue([dead_id], op=f"{number:032x}")
    again = [lane.requeue([dead_id], op=f"{n:032x}")[2] for n, dead_id in enumerate(ids)]
    assert again == [0, 0, 0, 1, 1, 1, 1, 1]


def test_a_dead_one_that_is_named_twice_is_requeued_once(lane: Lane):
    token = bury(lane, 1, 4, of=6)
    (first, _) = (name.decode() if isinstance(name, bytes) else name for name in lane.dead_ids())
    assert lane.requeue([first, first, "0" + first])[:3] == [b"ok", 3, 1]
    assert (lane.number("dead"), len(lane.dead())) == (1, 1)
    finish(lane, token)
    assert [lane.number(name) for name in ("done", "dead")] == [5, 1]


def test_ids_grow_whatever_the_clock_does(lane: Lane):
    """A requeue runs between chunks, with a clock that stops or goes back."""
    held = lane.begin(3, limit=1, open_ms=HOUR)
    lane.complete(held, others=[(held.ids[0], "dead", 0), (held.ids[2], "dead", 0)])
    lane.later(-5_000)
    assert lane.requeue()[2] == 2
    assert lane.append(2, chunk=2)[0] == b"ok"
    assert lane.append(2, chunk=3)[0] == b"ok"
    entries = [entry_id.decode() for entry_id, _ in lane.client.xrange("sub:{r1}")]
    assert [int(one.split("-")[1]) for one in entries] == [1, 0, 2, 3, 4, 5, 6]


def test_only_what_is_named_is_requeued(lane: Lane):
    bury(lane, 0, 2, 5, of=6)
    ids = lane.dead_ids()
    assert lane.requeue([ids[2], ids[0]])[:3] == [b"ok", 2, 2]
    assert [one["head"].split(":")[0] for one in lane.dead()] == ["2"]
    assert sorted(lane.results()) == [2]


def test_a_call_moves_about_four_mebibytes(lane: Lane):
    """The reply counts how many were read; the caller continues behind them."""
    bodies = [b"x" * MIB] * 3
    (token,) = lane.start(bodies, limit=1, open_ms=HOUR)
    for chunk in (2, 3):
        lane.append(bodies, chunk=chunk)
    held = lane.take(token)
    others = [(entry_id, "dead", 0) for entry_id in held.ids]
    held = lane.take(toks(lane.complete(held, others=others)[2])[0])
    lane.complete(held, others=[(entry_id, "dead", 0) for entry_id in held.ids], keep=True)
    ids = lane.dead_ids()
    assert len(ids) == 8
    assert lane.requeue(ids)[:3] == [b"ok", 4, 4]
    assert lane.requeue(ids[4:])[:3] == [b"ok", 4, 4]
    assert len(lane.list_dead()) == 0


def test_requeue_while_paused_waits_for_resume(lane: Lane):
    one, two = (lane.take(token) for token in lane.start(2, limit=2))
    lane.complete(one, others=[(one.ids[0], "dead", 0)])
    lane.pause()
    assert lane.requeue()[1:] == [1, 1, []]
    (token,) = toks(lane.resume()[2])
    assert lane.take(token).bodies == [b"b0"]
    assert two.ids


def test_what_is_on_its_way_to_its_end_takes_nothing_back(lane: Lane):
    """A cancelled request would count it as cancelled; after the deadline it would die again."""
    token = bury(lane, 0, of=4)
    lane.take(token)
    lane.cancel()
    with lane.unchanged():
        assert lane.requeue() == [b"ending"]


def test_nothing_is_requeued_after_the_deadline(lane: Lane):
    held = lane.begin(4, limit=1, deadline_ms=MINUTE)
    (token,) = toks(lane.complete(held, others=[(held.ids[0], "dead", 0)])[2])
    lane.take(token)
    lane.later(MINUTE)
    assert lane.requeue() == [b"ending"]
    lane.checked = False
    assert lane.reap()[0] == b"ended"


def test_a_dead_entry_remembers_its_result(lane: Lane):
    held = lane.begin(3, limit=1, attempts=1, deadline_ms=MINUTE, count=2)
    (token,) = toks(lane.complete(held, others=[(held.ids[0], "dead", 0)])[2])
    lane.take(token)
    lane.later(MINUTE)
    lane.reap()
    assert len(lane.dead()) == 3
    out = {
        entry_id.decode(): fields for entry_id, fields in lane.raw("XRANGE", "out:{r1}", "-", "+")
    }
    assert [out[one["out"]][2].decode() for one in lane.dead()] == [
        one["head"] for one in lane.dead()
    ]


# ------------------------------------------------------------------ list_dead


def test_the_dead_are_listed_with_the_beginning_of_their_bodies(lane: Lane):
    bury(lane, 0, 2, 3, of=9, limit=1)
    first = lane.list_dead(count=2)
    rest = lane.list_dead(after=first[-1][0], count=2)
    assert [row[1:] for row in [*first, *rest]] == [
        [b"%d:x:1:0:0" % i, b"rejected", b"why dead", b"w:1", 2, b"b%d" % i] for i in (0, 2, 3)
    ]
    assert lane.list_dead(after=rest[-1][0]) == []


def test_a_page_looks_at_about_four_mebibytes(lane: Lane):
    held = lane.begin([b"x" * MIB] * 6, limit=1)
    lane.complete(held, others=[(entry_id, "dead", 0) for entry_id in held.ids], keep=True)
    assert [row[5] for row in lane.list_dead()] == [MIB] * 4
