"""Tests the bounded snapshot of a queue: it agrees with longer reads, and marks what it cuts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fairlane.errors import RedisError
from fairlane.operations import observe
from fairlane.operations.observe import read_servers
from fairlane.operations.stats import add_stats
from fairlane.protocol import keys
from fairlane.protocol.steps import Batch, Command
from tests.support.processes.beats import beat, make_older
from tests.support.scripts.requests import change_number, next_slice, once

if TYPE_CHECKING:
    import redis

    from fairlane.drivers.sync import SyncDriver
    from fairlane.queue import Queue


def submit_some(queue: Queue, driver: SyncDriver) -> None:
    """Submits requests of several kinds; two leases are held."""
    queue.submit_request([b"x"] * 10, id="held", limit=3, priority=0)
    for _ in range(2):
        assert next_slice(driver, count=1).request_id == "held"
    queue.submit_request([b"x"] * 10, id="limited", limit=4, priority=7)
    queue.submit_request([b"x"] * 5, id="paused", limit=10, priority=7).pause()
    queue.submit_request([b"x"] * 5, id="delayed", limit=10, priority=9, delay=60)
    queue.submit_request([b"x"] * 6, id="over", limit=6, priority=7).cancel()


def test_an_empty_queue_has_an_empty_snapshot(queue: Queue):
    found = queue.snapshot()
    assert (found.unfinished, found.lanes, found.requests, found.oldest) == (0, [], [], None)
    assert (found.is_exact, found.is_paused, found.worker_totals.alive) == (True, False, 0)
    assert found.demand.demand == 0


def test_a_snapshot_counts_requests_by_priority(queue: Queue, driver: SyncDriver):
    submit_some(queue, driver)
    found = queue.snapshot()
    rows = {one.priority: (one.tokens, one.requests, one.waiting, one.held) for one in found.lanes}
    assert rows == {0: (1, 1, 8, 2), 7: (4, 2, 15, 0), 9: (0, 1, 5, 0)}
    assert (found.unfinished, found.is_exact, found.delayed) == (4, True, 1)
    assert found.stale == 5 + 6
    assert found.held_by_tenant() == {"": 2}


def test_a_rate_of_the_queue_bounds_the_demand_of_a_snapshot(queue: Queue):
    queue.submit_request([b"x"] * 50, limit=50)
    queue.set_rate("30/m", 3)
    found = queue.snapshot()
    assert (found.demand, found.rate) == (queue.demand(), "30/m")
    assert found.demand.demand < 50


def test_the_demand_of_a_snapshot_is_that_of_the_queue(queue: Queue, driver: SyncDriver):
    submit_some(queue, driver)
    assert queue.snapshot().demand == queue.demand()
    queue.pause()
    found = queue.snapshot()
    assert found.is_paused
    assert (found.demand.demand, found.demand) == (0, queue.demand())


def test_the_oldest_request_is_the_first_that_could_start(queue: Queue, redis_client: redis.Redis):
    """Neither a paused nor a delayed request waits for a worker."""
    queue.submit_request([b"x"], id="paused").pause()
    queue.submit_request([b"x"], id="delayed", delay=60)
    queue.submit_request([b"x"], id="first", priority=50)
    queue.submit_request([b"x"], id="second", priority=1)
    change_number(redis_client, "first", "born", 1_700_000_000_000)
    oldest = queue.snapshot().oldest
    assert oldest is not None
    assert oldest.id == "first"


def test_of_very_many_requests_a_part_is_read_and_marked(
    queue: Queue, driver: SyncDriver, monkeypatch: pytest.MonkeyPatch
):
    for priority in (0, 3, 50):
        queue.submit_many([[b"x"]] * 20, priority=priority)
    monkeypatch.setattr(observe, "MOST_REQUESTS", 9)
    monkeypatch.setattr(observe, "MOST_REQUESTS", 9)
    monkeypatch.setattr(observe, "_MOST_PART", 3)
    monkeypatch.setattr(observe, "_MOST_TOKENS", 3)
    found = queue.snapshot()
    assert (found.is_exact, found.unfinished, found.demand.demand) == (False, 60, 60)
    assert [(one.priority, one.tokens) for one in found.lanes] == [(0, 20), (3, 20), (50, 20)]
    assert all(one.requests for one in found.lanes), "each lane is represented"
    assert len(found.requests) <= 9


def test_a_request_at_work_is_read_however_many_wait(
    queue: Queue, driver: SyncDriver, monkeypatch: pytest.MonkeyPatch
):
    """The workers' notes of taken tokens name it."""
    queue.submit_many([[b"x"]] * 20, priority=0)
    queue.submit_request([b"x"] * 3, id="zz", priority=50)
    beat(queue, "w:1")
    driver.run(once(Command(b"HSET", keys.taken("req", "w:1"), b"0", b"zz#0.1")))
    monkeypatch.setattr(observe, "MOST_REQUESTS", 3)
    monkeypatch.setattr(observe, "MOST_REQUESTS", 3)
    found = queue.snapshot()
    driver.run(once(Command(b"DEL", keys.taken("req", "w:1"))))
    assert found.took == {"w:1": ["zz"]}
    assert "zz" in [one.id for one in found.requests]


def test_workers_are_totalled_and_a_late_one_counts_apart(queue: Queue, redis_client: redis.Redis):
    beat(queue, "w:1", "3 leases; 4 units 12.500/s; fairlane 9.9")
    beat(queue, "w:2", "0 leases; 2 units 1.500/s")
    beat(queue, "w:3", "1 leases; 2 units 1.500/s")
    make_older(redis_client, queue, "w:3", 60_000)
    found = queue.snapshot()
    totals = found.worker_totals
    assert (totals.alive, totals.busy, totals.late) == (2, 1, 1)
    assert (totals.units, totals.held, totals.per_s) == (6, 3, 14.0)
    assert totals.oldest_ms >= 60_000
    assert [one.version for one in found.workers] == ["9.9", None, None]


def test_what_workers_measured_is_cumulative(queue: Queue, driver: SyncDriver):
    driver.run(once(Batch(add_stats("req", 7, {10: 2}, {500: 2}, {"failed": 1}))))
    driver.run(once(Batch(add_stats("req", 7, {30: 1}, {500: 1}, {}))))
    measured = queue.snapshot().measured[7]
    assert (measured.waited.count, measured.ran.count) == (3, 3)
    assert measured.counts["failed"] == 1


def test_a_server_reports_itself(queue: Queue):
    servers = queue.snapshot().servers
    (node,) = servers.nodes
    assert node.program in {"Redis", "Valkey"}
    assert (node.role, node.error) == ("primary", "")
    assert node.used > 0
    assert "append-only" in node.persistence


def test_a_server_that_refuses_info_is_no_reason_to_fail():
    """A user with few rights sees the queue nevertheless."""
    reading = read_servers()
    reading.send(None)
    reading.send([None])
    with pytest.raises(StopIteration) as ended:
        reading.throw(RedisError("no right"))
    assert ended.value.value.nodes[0].error == "no right"
