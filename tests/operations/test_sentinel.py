"""How a driver finds its server and keeps to it: Sentinel, patience, passwords, connections."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import redis

from fairlane import retry, settings
from fairlane.drivers.aio import AsyncDriver
from fairlane.drivers.sync import SyncDriver
from fairlane.drivers.wire import from_url, hide_secret, split_sentinel
from fairlane.errors import FairlaneError, InvalidArgument, RedisUnreachable
from fairlane.queue import Queue
from fairlane.steps import Command
from tests.support import servers
from tests.support.requests import once
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from fairlane.steps import Operation

KINDS = ("sync", "async")
both = pytest.mark.parametrize("kind", KINDS)
NAME = "mymaster"
UP_S = 20.0


# ------------------------------------------------------------------ Sentinel


@dataclass
class Guarded:
    """A master, its replica and the sentinel that watches them."""

    first: servers.Server
    second: servers.Server
    port: int
    sentinel: Any

    @property
    def url(self) -> str:
        """What a user of Fairlane would name."""
        return f"redis+sentinel://{servers.HOST}:{self.port}/{NAME}"

    def master(self) -> int:
        """The port of the master, as the sentinel says."""
        return int(self.sentinel.sentinel_get_master_addr_by_name(NAME)[1])

    def replicas(self) -> int:
        """How many replicas the sentinel knows to be well."""
        found = self.sentinel.sentinel_slaves(NAME)
        return sum(one["flags"] in ("slave", b"slave") for one in found)

    def demote_the_master(self) -> None:
        """It becomes a replica and keeps its connections. (The sentinel would do so after 10 s.)"""
        self.wait_for_the_copy()
        self.sentinel.execute_command("SENTINEL", "FAILOVER", NAME)
        self.wait_for_the_other()
        with contextlib.closing(self.first.client()) as client:
            client.replicaof(servers.HOST, self.second.port)

    def kill_the_master(self) -> None:
        """Nobody listens at its port any more."""
        self.wait_for_the_copy()
        self.first.process.kill()
        self.first.process.wait()
        self.wait_for_the_other()

    def wait_for_the_copy(self) -> None:
        """The replica has all that was written; a failover takes what it has not."""
        with (
            contextlib.closing(self.first.client()) as first,
            contextlib.closing(self.second.client()) as second,
        ):
            wait_until(
                lambda: first.role()[1] == second.role()[4],
                UP_S,
                why="the replica has caught up",
            )

    def wait_for_the_other(self) -> None:
        """The sentinel names the former replica, which takes writes."""
        with contextlib.closing(self.second.client()) as client:
            wait_until(
                lambda: self.master() == self.second.port and client.role()[0] == b"master",
                UP_S,
                why="the replica becomes the master",
            )


@contextlib.contextmanager
def guarded(path: Path) -> Iterator[Guarded]:
    """Both servers and their sentinel, in sight of each other."""
    quick = ("--repl-diskless-sync-delay", "0")
    with contextlib.ExitStack() as later:
        first = later.enter_context(servers.run_server("single", *quick))
        follow = ("--replicaof", servers.HOST, str(first.port))
        second = later.enter_context(servers.run_server("single", *quick, *follow))
        with contextlib.closing(second.client()) as client:
            wait_until(
                lambda: client.info("replication")["master_link_status"] == "up",
                UP_S,
                why="the replica is attached",
            )
        port = later.enter_context(watching(path, first))
        sentinel = later.enter_context(
            contextlib.closing(redis.Redis(host=servers.HOST, port=port, socket_timeout=30))
        )
        made = Guarded(first, second, port, sentinel)
        wait_until(lambda: made.replicas() == 1, UP_S, why="the sentinel knows the replica")
        yield made


@contextlib.contextmanager
def watching(path: Path, master: servers.Server) -> Iterator[int]:
    """A sentinel of one vote, in a folder of its own; yields its port."""
    port = servers._free_port()
    config = path / "sentinel.conf"
    config.write_text(
        f"port {port}\nbind {servers.HOST}\ndir {path}\n"
        f"sentinel monitor {NAME} {servers.HOST} {master.port} 1\n"
        f"sentinel down-after-milliseconds {NAME} 500\n"
        f"sentinel failover-timeout {NAME} 5000\n"
    )
    with (path / "sentinel.log").open("ab") as log:
        process = subprocess.Popen(
            [str(master.binary.path), str(config), "--sentinel"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=servers._die_with_parent,  # noqa: PLW1509 - runs one system call
        )
    try:
        wait_until(lambda: servers.is_open(port), UP_S, why="the sentinel answers")
        yield port
    finally:
        process.kill()
        process.wait()


def perform(kind: str, url: str, operation: Operation[Any], patience_s: float = UP_S) -> Any:
    """One operation by one of the two drivers."""
    if kind == "sync":
        with contextlib.closing(SyncDriver(url, patience_s=patience_s)) as driver:
            return driver.run(operation)

    async def main() -> Any:
        driver = AsyncDriver(url, patience_s=patience_s)
        try:
            return await driver.run(operation)
        finally:
            await driver.close()

    return asyncio.run(main())


def write_around(change: Callable[[], None]) -> Operation[list[Any]]:
    """Write on the master and ask where; the same again after something has changed."""
    said = []
    for step in (change, None):
        yield Command(b"SET", "{a}:0", "x", "PX", 60_000)
        said.append(str((yield Command(b"INFO", "server"))).partition("tcp_port:")[2])
        if step is not None:
            step()
    return [int(text.partition("\\r")[0]) for text in said]


@pytest.mark.server
@both
@pytest.mark.parametrize("how", ["demote_the_master", "kill_the_master"])
def test_a_sentinels_master_is_reached_and_followed(kind: str, how: str, tmp_path: Path):
    """Both drivers, whether the old master is demoted or dead; the operation does not notice."""
    with guarded(tmp_path) as trio:
        ports = perform(kind, trio.url, write_around(getattr(trio, how)))
        assert ports == [trio.first.port, trio.second.port]


@pytest.mark.server
def test_a_queue_behind_a_sentinel_takes_requests(tmp_path: Path):
    """Its scripts run on the master, and its url names no server but the sentinel."""
    with guarded(tmp_path) as trio, Queue.from_url(trio.url) as queue:
        request = queue.submit_request([b"1", b"2"])
        assert request.progress().total == 2
        trio.demote_the_master()
        assert request.cancel()
        assert request.wait(timeout=10) == "cancelled"


@both
def test_a_sentinel_nobody_runs_is_unreachable(kind: str):
    """The sentence names the URL as it was given."""
    url = f"redis+sentinel://:secret@127.0.0.1:1,127.0.0.1:2/{NAME}"
    shown = f"redis\\+sentinel://:\\*\\*\\*@127.0.0.1:1,127.0.0.1:2/{NAME} "
    with pytest.raises(RedisUnreachable, match=shown) as raised:
        perform(kind, url, once(Command(b"TIME")), patience_s=0)
    assert "secret" not in str(raised.value)


def test_a_sentinel_url_is_read_from_its_end():
    """A password may hold what separates the rest."""
    found = split_sentinel("redis+sentinel://u:p@/:,s@a:1,b:2/m/3")
    assert found == (
        [("a", 1), ("b", 2)],
        "m",
        {"db": 3, "username": "u", "password": "p@/:,s"},
    )


# ------------------------------------------------------------------ patience


class FakeClock:
    """A clock that only moves when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def fake_clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """What durations are measured with."""
    made = FakeClock()
    monkeypatch.setattr("fairlane.clock.mono_s", made)
    return made


