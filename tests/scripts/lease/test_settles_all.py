"""Tests completions of a whole lease, which look nothing up, and those that only resemble one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.scripts.requests import Lane, toks

if TYPE_CHECKING:
    from tests.support.scripts.requests import Held

HOWS = pytest.mark.parametrize("size", [3, 600], ids=["few", "in a stream"])


def held_of(lane: Lane, size: int) -> Held:
    """Leases four sub-requests of one request of six, or all of one of four."""
    few = size < 100
    (token,) = lane.start([b"x" * size] * (4 if few else 6), limit=1)
    return lane.take(token, count=4)


@HOWS
def test_the_first_and_the_last_are_not_the_whole(lane: Lane, size: int):
    held = held_of(lane, size)
    word, left, flat = lane.complete(held, [held.ids[0], held.ids[3]])
    assert (word, left) == (b"ok", 2 if size < 100 else 4)
    assert sorted(lane.results()) == [0, 3]
    assert lane.take(toks(flat)[0]).ids == held.ids[1:2]


@HOWS
@pytest.mark.parametrize(
    "order", [(1, 0, 2, 3), (0, 2, 1, 3), (0, 1, 1, 3), (0, 1, 2, 2), (1, 1, 2, 3)], ids=str
)
def test_another_order_or_one_named_twice_is_looked_up(
    lane: Lane, size: int, order: tuple[int, ...]
):
    held = held_of(lane, size)
    before = lane.number("total")
    word, *rest = lane.complete(held, [held.ids[i] for i in order])
    done = len(set(order))
    assert lane.number("done") == done
    assert sorted(lane.results()) == sorted(set(order))
    assert (word, rest[0]) == (b"ok", before - done) or (word, done) == (b"ended", before)


@pytest.mark.parametrize(
    "order", [(8, 10, 9, 10, 12), (4, 9, 10, 11, 12), (8, 9, 10, 11, 4)], ids=str
)
def test_ids_of_other_lengths_or_of_another_lease_are_looked_up(lane: Lane, order: tuple[int, ...]):
    """As many are named as are owed, and all but one are right: only its own are settled, once."""
    before = lane.begin([b"x" * 600] * 13, limit=1, count=8)
    held = lane.take(toks(lane.complete(before)[2])[0], count=5)
    ids = before.ids + held.ids
    word, left, _ = lane.complete(held, [ids[i] for i in order])
    own = sorted(set(order) - {4})
    assert (word, left, sorted(lane.results())) == (b"ok", 5 - len(own), [*range(8), *own])


@HOWS
def test_a_whole_lease_reads_no_pending_list(lane: Lane, size: int):
    """That would double the cost of each sub-request."""
    held = held_of(lane, size)
    lane.checked = False

    def looks() -> int:
        stats = lane.client.info("commandstats")
        return int(stats.get("cmdstat_xpending", {"calls": 0})["calls"])

    before = looks()
    lane.complete(held)
    assert looks() == before


def test_a_lease_that_owes_nothing_is_settled_with_nothing(lane: Lane):
    held = held_of(lane, 600)
    assert lane.complete(held, keep=True)[:2] == [b"ok", 2]
    assert lane.complete(held, [])[:2] == [b"ok", 2]
