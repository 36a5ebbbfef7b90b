"""Fixtures: real servers, a clean database before every test, a checked one after it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

from fairlane import scripts
from fairlane.drivers.sync import SyncDriver
from fairlane.embedded import find_server
from tests.support import servers
from tests.support.requests import Lane
from tests.support.teardown import check_world

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis


# The mutation gate (tests/explore/mutants.py) runs the tests on a changed copy of the scripts.
if changed_lua := os.environ.get("FAIRLANE_TESTS_LUA"):
    vars(scripts)["lua_folder"] = lambda: Path(changed_lua)

# A loaded machine is no reason to fail.
hypothesis.settings.register_profile("patient", deadline=None)
hypothesis.settings.load_profile("patient")


@pytest.fixture(scope="session", params=servers.KINDS)
def redis_server(request: pytest.FixtureRequest) -> Iterator[servers.Server]:
    """A private server of each kind, for the whole run."""
    if request.param == "bundled62":
        bundled = servers.find_bundled()
        if bundled is None:
            pytest.skip("no bundled server: the extra `embedded` has no wheel here")
        if bundled.version == find_server().version:
            pytest.skip("the bundled server is the only one: `single` runs on it already")
    with servers.run_server(request.param) as server:
        yield server


@pytest.fixture
def redis_url(redis_server: servers.Server) -> Iterator[str]:
    """The URL of a clean server, whose keys are checked when the test has ended."""
    with contextlib.closing(redis_server.client()) as client:
        client.flushall()
        yield redis_server.url
        check_world(client)


@pytest.fixture
def redis_client(redis_server: servers.Server, redis_url: str) -> Iterator[redis.Redis]:
    """A raw client of the server behind `redis_url`: bytes in, bytes out, no retries."""
    with contextlib.closing(redis_server.client()) as client:
        yield client


@pytest.fixture
def driver(redis_url: str) -> Iterator[SyncDriver]:
    """A driver of the server behind `redis_url`, which repeats nothing."""
    with contextlib.closing(SyncDriver(redis_url, patience_s=0)) as made:
        yield made


@pytest.fixture
def lane(driver: SyncDriver, redis_client: redis.Redis) -> Lane:
    """A request `r1` in the queue `req`, not enqueued yet."""
    return Lane(driver, redis_client)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that need a real server."""
    for item in items:
        if "redis_server" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.server)
