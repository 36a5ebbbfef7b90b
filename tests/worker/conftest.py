"""A queue that is checked when its test has ended, and workers in processes of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fairlane.queue import Queue
from tests.support.workers import Workers, check_requests, workers_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import redis

    from tests.support.workers import Folder


@pytest.fixture
def queue(redis_url: str, redis_client: redis.Redis) -> Iterator[Queue]:
    """The queue `req`; at the end every request is whole, nothing is held, nobody is registered."""
    with Queue.from_url(redis_url, patience_s=5) as made:
        yield made
        check_requests(made, redis_client)


@pytest.fixture
def workers(queue: Queue, redis_client: redis.Redis, tmp_path: Path) -> Iterator[Workers]:
    """Starts workers; they have drained before the queue is checked."""
    with workers_of(queue, redis_client, tmp_path) as made:
        yield made


@pytest.fixture
def folder(workers: Workers) -> Folder:
    """What the test and its handlers share."""
    return workers.folder


@pytest.fixture
def still_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is 110 s: ten seconds after the leases of these tests were taken."""
    monkeypatch.setattr("fairlane.clock.mono_s", lambda: 110.0)
