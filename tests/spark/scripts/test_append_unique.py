"""Tests the script append_unique: it adds sub-requests with ids of their own, each id once."""

from __future__ import annotations

from typing import Any

import pytest

from fairlane.errors import InvalidArgument, RedisUnfit
from fairlane.spark.commit import pack
from tests.spark.staging import Sink, bodies_of
from tests.support.scripts.requests import Lane, numbered, toks

ROWS = {b"i0": b"a", b"i1": b"b"}


def test_new_ids_come_in_immediately(sink: Sink):
    word, tokens, added, waiting = sink.add_unique(ROWS)
    assert (word, added, waiting) == (b"ok", 2, 2)
    assert len(toks(tokens)) == 2
    assert bodies_of(sink.lane) == [b"a", b"b"]
    assert sink.lane.client.pttl(sink.ids) > 0


def test_an_id_comes_in_once_and_the_first_wins(sink: Sink):
    """The bodies of the second call do not matter; the reply repeats the tokens."""
    _, tokens, *_ = sink.add_unique(ROWS)
    word, again, added, _ = sink.add_unique({b"i1": b"other", b"i0": b"other"})
    assert (word, added) == (b"ok", 0)
    assert sorted(toks(again)) == sorted(toks(tokens))
    assert bodies_of(sink.lane) == [b"a", b"b"]
    assert sink.add_unique({b"i1": b"other", b"i2": b"c"})[2] == 1
    assert bodies_of(sink.lane) == [b"a", b"b", b"c"]


def test_an_id_twice_in_one_call_comes_in_once(sink: Sink):
    """The first of them is added."""
    reply = sink.add_unique({}, given=pack([b"i", b"i"]), packed=pack([b"a", b"b"]))
    assert reply[2] == 1
    assert bodies_of(sink.lane) == [b"a"]


def test_behind_the_seal_a_repeat_is_no_fault_and_a_new_id_is_refused(sink: Sink):
    sink.add_unique(ROWS)
    sink.lane.seal()
    with sink.lane.unchanged():
        assert sink.add_unique(ROWS)[2] == 0
        assert sink.add_unique({b"i0": b"a", b"new": b"c"}) == [b"closed"]


def test_after_the_end_a_repeat_is_no_fault_and_a_new_id_gets_how_the_request_ended(sink: Sink):
    sink.add_unique(ROWS)
    sink.lane.cancel()
    with sink.lane.unchanged():
        assert sink.add_unique(ROWS) == [b"ok", [], 0, 0]
        assert sink.add_unique({b"new": b"c"})[0] == b"ended"


def test_ids_of_another_life_do_not_count(lane: Lane):
    """The ids may outlive the request; a new one of this id has none."""
    sink = Sink(lane)
    lane.client.sadd(sink.ids, "i0", "i9")
    lane.client.pexpire(sink.ids, 60_000)
    sink.open()
    assert sink.add_unique(ROWS)[2] == 2
    assert sink.add_unique({b"i9": b"c"})[2] == 1


def test_ids_of_rows_that_could_not_be_added_go_again(sink: Sink):
    """Another program has written to the stream's key: a repeat would take the rows for added."""
    stream = sink.lane.names[0]
    sink.lane.client.delete(stream)
    sink.lane.client.set(stream, "text")
    with pytest.raises(RedisUnfit, match="WRONGTYPE"):
        sink.add_unique(ROWS)
    assert sink.lane.client.exists(sink.ids) == 0


def test_without_a_request_nothing_is_written(lane: Lane):
    assert Sink(lane).add_unique(ROWS) == [b"gone"]
    assert lane.dump() == {}


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"open_ms": "long"}, "BADARGUMENT"),
        ({"ttl": "long"}, "BADARGUMENT"),
        ({"ttl": 0}, "BADARGUMENT"),
        ({"given": pack([b"i0"])}, "BADCHUNK"),
        ({"given": b"ids"}, "BADCHUNK"),
        ({"packed": b"bodies"}, "BADCHUNK"),
    ],
    ids=str,
)
def test_malformed_arguments_are_refused(sink: Sink, given: dict[str, Any], error: str):
    with sink.lane.refuses(error):
        sink.add_unique(ROWS, **given)


def test_one_call_takes_a_thousand_rows(sink: Sink):
    assert sink.add_unique({body: body for body in numbered(1000)})[2] == 1000
    with pytest.raises(InvalidArgument, match="BADCHUNK"):
        sink.add_unique({body: body for body in numbered(1001)})
