"""stage, unstage: chunks wait unseen, each once, and are dropped when no write needs them."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from fairlane.errors import InvalidArgument
from fairlane.spark.operations.staging import pack
from tests.spark.staging import DAY, Sink
from tests.support.requests import Lane, numbered


@pytest.fixture
def sink(lane: Lane) -> Sink:
    """A transaction of the request `r1`, which does not exist."""
    return Sink(lane)


def test_stage_keeps_chunks_and_counts_their_rows(sink: Sink):
    """With an end, and no request is touched."""
    assert sink.stage(3) == [b"ok"]
    assert sink.stage(2, chunk=2) == [b"ok"]
    assert sink.lane.client.hgetall(sink.area("0:1")) == {
        b"1": pack(numbered(3)),
        b"2": pack(numbered(2)),
        b"rows": b"5",
    }
    assert 0 < sink.lane.client.pttl(sink.area("0:1")) <= DAY
    assert sink.lane.client.exists(*sink.lane.names) == 0


def test_stage_twice_is_a_dup(sink: Sink):
    """Whatever it brings: an area has one writer."""
    sink.stage(3)
    sink.stage(2, chunk=2)
    before = sink.lane.dump()
    assert sink.stage(7) == [b"dup"]
    assert sink.stage(7, chunk=2) == [b"dup"]
    assert sink.lane.dump() == before


def test_every_chunk_gives_the_area_more_time(sink: Sink):
    """A writer may be slow."""
    sink.stage(1, ttl=60_000)
    sink.stage(1, chunk=2)
    assert sink.lane.client.pttl(sink.area("0:1")) > 60_000


@pytest.mark.parametrize("chunk", [2, 3])
def test_stage_with_a_gap_is_refused(sink: Sink, chunk: int):
    """BADCHUNK, also when the area has expired meanwhile."""
    with pytest.raises(InvalidArgument, match="BADCHUNK"):
        sink.stage(1, chunk=chunk)
    assert sink.lane.dump() == {}


def test_stage_with_a_gap_behind_others_is_refused(sink: Sink):
    """BADCHUNK, and nothing is written."""
    sink.stage(1)
    before = sink.lane.dump()
    with pytest.raises(InvalidArgument, match="chunk 3 came after chunk 1"):
        sink.stage(1, chunk=3)
    assert sink.lane.dump() == before


@pytest.mark.parametrize(
    "packed",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"abc", id="no count"),
        pytest.param(pack([]), id="no rows"),
        pytest.param(struct.pack("<I", 9), id="no lengths"),
        pytest.param(pack(numbered(1001)), id="too many"),
    ],
)
def test_stage_refuses_an_unpacked_chunk(sink: Sink, packed: bytes):
    """BADCHUNK, and nothing is written."""
    with pytest.raises(InvalidArgument, match="BADCHUNK"):
        sink.stage(1, packed=packed)
    assert sink.lane.dump() == {}


@pytest.mark.parametrize("given", [{"chunk": "one"}, {"chunk": 0}, {"ttl": "long"}, {"ttl": 0}])
def test_stage_refuses_malformed_arguments(sink: Sink, given: dict[str, Any]):
    """BADARGUMENT, and nothing is written."""
    with pytest.raises(InvalidArgument, match="BADARGUMENT"):
        sink.stage(1, **given)
    assert sink.lane.dump() == {}


def test_stage_takes_a_thousand(sink: Sink):
    """The most of one call."""
    assert sink.stage(1000) == [b"ok"]


# ------------------------------------------------------------------ unstage


def test_unstage_drops_areas(sink: Sink):
    """Those named, and those only; a second time there is nothing to drop."""
    for name in ("0:1", "1:2", "2:3"):
        sink.stage(1, area=name)
    assert sink.unstage("0:1", "1:2") == [b"ok", 2]
    assert [*sink.lane.client.scan_iter()] == [sink.area("2:3")]
    assert sink.unstage("0:1", "1:2") == [b"ok", 0]


def test_unstage_refuses_once_the_transaction_is_pinned(sink: Sink):
    """What is pinned comes in."""
    sink.open()
    sink.stage(1)
    sink.pin(("0:1", 1, 1))
    before = sink.lane.dump()
    assert sink.unstage("0:1") == [b"pinned"]
    assert sink.lane.dump() == before


def test_unstage_drops_losers_of_a_pinned_transaction(sink: Sink):
    """They are known not to be in the manifest."""
    sink.open()
    sink.stage(1)
    sink.stage(1, area="0:2")
    sink.pin(("0:1", 1, 1))
    assert sink.unstage("0:2", keep="1") == [b"ok", 1]
    assert sink.lane.client.exists(sink.area("0:1")) == 1


def test_unstage_refuses_malformed_arguments(sink: Sink):
    """BADARGUMENT, and nothing goes."""
    sink.stage(1)
    with pytest.raises(InvalidArgument, match="BADARGUMENT"):
        sink.unstage("0:1", keep="maybe")
    assert sink.lane.client.exists(sink.area("0:1")) == 1
