"""A node of a cluster that stopped answering is tried for a moment only, until it answers."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING, Any

import pytest
import redis
import redis.asyncio

from fairlane import settings
from fairlane.drivers.aio import connections as aio_connections
from fairlane.drivers.sync import connections as sync_connections
from fairlane.drivers.sync.driver import SyncDriver
from fairlane.drivers.sync.io import complete
from tests.support.event_loop import in_event_loop

if TYPE_CHECKING:
    from collections.abc import Iterator

LONG_S = 600.0  # a try of that length would be seen


@pytest.fixture
def mute() -> Iterator[dict[str, Any]]:
    """A server that takes connections and never answers, as a stopped process does."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
        yield {"host": host, "port": port, "socket_timeout": LONG_S}


def where(url: str) -> dict[str, Any]:
    host, _, port = url.rpartition("//")[2].rpartition(":")
    return {"host": host, "port": int(port), "socket_timeout": LONG_S}


def test_a_node_without_answers_is_left_soon(mute: dict[str, Any]):
    lines = sync_connections.ServerConnections(redis.ConnectionPool(**mute), "there")
    lines.is_suspect = True
    with pytest.raises(redis.exceptions.TimeoutError):
        complete(lines.take())
    assert lines.is_suspect


@in_event_loop
async def test_a_node_without_answers_is_left_soon_by_asyncio(mute: dict[str, Any]):
    lines = aio_connections.ServerConnections(redis.asyncio.ConnectionPool(**mute), "there")
    lines.is_suspect = True
    with pytest.raises(redis.exceptions.TimeoutError):
        await lines.take()
    assert lines.is_suspect


@pytest.mark.parametrize("redis_server", ["single"], indirect=True)
def test_one_that_answers_has_its_time_again(redis_url: str):
    lines = sync_connections.ServerConnections(redis.ConnectionPool(**where(redis_url)), "there")
    lines.is_suspect = True
    line = complete(lines.take())
    assert not lines.is_suspect
    assert line.socket_timeout == LONG_S
    line.disconnect()


@pytest.mark.parametrize("redis_server", ["single"], indirect=True)
@in_event_loop
async def test_one_that_answers_has_its_time_again_with_asyncio(redis_url: str):
    lines = aio_connections.ServerConnections(
        redis.asyncio.ConnectionPool(**where(redis_url)), "there"
    )
    lines.is_suspect = True
    line = await lines.take()
    assert not lines.is_suspect
    assert line.socket_timeout == LONG_S
    await line.disconnect()


@pytest.mark.parametrize("redis_server", ["cluster1"], indirect=True)
def test_only_the_node_that_did_not_answer_is_tried_briefly(redis_url: str):
    with contextlib.closing(SyncDriver(redis_url)) as driver:
        servers = driver.servers
        (node,) = complete(servers.slots()).nodes
        lines, other = servers.lines_at(node), servers.lines_at(("127.0.0.1", 1))
        servers.failed(lines)
        assert (lines.is_suspect, other.is_suspect) == (True, False)


def test_a_node_without_answers_costs_less_than_a_failover():
    """Than what is left of the five seconds when a node timeout of two and its vote are over."""
    assert settings.FIRST_RETRY_TIMEOUT_S < 1 < settings.FAILOVER_TIMEOUT_S
