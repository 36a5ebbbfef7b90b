"""Tests add_turns, take_turns and charge_turns: tenants share a lane, whatever their tokens."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from fairlane.protocol import keys
from fairlane.protocol.lua import library
from tests.support.run.for_each import for_each

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.support.scripts.requests import Lane

BOTH = TURNS, TENANTS = keys.turns("req")


def token(tenant: str, number: int = 0, share: int = 1) -> str:
    return f"{tenant}{number}#0.1@{share}:{tenant}"


def add(lane: Lane, tokens: Iterable[str], number: int = 5) -> int:
    return int(lane.call("add_turns", BOTH, lane=number, tokens=list(tokens)))


def take(lane: Lane, count: int = 1, number: int = 5) -> list[str]:
    taken = lane.call("take_turns", BOTH, lane=number, count=count)
    return [one.decode() for one in taken]


def charge(lane: Lane, turn: str, turns: int, cost: int) -> None:
    assert lane.call("charge_turns", BOTH[1:], rows=[5, turn, turns, cost]) == 1


def tenants_of(tokens: Iterable[str]) -> str:
    return "".join(one.rpartition(":")[2] for one in tokens)


def test_tokens_of_one_tenant_are_taken_in_the_order_of_their_arrival(lane: Lane):
    assert add(lane, [token("a", 9), token("a", 1)]) == 2
    assert add(lane, [token("a", 5)]) == 1
    assert take(lane, 9) == [token("a", 9), token("a", 1), token("a", 5)]
    assert take(lane) == []


def test_tenants_take_turns_however_many_tokens_each_has(lane: Lane):
    add(lane, [token("a", i) for i in range(100)])
    add(lane, [token("b", i) for i in range(5)])
    assert tenants_of(take(lane, 8)) in {"abababab", "babababa"}


def test_a_tenant_that_comes_later_gets_no_more_for_having_waited(lane: Lane):
    add(lane, [token("a", i) for i in range(100)])
    take(lane, 50)
    add(lane, [token("b", i) for i in range(50)])
    assert Counter(tenants_of(take(lane, 10))) == {"a": 5, "b": 5}


def test_a_tenant_gets_turns_by_its_share(lane: Lane):
    add(lane, [token("a", i) for i in range(100)])
    add(lane, [token("b", i, share=3) for i in range(100)])
    assert Counter(tenants_of(take(lane, 40))) == {"a": 10, "b": 30}


def test_a_tenant_pays_for_what_its_turns_have_cost(lane: Lane):
    """The turns of b cost three times as much, so a gets three times as many."""
    add(lane, [token("a", i) for i in range(1_000)])
    add(lane, [token("b", i) for i in range(1_000)])
    costs, found = {"a": 100, "b": 300}, Counter[str]()
    for _ in range(400):
        one = tenants_of(take(lane))
        charge(lane, f"1:{one}", 1, costs[one])
        found[one] += 1
    assert 2.8 < found["a"] / found["b"] < 3.2


def test_a_tenant_whose_tokens_are_all_taken_still_pays_for_them(lane: Lane):
    add(lane, [token("a", i) for i in range(100)])
    add(lane, [token("b")])
    take(lane, 2)
    charge(lane, "1:b", 1, 2_200)  # ten turns more than it was charged when it was taken
    add(lane, [token("b", 1)])
    assert tenants_of(take(lane, 8)) == "a" * 8
    assert "b" in tenants_of(take(lane, 4))


def test_lanes_do_not_mix(lane: Lane):
    for number in (0, 5, 99):
        add(lane, [token("a", number)], number)
    assert take(lane, 9, number=1) == []
    for number in (99, 5, 0):
        assert take(lane, 9, number=number) == [token("a", number)]


def test_a_token_that_is_added_twice_is_taken_twice(lane: Lane):
    """The second copy is a stale acquire."""
    for _ in range(2):
        add(lane, [token("a")])
    assert take(lane, 9) == [token("a")] * 2


def test_a_repeated_take_takes_the_next_tokens(lane: Lane):
    """The tokens of a lost reply are lost, and the auditor mints them again."""
    add(lane, [token("a", i) for i in range(4)])
    assert [take(lane, 2), take(lane, 2)] == [
        [token("a", 0), token("a", 1)],
        [token("a", 2), token("a", 3)],
    ]


def test_a_repeated_charge_counts_twice(lane: Lane):
    """So a driver sends it at most once."""
    add(lane, [token("a")])
    take(lane)
    charge(lane, "1:a", 1, 500)
    first = lane.client.zscore(TENANTS, "-5|a")
    charge(lane, "1:a", 1, 500)
    assert lane.client.zscore(TENANTS, "-5|a") > first
    assert library()["charge_turns"].is_once


@pytest.mark.rest
@for_each("cost", [1, 200, 10_000])
@for_each("together", [1, 50])
def test_tenants_of_one_request_are_forgotten(lane: Lane, cost: int, together: int):
    for first in range(0, 1_000, together):
        group = [f"t{first + i}" for i in range(together)]
        add(lane, [token(one) for one in group])
        take(lane, together)
        rows = [part for one in group for part in (5, f"1:{one}", 1, cost)]
        lane.call("charge_turns", BOTH[1:], rows=rows)
    assert lane.client.zcard(TENANTS) < 600
    assert lane.client.zcard(TURNS) == 0


def test_a_charge_of_a_forgotten_tenant_is_kept_only_while_it_owes(lane: Lane):
    add(lane, [token("a")])
    take(lane)
    charge(lane, "1:gone", 1, 150)
    assert lane.client.zscore(TENANTS, "-5|gone") is None
    charge(lane, "1:slow", 1, 400_000)
    assert lane.client.zscore(TENANTS, "-5|slow") is not None


def test_a_tenant_that_comes_to_an_empty_lane_begins_where_the_last_turn_ends(lane: Lane):
    """So the first tenant owes nothing to the second one, however many turns it had alone."""
    for number in range(10):
        add(lane, [token("a", number)])
        take(lane)
    add(lane, [token("b", i) for i in range(8)])
    add(lane, [token("a", i) for i in range(8)])
    assert Counter(tenants_of(take(lane, 8))) == {"a": 4, "b": 4}


def test_a_tenant_that_has_been_idle_for_long_is_forgotten(lane: Lane):
    add(lane, [token("b")])
    take(lane)
    for number in range(3):
        add(lane, [token("a", number)])
        take(lane)
        charge(lane, "1:a", 1, 200_000)
    assert lane.client.zscore(TENANTS, "-5|b") is None
    assert lane.client.zscore(TENANTS, "-5|a") is not None


def test_a_tenant_without_its_tokens_delays_no_other(lane: Lane):
    """This happens after a rollback, or damage by hand."""
    add(lane, [token("a")])
    lane.client.delete(TURNS)
    add(lane, [token("b")])
    assert take(lane, 9) == [token("b")]


def test_a_tenant_whose_tokens_are_all_taken_is_idle_though_others_wait(lane: Lane):
    add(lane, [token("a"), token("b"), token("b", 1)])
    assert tenants_of(take(lane, 1)) == "a"
    assert lane.client.zscore(TENANTS, "5|a") is None
    assert lane.client.zscore(TENANTS, "-5|a") is not None


def test_a_delayed_token_that_is_due_waits_for_its_turn_behind_a_placeholder(lane: Lane):
    lane.client.zadd(keys.delayed("req"), {f"5|{token('a')}": 1, "5|r1#0.1": 1})
    names = (keys.delayed("req"), *BOTH, *keys.lanes("req"))
    assert lane.call("promote", names, most=10)[0] == 2
    assert sorted(lane.client.lrange(keys.lanes("req")[5], 0, -1)) == [b"@", b"r1#0.1"]
    assert take(lane, 9) == [token("a")]


@for_each("number", [-1, 100, 1.5, "x"])
@for_each("name", ["add_turns", "take_turns"])
def test_a_lane_that_does_not_exist_is_refused(lane: Lane, name: str, number: object):
    given = {"tokens": [token("a")]} if name == "add_turns" else {"count": 1}
    with pytest.raises(Exception, match="BAD"):
        lane.call(name, BOTH, lane=number, **given)
    assert lane.client.exists(TURNS, TENANTS) == 0


@for_each("word", ["@", "r1#0.1", "r1#0.1@0:a", "r1#0.1@1:", "r1#x@1:a", "a|b#0.1@1:a"])
def test_what_is_no_token_of_a_tenant_is_refused_with_all_others(lane: Lane, word: str):
    with pytest.raises(Exception, match="BADTOKENS"):
        add(lane, [token("a"), word])
    assert lane.client.exists(TURNS, TENANTS) == 0


@for_each("rows", [[], [5, "1:a", 1], [5, "a", 1, 1], [5, "1:a", 0, 1], ["x", "1:a", 1, 1]])
def test_a_charge_that_cannot_be_read_changes_nothing(lane: Lane, rows: list[object]):
    with pytest.raises(Exception, match="BADARGUMENT"):
        lane.call("charge_turns", BOTH[1:], rows=rows)
    assert lane.client.exists(TENANTS) == 0
