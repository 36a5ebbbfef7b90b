"""Tests tenants that share workers: by time, however many requests each has."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.errors import InvalidArgument
from fairlane.operations.audit import Audit
from fairlane.protocol import keys
from tests.support.wait import PATIENCE_S
from tests.worker.parts import ON_SINGLE

if TYPE_CHECKING:
    import redis

    from fairlane.queue import Queue
    from tests.support.processes.workers import Folder, Workers


def ran(folder: Folder) -> list[str]:
    """Returns the tenants in the order in which the one unit ran their sub-requests."""
    return [name.partition("-")[0] for _, _, name in folder.noted("ran")]


def submit_all(queue: Queue, tenant: str, requests: int, each: int, **options: object) -> None:
    for number in range(requests):
        queue.submit_request([b"x"] * each, id=f"{tenant}-{number}", tenant=tenant, **options)  # type: ignore[arg-type]


@pytest.mark.rest
@pytest.mark.parametrize("each", [1, 4])
def test_a_tenant_with_many_requests_and_one_with_one_get_equal_parts(
    queue: Queue, workers: Workers, folder: Folder, each: int
):
    submit_all(queue, "many", 60 // each, each)
    submit_all(queue, "few", 1, 30, limit=60)
    workers.run("echo_noted", slice_s=0, processes=1)
    found = Counter(ran(folder)[:50])
    assert abs(found["many"] - found["few"]) <= 6
    assert len(ran(folder)) == 60 + 30


@ON_SINGLE
def test_a_tenant_gets_as_much_as_its_share(queue: Queue, workers: Workers, folder: Folder):
    submit_all(queue, "two", 10, 20, limit=60, share=2)
    submit_all(queue, "one", 1, 100, limit=60)
    workers.run("echo_noted", slice_s=0, processes=1)
    found = Counter(ran(folder)[:90])
    assert 1.6 < found["two"] / found["one"] < 2.4


@ON_SINGLE
def test_a_more_urgent_priority_goes_before_all_tenants_of_another(
    queue: Queue, workers: Workers, folder: Folder
):
    submit_all(queue, "late", 3, 5)
    submit_all(queue, "early", 3, 5, priority=1)
    workers.run("echo_noted", slice_s=0)
    assert ran(folder) == ["early"] * 15 + ["late"] * 15


@pytest.mark.rest
@pytest.mark.parametrize(
    "options", [{"delay": 0.2}, {"rate": "200/s", "burst": 2}, {"attempts": 2}]
)
def test_what_waits_for_a_time_has_its_turn_afterwards(
    queue: Queue, workers: Workers, options: dict[str, object]
):
    submit_all(queue, "acme", 2, 5, **options)
    workers.run("echo")
    assert [queue.request(f"acme-{i}").progress().done for i in range(2)] == [5, 5]


def test_a_paused_request_leaves_its_turns_to_others(queue: Queue, workers: Workers):
    submit_all(queue, "acme", 2, 5)
    queue.request("acme-0").pause()
    worker = workers.start("echo")
    assert queue.request("acme-1").wait(timeout=PATIENCE_S) == "done"
    queue.request("acme-0").resume()
    assert queue.request("acme-0").wait(timeout=PATIENCE_S) == "done"
    worker.stop()


def test_turns_follow_a_request_to_another_priority(queue: Queue, workers: Workers, folder: Folder):
    submit_all(queue, "acme", 1, 5)
    submit_all(queue, "other", 1, 5)
    queue.request("other-0").set_priority(2)
    workers.run("echo_noted", slice_s=0)
    assert ran(folder) == ["other"] * 5 + ["acme"] * 5


def test_tenants_share_a_queue_that_is_spread_over_shards(queue: Queue, workers: Workers):
    queue.set_shards(2)
    submit_all(queue, "acme", 4, 5)
    submit_all(queue, "other", 1, 20)
    workers.run("echo")
    assert queue.request("other-0").state() == queue.request("acme-3").state() == "done"


def test_a_lost_placeholder_and_a_lost_token_are_found_by_the_audit(
    queue: Queue, workers: Workers, redis_client: Any
):
    lane = keys.lanes("req")[5]
    submit_all(queue, "acme", 3, 1)
    redis_client.lpop(lane)  # as by a unit that died before it took its turn
    member = redis_client.zrange(keys.turns("req")[0], 0, 0)[0]
    redis_client.zrem(keys.turns("req")[0], member)  # as by one that died afterwards
    audit = Audit("req")
    for _ in range(2):
        queue.driver.run(audit.run(0))
    assert redis_client.llen(lane) == 3
    workers.run("echo")
    assert {queue.request(f"acme-{i}").state() for i in range(3)} == {"done"}


@pytest.mark.rest
def test_a_placeholder_too_many_costs_nothing_but_a_look(
    queue: Queue, workers: Workers, redis_client: redis.Redis
):
    submit_all(queue, "acme", 1, 3)
    redis_client.rpush(keys.lanes("req")[5], b"@", b"@")
    workers.run("echo")
    assert queue.request("acme-0").state() == "done"


@ON_SINGLE
def test_a_request_without_a_tenant_has_no_keys_for_turns(
    queue: Queue, workers: Workers, redis_client: redis.Redis
):
    request = queue.submit_request([b"x"] * 50, limit=4)
    workers.run("echo")
    assert (request.state(), queue.stats()[5].ran.count) == ("done", 50)
    assert redis_client.exists(*keys.turns("req")) == 0


@ON_SINGLE
def test_what_turns_have_cost_is_charged(queue: Queue, workers: Workers, redis_client: redis.Redis):
    submit_all(queue, "acme", 2, 20)
    workers.run("echo")
    assert redis_client.zscore(keys.turns("req")[1], "c5") is not None


@pytest.mark.parametrize("share", [0, 1_000, 1.5, "3"])
def test_a_share_out_of_range_is_refused_before_anything_is_written(
    queue: Queue, redis_client: redis.Redis, share: object
):
    with pytest.raises(InvalidArgument, match="share"):
        queue.submit_request([b"x"], tenant="acme", share=share)  # type: ignore[arg-type]
    assert redis_client.dbsize() == 0


def test_a_share_without_a_tenant_is_refused(queue: Queue):
    with pytest.raises(InvalidArgument, match="share needs a tenant"):
        queue.submit_request([b"x"], share=2)
