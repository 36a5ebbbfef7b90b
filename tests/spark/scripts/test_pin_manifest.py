"""Tests the script pin_manifest: the first manifest of a transaction wins, for good."""

from __future__ import annotations

from typing import Any

import pytest

from tests.spark.staging import DAY, Sink
from tests.support.scripts.requests import HOUR, Lane, stored

MANIFEST = b"0:1,1,3\n"


@pytest.fixture
def sink(lane: Lane) -> Sink:
    """Makes a transaction of the request `r1`."""
    return Sink(lane)


def test_pin_stores_the_manifest(sink: Sink):
    sink.open()
    assert sink.pin(("0:1", 1, 3)) == [b"pinned", MANIFEST, b"0", b"0", b"pinned"]
    assert 0 < sink.lane.client.pttl(sink.record) <= 7 * DAY


def test_a_second_manifest_gets_the_first_one_back(sink: Sink):
    """A repeat of the transaction adds what was pinned."""
    sink.open()
    sink.pin(("0:1", 1, 3))
    before = sink.lane.dump()[sink.record]
    assert sink.pin(("0:7", 9, 99)) == [b"pinned", MANIFEST, b"0", b"0", b"pinned"]
    assert sink.lane.dump()[sink.record] == before


def test_a_second_manifest_gets_the_progress_of_the_first(sink: Sink):
    sink.open()
    sink.stage(3)
    sink.pin(("0:1", 1, 3))
    sink.roll(last="seal")
    reply = [b"pinned", MANIFEST, b"1", b"3", b"sealed"]
    assert sink.pin() == reply
    sink.lane.cancel()
    assert sink.pin() == reply
    sink.lane.client.unlink(sink.lane.names[2])
    assert sink.pin() == reply


def test_an_empty_manifest_is_not_kept(sink: Sink):
    """It has nothing that could be added twice."""
    sink.open()
    assert sink.pin() == [b"pinned", b"", b"0", b"0", b"pinned"]
    assert sink.lane.client.exists(sink.record) == 0


def test_pin_gives_the_open_request_more_time(sink: Sink):
    """An empty one does so, too: a stream may have no rows for long."""
    sink.open()
    sink.lane.later(HOUR // 2)
    sink.pin()
    assert sink.lane.number("open_until") == sink.lane.now + HOUR


def test_pin_gives_a_sealed_request_no_more_time(sink: Sink):
    sink.open()
    sink.stage(3)
    sink.pin(("0:1", 1, 3))
    sink.roll(last="seal")
    sink.pin(("0:1", 1, 3))
    assert "open_until" not in stored(sink.lane.client, sink.lane.id)


def test_another_transaction_is_refused_by_a_sealed_request(sink: Sink):
    sink.lane.start(3)
    with sink.lane.unchanged():
        assert sink.pin(("0:1", 1, 3)) == [b"closed"]


def test_pin_after_the_end_gets_how_the_request_ended(sink: Sink):
    sink.open()
    sink.lane.cancel()
    with sink.lane.unchanged():
        assert sink.pin(("0:1", 1, 3))[0] == b"ended"


def test_pin_without_a_request_writes_nothing(sink: Sink):
    assert sink.pin(("0:1", 1, 3)) == [b"gone"]
    assert sink.lane.dump() == {}


@pytest.mark.parametrize("given", [{"open_ms": "long"}, {"ttl": "long"}, {"ttl": 0}])
def test_pin_refuses_malformed_arguments(sink: Sink, given: dict[str, Any]):
    sink.open()
    with sink.lane.refuses("BADARGUMENT"):
        sink.pin(("0:1", 1, 3), **given)
