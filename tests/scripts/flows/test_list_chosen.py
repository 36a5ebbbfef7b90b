"""Tests the script list_chosen: the results of chosen children, with where each comes from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane.errors import FairlaneError
from fairlane.protocol import keys
from tests.support.scripts.requests import HOUR, toks

if TYPE_CHECKING:
    from tests.support.scripts.requests import Lane


def listed(lane: Lane, after: str = "0-0", count: int = 10) -> list[Any]:
    names = (*lane.names, keys.of_flow(lane.id))
    rows: list[Any] = lane.call("list_chosen", names, after=after, count=count)[1]
    return rows


@pytest.fixture
def worked(lane: Lane) -> Lane:
    """Makes a request with three chosen sub-requests, of which one is done and one is dead."""
    lane.start(0, limit=1, open_ms=HOUR)
    names = (*lane.names, keys.of_flow(lane.id), keys.fed(lane.id))
    choices = ["4:1", "a", "4", "", "9:0", "b", "9:1", "c", "9", ""]
    given = {"since": "0-0", "upto": "1-0", "open_ms": HOUR, "width": 2, "is_joined": "1"}
    (token,) = toks(lane.call("hand_chosen", names, **given, choices=choices)[1])
    held = lane.take(token, count=3)
    lane.complete(held, done=[held.ids[2]], others=[(held.ids[0], "dead", 0)])
    return lane


def test_each_result_has_its_origin_also_a_dead_one(worked: Lane):
    before = worked.dump()
    rows = listed(worked)
    origins = {int(fields[2].split(b":")[0]): places for _, fields, places in rows}
    assert origins == {0: [4 * 3 + 2], 2: [9 * 3 + 2]}
    assert worked.dump() == before


def test_a_page_goes_on_after_an_entry(worked: Lane):
    first, second = listed(worked)
    assert listed(worked, count=1) == [first]
    assert listed(worked, first[0].decode()) == [second]
    assert listed(worked, second[0].decode()) == []


def test_without_results_or_without_a_request_there_are_none(lane: Lane):
    assert listed(lane) == []


def test_a_key_of_another_kind_is_an_error(worked: Lane):
    worked.client.delete(keys.of_flow("r1"))
    worked.client.set(keys.of_flow("r1"), "x")
    with pytest.raises(FairlaneError, match="WRONGTYPE"):
        listed(worked)
    worked.client.delete(keys.of_flow("r1"))


def test_a_page_ends_after_many_bytes_or_results(lane: Lane):
    """Redis does nothing else meanwhile; a reader goes on with the next page."""
    names = (*lane.names, keys.of_flow(lane.id))
    for place, fields in enumerate(({"0:d:1:0:0": b"x" * 600_000},) * 3):
        lane.client.xadd(keys.results(lane.id), fields, id=f"{place + 1}-0")
    _, rows, more = lane.call("list_chosen", names, after="0-0", count=64)
    assert (len(rows), more) == (2, 1)
    _, rows, more = lane.call("list_chosen", names, after=rows[-1][0], count=64)
    assert (len(rows), more) == (1, 0)
    many = {f"{number}:d:1:0:0": b"" for number in range(600)}
    for place in range(3):
        lane.client.xadd(keys.results(lane.id), many, id=f"{place + 5}-0")
    _, rows, more = lane.call("list_chosen", names, after="3-0", count=64)
    assert (len(rows), more) == (2, 1)
    lane.client.delete(keys.results(lane.id))