@pytest.mark.parametrize("try_s", [0.0, 0.4, 2.0])
def test_patience_ends_by_the_clock(fake_clock: FakeClock, try_s: float):
    """What the tries took counts as well as the pauses between them."""
    began = fake_clock.now
    last_try = 0.0
    for pause in retry.connection_delays(5.0):
        assert fake_clock.now + pause <= began + 5.0 + 1e-6
        last_try = fake_clock.now = fake_clock.now + pause
        fake_clock.now += try_s
    assert last_try <= began + 5.0 + 1e-6
    assert began + 5.0 <= fake_clock.now <= began + 5.0 + try_s + 1e-6


def test_one_slow_try_may_use_up_all_patience(fake_clock: FakeClock):
    """Then there is no second."""
    delays = retry.connection_delays(5.0)
    assert 0 < next(delays) <= 0.02
    fake_clock.now += 5.0
    assert next(delays, None) is None


def test_no_patience_is_one_try(fake_clock: FakeClock):
    """Nothing is waited for."""
    assert list(retry.connection_delays(0)) == []


def test_pauses_grow_to_a_second(fake_clock: FakeClock, monkeypatch: pytest.MonkeyPatch):
    """Doubling, with some jitter, and no longer than what is left."""
    monkeypatch.setattr("random.uniform", lambda _low, high: high)
    pauses = []
    for pause in retry.connection_delays(4.0):
        pauses.append(round(pause, 3))
        fake_clock.now += pause
    assert pauses == [0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0, 0.74]


# ------------------------------------------------------------------ secrets


class Secret(NamedTuple):
    """A URL, and what may be shown of it."""

    url: str
    shown: str


