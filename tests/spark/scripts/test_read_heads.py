"""Tests read_heads: a page of results without their bodies; it changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane.protocol import keys
from tests.spark.worlds import World

if TYPE_CHECKING:
    from tests.support.scripts.requests import Lane

EVERYTHING = {"first": "-", "last": "+", "count": 1000}


def heads(lane: Lane, **given: Any) -> list[list[bytes]]:
    found: list[list[bytes]] = lane.call(
        "read_heads", (keys.results(lane.id),), **(EVERYTHING | given)
    )
    return found


def stored(lane: Lane) -> list[list[bytes]]:
    """Returns what the stream has, without the bodies."""
    entries: Any = lane.client.xrange(keys.results(lane.id))
    return [[entry_id, fields[b"w"], *_heads(fields)] for entry_id, fields in entries]


def _heads(fields: dict[bytes, bytes]) -> list[bytes]:
    return [name for name in fields if name != b"w"]


@pytest.fixture
def settled(lane: Lane) -> Lane:
    """Gives the request results in several entries; two of its sub-requests died."""
    world = World(lane.driver)
    world.submit(lane.id, 20, limit=2)
    world.work_off(dead=[3, 11], most=8)
    return lane


def test_a_page_has_the_heads_in_their_order(settled: Lane):
    found = heads(settled)
    assert len(found) > 2
    assert sum(len(entry) - 2 for entry in found) == 20
    assert found == stored(settled)
    assert heads(settled, count=1) == found[:1]
    assert heads(settled, first=found[1][0].decode()) == found[1:]
    assert heads(settled, last=found[1][0].decode()) == found[:2]


def test_a_repeat_and_a_read_after_the_end_are_the_same(settled: Lane):
    with settled.unchanged():
        assert heads(settled) == heads(settled)


def test_a_request_without_results_has_none(lane: Lane):
    assert heads(lane) == []
    lane.start(3)
    assert heads(lane) == []


def test_what_is_no_page_is_refused(lane: Lane):
    for given in ({"count": 0}, {"count": 1001}, {"count": ""}):
        with lane.refuses("BADCOUNT"):
            heads(lane, **given)
    for given in ({"first": "x"}, {"first": "+"}, {"last": "-"}, {"last": "1"}):
        with lane.refuses("BADARGUMENT"):
            heads(lane, **given)
