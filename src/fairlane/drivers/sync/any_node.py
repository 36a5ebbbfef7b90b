"""A blocking driver whose OnNode reaches any server of a deployment, also replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redis.connection import Connection, ConnectionPool, SSLConnection

from fairlane.drivers.sync.connections import ServerConnections, Servers
from fairlane.drivers.sync.driver import SyncDriver

if TYPE_CHECKING:
    from fairlane.drivers import urls
    from fairlane.drivers.cluster import slot_map


class AnyNodeServers(Servers):
    """The servers behind a URL; an address may be that of any server of the deployment."""

    async def lines_for(self, key: bytes | slot_map.Address | None) -> ServerConnections:
        """Returns the connections to the server of this key, or to the one at this address."""
        return self.lines_at(key) if isinstance(key, tuple) else await super().lines_for(key)

    def _pool(self, target: urls.Target) -> Any:
        self._like = super()._pool(target)
        return self._like

    def lines_at(self, node: slot_map.Address) -> ServerConnections:
        """Returns the connections to a node; for a single server, with the options of its URL."""
        if self._one is not None and node not in self._nodes:
            options = {**self._like.connection_kwargs, "host": node[0], "port": node[1]}
            for name in ("path", "connection_pool"):  # of a unix socket, of a Sentinel
                options.pop(name, None)
            is_tls = issubclass(self._like.connection_class, SSLConnection)
            kind = SSLConnection if is_tls else Connection
            pool = ConnectionPool(connection_class=kind, **options)
            self._nodes[node] = ServerConnections(pool, f"{node[0]}:{node[1]}")
        return super().lines_at(node)


def driver_of_all(url: str, *, patience_s: float, timeout_s: float) -> SyncDriver:
    """Returns a driver for operations on every single server; it refuses none as unfit."""
    driver = SyncDriver(url, patience_s=patience_s, timeout_s=timeout_s, checks_fitness=False)
    driver.servers = AnyNodeServers(url, timeout_s)
    return driver
