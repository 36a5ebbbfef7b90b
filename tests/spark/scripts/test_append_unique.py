"""append_unique: sub-requests with ids of their own, each id once."""

from __future__ import annotations

from typing import Any

import pytest

from fairlane.errors import InvalidArgument
from fairlane.spark.operations.staging import pack
from tests.spark.staging import Sink, bodies_of
from tests.support.requests import Lane, numbered, toks

ROWS = {b"i0": b"a", b"i1": b"b"}


def test_new_ids_come_in_immediately(sink: Sink):
    """With their tokens; it says how many were new and how many wait."""
    word, tokens, added, waiting = sink.add_unique(ROWS)
    assert (word, added, waiting) == (b"ok", 2, 2)
    assert len(toks(tokens)) == 2
    assert bodies_of(sink.lane) == [b"a", b"b"]
    assert sink.lane.client.pttl(sink.ids) > 0


def test_an_id_comes_in_once_and_the_first_wins(sink: Sink):
    """Whatever the second call brings; the reply repeats the tokens."""
    _, tokens, *_ = sink.add_unique(ROWS)
    word, again, added, _ = sink.add_unique({b"i1": b"other", b"i0": b"other"})
    assert (word, added) == (b"ok", 0)
    assert sorted(toks(again)) == sorted(toks(tokens))
    assert bodies_of(sink.lane) == [b"a", b"b"]
    assert sink.add_unique({b"i1": b"other", b"i2": b"c"})[2] == 1
    assert bodies_of(sink.lane) == [b"a", b"b", b"c"]


def test_an_id_twice_in_one_call_comes_in_once(sink: Sink):
    """The first of them."""
    reply = sink.add_unique({}, given=pack([b"i", b"i"]), packed=pack([b"a", b"b"]))
    assert reply[2] == 1
    assert bodies_of(sink.lane) == [b"a"]


def test_a_repeat_behind_the_seal_is_no_fault(sink: Sink):
    """But what is new there is refused, and nothing is written."""
    sink.add_unique(ROWS)
    sink.lane.seal()
    before = sink.lane.dump()
    assert sink.add_unique(ROWS)[2] == 0
    assert sink.add_unique({b"i0": b"a", b"new": b"c"}) == [b"closed"]
    assert sink.lane.dump() == before


def test_a_repeat_after_the_end_is_no_fault(sink: Sink):
    """For a new id the reply is how the request ended."""
    sink.add_unique(ROWS)
    sink.lane.cancel()
    before = sink.lane.dump()
    assert sink.add_unique(ROWS) == [b"ok", [], 0, 0]
    assert sink.add_unique({b"new": b"c"})[0] == b"ended"
    assert sink.lane.dump() == before


def test_ids_of_another_life_do_not_count(lane: Lane):
    """They may outlive the request; a new one of this id has none."""
    sink = Sink(lane)
    lane.client.sadd(sink.ids, "i0", "i9")
    lane.client.pexpire(sink.ids, 60_000)
    sink.open()
    assert sink.add_unique(ROWS)[2] == 2
    assert sink.add_unique({b"i9": b"c"})[2] == 1


def test_without_a_request_nothing_is_written(lane: Lane):
    """Its row would have nowhere to go."""
    assert Sink(lane).add_unique(ROWS) == [b"gone"]
    assert lane.dump() == {}


@pytest.mark.parametrize("given", [{"open_ms": "long"}, {"ttl": "long"}, {"ttl": 0}])
def test_malformed_numbers_are_refused(sink: Sink, given: dict[str, Any]):
    """BADARGUMENT, and nothing is written."""
    before = sink.lane.dump()
    with pytest.raises(InvalidArgument, match="BADARGUMENT"):
        sink.add_unique(ROWS, **given)
    assert sink.lane.dump() == before


@pytest.mark.parametrize(
    "given", [{"given": pack([b"i0"])}, {"given": b"ids"}, {"packed": b"bodies"}], ids=str
)
def test_an_unpacked_chunk_is_refused(sink: Sink, given: dict[str, Any]):
    """BADCHUNK, and nothing is written."""
    before = sink.lane.dump()
    with pytest.raises(InvalidArgument, match="BADCHUNK"):
        sink.add_unique(ROWS, **given)
    assert sink.lane.dump() == before


def test_one_call_takes_a_thousand_rows(sink: Sink):
    """The most of one call."""
    assert sink.add_unique({body: body for body in numbered(1000)})[2] == 1000
    with pytest.raises(InvalidArgument, match="BADCHUNK"):
        sink.add_unique({body: body for body in numbered(1001)})
