"""Makes the users that `fairlane acl` prints, on any kind of server."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import redis

from fairlane.cli.commands.acl import PREFIX
from fairlane.protocol import acl
from tests.support.security import load_scripts

if TYPE_CHECKING:
    from collections.abc import Iterable

PASSWORD = "open:%2F@sesame"  # characters that a URL must quote
QUOTED = "open%3A%252F%40sesame"
# Commands that may be refused without harm; redis-py introduces itself to every server.
TRIED = acl.WITHHELD | {"client", "client|setinfo", "config"}


def servers_of(backend: Any) -> list[redis.Redis]:
    """Returns a raw client of every server, replicas included; the first is a primary."""
    if hasattr(backend, "cluster"):
        return [node.client() for node in backend.cluster.nodes]
    if hasattr(backend, "guarded"):
        return [backend.guarded.first.client(), backend.guarded.second.client()]
    return [backend.client()]


@dataclass
class Users:
    """The users of these servers: every server of a deployment has users of its own."""

    url: str
    servers: list[redis.Redis]
    queue: str | None = None
    names: set[str] = field(default_factory=set)

    def add(self, role: str, *more: str) -> str:
        """Makes a user, and clears what was refused before; returns the URL it logs in with.

        `more` are rules besides those of its role.
        """
        name = PREFIX + role.replace("+", "-")
        for server in self.servers:
            rules = acl.rules(role, self.queue, server=version_of(server))
            words = ["reset", "on", f">{PASSWORD}", *rules, *more]
            server.execute_command("ACL", "SETUSER", name, *words)
            server.execute_command("ACL", "LOG", "RESET")
        self.names.add(name)
        scheme, _, rest = self.url.partition("://")
        return f"{scheme}://{name}:{QUOTED}@{rest.rpartition('@')[2]}"

    def login(self, role: str) -> redis.Redis:
        """Returns a raw client of the first server, as the user of a role."""
        self.add(role)
        pool = self.servers[0].connection_pool
        own = {"username": PREFIX + role, "password": PASSWORD}
        kwargs = pool.connection_kwargs | own
        kind = pool.connection_class
        return redis.Redis(connection_pool=redis.ConnectionPool(connection_class=kind, **kwargs))

    def refused(self) -> set[str]:
        """Returns what users were refused since, except optional commands: `user: command`."""
        rows = [row for one in self.servers for row in one.execute_command("ACL", "LOG", 128)]
        found = [dict(zip(row[::2], row[1::2], strict=True)) for row in map(_flat, rows)]
        return {
            f"{row['username']}: {row['object']}"
            for row in found
            if row["username"] in self.names and row["object"] not in TRIED
        }

    def remove(self) -> None:
        """Removes the users, and loads the scripts again for users who can't load them."""
        for server in self.servers:
            server.execute_command("ACL", "DELUSER", *self.names, "norights")
            load_scripts(server)
            server.close()


def version_of(server: redis.Redis) -> tuple[int, ...]:
    """Returns the version by which the rules are chosen."""
    return acl.version(server.info("server")["redis_version"])


def forget_scripts(servers: Iterable[redis.Redis]) -> None:
    """Makes the servers forget the scripts, as after a restart."""
    for server in servers:
        server.execute_command("SCRIPT", "FLUSH")


def _flat(row: Any) -> list[str]:
    words = [word for pair in row.items() for word in pair] if isinstance(row, dict) else row
    return [word.decode() if isinstance(word, bytes) else str(word) for word in words]
