"""Tests the script append_partition: rows of a partition are appended once by their place there."""

from __future__ import annotations

from typing import Any

import pytest

from fairlane.errors import InvalidArgument
from tests.spark.staging import Sink, bodies_of
from tests.support.scripts.requests import Lane, numbered, toks


def test_rows_come_in_immediately(sink: Sink):
    word, tokens, added, waiting = sink.add_part(0, [b"a", b"b"])
    assert (word, added, waiting) == (b"ok", 2, 2)
    assert len(toks(tokens)) == 2
    assert sink.add_part(2, [b"c"])[2:] == [1, 3]
    assert bodies_of(sink.lane) == [b"a", b"b", b"c"]
    assert sink.lane.client.pttl(sink.record) > 0


def test_rows_that_were_added_before_are_left_out(sink: Sink):
    """Another attempt may cut them otherwise; the reply repeats the tokens."""
    _, tokens, *_ = sink.add_part(0, [b"a", b"b", b"c"])
    word, again, added, _ = sink.add_part(0, [b"a", b"b"])
    assert (word, added) == (b"ok", 0)
    assert sorted(toks(again)) == sorted(toks(tokens))
    assert sink.add_part(2, [b"c", b"d"])[2] == 1
    assert bodies_of(sink.lane) == [b"a", b"b", b"c", b"d"]


def test_partitions_and_transactions_have_places_of_their_own(sink: Sink):
    sink.add_part(0, [b"a"])
    assert sink.add_part(0, [b"b"], partition=1)[2] == 1
    assert Sink(sink.lane, "t2").add_part(0, [b"c"])[2] == 1


def test_behind_the_seal_a_repeat_is_no_fault_and_a_new_row_is_refused(sink: Sink):
    sink.add_part(0, [b"a"])
    sink.lane.seal()
    with sink.lane.unchanged():
        assert sink.add_part(0, [b"a"])[2] == 0
        assert sink.add_part(0, [b"a", b"b"]) == [b"closed"]


def test_after_the_end_a_repeat_is_no_fault_and_a_new_row_gets_how_the_request_ended(sink: Sink):
    sink.add_part(0, [b"a"])
    sink.lane.cancel()
    with sink.lane.unchanged():
        assert sink.add_part(0, [b"a"]) == [b"ok", [], 0, 0]
        assert sink.add_part(1, [b"b"])[0] == b"ended"


def test_a_gap_is_refused(sink: Sink):
    sink.add_part(0, [b"a"])
    with sink.lane.refuses("row 2 of partition 0 came after 1"):
        sink.add_part(2, [b"c"])


def test_without_a_request_nothing_is_written(lane: Lane):
    assert Sink(lane).add_part(0, [b"a"]) == [b"gone"]
    assert lane.dump() == {}


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"first": "none"}, "BADARGUMENT"),
        ({"first": -1}, "BADARGUMENT"),
        ({"open_ms": "long"}, "BADARGUMENT"),
        ({"ttl": "long"}, "BADARGUMENT"),
        ({"ttl": 0}, "BADARGUMENT"),
        ({"packed": b"bodies"}, "BADCHUNK"),
    ],
    ids=str,
)
def test_malformed_arguments_are_refused(sink: Sink, given: dict[str, Any], error: str):
    with sink.lane.refuses(error):
        sink.add_part(**({"first": 0, "bodies": 1} | given))


def test_one_call_takes_a_thousand_rows(sink: Sink):
    assert sink.add_part(0, numbered(1000))[2] == 1000
    with pytest.raises(InvalidArgument, match="BADCHUNK"):
        sink.add_part(1000, 1001)


def test_a_new_life_of_the_request_takes_the_rows_anew(sink: Sink):
    """The record of the transaction outlives the tombstone of a request that was cancelled."""
    sink.add_part(0, [b"a", b"b"])
    sink.add_part(0, [b"c"], partition=1)
    sink.lane.client.delete(*sink.lane.names)
    sink.lane.enqueue([], open_ms=3_600_000)
    assert sink.add_part(0, [b"a", b"b"])[2] == 2
    assert sink.add_part(0, [b"c"], partition=1)[2] == 1
    assert bodies_of(sink.lane) == [b"a", b"b", b"c"]


def test_a_new_life_forgets_the_rows_of_a_partition_that_is_not_its_first(sink: Sink):
    """Its first row may be of a partition that the former life did not have."""
    sink.add_part(0, [b"a"])
    sink.lane.client.delete(*sink.lane.names)
    sink.lane.enqueue([], open_ms=3_600_000)
    assert sink.add_part(0, [b"b"], partition=1)[2] == 1
    assert sink.add_part(0, [b"a"])[2] == 1
    assert bodies_of(sink.lane) == [b"b", b"a"]


def test_rows_behind_a_mark_of_a_former_life_are_refused(sink: Sink):
    """The marks of the former life must not count, or the rows before these would be missing."""
    sink.add_part(0, [b"a", b"b", b"c"])
    sink.lane.client.delete(*sink.lane.names)
    sink.lane.enqueue([], open_ms=3_600_000)
    with sink.lane.refuses("BADCHUNK"):
        sink.add_part(2, [b"c"])
    assert bodies_of(sink.lane) == []
