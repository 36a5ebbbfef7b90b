"""Tests that fleets are stopped by name, and that old stop signals are deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlane.protocol import keys
from fairlane.spark import fleet

if TYPE_CHECKING:
    import redis

    from fairlane.drivers.sync import SyncDriver

WEEK_US = fleet.KEPT_MS * 1000


def test_the_stop_signal_of_a_fleet_is_found_by_its_name(
    driver: SyncDriver, redis_client: redis.Redis
):
    before = driver.run(fleet.now_us("req"))
    driver.run(fleet.stop("req", "nightly"))
    assert before <= driver.run(fleet.read_stop_us("req", "nightly")) <= before + 60_000_000
    assert driver.run(fleet.read_stop_us("req", "hourly")) == 0
    assert 0 < redis_client.pttl(keys.fleets("req")) <= fleet.KEPT_MS


def test_a_stop_deletes_signals_older_than_a_week(driver: SyncDriver, redis_client: redis.Redis):
    """The names do not accumulate, however many fleets are stopped."""
    now = driver.run(fleet.now_us("req"))
    key = keys.fleets("req")
    redis_client.zadd(key, {"old": now - WEEK_US - 1, "young": now - WEEK_US // 2})
    driver.run(fleet.stop("req", "new"))
    assert redis_client.zrange(key, 0, -1) == [b"young", b"new"]
