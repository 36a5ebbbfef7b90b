"""A blocking driver whose At goes to any server of a deployment, replicas and all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redis.connection import Connection, ConnectionPool, SSLConnection

from fairlane.drivers.sync.connections import ServerConnections, Servers
from fairlane.drivers.sync.driver import SyncDriver

if TYPE_CHECKING:
    from fairlane.drivers import urls
    from fairlane.drivers.cluster import slot_map


class AnyNodeDriver(Servers):
    """The servers behind a URL; an address is good for any of them."""

    def lines_for(self, key: bytes | slot_map.Address | None) -> ServerConnections:
        """The connections to the server of this key, or to the one at this address."""
        return self.lines_at(key) if isinstance(key, tuple) else super().lines_for(key)

    def _pool(self, target: urls.Target) -> Any:
        self._like = super()._pool(target)
        return self._like

    def lines_at(self, node: slot_map.Address) -> ServerConnections:
        """In a cluster as ever; beside a single server, a connection like the one to it."""
        if self._one is not None and node not in self._nodes:
            known = {**self._like.connection_kwargs, "host": node[0], "port": node[1]}
            for name in ("path", "connection_pool"):  # of a unix socket, of a Sentinel
                known.pop(name, None)
            is_tls = issubclass(self._like.connection_class, SSLConnection)
            kind = SSLConnection if is_tls else Connection
            pool = ConnectionPool(connection_class=kind, **known)
            self._nodes[node] = ServerConnections(pool, f"{node[0]}:{node[1]}")
        return super().lines_at(node)


def driver_of_all(url: str, *, patience_s: float, timeout_s: float) -> SyncDriver:
    """A driver for operations that speak with every server by itself; it refuses none as unfit."""
    driver = SyncDriver(url, patience_s=patience_s, timeout_s=timeout_s, checks_fitness=False)
    driver.servers = AnyNodeDriver(url, timeout_s)
    return driver
