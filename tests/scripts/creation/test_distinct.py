"""Tests enqueue, append, seal and discard of a request that takes each id once."""

from __future__ import annotations

from typing import Any

import pytest

from tests.scripts.creation.test_submit import submit, submit_contents
from tests.support.run.for_each import for_each
from tests.support.scripts.distinct import EXTRAS, Distinct, with_ids
from tests.support.scripts.requests import HOUR, Lane, numbered, toks, waiting_bodies

DAY = 86_400_000
SHORT = [b"a", b"x" * 15]


@pytest.fixture
def made(lane: Lane) -> Distinct:
    """Returns the calls of a producer."""
    return Distinct(lane)


def bodies(made: Distinct) -> list[bytes]:
    return waiting_bodies(made.lane.client, made.lane.id)


# ------------------------------------------------------------------ enqueue


def test_a_repeat_in_the_first_chunk_is_left_out_and_counted(made: Distinct):
    word, tokens, born, left_out = made.enqueue([b"a", b"b", b"a", b"c", b"b"])
    assert (word, born, left_out) == (b"ok", made.lane.now, 2)
    assert len(toks(tokens)) == 3
    assert bodies(made) == [b"a", b"b", b"c"]
    assert made.lane.hash()["left_out"] == "2"
    assert made.lane.number("total") == 3


def test_the_ids_of_an_open_request_are_kept_for_a_time(made: Distinct):
    made.enqueue([b"a", b"b", b"a"])
    assert made.known() == 2
    assert HOUR < made.lane.client.pttl(made.ids) <= DAY


@pytest.mark.parametrize("count", [3, 20], ids=["few", "in a stream"])
def test_a_request_of_one_chunk_keeps_no_ids(made: Distinct, count: int):
    """Nothing can be added to the request."""
    assert made.enqueue([*numbered(count), b"b0"], open_ms=0)[3] == 1
    assert made.lane.number("total") == count
    assert made.lane.client.exists(made.ids) == 0


def test_an_empty_request_leaves_nothing_out(made: Distinct):
    assert made.enqueue([], open_ms=0)[0] == b"ended"
    assert made.lane.hash()["left_out"] == "0"


def test_a_repeat_of_the_creation_returns_how_many_were_left_out(made: Distinct):
    made.enqueue([b"a", b"a"])
    made.append([b"a", b"b"])
    with made.lane.unchanged():
        *_, left_out = made.enqueue([b"a", b"a"])
    assert left_out == 2


def test_the_ids_of_another_life_do_not_count(made: Distinct):
    """The set of ids may outlive its request."""
    made.lane.client.sadd(made.ids, with_ids([b"a"])[-1])
    made.enqueue([])
    assert made.append([b"a"])[2] == 0
    assert bodies(made) == [b"a"]


def test_a_request_without_the_option_takes_every_body(lane: Lane):
    reply = lane.enqueue([b"a", b"a"])
    assert len(reply) == 3
    assert lane.number("total") == 2
    assert "left_out" not in lane.hash()


@pytest.mark.parametrize("texts", [[b"a"], SHORT, [b"a", b""], [b"", b"", b"x" * 16]], ids=str)
def test_malformed_ids_are_refused(made: Distinct, texts: list[bytes]):
    with made.lane.refuses("BADARGUMENT"):
        made.enqueue([], texts=texts)
    made.enqueue([b"z"])
    with made.lane.refuses("BADARGUMENT"):
        made.append([], texts=texts)


def test_one_call_takes_a_thousand_bodies(made: Distinct):
    assert made.enqueue(1_000)[3] == 0
    assert made.append(1_000)[2] == 1_000
    with made.lane.refuses("BADCHUNK"):
        made.append(1_001, chunk=3)
    with made.lane.refuses("BADCHUNK"):
        Distinct(Lane(made.lane.driver, made.lane.client, request_id="r2")).enqueue(1_001)


@pytest.mark.parametrize("extras", ["distinct=0", "distinct=yes", "distinct="])
def test_another_value_of_the_option_is_refused(made: Distinct, extras: str):
    with made.lane.refuses("BADARGUMENT"):
        made.enqueue(1, extras=extras)


# ------------------------------------------------------------------ append


def test_an_id_that_the_request_has_is_left_out(made: Distinct):
    made.enqueue([b"a", b"b"])
    word, tokens, left_out = made.append([b"b", b"c", b"a", b"c", b"d"])
    assert (word, left_out) == (b"ok", 3)
    assert len(toks(tokens)) == 1
    assert bodies(made) == [b"a", b"b", b"c", b"d"]
    assert made.known() == 4


def test_the_indexes_have_no_gap(made: Distinct):
    token = toks(made.enqueue([b"a", b"a", b"b"], limit=1)[1])[0]
    made.append([b"a", b"c"])
    made.append([b"b", b"d"], chunk=3)
    held = made.lane.take(token)
    assert [one.rpartition(b"-")[2] for one in held.ids] == [b"0", b"1", b"2", b"3"]
    assert made.lane.number("total") == 4


def test_a_chunk_of_repeats_adds_nothing_and_keeps_the_request_open(made: Distinct):
    made.enqueue([b"a"])
    made.lane.later(HOUR - 1)
    assert made.append([b"a", b"a"]) == [b"ok", [], 2]
    assert made.lane.hash()["open_until"] == str(made.lane.now + HOUR)
    assert made.lane.number("chunks") == 2


