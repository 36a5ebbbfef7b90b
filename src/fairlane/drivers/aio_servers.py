"""Where the asyncio driver sends its steps: one server, or the primaries of a cluster."""

from __future__ import annotations

from collections import deque
from typing import Any

import redis
from redis.asyncio.connection import Connection, ConnectionPool, SSLConnection
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool

from ..errors import RedisUnreachable
from . import routes
from .places import Kinds, Known, Places


class Lines(Known):
    """Idle connections to one server, for one event loop."""

    def __init__(self, pool: Any, place: str) -> None:
        self.place = place
        self._pool = pool
        self._idle: deque[Connection] = deque()

    async def take(self) -> Connection:
        """A connection, made if none is idle. A Sentinel's asks for its master as it connects."""
        if self.is_silent:
            await self._probe()
        try:
            line = self._idle.pop()
        except IndexError:
            # Not pool.make_connection: it counts what it made and refuses after a hundred.
            line = self._pool.connection_class(**self._pool.connection_kwargs)
        await line.connect()  # nothing, if it is
        return line

    async def _probe(self) -> None:
        """Returns when the server answers; raises soon when it does not."""
        line = self._pool.connection_class(**self.briefly(self._pool.connection_kwargs))
        try:
            await line.connect()
            await line.send_command("PING")
            await line.read_response()
        except redis.exceptions.ResponseError:
            pass  # an answer, too
        except redis.exceptions.TimeoutError:
            self.was_too_slow()
            raise
        finally:
            await line.disconnect()
        self.has_answered()

    def give(self, line: Connection) -> None:
        """Back among the idle ones; a broken one reconnects at its next use."""
        self._idle.append(line)

    async def close(self) -> None:
        """Closes the idle connections; one in use closes when its owner is done.

        After an error: those made before are no better.
        """
        while self._idle:
            await self._idle.pop().disconnect()


class Servers(Places[Lines]):
    """One server, or the primaries of a cluster as they are needed."""

    KINDS = Kinds(ConnectionPool, SSLConnection, Sentinel, SentinelConnectionPool, Lines)

    async def lines_for(self, key: bytes | routes.Address | None) -> Lines:
        """The connections to the server of this key, or to this primary.

        Asks a cluster for its slots when needed.
        """
        if self._one is not None:
            return self._one
        return self._there(await self.slots(), key)

    async def slots(self) -> routes.SlotMap:
        """A cluster's slots, asked for when needed."""
        return self._map or self._know(await self._ask())

    async def _ask(self) -> routes.SlotMap:
        failure: Exception = RedisUnreachable(f"no node of {self.place} answers")
        for node in self._to_ask():
            line = None
            try:
                line = await self.lines_at(node).take()
                await line.send_command("CLUSTER", "SLOTS")
                found = routes.SlotMap(await line.read_response(), node[0])
            except (redis.RedisError, OSError) as error:
                if line is not None:
                    await line.disconnect()
                failure = error
                self.failed(self.lines_at(node))
                continue
            self._silent.pop(node, None)
            self.lines_at(node).give(line)
            if found.nodes:
                return found
        raise failure

    async def close(self) -> None:
        """Closes all idle connections."""
        for lines in self._all_lines():
            await lines.close()
        for guard in self._guards:
            await guard.aclose()
