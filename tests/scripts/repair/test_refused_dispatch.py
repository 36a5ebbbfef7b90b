"""Tests the dispatch slot's scripts if a command in their middle is refused: nothing is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane.errors import RedisUnfit
from fairlane.protocol import keys
from tests.scripts.repair.test_refused import ON_SINGLE, Guard, guard

if TYPE_CHECKING:
    from tests.support.scripts.requests import Lane

__all__ = ["guard"]
pytestmark = pytest.mark.any_command
ACTIVE, DELAYED, LANES = keys.active("req"), keys.delayed("req"), keys.lanes("req")
TURNS = keys.turns("req")
LOG = (ACTIVE, keys.logged("req"), keys.completed("req"), *keys.bound("req"))
SUMMARY = ["done", 1, 1, 1, 0, 0, 2, 5, "", 9, ""]


def promote(lane: Lane) -> Any:
    return lane.call("promote", (DELAYED, *TURNS, *LANES), most=1000)


def retire(lane: Lane, *ids: str) -> Any:
    endings = [word for one in ids for word in (one, *SUMMARY)]
    return lane.call("retire", LOG, least=1, longest=1, most=10, endings=endings)


def drop(lane: Lane) -> Any:
    names = (ACTIVE, keys.completed("req"), *keys.bound("req"))
    return lane.call("drop_active", names, id="r1", seen="7.5", gone="1", most=9)


def logged(lane: Lane) -> list[bytes]:
    return [fields[b"id"] for _, fields in lane.client.xrange(keys.completed("req"))]


def test_a_damaged_lane_holds_up_no_token_of_another(lane: Lane):
    lane.client.set(LANES[3], "no list")
    lane.client.zadd(DELAYED, {"3|a#0.1": 1, "5|b#0.1": 2, "3|c#0.1": 3})
    with pytest.raises(RedisUnfit, match="WRONGTYPE"):
        promote(lane)
    assert lane.client.lrange(LANES[5], 0, -1) == [b"b#0.1"]
    assert lane.client.zrange(DELAYED, 0, -1) == [b"3|a#0.1", b"3|c#0.1"]
    lane.client.delete(LANES[3])
    assert promote(lane) == [2, 0]
    assert lane.client.lrange(LANES[3], 0, -1) == [b"c#0.1", b"a#0.1"]


@ON_SINGLE
@pytest.mark.parametrize("command", ["lpush", "zrem"])
def test_no_token_is_lost_by_a_promoter_that_is_refused(command: str, guard: Guard, lane: Lane):
    """The token is in its lane, or it waits; a copy costs one stale acquire."""
    lane.driver = guard.driver
    lane.client.zadd(DELAYED, {"3|a#0.1": 1})
    guard.refuse(command)
    with pytest.raises(RedisUnfit):
        promote(lane)
    guard.allow()
    assert promote(lane) == [1, 0]
    assert set(lane.client.lrange(LANES[3], 0, -1)) == {b"a#0.1"}


@ON_SINGLE
@pytest.mark.parametrize("command", ["xadd", "zadd"])
def test_an_ending_that_the_log_refuses_is_logged_later(command: str, guard: Guard, lane: Lane):
    lane.driver = guard.driver
    lane.client.zadd(ACTIVE, {"r1": 1, "r2": 1})
    guard.refuse(command)
    with pytest.raises(RedisUnfit):
        retire(lane, "r1", "r2")
    guard.allow()
    assert lane.client.zrange(ACTIVE, 0, -1) == [b"r1", b"r2"]
    assert [retire(lane, "r1", "r2"), retire(lane, "r1", "r2")] == [2, 0]
    assert logged(lane) == [b"r1", b"r2"]
    assert lane.client.zcard(ACTIVE) == 0


@ON_SINGLE
@pytest.mark.parametrize("command", ["xadd", "zrem"])
def test_what_is_lost_and_not_logged_stays_in_active(command: str, guard: Guard, lane: Lane):
    lane.driver = guard.driver
    lane.client.zadd(ACTIVE, {"r1": 7.5})
    guard.refuse(command)
    with pytest.raises(RedisUnfit):
        drop(lane)
    guard.allow()
    assert [drop(lane), drop(lane)] == [1, 0]
    assert logged(lane) == [b"r1"]
