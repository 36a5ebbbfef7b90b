"""Tests the list of a queue's workers: alive or dead, and what they hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fairlane import settings
from fairlane.errors import InvalidArgument
from fairlane.operations import workers
from fairlane.protocol import keys
from fairlane.records import CallProgress, WorkerPage
from tests.support.both_faces import both_faces
from tests.support.processes.beats import STARTED, beat, make_older

if TYPE_CHECKING:
    import redis

    from fairlane.queue import Queue


@both_faces
def test_a_worker_that_beats_is_alive_with_all_that_it_reported(queue: Queue):
    beat(queue, "w:1")
    page = queue.workers()
    (found,) = page.workers
    assert (found.id, found.host, found.pid) == ("w:1", "machine", 17)
    assert (found.started_ms, found.is_alive, found.leases) == (1_700_000_000_000, True, 3)
    assert found.calls == (CallProgress("mine", 0, 4, 30, 100),)
    assert 0 <= found.beat_age_ms < 2_000
    assert page.more == 0


def test_a_worker_without_a_recent_beat_is_dead_and_listed_last(
    queue: Queue, redis_client: redis.Redis
):
    for name in ("a:1", "b:1", "c:1"):
        beat(queue, name)
    make_older(redis_client, queue, "a:1", 2 * settings.LATE_MS + 2_000)
    redis_client.delete(keys.worker("req", "b:1"))  # its record has expired, its beat is old
    make_older(redis_client, queue, "b:1", settings.WORKER_TTL_MS + 2_000)
    found = queue.workers().workers
    assert [(one.id, one.is_alive) for one in found] == [
        ("c:1", True),
        ("a:1", False),
        ("b:1", False),
    ]
    assert (found[2].host, found[2].pid, found[2].leases, found[2].calls) == (None, None, 0, ())


def test_a_worker_that_left_is_not_listed(queue: Queue):
    beat(queue, "w:1")
    queue.driver.run(workers.unregister_worker("req", "w:1", STARTED))
    assert queue.workers() == WorkerPage([], 0)


def test_the_newest_beats_are_listed_and_the_others_counted(
    queue: Queue, redis_client: redis.Redis
):
    for name in ("a:1", "b:1", "c:1"):
        beat(queue, name)
    make_older(redis_client, queue, "a:1", 2_000)
    page = queue.workers(limit=2)
    assert [one.id for one in page.workers] == ["b:1", "c:1"]
    assert page.more == 1


@pytest.mark.parametrize("limit", [0, 1001, True])
def test_a_limit_out_of_range_is_refused(limit: int, queue: Queue):
    with pytest.raises(InvalidArgument, match="from 1 to 1,000 is expected"):
        queue.workers(limit)
