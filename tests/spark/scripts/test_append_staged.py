"""Tests the script append_staged: pinned chunks move into their request, each once."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from fairlane.spark.commit import pack
from tests.spark.staging import DAY, Sink, bodies_of
from tests.support.scripts.requests import HOUR, Lane, numbered, stored, toks


@pytest.fixture
def sink(lane: Lane) -> Sink:
    """Pins two chunks of the area 0:1, of three rows and two."""
    made = Sink(lane)
    made.open()
    made.stage([b"a", b"", b"\x00\xff"])
    made.stage([b"d", b"e"], chunk=2)
    made.pin(("0:1", 2, 5))
    return made


def test_roll_brings_the_rows_in_as_append_would(sink: Sink):
    word, tokens, position = sink.roll()
    assert (word, position) == (b"ok", 1)
    assert len(toks(tokens)) == 3
    assert sink.roll(1, chunk=2)[0] == b"ok"
    assert bodies_of(sink.lane) == [b"a", b"", b"\x00\xff", b"d", b"e"]
    indexes = [entry.split(b"-")[1] for entry, _ in sink.lane.client.xrange(sink.lane.names[0])]
    assert indexes == [b"%d" % i for i in range(5)]
    assert (sink.lane.number("total"), sink.lane.number("chunks")) == (5, 3)


def test_roll_renews_the_time_the_request_may_stay_open(sink: Sink):
    sink.lane.client.pexpire(sink.record, 60_000)
    sink.lane.later(HOUR // 2)
    sink.roll()
    assert sink.lane.number("open_until") == sink.lane.now + HOUR
    assert sink.lane.client.pttl(sink.record) > DAY


def test_a_repeated_roll_returns_where_the_next_one_is(sink: Sink):
    """All queued tokens are returned, because the first reply may be lost."""
    _, tokens, _ = sink.roll()
    with sink.lane.unchanged():
        word, again, position, state = sink.roll()
        assert (word, position, state) == (b"at", 1, b"pinned")
        assert toks(again) == toks(tokens)


def test_roll_of_a_later_chunk_waits_for_its_turn(sink: Sink):
    with sink.lane.unchanged():
        assert sink.roll(1, chunk=2) == [b"at", [], 0, b"pinned"]


def test_the_last_chunk_of_an_area_drops_it(sink: Sink):
    sink.roll()
    assert sink.lane.client.exists(sink.area("0:1")) == 1
    sink.roll(1, chunk=2, last="area")
    assert sink.lane.client.exists(sink.area("0:1")) == 0


def test_the_last_chunk_of_all_may_seal(sink: Sink):
    sink.roll()
    assert sink.roll(1, chunk=2, last="seal")[::2] == [b"ok", 2]
    assert sink.lane.number("open") == 0
    assert "open_until" not in stored(sink.lane.client, sink.lane.id)
    assert sink.lane.client.get(sink.lane.names[1]) == b"5"
    with sink.lane.unchanged():
        word, _, position, state = sink.roll(1, chunk=2, last="seal")
        assert (word, position, state) == (b"at", 2, b"sealed")


def test_a_roll_into_a_request_that_is_being_cancelled(lane: Lane):
    """It is added, as by an append, and is counted with the rest that is cancelled."""
    sink = Sink(lane)
    sink.open(limit=1)
    sink.stage(1)
    sink.stage(1, chunk=2)
    sink.pin(("0:1", 2, 2))
    (token,) = toks(sink.roll()[1])
    held = lane.take(token)
    lane.cancel()
    assert sink.roll(1, chunk=2, last="seal")[0] == b"ok"
    assert lane.complete(held)[0] == b"ended"
    assert lane.hash()["state"] == "cancelled"
    assert lane.number("cancelled") == 1


def test_a_foreign_append_of_the_same_number_is_a_conflict(sink: Sink):
    """The chain of digests covers every chunk that was rolled."""
    sink.roll()
    with sink.lane.unchanged():
        assert sink.lane.append(2, chunk=2, chain="other") == [b"conflict"]


def test_two_transactions_take_turns(sink: Sink):
    other = Sink(sink.lane, "t2")
    other.stage([b"x"])
    other.pin(("0:1", 1, 1))
    sink.roll()
    assert other.roll()[0] == b"ok"
    assert sink.roll(1, chunk=2, last="seal")[0] == b"ok"
    assert bodies_of(sink.lane) == [b"a", b"", b"\x00\xff", b"x", b"d", b"e"]


def test_roll_without_a_manifest_writes_nothing(lane: Lane):
    sink = Sink(lane)
    sink.open()
    sink.stage(3)
    with lane.unchanged():
        assert sink.roll() == [b"unpinned"]


def test_roll_of_an_area_that_has_expired_writes_nothing(sink: Sink):
    sink.lane.client.unlink(sink.area("0:1"))
    with sink.lane.unchanged():
        assert sink.roll() == [b"missing"]


def test_roll_into_a_request_that_was_sealed_without_rows_writes_nothing(sink: Sink):
    sink.lane.seal(1)
    with sink.lane.unchanged():
        assert sink.roll()[0] in (b"closed", b"ended")


def test_roll_into_a_sealed_request_that_goes_on_writes_nothing(sink: Sink):
    sink.roll()
    sink.lane.seal(2)
    with sink.lane.unchanged():
        assert sink.roll(1, chunk=2) == [b"closed"]


def test_roll_after_the_end_gets_how_the_request_ended(sink: Sink):
    sink.lane.cancel()
    with sink.lane.unchanged():
        word, summary = sink.roll()
    assert (word, summary[0]) == (b"ended", b"cancelled")


def test_roll_without_a_request_writes_nothing(sink: Sink):
    sink.lane.client.unlink(*sink.lane.names)
    with sink.lane.unchanged():
        assert sink.roll() == [b"gone"]


@pytest.mark.parametrize(
    "given",
    [
        *({"position": "first"}, {"chunk": "one"}, {"open_ms": "long"}),
        *({"ttl": "long"}, {"ttl": 0}, {"last": "maybe"}),
    ],
    ids=str,
)
def test_roll_refuses_malformed_arguments(sink: Sink, given: dict[str, Any]):
    with sink.lane.refuses("BADARGUMENT"):
        sink.roll(**given)


@pytest.mark.parametrize(
    "packed",
    [
        pytest.param(pack([b"abc"])[:-1], id="cut off"),
        pytest.param(pack([b"abc"]) + b"x", id="too long"),
        pytest.param(struct.pack("<I", 1001) + bytes(4004), id="too many"),
        pytest.param(struct.pack("<I", 9), id="no lengths"),
        pytest.param(b"abc", id="no count"),
        pytest.param(b"", id="nothing"),
    ],
)
def test_roll_refuses_what_is_not_packed(sink: Sink, packed: bytes):
    sink.lane.client.hset(sink.area("0:1"), "1", packed)
    with sink.lane.refuses("BADCHUNK"):
        sink.roll()


def test_roll_takes_a_thousand(lane: Lane):
    sink = Sink(lane)
    sink.open()
    sink.stage(1000)
    sink.pin(("0:1", 1, 1000))
    assert sink.roll(last="seal")[0] == b"ok"
    assert bodies_of(lane) == numbered(1000)
