"""Where the asyncio driver sends its steps: one server, or the primaries of a cluster."""

from __future__ import annotations

from collections import deque
from typing import Any

import redis
from redis.asyncio.connection import Connection, ConnectionPool
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool

from ..errors import RedisUnreachable
from . import routes
from .places import Kinds, Places


class Lines:
    """Idle connections to one server, for one event loop."""

    def __init__(self, pool: Any, place: str) -> None:
        self.place = place
        self._pool = pool
        self._idle: deque[Connection] = deque()

    async def take(self) -> Connection:
        """A connection, made if none is idle. A Sentinel's asks for its master as it connects."""
        try:
            line = self._idle.pop()
        except IndexError:
            # Not pool.make_connection: it counts what it made and refuses after a hundred.
            line = self._pool.connection_class(**self._pool.connection_kwargs)
        await line.connect()  # nothing, if it is
        return line

    def give(self, line: Connection) -> None:
        """Back among the idle ones; a broken one reconnects at its next use."""
        self._idle.append(line)

    async def close(self) -> None:
        """Closes the idle connections; one in use closes when its owner is done."""
        while self._idle:
            await self._idle.pop().disconnect()


class Servers(Places[Lines]):
    """One server, or the primaries of a cluster as they are needed."""

    KINDS = Kinds(ConnectionPool, Sentinel, SentinelConnectionPool, Lines)

    async def lines_for(self, key: bytes | routes.Address | None) -> Lines:
        """The connections to the server of this key, or to this primary.

        Asks a cluster for its slots when needed.
        """
        if self._one is not None:
            return self._one
        return self._there(self._map or self._know(await self._ask()), key)

    async def _ask(self) -> routes.SlotMap:
        failure: Exception = RedisUnreachable(f"no node of {self.place} answers")
        for node in self._to_ask():
            line = None
            try:
                line = await self._node(node).take()
                await line.send_command("CLUSTER", "SLOTS")
                found = routes.SlotMap(await line.read_response(), node[0])
            except (redis.RedisError, OSError) as error:
                if line is not None:
                    await line.disconnect()
                failure = error
                continue
            self._node(node).give(line)
            if found.nodes:
                return found
        raise failure

    async def close(self) -> None:
        """Closes all idle connections."""
        for lines in self._all_lines():
            await lines.close()
        for guard in self._guards:
            await guard.aclose()
