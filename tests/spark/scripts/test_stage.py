"""Tests stage and unstage: chunks wait unseen, each once, and are dropped when unused."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from fairlane.spark.commit import pack
from tests.spark.staging import DAY, Sink
from tests.support.scripts.requests import Lane, numbered


@pytest.fixture
def sink(lane: Lane) -> Sink:
    """Makes a transaction of the request `r1`, which does not exist."""
    return Sink(lane)


def test_stage_keeps_chunks_and_counts_their_rows(sink: Sink):
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
    """Its content does not matter: an area has one writer."""
    sink.stage(3)
    sink.stage(2, chunk=2)
    with sink.lane.unchanged():
        assert sink.stage(7) == [b"dup"]
        assert sink.stage(7, chunk=2) == [b"dup"]


def test_every_chunk_gives_the_area_more_time(sink: Sink):
    sink.stage(1, ttl=60_000)
    sink.stage(1, chunk=2)
    assert sink.lane.client.pttl(sink.area("0:1")) > 60_000


@pytest.mark.parametrize("chunk", [2, 3])
def test_stage_with_a_gap_is_refused(sink: Sink, chunk: int):
    """The error is BADCHUNK, also if the area has expired meanwhile."""
    with sink.lane.refuses("BADCHUNK"):
        sink.stage(1, chunk=chunk)


def test_stage_with_a_gap_behind_others_is_refused(sink: Sink):
    sink.stage(1)
    with sink.lane.refuses("chunk 3 came after chunk 1"):
        sink.stage(1, chunk=3)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        pytest.param({"packed": b""}, "BADCHUNK", id="nothing"),
        pytest.param({"packed": b"abc"}, "BADCHUNK", id="no count"),
        pytest.param({"packed": pack([])}, "BADCHUNK", id="no rows"),
        pytest.param({"packed": struct.pack("<I", 9)}, "BADCHUNK", id="no lengths"),
        pytest.param({"packed": pack(numbered(1001))}, "BADCHUNK", id="too many rows"),
        pytest.param({"chunk": "one"}, "BADARGUMENT", id="a chunk that is no number"),
        pytest.param({"chunk": 0}, "BADARGUMENT", id="chunk 0"),
        pytest.param({"ttl": "long"}, "BADARGUMENT", id="a time that is no number"),
        pytest.param({"ttl": 0}, "BADARGUMENT", id="no time"),
    ],
)
def test_stage_refuses_malformed_arguments(sink: Sink, given: dict[str, Any], error: str):
    with sink.lane.refuses(error):
        sink.stage(1, **given)


def test_stage_takes_a_thousand_rows(sink: Sink):
    assert sink.stage(1000) == [b"ok"]


# ------------------------------------------------------------------ unstage


def test_unstage_drops_areas(sink: Sink):
    for name in ("0:1", "1:2", "2:3"):
        sink.stage(1, area=name)
    assert sink.unstage("0:1", "1:2") == [b"ok", 2]
    assert [*sink.lane.client.scan_iter()] == [sink.area("2:3")]
    assert sink.unstage("0:1", "1:2") == [b"ok", 0]


def test_unstage_refuses_once_the_transaction_is_pinned(sink: Sink):
    sink.open()
    sink.stage(1)
    sink.pin(("0:1", 1, 1))
    with sink.lane.unchanged():
        assert sink.unstage("0:1") == [b"pinned"]


def test_unstage_drops_losers_of_a_pinned_transaction(sink: Sink):
    sink.open()
    sink.stage(1)
    sink.stage(1, area="0:2")
    sink.pin(("0:1", 1, 1))
    assert sink.unstage("0:2", keep="1") == [b"ok", 1]
    assert sink.lane.client.exists(sink.area("0:1")) == 1


def test_unstage_refuses_malformed_arguments(sink: Sink):
    sink.stage(1)
    with sink.lane.refuses("BADARGUMENT"):
        sink.unstage("0:1", keep="maybe")
