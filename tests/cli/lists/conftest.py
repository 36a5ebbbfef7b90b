"""Fixtures: a person's lists."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis


@pytest.fixture(autouse=True)
def lists(redis_client: redis.Redis) -> Iterator[redis.Redis]:
    """The server. The lists have no TTL: they go before the keys are checked."""
    yield redis_client
    redis_client.flushall()
