"""Tests WAITAOF on a server that has it: Valkey, or Redis 7.2 and newer."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from fairlane import aio
from fairlane.drivers import error_mapping
from fairlane.errors import NotDurable
from fairlane.protocol.steps import Command, Confirm, Confirmed
from fairlane.queue import Queue
from tests.support.operations.drivers import both, run
from tests.support.scripts.requests import numbered, once, work_off
from tests.support.servers.replicas import Pair, run_pair
from tests.support.wait import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.usefixtures("redis_server"),
    pytest.mark.parametrize("redis_server", ["single"], indirect=True),
]


@pytest.fixture(scope="module")
def shared(redis_server: Any) -> Iterator[Pair]:
    if redis_server.binary.version < error_mapping.WAITAOF_SINCE:
        pytest.skip(f"{redis_server.binary} has no WAITAOF")
    with run_pair("single", "--appendonly", "yes", "--appendfsync", "everysec") as made:
        yield made


@pytest.fixture
def client(shared: Pair) -> Iterator[Any]:
    """Makes a client of the empty primary, which counts from 0 and syncs every second."""
    with contextlib.closing(shared.primary.client()) as made:
        made.flushall()
        made.config_resetstat()
        yield made
        made.config_set("appendonly", "yes")
        made.config_set("appendfsync", "everysec")


def asked(client: Any) -> int:
    found = client.info("commandstats").get("cmdstat_waitaof", {"calls": 0})
    return int(found["calls"])


def test_a_submission_waits_for_the_disk(shared: Pair, client: Any):
    with Queue.from_url(shared.primary.url) as queue:
        request = queue.submit_request(numbered(3), durable=1)
        assert asked(client) == 1
        work_off(queue.driver)
        assert request.wait(PATIENCE_S) == "done"
        assert asked(client) > 1


def test_an_asyncio_submission_waits_for_the_disk(shared: Pair, client: Any):
    async def main() -> None:
        async with aio.Queue.from_url(shared.primary.url) as queue:
            request = await queue.submit_request(numbered(3), durable=1)
            await request.cancel()

    asyncio.run(main())
    assert asked(client) >= 1


def test_a_late_disk_is_reported(shared: Pair, client: Any, monkeypatch: pytest.MonkeyPatch):
    """The replica has the write; without an fsync the primary's own disk may lack it."""
    monkeypatch.setattr("fairlane.settings.SYNC_MS", 100)
    client.config_set("appendfsync", "no")
    with (
        Queue.from_url(shared.primary.url) as queue,
        pytest.raises(NotDurable, match="append-only file was not on disk"),
    ):
        queue.submit_request(numbered(3), durable=1)


@both
def test_a_file_turned_off_meanwhile_confirms_nothing(kind: str, shared: Pair, client: Any):
    """The driver found the file before; since then WAITAOF is an error."""

    def operation() -> Any:
        confirm = Confirm(Command(b"SET", b"{r1}:x", b"1", b"PX", 60_000), 1)
        first = yield confirm
        client.config_set("appendonly", "no")
        return first, (yield confirm)

    before, after = run(kind, shared.primary.url, operation(), patience_s=20)
    assert before == Confirmed(b"OK", 1, is_synced=True)
    assert after == Confirmed(b"OK", 1, is_synced=False)


@both
def test_a_server_without_the_file_gets_no_waitaof(kind: str, shared: Pair, client: Any):
    client.config_set("appendonly", "no")
    confirm = Confirm(Command(b"SET", b"{r1}:x", b"1", b"PX", 60_000), 1)
    assert run(kind, shared.primary.url, once(confirm), patience_s=20) == (b"OK", 1, True)
    assert asked(client) == 0
