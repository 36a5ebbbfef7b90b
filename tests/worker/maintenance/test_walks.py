"""Tests the leader's walks over all requests: hourly, after a lost slot, and after a failover."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from fairlane import settings
from fairlane.errors import RedisUnreachable
from fairlane.operations.doctor import Walk
from fairlane.worker.leader import NEVER, Maintenance
from tests.support.operations.upkeep import ACTIVE
from tests.support.wait import wait_until
from tests.worker.maintenance.test_duties import driver, lane, lead, now, quick, slow, upkeep

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.scripts.requests import Lane
    from tests.worker.maintenance.test_duties import SlowDriver

__all__ = ["driver", "lane", "now", "quick", "slow", "upkeep"]  # fixtures


@pytest.fixture
def leader(
    quick: SlowDriver, upkeep: Maintenance, now: list[float], monkeypatch: pytest.MonkeyPatch
) -> Callable[[float], None]:
    """Sends a heartbeat at so many seconds, as leader of an idle queue; a walk has one page."""
    quick.answers["Walk.page"] = []
    monkeypatch.setattr(Walk, "is_over", property(lambda _: "Walk.page" in quick.began))

    def beat(seconds: float) -> None:
        now[0] = seconds
        lead(upkeep)
        for duty, work in ((upkeep.walk, upkeep._walk), (upkeep.primaries, None)):
            if duty.at <= seconds and work is not None:
                duty.set(NEVER)
                work()

    return beat


def test_an_idle_leader_walks_every_hour_and_sends_nothing_else(
    slow: SlowDriver, leader: Callable[[float], None]
):
    """The first walk is an hour after it began to lead."""
    walked = []
    for seconds in range(0, 3 * 3600, 5):
        leader(seconds)
        if slow.began:
            assert slow.began == ["Walk.page"]
            slow.began.clear()
            walked.append(seconds)
    assert walked == [3600, 7200]


def test_a_worker_that_led_before_waits_an_hour_again(
    slow: SlowDriver, leader: Callable[[float], None]
):
    """Another leader may have walked meanwhile; a lead that moves often must not add walks."""
    for seconds in (0, 5, 10, 3_700, 3_705, 7_290):
        leader(seconds)
    assert slow.began == []


def test_a_wiped_slot_is_rebuilt_soon(
    slow: SlowDriver, upkeep: Maintenance, leader: Callable[[float], None]
):
    """The worker that leads then does it; the others forget it."""
    leader(100)
    upkeep.on_registry_lost()
    leader(105)
    assert slow.began == []
    leader(110)
    assert slow.began == ["Walk.page"]
    slow.began.clear()
    upkeep.on_registry_lost()
    leader(4000)
    assert slow.began == []


def test_the_leader_of_a_cluster_walks_soon(
    slow: SlowDriver, upkeep: Maintenance, leader: Callable[[float], None]
):
    """A failover may have occurred while no worker led; and it reads the primaries."""
    slow.servers.is_one = False
    leader(100)
    assert upkeep.primaries.at == 100
    leader(105)
    assert slow.began == []
    leader(110)
    assert slow.began == ["Walk.page"]


def test_a_new_primary_is_followed_by_a_walk_and_an_audit(
    quick: SlowDriver, upkeep: Maintenance, now: list[float]
):
    """A primary that was seen before, or is gone, is not."""
    quick.servers.is_one = False
    walks = []
    for nodes in ("ab", "ab", "ac", "c", "cd"):
        quick.answers["primaries"] = [(node, 1) for node in nodes]
        upkeep._rebuild_at, upkeep._grace_ends = NEVER, NEVER
        upkeep._look_for_new_primaries()
        walks.append(upkeep._rebuild_at < NEVER)
        assert (upkeep._grace_ends < NEVER) == walks[-1]
    assert walks == [False, False, True, False, True]


@pytest.mark.parametrize("fails", [False, True])
def test_the_primaries_are_read_again_and_again(
    quick: SlowDriver, upkeep: Maintenance, now: list[float], fails: bool
):
    """They are read above all after a failed check, which a failover may have caused."""
    quick.servers.is_one = False
    quick.answers["primaries"] = RedisUnreachable("no answer") if fails else [("a", 1)]
    lead(upkeep)
    upkeep.primaries.set(NEVER)
    if fails:
        with pytest.raises(RedisUnreachable):
            upkeep._look_for_new_primaries()
    else:
        assert upkeep._look_for_new_primaries() == NEVER
    assert upkeep.primaries.at == now[0] + settings.PRIMARIES_S


@pytest.mark.parametrize("error", [RedisUnreachable("no answer"), ValueError("not ours")], ids=repr)
def test_a_walk_that_fails_is_begun_again_a_minute_later(
    slow: SlowDriver, upkeep: Maintenance, leader: Callable[[float], None], error: Exception
):
    """The error does not matter."""
    leader(0)
    upkeep.on_registry_lost()
    slow.answers["Walk.page"] = error
    leader(5)
    leader(10)
    assert slow.began == ["Walk.page"]
    slow.began.clear()
    for seconds in (15, 60, 65):
        leader(seconds)
    assert slow.began == []
    leader(70)
    assert slow.began == ["Walk.page"]


def test_a_walk_puts_back_what_active_does_not_name(
    lane: Lane, redis_url: str, caplog: pytest.LogCaptureFixture
):
    """It runs on a real Redis, and is logged."""
    lane.start(1)
    upkeep = Maintenance(redis_url, "req", "w:1")
    upkeep._walk()
    assert lane.client.zcard(ACTIVE) == 1
    assert [record.message for record in caplog.records] == [
        "walk: request r1 is not in `active`: put it there"
    ]
    upkeep.close()


def test_a_walk_delays_no_upkeep_and_ends_with_the_worker(slow: SlowDriver, upkeep: Maintenance):
    """It has a thread of its own, and is not begun twice."""
    slow.answers["Walk.page"] = []
    upkeep._led_at = time.monotonic()
    for delayed, began in ((0, ["Walk.page"]), (1, ["Walk.page", "promote"])):
        upkeep._rebuild_at = 0.0
        lead(upkeep, delayed=delayed)
        wait_until(lambda: slow.began == began, why=f"{began} are under way")  # noqa: B023
    closing = threading.Thread(target=upkeep.close)
    closing.start()
    wait_until(lambda: upkeep.walk._is_closed, why="it is closed")
    slow.may_end.release(2)
    closing.join(20)
    assert not closing.is_alive()
    assert slow.began == ["Walk.page", "promote"]