SECRETS = [
    Secret("redis://u:TOP@SECRET@h:1/0", "redis://u:***@h:1/0"),
    Secret("redis://u:TOP/SECRET@h:1/0", "redis://u:***@h:1/0"),
    Secret("redis://:TOP/@:SECRET@h:1/0", "redis://:***@h:1/0"),
    Secret("rediss://u:TOP%40SECRET@h", "rediss://u:***@h"),
    Secret("redis://h:1/0?password=TOPSECRET", "redis://h:1/0?password=***"),
    Secret("redis://h:1/0?password=TOP@SECRET&db=2", "redis://h:1/0?password=***&db=2"),
    Secret("redis://u:TOP@h:1/0?password=SECRET", "redis://u:***@h:1/0?password=***"),
    Secret("redis://u:TOP@h:1/0?password=TOP@SECRET", "redis://u:***@h:1/0?password=***"),
    Secret("unix://u:TOP/SECRET@/run/r.sock", "unix://u:***@/run/r.sock"),
    Secret("unix:///run/r.sock?db=1&password=TOPSECRET", "unix:///run/r.sock?db=1&password=***"),
    Secret("unix:///run/r.sock?password=TOP@SECRET", "unix:///run/r.sock?password=***"),
    Secret("redis+sentinel://:TOP@/SECRET@a:1,b:2/m", "redis+sentinel://:***@a:1,b:2/m"),
    Secret("redis+sentinel://u:TOPSECRET@a:1/m/3", "redis+sentinel://u:***@a:1/m/3"),
    Secret("redis+cluster://u:TOP/@SECRET@a:1,b:2", "redis+cluster://u:***@a:1,b:2"),
]


@pytest.mark.parametrize("secret", SECRETS, ids=lambda secret: secret.url)
def test_a_password_of_any_shape_is_hidden(secret: Secret):
    """With @ and / in it, or in the query; the rest of the URL is shown."""
    assert hide_secret(secret.url) == secret.shown


# Where nobody listens; TOP and SECRET are each a part of the password.
NOWHERE = [
    "redis://u:TOP%40SECRET@127.0.0.1:1/0",
    "redis://u:TOP@SECRET@127.0.0.1:1/0",
    "redis://u:TOP/SECRET@127.0.0.1:1/0",
    "redis://u:TOP@SECRET/@127.0.0.1:1/0",
    "redis://u:TOP@SECRET#@127.0.0.1:1/0",
    "redis://u:TOP[SECRET@127.0.0.1:1/0",
    "redis://127.0.0.1:1/0?password=TOP@SECRET",
    "unix://u:TOPSECRET@/nowhere/r.sock",
    "unix://u:TOP/SECRET@/nowhere/r.sock",
    "unix:///nowhere/r.sock?password=TOP@SECRET",
    "redis+sentinel://u:TOP@/SECRET@127.0.0.1:1/m",
    "redis+sentinel://127.0.0.1:1/m?password=TOPSECRET",
    "redis+sentinel://u:TOP@127.0.0.1:1/m/0?password=SECRET",
    "redis+cluster://u:TOP@/SECRET@127.0.0.1:1",
]


@pytest.mark.parametrize("url", NOWHERE)
@both
def test_no_error_and_no_repr_shows_any_of_the_password(kind: str, url: str):
    """What is said about a server that can't be reached, or a URL that can't be read."""
    said = []
    try:
        if kind == "sync":
            said.append(repr(Queue.from_url(url)))
        perform(kind, url, once(Command(b"TIME")), patience_s=0)
    except FairlaneError as error:
        said.append(f"{error} {error!r} {error.__cause__}")
    assert said
    assert [text for text in said if "TOP" in text or "SECRET" in text] == []


@pytest.mark.parametrize("url", ["redis://h:x", "redis://u:p@s/s@h:1", "unix://u:p/s@/run/r.sock"])
def test_a_url_that_cannot_be_read_is_refused_at_once(url: str):
    """Rather than connect to a part of the password; the sentence shows how one looks."""
    pool = redis.ConnectionPool
    with pytest.raises(InvalidArgument, match="is not valid"):
        from_url(pool, url, {})


# ------------------------------------------------------------------ connections


@pytest.mark.parametrize("redis_server", ["single"], indirect=True)
def test_connections_do_not_run_out(redis_url: str, redis_client: redis.Redis):
    """Each wait has one of its own and closes it; redis-py's pool would end at a hundred."""
    with Queue.from_url(redis_url, patience_s=0) as queue:
        request = queue.submit_request([])
        for _ in range(300):
            assert request.wait(timeout=10) == "done"
        connected = redis_client.info("clients")["connected_clients"]
        assert connected < 20


@pytest.mark.parametrize("redis_server", ["single"], indirect=True)
def test_connections_of_an_event_loop_do_not_run_out(redis_url: str):
    """Nor while two hundred are in use at once."""
    barrier = asyncio.Barrier(200)

    async def main() -> list[Any]:
        driver = AsyncDriver(redis_url, patience_s=0, timeout_s=settings.SOCKET_TIMEOUT_S)

        async def use() -> Any:
            line = await (await driver.servers.lines_for(None)).take()
            await barrier.wait()
            await line.disconnect()
            return line

        try:
            return await asyncio.gather(*(use() for _ in range(200)))
        finally:
            await driver.close()

    assert len(set(map(id, asyncio.run(main())))) == 200
