"""A master, its replica and the sentinels that watch them, as real processes."""

from __future__ import annotations

import contextlib
import tempfile
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import redis

from tests.support.security import ADMIN, ADMIN_PASSWORD
from tests.support.servers import server_process
from tests.support.servers.server_process import HOST, Server
from tests.support.wait import PATIENCE_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.security import Security

NAME = "mymaster"


@dataclass
class Guarded:
    """The two servers, and their sentinels by port."""

    first: Server
    second: Server
    ports: list[int]
    sentinels: list[Any] = field(default_factory=list)

    @property
    def url(self) -> str:
        """The URL that a user of Fairlane would pass."""
        hosts = ",".join(f"{HOST}:{port}" for port in self.ports)
        known = self.first.security
        if known is None:
            return f"redis+sentinel://{hosts}/{NAME}"
        guards = f"sentinel_username={ADMIN}&sentinel_password={ADMIN_PASSWORD}"
        return f"rediss+sentinel://{known.credentials}{hosts}/{NAME}{known.query}&{guards}"

    def master(self) -> int:
        """The master's port as the first sentinel reports it; 0 while it is marked as down."""
        found = self.sentinels[0].sentinel_masters()[NAME]
        return int(found["port"]) if found["flags"] == "master" else 0

    def see_each_other(self) -> bool:
        """Returns whether every sentinel has a healthy replica and all other sentinels."""
        for sentinel in self.sentinels:
            replicas = sentinel.sentinel_slaves(NAME)
            well = [one for one in replicas if one["flags"] in ("slave", b"slave")]
            others = sentinel.sentinel_sentinels(NAME)
            if not well or len(others) < len(self.ports) - 1:
                return False
        return True

    def demote_the_master(self) -> None:
        """Makes the master a replica that keeps its connections. (A sentinel takes 10 s for it.)"""
        self.wait_for_the_copy()
        self.sentinels[0].execute_command("SENTINEL", "FAILOVER", NAME)
        self.wait_for_the_other()
        with contextlib.closing(self.first.client()) as client:
            client.replicaof(HOST, self.second.port)

    def kill_the_master(self) -> None:
        """Kills the master: no process listens at its port any more."""
        self.wait_for_the_copy()
        self.first.process.kill()
        self.first.process.wait()
        self.wait_for_the_other()

    def wait_for_the_copy(self) -> None:
        """Waits until the replica has all that was written; a failover loses what it lacks."""
        with (
            contextlib.closing(self.first.client()) as first,
            contextlib.closing(self.second.client()) as second,
        ):
            wait_until(
                lambda: first.role()[1] == second.role()[4],
                PATIENCE_S,
                why="the replica has caught up",
            )

    def wait_for_the_other(self) -> None:
        """Waits until the sentinel names the former replica, and that takes writes."""
        with contextlib.closing(self.second.client()) as client:
            wait_until(
                lambda: self.master() == self.second.port and client.role()[0] == b"master",
                PATIENCE_S,
                why="the replica becomes the master",
            )


@contextlib.contextmanager
def run_guarded(
    sentinels: int = 1, *, down_after_ms: int = 500, security: Security | None = None
) -> Iterator[Guarded]:
    """Runs both servers and their sentinels, which have found each other."""
    with contextlib.ExitStack() as later:
        run = partial(server_process.run_server, "single", security=security)
        first = later.enter_context(run())
        second = later.enter_context(run("--replicaof", HOST, str(first.port)))
        with contextlib.closing(second.client()) as client:
            wait_until(
                lambda: client.info("replication")["master_link_status"] == "up",
                PATIENCE_S,
                why="the replica is attached",
            )
        made = Guarded(first, second, [])
        access = security.access if security else {}
        for _ in range(sentinels):
            quorum = sentinels // 2 + 1
            port = later.enter_context(_watching(first, quorum, down_after_ms))
            client = redis.Redis(host=HOST, port=port, socket_timeout=30, **access)
            made.sentinels.append(later.enter_context(contextlib.closing(client)))
            made.ports.append(port)
        wait_until(made.see_each_other, why="the sentinels know the replica and each other")
        yield made


@contextlib.contextmanager
def _watching(master: Server, quorum: int, down_after_ms: int) -> Iterator[int]:
    """Runs a sentinel in a folder of its own; yields its port."""
    (port,) = server_process.free_ports(1)
    with tempfile.TemporaryDirectory(prefix="fl-s-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        config = folder / "sentinel.conf"
        config.write_text("\n".join(_config(master, port, quorum, down_after_ms)))
        words = [str(master.binary.path), str(config), "--sentinel"]
        if master.security:
            words += master.security.sentinel_options(port)
        process = server_process.spawn(words, folder / "sentinel.log")
        try:
            wait_until(lambda: server_process.is_open(port), why="the sentinel answers")
            yield port
        finally:
            process.kill()
            process.wait()


def _config(master: Server, port: int, quorum: int, down_after_ms: int) -> list[str]:
    lines = [
        f"port {port}",
        f"bind {HOST}",
        f"sentinel monitor {NAME} {HOST} {master.port} {quorum}",
        f"sentinel down-after-milliseconds {NAME} {down_after_ms}",
        f"sentinel failover-timeout {NAME} 5000",
    ]
    if master.security:
        lines += [f"sentinel auth-user {NAME} {ADMIN}"]
        lines += [f"sentinel auth-pass {NAME} {ADMIN_PASSWORD}"]
        lines += [f"sentinel sentinel-user {ADMIN}", f"sentinel sentinel-pass {ADMIN_PASSWORD}"]
    return [*lines, ""]
