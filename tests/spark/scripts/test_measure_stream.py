"""Tests the script measure_stream: where a stream begins and ends, and how large it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlane.protocol import keys

if TYPE_CHECKING:
    from tests.support.scripts.requests import Lane


def test_a_stream_is_measured_without_its_entries(lane: Lane):
    out = keys.results(lane.id)
    assert lane.call("measure_stream", (out,)) == []
    lane.client.xadd(out, {"w": "x" * 99}, id="5-1")
    assert lane.call("measure_stream", (out,)) == [b"5-1", b"5-1", 1, 100]
    lane.client.xadd(out, {"w": "x" * 9}, id="5-2")
    lane.client.xadd(out, {"w": "x" * 299}, id="7-0")
    assert lane.call("measure_stream", (out,)) == [b"5-1", b"7-0", 3, 600]
    lane.client.delete(out)
