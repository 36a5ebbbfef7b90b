"""Connections to one server or to the primaries of a cluster, for both kinds of I/O."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import redis

from fairlane.drivers.cluster import slot_map
from fairlane.drivers.cluster.topology import ServerHealth, Topology
from fairlane.drivers.wire import tls_probe
from fairlane.errors import RedisUnreachable

if TYPE_CHECKING:
    from fairlane.drivers.primitives import Primitives


class ConnectionSet(ServerHealth):
    """Idle connections to one server, shared by threads and safe across a fork."""

    IO: ClassVar[Primitives]

    def __init__(self, pool: Any, place: str) -> None:
        self.place = place
        self._pool = pool
        self._idle: deque[Any] = deque()
        self._pid = os.getpid()

    def idle(self) -> Any:
        """Returns an open idle connection that needs no probe; None = `take` makes one."""
        if self.is_suspect or self.may_be_plain or self._pid != os.getpid():
            return None
        try:
            line = self._idle.pop()
        except IndexError:
            return None
        if self.IO.is_open(line):
            return line
        self._idle.append(line)
        return None

    async def take(self) -> Any:
        """Returns an idle connection, or a new one. A new one of a Sentinel looks up the master."""
        if self.is_suspect:
            await self._probe()
        if self.may_be_plain:
            await self._greet()
        if self._pid != os.getpid():  # a forked child must not use its parent's sockets
            self._idle, self._pid = deque(), os.getpid()
        try:
            line = self._idle.pop()
        except IndexError:
            line = self._new()
        await self.IO.connect(line)
        return line

    def _new(self) -> Any:
        # Not pool.make_connection: it counts what it made and refuses after a hundred.
        return self._made(self._pool.connection_kwargs)

    def _made(self, options: dict[str, Any]) -> Any:
        return self.IO.connection_class(self._pool.connection_class)(**options)

    async def _probe(self) -> None:
        """Returns if the server answers; raises soon if it does not."""
        io, line = self.IO, self._made(self.briefly(self._pool.connection_kwargs))
        try:
            await io.connect(line)
            await io.send_command(line, "PING")
            await io.receive(line)
        except redis.exceptions.ResponseError:
            pass  # an error is a reply, too
        except redis.exceptions.TimeoutError:
            self.was_too_slow()
            raise
        finally:
            await io.disconnect(line)
        self.has_answered()

    async def _greet(self) -> None:
        """Raises ConnectionError if the server answers without TLS."""
        options = self._pool.connection_kwargs
        line = self._made(tls_probe.greeting_options(options))
        try:
            await self.IO.connect(line)
        except redis.exceptions.TimeoutError:
            await self.IO.refuse_plain(options)
        finally:
            await self.IO.disconnect(line)
        self.may_be_plain = False

    def give(self, line: Any) -> None:
        """Makes a connection idle; a broken one reconnects at its next use."""
        self._idle.append(line)
        self.note_reply()

    async def close(self) -> None:
        """Closes the idle connections; one in use is given back as usual."""
        with contextlib.suppress(IndexError):  # another thread may take the last one
            while self._idle:
                await self.IO.disconnect(self._idle.pop())


C = TypeVar("C", bound=ConnectionSet)


class ServerSet(Topology[C]):
    """One server, or the primaries of a cluster as they are needed."""

    IO: ClassVar[Primitives]

    async def lines_for(self, key: bytes | slot_map.Address | None) -> C:
        """Returns the connections to the server of this key, or to this primary.

        Reads the slots of a cluster when needed.
        """
        if self._one is not None:
            return self._one
        return self._there(await self.slots(), key)

    async def slots(self) -> slot_map.SlotMap:
        """Returns a cluster's slots, read when needed."""
        return self._map or await self._ask()

    async def _ask(self) -> slot_map.SlotMap:
        failure: Exception = RedisUnreachable(f"no node of {self.place} answers")
        for node in self._to_ask():
            line = None
            try:
                line = await self.lines_at(node).take()
                await self.IO.send_command(line, "CLUSTER", "SLOTS")
                slots = slot_map.SlotMap(await self.IO.receive(line), node[0])
            except (redis.RedisError, OSError) as error:
                if line is not None:
                    await self.IO.disconnect(line)
                failure = error
                self.failed(self.lines_at(node))
                continue
            except BaseException:  # interrupted in the middle of the reply
                if line is not None:
                    await self.IO.abandon(line)
                raise
            self._suspects.pop(node, None)
            self.lines_at(node).give(line)
            if slots.nodes:
                return self._learn(slots)
            # It starts, or its cluster is being made: the same call may succeed a moment later.
            failure = redis.ConnectionError(f"{node[0]}:{node[1]} serves no slot of a cluster yet")
        raise failure

    async def close(self) -> None:
        """Closes all idle connections, also those to sentinels."""
        for lines in self._all_lines():
            await lines.close()
        for guard in self._guards:
            await self.IO.close_client(guard)
