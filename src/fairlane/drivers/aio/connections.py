"""The connections of the asyncio driver: idle ones, and a shared one for each server."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import redis
from redis.asyncio import connection, sentinel

from fairlane.drivers.aio.io import AsyncIO
from fairlane.drivers.aio.multiplexed import MultiplexedConnection
from fairlane.drivers.aio.single_flight import SingleFlight
from fairlane.drivers.cluster import slot_map
from fairlane.drivers.cluster.topology import kinds_of
from fairlane.drivers.connections import ConnectionSet, ServerSet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redis.asyncio.connection import Connection

    from fairlane.protocol.steps import Call, Command


class ServerConnections(ConnectionSet):
    """Connections to one server, for one event loop: idle ones, and one that all tasks share."""

    IO = AsyncIO()

    def __init__(self, pool: Any, place: str) -> None:
        super().__init__(pool, place)
        self._shared: MultiplexedConnection | None = None
        self._making = SingleFlight(self._make)

    @property
    def shared(self) -> MultiplexedConnection | None:
        """Returns the shared connection, if there is one and it is usable."""
        shared = self._shared
        if shared is None or not shared.is_open or self.is_suspect:
            return None
        return shared

    async def share(self) -> MultiplexedConnection:
        """Returns the shared connection. If there is none, one is made, once for all callers.

        Raises what connecting raises.
        """
        if (shared := self.shared) is not None:
            return shared
        made = await self._making.result()
        if not made.is_open:  # it broke before it was our turn
            raise redis.exceptions.ConnectionError("Connection closed by server.")
        return made

    async def _make(self) -> MultiplexedConnection:
        if self.may_be_plain:
            await self._greet()
        if self.is_suspect:
            await self._probe()
            if (shared := self.shared) is not None:  # it was usable all the time
                return shared
        line = await self._fresh()
        if _has_ended(line):  # another protocol that took it over would not get the EOF
            await line.disconnect(nowait=True)
            raise redis.exceptions.ConnectionError("Connection closed by server.")
        if self._shared is not None:
            self._shared.retire()
        self._shared = MultiplexedConnection(line, line.socket_timeout)
        return self._shared

    async def _fresh(self) -> Connection:
        """Opens a new connection; an idle one may already have received EOF."""
        line: Connection = self._new()
        try:
            await line.connect()
        except BaseException:
            await line.disconnect(nowait=True)
            raise
        return line

    def shares(self, shared: MultiplexedConnection) -> bool:
        """Returns True if this is still the shared connection."""
        return self._shared is shared

    def forget(self) -> None:
        """Drops the connections of an event loop that has ended."""
        self._shared = None
        self._making.forget()
        self._idle.clear()

    async def close(self) -> None:
        """Closes the idle connections. The shared one closes after its last reply has come."""
        if (shared := self._shared) is not None:
            self._shared = None
            shared.retire()
            await shared.gone()
        await super().close()

    async def stop(self) -> None:
        """Closes the connections, and stops a connection that is being made."""
        await self._making.stop()
        await self.close()


def _has_ended(line: Connection) -> bool:
    reader, writer = line._reader, line._writer  # noqa: SLF001
    return reader is None or writer is None or reader.at_eof() or writer.transport.is_closing()


class Servers(ServerSet[ServerConnections]):
    """The servers of an asyncio driver."""

    IO = ServerConnections.IO
    KINDS = kinds_of(connection, sentinel, ServerConnections)
    _loop: asyncio.AbstractEventLoop | None = None

    def __init__(self, url: str, timeout_s: float) -> None:
        super().__init__(url, timeout_s)
        self._asking = SingleFlight(self._ask)

    def enter(self) -> None:
        """Drops the connections of another event loop; each call begins with this."""
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return
        if self._loop is not None:
            for lines in self._all_lines():
                lines.forget()
            self._asking.forget()
            for guard in self._guards:
                guard.connection_pool.reset()
        self._loop = loop

    def shared_by(
        self, steps: Sequence[Command | Call]
    ) -> tuple[ServerConnections, MultiplexedConnection] | None:
        """Returns the shared connection that serves all these steps, if one is open."""
        lines = self._one or self._home_of(steps)
        shared = lines.shared if lines is not None else None
        return (lines, shared) if lines is not None and shared is not None else None

    def _home_of(self, steps: Sequence[Command | Call]) -> ServerConnections | None:
        """Returns the connections to the cluster node that all these steps go to."""
        if self._map is None:
            return None
        node: slot_map.Address | None = None
        for step in steps:
            key = slot_map.key_of(step)
            home = self._map.home(key) if key is not None else None
            if home is None or (node is not None and node != home):
                return None
            node = home
        return self._nodes.get(node) if node is not None else None

    async def slots(self) -> slot_map.SlotMap:
        """Returns a cluster's slots, read when needed, once for all callers."""
        return self._map or await self._asking.result()

    async def close(self) -> None:
        """Closes all idle connections, and stops the making of others."""
        self.enter()
        await self._asking.stop()
        for lines in self._all_lines():
            await lines.stop()
        await super().close()
