"""Tests the script change_shared: the bounded state that the steps of a flow share."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.protocol import keys
from tests.support.scripts.requests import HOUR

if TYPE_CHECKING:
    from tests.support.scripts.requests import Lane

numbers = count(1)


def change(lane: Lane, how: str, name: str = "n", value: str = "", **given: Any) -> list[Any]:
    usual = {"caller": "c1", "number": next(numbers), "expected": "", "most_names": 3}
    usual |= {"most_bytes": 100, "how": how, "field": name, "value": value}
    reply: list[Any] = lane.call("change_shared", lane.names, **(usual | given))
    return reply


def stored(lane: Lane) -> dict[bytes, bytes]:
    found = lane.client.hgetall(keys.request_hash(lane.id))
    return {name: value for name, value in found.items() if name[:2] == b"v:"}


@pytest.fixture
def first(lane: Lane) -> Lane:
    """Makes the first step of a flow."""
    lane.start(1, extras="flow=f 1 2 one")
    return lane


def test_a_value_is_set_and_dropped(first: Lane):
    assert change(first, "set", "a", '{"x":1}') == [b"ok", b""]
    assert change(first, "set", "a", "2") == [b"ok", b""]
    assert stored(first) == {b"v:a": b"2"}
    assert change(first, "drop", "a") == [b"ok", b""]
    assert change(first, "drop", "a") == [b"ok", b""]
    assert stored(first) == {}


def test_a_number_is_added_to(first: Lane):
    assert change(first, "add", value="5") == [b"ok", b"5"]
    assert change(first, "add", value="-7") == [b"ok", b"-2"]
    assert stored(first) == {b"v:n": b"-2"}


@pytest.mark.parametrize("old", ['"text"', "1.5", "[1]", "9007199254740991"])
def test_only_a_whole_number_that_stays_exact_is_added_to(first: Lane, old: str):
    change(first, "set", "n", old)
    assert change(first, "add", value="1") == [b"kind", old.encode()]
    assert stored(first) == {b"v:n": old.encode()}


def test_a_value_is_swapped_if_it_is_the_expected_one(first: Lane):
    assert change(first, "swap", value="1") == [b"ok", b""]
    assert change(first, "swap", value="2") == [b"other", b"1"]
    assert change(first, "swap", value="2", expected="1") == [b"ok", b""]
    assert stored(first) == {b"v:n": b"2"}


def test_a_repeat_gets_the_first_reply_and_changes_nothing(first: Lane):
    change(first, "add", value="5", number=1_000_000)
    before = first.dump()
    assert change(first, "add", value="5", number=1_000_000) == [b"ok", b"5"]
    assert first.dump() == before
    change(first, "add", value="1", caller="c2")
    assert change(first, "add", value="5", number=1_000_000) == [b"ok", b"5"]
    assert stored(first) == {b"v:n": b"6"}


def test_a_repeat_of_a_swap_is_not_tried_again(first: Lane):
    change(first, "set", "n", "1", caller="c2")
    assert change(first, "swap", value="9", number=1_000_000) == [b"other", b"1"]
    change(first, "drop", "n", caller="c2")
    assert change(first, "swap", value="9", number=1_000_000) == [b"other", b""]
    assert stored(first) == {}


def test_a_late_copy_changes_nothing(first: Lane):
    change(first, "set", "n", "1", number=1_000_001)
    assert change(first, "set", "n", "2", number=1_000_000) == [b"late"]
    assert stored(first) == {b"v:n": b"1"}


def test_it_is_bounded_in_values_and_in_bytes(first: Lane):
    for name in "abc":
        assert change(first, "set", name, "1")[0] == b"ok"
    assert change(first, "set", "d", "1") == [b"full", b""]
    assert change(first, "add", "d", "1") == [b"full", b""]
    assert change(first, "set", "a", "x" * 95) == [b"ok", b""]
    assert change(first, "set", "b", "22") == [b"full", b""]
    assert change(first, "drop", "a")[0] == b"ok"
    assert change(first, "set", "b", "22")[0] == b"ok"


def test_callers_of_long_ago_are_forgotten_when_there_are_many(first: Lane):
    change(first, "set", "n", "1")  # so that the clock of the test is in use
    for one in range(254):
        change(first, "set", "n", "1", caller=f"old{one}")
    first.later(600_001)
    change(first, "set", "n", "1", caller="new")
    left = [name for name in first.client.hkeys(keys.request_hash("r1")) if name[:2] == b"c:"]
    assert left == [b"c:new"]
    assert first.client.hget(keys.request_hash("r1"), "shared") == b"2:1:1"


def test_it_is_kept_and_expires_with_the_request(first: Lane):
    before = set(first.client.keys())
    change(first, "set", "n", "1")
    assert set(first.client.keys()) == before
    first.request("cancel", reason="why")
    assert change(first, "set", "n", "2") == [b"ok", b""]
    assert stored(first) == {b"v:n": b"2"}
    assert first.client.pttl(first.names[2]) > 0


def test_the_end_of_a_request_that_keeps_nothing_drops_it(lane: Lane):
    lane.start(1, extras="flow=f 1 2 one", retain_ms=0)
    change(lane, "set", "n", "1")
    lane.request("cancel", reason="why")
    names = lane.client.hkeys(keys.request_hash("r1"))
    assert [one for one in names if one[:2] in {b"v:", b"c:"} or one == b"shared"] == []
    assert b"chain" in names or b"digest" in names
    assert change(lane, "set", "n", "1") == [b"gone"]
    assert stored(lane) == {}


def test_another_life_of_the_request_begins_without_it(first: Lane):
    change(first, "set", "old", "1")
    first.request("cancel", reason="why")
    born = int(first.hash()["born"])
    beside = (keys.unique_ids("r1"), keys.owner("r1"), keys.of_flow("r1"), keys.fed("r1"))
    first.call("delete", (*first.names, *beside), ending=born, seen=0, ttl=HOUR)
    assert stored(first) == {}
    assert change(first, "set", "n", "1") == [b"gone"]


def test_without_the_first_step_there_is_no_state(lane: Lane):
    assert change(lane, "set", "n", "1") == [b"gone"]
    lane.start(1)
    before = lane.dump()
    assert change(lane, "set", "n", "1") == [b"gone"]
    assert lane.dump() == before


@pytest.mark.parametrize(
    "changed",
    [{"number": ""}, {"how": "make"}, {"how": ""}, {"most_names": ""}, {"most_bytes": "x"}],
)
def test_malformed_arguments_are_refused(first: Lane, changed: dict[str, Any]):
    before = first.dump()
    with first.refuses("BADARGUMENT"):
        change(first, **({"how": "set", "value": "1"} | changed))
    assert first.dump() == before


def test_values_that_look_like_calls_stay_when_callers_are_forgotten(first: Lane):
    change(first, "set", "n", "1:2:ok")
    for one in range(254):
        change(first, "set", "m", "1", caller=f"old{one}")
    first.later(600_001)
    change(first, "set", "m", "2", caller="new")
    assert stored(first) == {b"v:n": b"1:2:ok", b"v:m": b"2"}


def test_a_caller_of_long_ago_is_not_forgotten_while_there_are_few(first: Lane):
    change(first, "set", "n", "1", caller="old", number=1_000_000)
    first.later(600_001)
    change(first, "set", "n", "2", caller="new")
    assert change(first, "set", "n", "1", caller="old", number=1_000_000) == [b"ok", b""]
    assert stored(first) == {b"v:n": b"2"}


def test_a_state_over_its_bounds_can_be_reduced(first: Lane):
    for name in "abc":
        change(first, "set", name, "1")
    assert change(first, "set", "a", "2", most_names=1) == [b"full", b""]
    assert change(first, "drop", "a", most_names=1, most_bytes=1) == [b"ok", b""]
    assert stored(first) == {b"v:b": b"1", b"v:c": b"1"}
