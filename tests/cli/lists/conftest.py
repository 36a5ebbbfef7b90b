"""Fixtures: plain lists of a user."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs a test on a single server, because a cluster wants the hash tags that few tests use."""
    named = {mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")}
    if "redis_server" in metafunc.fixturenames and "redis_server" not in named:
        metafunc.definition.add_marker(
            pytest.mark.parametrize("redis_server", ["single"], indirect=True)
        )


@pytest.fixture(autouse=True)
def lists(redis_client: redis.Redis) -> Iterator[redis.Redis]:
    """Returns the server. The lists have no TTL: they are removed before the keys are checked."""
    yield redis_client
    redis_client.flushall()
