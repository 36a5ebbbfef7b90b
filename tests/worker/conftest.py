"""Fixtures: a queue that is checked after its test, and workers in processes of their own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.queue import Queue
from fairlane.worker.calls import Runner
from fairlane.worker.handlers import shape_of
from tests.support.processes.workers import Workers, check_requests, workers_of
from tests.worker.parts import made_async, record_of_its_own

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import redis

    from fairlane.model import Slice
    from fairlane.worker.board import LeaseRecord
    from fairlane.worker.calls import Outcome
    from tests.support.processes.workers import Folder


@pytest.fixture
def queue(redis_url: str, redis_client: redis.Redis) -> Iterator[Queue]:
    """Yields the queue `req`; at the end every request is whole, and nothing is leased."""
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
    """Returns the folder that the test and its handlers share."""
    return workers.folder


@pytest.fixture
def still_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stops the clock at 110 s: ten seconds after the leases of these tests were taken."""
    monkeypatch.setattr("fairlane.common.clock.mono_s", lambda: 110.0)


@pytest.fixture(params=["sync", "async"])
def run(request: pytest.FixtureRequest) -> Callable[..., Outcome]:
    """Runs a handler over a slice, as itself and as an `async def` of the same body."""

    def go(
        handler: Callable[..., Any],
        taken: Slice,
        position: int = 0,
        record: LeaseRecord | None = None,
    ) -> Outcome:
        record = record or record_of_its_own()
        if request.param == "sync":
            return Runner(shape_of(handler), record).run_slice(taken, position)
        runner = Runner(shape_of(made_async(handler)), record)
        return asyncio.run(runner.run_slice_async(taken, position))

    return go


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The worker's clock: its one number is the time."""
    made = [100.0]
    monkeypatch.setattr("fairlane.common.clock.mono_s", lambda: made[0])
    return made
