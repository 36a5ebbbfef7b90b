"""Tests that a node which stopped answering gets short tries only, until it answers."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, Any

import pytest
import redis
import redis.asyncio

from fairlane import settings
from fairlane.drivers import aio as aio_connections
from fairlane.drivers import sync as sync_connections
from fairlane.drivers.sync import SyncDriver, complete
from tests.support.operations.drivers import both

if TYPE_CHECKING:
    from collections.abc import Iterator

LONG_S = 600.0  # a try of that length would be seen


@pytest.fixture
def mute() -> Iterator[dict[str, Any]]:
    """Runs a server that takes connections and never answers, as a stopped process does."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
        yield {"host": host, "port": port, "socket_timeout": LONG_S}


def where(url: str) -> dict[str, Any]:
    host, _, port = url.rpartition("//")[2].rpartition(":")
    return {"host": host, "port": int(port), "socket_timeout": LONG_S}


def suspect(kind: str, there: dict[str, Any]) -> Any:
    """Returns the connections to a server that did not answer last."""
    if kind == "sync":
        lines: Any = sync_connections.ServerConnections(redis.ConnectionPool(**there), "there")
    else:
        pool = redis.asyncio.ConnectionPool(**there)
        lines = aio_connections.ServerConnections(pool, "there")
    lines.probes_first = True
    return lines


def take(kind: str, lines: Any) -> Any:
    """Takes a connection, and closes it."""
    if kind == "sync":
        line = complete(lines.take())
        line.disconnect()
        return line

    async def take_and_close() -> Any:
        line = await lines.take()
        await line.disconnect()
        return line

    return asyncio.run(take_and_close())


@both
def test_a_node_without_answers_is_left_soon(kind: str, mute: dict[str, Any]):
    lines = suspect(kind, mute)
    with pytest.raises(redis.exceptions.TimeoutError):
        take(kind, lines)
    assert lines.probes_first


@both
@pytest.mark.parametrize("redis_server", ["single"], indirect=True)
def test_one_that_answers_has_its_time_again(kind: str, redis_url: str):
    lines = suspect(kind, where(redis_url))
    assert take(kind, lines).socket_timeout == LONG_S
    assert not lines.probes_first


@pytest.mark.parametrize("redis_server", ["cluster1"], indirect=True)
def test_only_the_node_that_did_not_answer_is_tried_briefly(redis_url: str):
    with contextlib.closing(SyncDriver(redis_url)) as driver:
        servers = driver.servers
        (node,) = complete(servers.slots()).nodes
        lines, other = servers.lines_at(node), servers.lines_at(("127.0.0.1", 1))
        servers.note_failed(lines)
        assert (lines.probes_first, other.probes_first) == (True, False)


def test_a_node_without_answers_costs_less_than_a_failover():
    """It costs less than the rest of the five seconds after a node timeout of two and a vote."""
    assert settings.FIRST_RETRY_TIMEOUT_S < 1 < settings.FAILOVER_TIMEOUT_S