def test_an_empty_chunk_adds_nothing(made: Distinct):
    made.enqueue([b"a"])
    assert made.append([]) == [b"ok", [], 0]


def test_a_chunk_that_comes_twice_is_added_once(made: Distinct):
    """Its reply was lost: the repeat returns the same, and the tokens again."""
    made.enqueue([b"a"])
    given: dict[str, Any] = {"before": made.lane.hash()["chain"]}
    _, tokens, left_out = made.append([b"a", b"b"], **given)
    with made.lane.unchanged():
        word, again, said = made.append([b"a", b"b"], **given)
    assert (word, said) == (b"dup", left_out)
    assert toks(again)[-1:] == toks(tokens)


def test_nothing_is_added_when_the_ids_are_gone(made: Distinct):
    """Otherwise earlier bodies would be added again."""
    made.enqueue([b"a"])
    made.lane.client.delete(made.ids)
    with made.lane.unchanged():
        assert made.append([b"a", b"b"]) == [b"forgotten"]


def test_a_repeat_of_the_last_chunk_needs_no_ids(made: Distinct):
    made.enqueue([b"a"])
    given: dict[str, Any] = {"before": made.lane.hash()["chain"]}
    made.append([b"a", b"b"], **given)
    made.lane.client.delete(made.ids)
    assert made.append([b"a", b"b"], **given)[0] == b"dup"


def test_each_chunk_keeps_the_ids_for_longer(made: Distinct):
    made.enqueue([b"a"])
    made.lane.client.pexpire(made.ids, 1_000)
    made.append([b"a"])
    assert made.lane.client.pttl(made.ids) > HOUR


# ------------------------------------------------------------------ the end


def test_a_seal_drops_the_ids(made: Distinct):
    made.enqueue([b"a"])
    assert made.seal()[0] == b"ok"
    assert made.lane.client.exists(made.ids) == 0
    assert made.append([b"a", b"b"], chunk=2) == [b"closed"]
    assert made.seal()[0] == b"ok"


def test_a_seal_of_something_else_keeps_the_ids(made: Distinct):
    made.enqueue([b"a"])
    assert made.call("seal", chunks=2, chain="other") == [b"conflict"]
    assert made.known() == 1


def test_after_the_end_nothing_is_added(made: Distinct):
    made.enqueue([b"a"])
    made.lane.cancel()
    with made.lane.unchanged():
        assert made.append([b"b"])[0] == b"ended"
        assert made.seal()[0] == b"ended"


def test_without_a_request_nothing_is_written(made: Distinct):
    assert made.append([b"a"]) == [b"gone"]
    assert made.lane.dump() == {}


def test_a_discard_drops_the_ids(made: Distinct):
    made.enqueue([b"a"])
    own = {"born": made.lane.now, "chain": "d1", "before": "", "seen": 0, "ttl": HOUR}
    assert made.call("discard", reason="its source failed", **own)[0] == b"ok"
    assert made.lane.client.exists(made.ids) == 0


def test_a_deletion_frees_the_ids(made: Distinct):
    made.enqueue([b"a"])
    made.lane.cancel()
    assert made.known() == 1
    names = (*made.names, b"txn:{r1}", b"flow:{r1}", b"fed:{r1}")
    own = {"ending": made.lane.number("born"), "seen": 0, "ttl": HOUR}
    assert made.lane.call("delete", names, **own) == [b"ok"]
    assert made.lane.client.exists(made.ids) == 0


# ------------------------------------------------------------------ submit


@for_each("open_ms", [0, HOUR])
def test_one_script_on_one_server_leaves_what_the_steps_leave(lane: Lane, open_ms: int):
    chunk = [b"a", b"b", b"a", b"c"]
    reply = submit(lane, with_ids(chunk), extras=EXTRAS, open_ms=open_ms)
    if reply is None:
        pytest.skip("no server of a cluster has all keys")
    intent, _, enqueued = reply[2]
    assert enqueued[3] == 1
    found = lane.dump()
    for key in found:
        lane.client.delete(key)
    made = Distinct(lane)
    made.enqueue(chunk, intent=intent, open_ms=open_ms)
    own = {key: value for key, value in found.items() if b"{r1}" in key}
    assert own == lane.dump()


def test_each_of_several_requests_has_ids_of_its_own(lane: Lane):
    contents: list[Any] = ["d1", 3, *with_ids([b"a", b"a"]), "d2", 2, *with_ids([b"a"])]
    reply = submit_contents(lane, ["r1", "r2"], contents, extras=EXTRAS, open_ms=HOUR)
    if reply is None:
        pytest.skip("no server of a cluster has all keys")
    assert [enqueued[3] for _, _, enqueued in reply[2:]] == [1, 0]
    assert lane.client.scard("ids:{r1}") == lane.client.scard("ids:{r2}") == 1


@for_each("texts", [[b"a"], [b"a", b"x" * 15], []])
def test_submit_refuses_malformed_ids(lane: Lane, texts: list[bytes]):
    if submit(lane, with_ids([]), extras=EXTRAS) is None:
        pytest.skip("no server of a cluster has all keys")
    other = Lane(lane.driver, lane.client, request_id="r2")
    with other.refuses("BADARGUMENT"):
        submit_contents(other, ["r2"], ["d1", len(texts), *texts], extras=EXTRAS)
