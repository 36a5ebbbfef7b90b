"""Tests the script drop_dead: it forgets dead sub-requests, and counts and results stay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.scripts.after_the_end.test_reopen import ended
from tests.scripts.repair.test_full_and_forgotten import full

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.support.scripts.requests import Lane


def drop(lane: Lane, ids: Sequence[Any]) -> int:
    return int(lane.call("drop_dead", lane.names, ids=ids))


def test_what_is_dropped_is_gone_and_still_counts(lane: Lane):
    ids = ended(lane)
    assert drop(lane, ids[:1]) == 1
    with full(lane.client):
        assert drop(lane, ids[1:2]) == 1
    assert drop(lane, ids) == 2
    assert lane.dead_ids() == []
    assert (lane.number("dead"), len(lane.results())) == (4, 4)


def test_dropped_twice_is_once(lane: Lane):
    ids = ended(lane)
    assert drop(lane, ids[2:]) == 2
    with lane.unchanged():
        assert drop(lane, ids[2:]) == 0
    assert lane.dead_ids() == ids[:2]
