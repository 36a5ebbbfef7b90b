"""Tests that a worker checks its Redis rights before it takes work, and names missing ones."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.drivers.sync import SyncDriver
from fairlane.errors import RedisUnfit
from fairlane.operations import lease
from fairlane.protocol import acl
from fairlane.protocol.lua import Dialect, library
from fairlane.queue import Queue
from fairlane.worker import Worker
from tests.scripts.repair.test_full_and_forgotten import full
from tests.support.scripts.requests import dump
from tests.support.servers import backends, server_process
from tests.support.servers.users import version_of
from tests.worker.handlers import echo

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis

ON_SINGLE = pytest.mark.parametrize("redis_server", backends.one(), indirect=True)
KEY = b"{req}:rights:w:1"


@pytest.fixture
def weak(redis_client: redis.Redis, redis_url: str) -> Iterator[SyncDriver]:
    """Makes a driver of a user that has a worker's rules, which a test changes."""
    if not redis_url.startswith("redis://") or "@" in redis_url:
        pytest.skip("it needs a user of its own")
    rule(redis_client)
    made = SyncDriver(redis_url.replace("://", "://weak:word@"), patience_s=0)
    with contextlib.closing(made):
        yield made
    redis_client.execute_command("ACL", "DELUSER", "weak")


def rule(client: Any, *more: str) -> None:
    rules = acl.rules("worker", "req", server=version_of(client))
    client.execute_command("ACL", "SETUSER", "weak", "reset", "on", ">word", *rules, *more)


def wanted_of(client: Any) -> list[str]:
    return sorted(lease.commands(client.info("server")))


def test_every_user_of_the_tests_may_work(driver: SyncDriver, redis_client: redis.Redis):
    driver.run(lease.check_rights("req", "w:1"))
    assert dump(redis_client) == {}


@ON_SINGLE
@pytest.mark.any_command
def test_a_worker_may_work_by_its_role_alone(weak: SyncDriver, redis_client: redis.Redis):
    weak.run(lease.check_rights("req", "w:1"))
    assert dump(redis_client) == {}


@ON_SINGLE
@pytest.mark.any_command
def test_each_command_that_is_missing_is_named(weak: SyncDriver, redis_client: redis.Redis):
    for name in wanted_of(redis_client):
        rules = [f"+{one}" for one in wanted_of(redis_client) if one != name]
        redis_client.execute_command("ACL", "SETUSER", "weak", "-@all", "+info", "+evalsha", *rules)
        shown = name.replace("|", " ").upper()
        with pytest.raises(RedisUnfit, match=f"may not send {shown}, .*`fairlane acl worker`"):
            weak.run(lease.check_rights("req", "w:1"))
        redis_client.delete(KEY)
        assert dump(redis_client) == {}, name


@ON_SINGLE
@pytest.mark.any_command
def test_each_kind_of_key_that_is_missing_is_named(weak: SyncDriver, redis_client: redis.Redis):
    """An older release's rules do not name the keys of a newer one."""
    patterns = [rule for rule in acl.rules("worker", "req") if rule.startswith("~")]
    for missing in ("~few:{*}", "~tok:{*}"):
        redis_client.execute_command(
            "ACL", "SETUSER", "weak", "resetkeys", *(one for one in patterns if one != missing)
        )
        with pytest.raises(RedisUnfit, match=r"may not use keys like (few|tok):\{\*\}, "):
            weak.run(lease.check_rights("req", "w:1"))


@pytest.mark.parametrize("dialect", list(Dialect))
def test_every_command_that_a_worker_may_send_is_tried(dialect: Dialect):
    """A script's new call is tried, too, because the list is read from the scripts."""
    version = "8.0.0"
    info = {"redis_version": version, "redis_mode": dialect.value}
    found = lease.commands(info)
    for name in acl.ROLES["worker"].scripts:
        assert acl.commands_in(library()[name], dialect) <= found
    server = acl.version(version)
    known = {one for one in acl.ROLES["worker"].commands if acl.has_command(server, one)}
    assert known - found == acl.CALL


@ON_SINGLE
@pytest.mark.any_command
def test_no_command_is_tried_in_a_form_that_redis_does_not_look_at(redis_client: redis.Redis):
    """A wrong number of arguments is refused before a missing right; and nothing is changed."""
    for exists in (True, False):
        for name in wanted_of(redis_client):
            redis_client.flushall()
            if exists:
                redis_client.set(KEY, b"", px=60_000)
            before = dump(redis_client)
            words = lease.harmless(name, KEY).args
            reply = answer(redis_client, *words)
            assert "wrong number of arguments" not in reply, (name, reply)
            assert "unknown" not in reply, (name, reply)
            assert not exists or dump(redis_client) == before, name
    redis_client.flushall()


def answer(client: Any, *words: Any) -> str:
    try:
        return str(client.execute_command(*words))
    except Exception as error:  # noqa: BLE001
        return str(error)


@ON_SINGLE
@pytest.mark.any_command
def test_a_full_redis_is_no_missing_right(driver: SyncDriver, redis_client: redis.Redis):
    with full(redis_client):
        driver.run(lease.check_rights("req", "w:1"))
    assert dump(redis_client) == {}


def test_a_command_that_was_renamed_is_named():
    """No rules restore the command, so the sentence names the remedy."""
    with (
        server_process.run_server("single", "--rename-command", "COPY", "") as server,
        contextlib.closing(SyncDriver(server.url, patience_s=0)) as driver,
        pytest.raises(RedisUnfit, match=r"no command COPY, which a worker needs.*rename-command"),
    ):
        driver.run(lease.check_rights("req", "w:1"))


@ON_SINGLE
@pytest.mark.any_command
def test_a_worker_without_a_right_does_not_begin(weak: SyncDriver, redis_client: redis.Redis):
    with Queue.from_url(weak.url.replace("weak:word@", "")) as queue:
        request = queue.submit_request([b"x"])
    rule(redis_client, "+eval", "-copy")
    with Queue.from_url(weak.url) as own, pytest.raises(RedisUnfit, match="may not send COPY"):
        Worker(own, echo).run(until_idle=True)
    assert redis_client.zrange("{req}:workers", 0, -1) == []
    rule(redis_client, "+eval")
    with Queue.from_url(weak.url) as own:
        Worker(own, echo).run(until_idle=True)
    with Queue.from_url(weak.url.replace("weak:word@", "")) as queue:
        assert queue.request(request.id).state() == "done"
