"""Fixtures of the operation tests."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import hypothesis
import pytest

from fairlane.drivers.sync import SyncDriver
from fairlane.queue import Queue
from tests.support.requests import Lane

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis

# A loaded machine is no reason to fail.
hypothesis.settings.register_profile("patient", deadline=None)
hypothesis.settings.load_profile("patient")


@pytest.fixture
def driver(redis_url: str) -> Iterator[SyncDriver]:
    """A driver of the server behind `redis_url`, which repeats nothing."""
    with contextlib.closing(SyncDriver(redis_url, patience_s=0)) as made:
        yield made


@pytest.fixture
def queue(driver: SyncDriver) -> Queue:
    """The blocking face of the queue `req`."""
    return Queue(driver)


@pytest.fixture
def lane(driver: SyncDriver, redis_client: redis.Redis) -> Lane:
    """The request `r1`, to look at with `check` and raw commands."""
    return Lane(driver, redis_client)
