"""Tests the leases of a request: which worker holds each permit, and what was settled last."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane.errors import InvalidArgument, RequestNotFound
from fairlane.operations import estimate
from fairlane.operations.estimate import read_holders
from fairlane.protocol import keys
from tests.support.operations.upkeep import server_ms
from tests.support.scripts.requests import next_slice, settle
from tests.support.wait import wait_until

if TYPE_CHECKING:
    import redis

    from fairlane.drivers.sync import SyncDriver
    from fairlane.queue import Queue


def test_a_held_permit_names_its_worker_its_age_and_what_it_owes(
    queue: Queue, driver: SyncDriver, redis_client: redis.Redis
):
    request = queue.submit_request([b"x"] * 9, limit=2)
    before = server_ms(redis_client)
    next_slice(driver, count=4)
    found = request.leases()
    (held,) = found.held
    assert (held.worker, held.owed, found.settled, found.is_whole) == ("w:1", 4, [], True)
    assert before <= held.since_ms <= found.now_ms < held.until_ms


def test_a_settled_lease_has_its_worker_its_counts_and_its_times(queue: Queue, driver: SyncDriver):
    request = queue.submit_request([b"x"] * 5, limit=1)
    settle(driver, next_slice(driver, count=2))
    settle(driver, next_slice(driver, count=3))
    found = request.leases()
    first, second = found.settled
    assert (first.done, second.done, found.held, found.is_whole) == (2, 3, [], True)
    assert (first.worker, first.dead, sum(count for _, count in first.ran)) == ("w:1", 0, 2)
    assert request.progress().submitted_ms <= first.began_ms <= first.settled_ms <= found.now_ms
    assert [one.log_id for one in request.leases(first.log_id).settled] == [second.log_id]
    assert request.leases(second.log_id).settled == []


def test_a_lease_that_is_settled_while_they_are_read_counts_once(
    queue: Queue, driver: SyncDriver, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
):
    request = queue.submit_request([b"x"] * 2, limit=1)
    taken = next_slice(driver, count=1)

    async def settle_then(request_id: str, permits: list[bytes]) -> Any:
        found = await read_holders(request_id, permits)
        was = server_ms(redis_client)
        wait_until(lambda: server_ms(redis_client) > was, why="the clock has gone on")
        settle(driver, taken)
        return found

    monkeypatch.setattr(estimate, "read_holders", settle_then)
    found = request.leases()
    assert (len(found.held), found.settled) == (1, [])
    assert len(request.leases().settled) == 1


def test_only_the_last_leases_are_read(
    queue: Queue, driver: SyncDriver, monkeypatch: pytest.MonkeyPatch
):
    request = queue.submit_request([b"x"] * 9, limit=1)
    for _ in range(9):
        settle(driver, next_slice(driver, count=1))
    every = request.leases()
    assert (len(every.settled), every.is_whole) == (9, True)
    monkeypatch.setattr(estimate, "MOST_SETTLED", 4)
    some = request.leases()
    assert (some.settled, some.is_whole) == (every.settled[-4:], False)


def test_results_are_not_read_without_a_bound(
    queue: Queue, driver: SyncDriver, monkeypatch: pytest.MonkeyPatch
):
    request = queue.submit_request([b"x"] * 9, limit=1)
    for _ in range(9):
        settle(driver, next_slice(driver, count=1), answer=b"y" * 1_000)
    monkeypatch.setattr(estimate, "MOST_BYTES", 4_500)
    found = request.leases()
    assert 2 <= len(found.settled) <= 4
    assert not found.is_whole


def test_a_request_that_is_not_there_and_a_place_that_is_none_are_refused(queue: Queue):
    with pytest.raises(RequestNotFound, match="there is no request nothing"):
        queue.request("nothing").leases()
    request = queue.submit_request([b"x"])
    with pytest.raises(InvalidArgument, match="place 'soon' is not valid"):
        request.leases("soon")


def test_a_damaged_permit_is_left_out(queue: Queue, driver: SyncDriver, redis_client: redis.Redis):
    request = queue.submit_request([b"x"] * 2, limit=1)
    next_slice(driver, count=1)
    redis_client.delete(keys.permits(request.id))
    assert request.leases().held == []
