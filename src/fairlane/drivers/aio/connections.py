"""Where the asyncio driver sends its steps: one server, or the primaries of a cluster."""

from __future__ import annotations

import asyncio
from collections import deque
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import redis
from redis.asyncio.connection import Connection, ConnectionPool, SSLConnection
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool

from fairlane.drivers.aio.multiplexed import MultiplexedConnection
from fairlane.drivers.aio.single_flight import SingleFlight
from fairlane.drivers.cluster import slot_map
from fairlane.drivers.cluster.topology import Kinds, ServerHealth, Topology
from fairlane.drivers.wire import tls_probe
from fairlane.errors import RedisUnreachable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairlane.protocol.steps import Call, Command


class ServerConnections(ServerHealth):
    """Connections to one server, for one event loop: idle ones, and one that all may share."""

    def __init__(self, pool: Any, place: str) -> None:
        self.place = place
        self._pool = pool
        self._idle: deque[Connection] = deque()
        self._shared: MultiplexedConnection | None = None
        self._making = SingleFlight(self._make)

    @property
    def shared(self) -> MultiplexedConnection | None:
        """The connection that all share, if there is one and it is sound."""
        found = self._shared
        return found if found is not None and found.is_open and not self.is_suspect else None

    async def share(self) -> MultiplexedConnection:
        """The same, made if there is none, once for all who ask meanwhile.

        Raises what connecting raises.
        """
        if (found := self.shared) is not None:
            return found
        made = await self._making.result()
        if not made.is_open:  # it broke before it was our turn
            raise redis.exceptions.ConnectionError("Connection closed by server.")
        return made

    async def _make(self) -> MultiplexedConnection:
        if self.may_be_plain:
            await self._greet()
        if self.is_suspect:
            await self._probe()
            if (found := self.shared) is not None:  # it was sound all the time
                return found
        line = await self._fresh()
        if _has_ended(line):  # whoever takes it over would not hear of it
            await line.disconnect(nowait=True)
            raise redis.exceptions.ConnectionError("Connection closed by server.")
        if self._shared is not None:
            self._shared.retire()
        self._shared = MultiplexedConnection(line, line.socket_timeout)
        return self._shared

    async def _fresh(self) -> Connection:
        """No idle one: its end may have been told to the one before us."""
        line = self._new()
        try:
            await line.connect()
        except BaseException:
            await line.disconnect(nowait=True)
            raise
        return line

    def shares(self, shared: MultiplexedConnection) -> bool:
        """True when this is still the one: its errors are news."""
        return self._shared is shared

    def forget(self) -> None:
        """Those of an event loop that is over are of no use."""
        self._shared = None
        self._making.forget()
        self._idle.clear()

    async def take(self) -> Connection:
        """A connection, made if none is idle. A Sentinel's asks for its master as it connects."""
        if self.is_suspect:
            await self._probe()
        if self.may_be_plain:
            await self._greet()
        line = self._idle.pop() if self._idle else self._new()
        await line.connect()  # nothing, if it is
        return line

    def _new(self) -> Connection:
        # Not pool.make_connection: it counts what it made and refuses after a hundred.
        made: Connection = _hanging_up(self._pool.connection_class)(**self._pool.connection_kwargs)
        return made

    async def _probe(self) -> None:
        """Returns when the server answers; raises soon when it does not."""
        kind = _hanging_up(self._pool.connection_class)
        line = kind(**self.briefly(self._pool.connection_kwargs))
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

    async def _greet(self) -> None:
        """Raises ConnectionError if the server answers without TLS."""
        options = self._pool.connection_kwargs
        line = _hanging_up(self._pool.connection_class)(**tls_probe.greeting_options(options))
        try:
            await line.connect()
        except redis.exceptions.TimeoutError:
            await tls_probe.refuse_plain_async(options)
        finally:
            await line.disconnect()
        self.may_be_plain = False

    def give(self, line: Connection) -> None:
        """Back among the idle ones; a broken one reconnects at its next use."""
        self._idle.append(line)
        self.note_reply()

    async def close(self) -> None:
        """Closes the idle connections; one in use is given back as ever.

        What is shared is asked nothing more, and closes with its last answer.
        After an error: those made before are no better.
        """
        if (shared := self._shared) is not None:
            self._shared = None
            shared.retire()
            await shared.gone()
        while self._idle:
            await self._idle.pop().disconnect()

    async def stop(self) -> None:
        """The same, and of what is being made."""
        await self._making.stop()
        await self.close()


@lru_cache(maxsize=16)
def _hanging_up(kind: Any) -> Any:
    """The same kind of connection, but one that redis-py does not wait for ends at once.

    With TLS a connection that is closed says so, and waits for the other side to say it, too: if
    its event loop ends before, the socket is left behind.
    """

    class HangingUp(kind):  # type: ignore[misc]
        async def disconnect(self, nowait: Any = None, **given: Any) -> None:
            if nowait and self._writer is not None:
                self._writer.transport.abort()
            await super().disconnect(bool(nowait), **given)

    return HangingUp


def _has_ended(line: Connection) -> bool:
    reader, writer = line._reader, line._writer  # noqa: SLF001
    return reader is None or writer is None or reader.at_eof() or writer.transport.is_closing()


class Servers(Topology[ServerConnections]):
    """One server, or the primaries of a cluster as they are needed."""

    KINDS = Kinds(
        ConnectionPool, SSLConnection, Sentinel, SentinelConnectionPool, ServerConnections
    )
    _loop: asyncio.AbstractEventLoop | None = None

    def __init__(self, url: str, timeout_s: float) -> None:
        super().__init__(url, timeout_s)
        self._asking = SingleFlight(self._ask)

    def enter(self) -> None:
        """Whoever begins something says so first: he may be in another event loop than the last."""
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

    async def lines_for(self, key: bytes | slot_map.Address | None) -> ServerConnections:
        """The connections to the server of this key, or to this primary.

        Asks a cluster for its slots when needed.
        """
        if self._one is not None:
            return self._one
        return self._there(await self.slots(), key)

    def shared_by(
        self, steps: Sequence[Command | Call]
    ) -> tuple[ServerConnections, MultiplexedConnection] | None:
        """The line that all these steps may share, as far as is known now, and whose it is."""
        lines = self._one or self._home_of(steps)
        shared = lines.shared if lines is not None else None
        return (lines, shared) if lines is not None and shared is not None else None

    def _home_of(self, steps: Sequence[Command | Call]) -> ServerConnections | None:
        """The one node of a cluster that all of them go to."""
        if self._map is None:
            return None
        found: slot_map.Address | None = None
        for step in steps:
            key = slot_map.key_of(step)
            home = self._map.home(key) if key is not None else None
            if home is None or (found is not None and found != home):
                return None
            found = home
        return self._nodes.get(found) if found is not None else None

    async def slots(self) -> slot_map.SlotMap:
        """A cluster's slots, asked for when needed, once for all who need them."""
        return self._map or await self._asking.result()

    async def _ask(self) -> slot_map.SlotMap:
        failure: Exception = RedisUnreachable(f"no node of {self.place} answers")
        for node in self._to_ask():
            line = None
            try:
                line = await self.lines_at(node).take()
                await line.send_command("CLUSTER", "SLOTS")
                found = slot_map.SlotMap(await line.read_response(), node[0])
            except (redis.RedisError, OSError) as error:
                if line is not None:
                    await line.disconnect()
                failure = error
                self.failed(self.lines_at(node))
                continue
            except BaseException:  # stopped in the middle of the reply
                if line is not None:
                    await line.disconnect(nowait=True)
                raise
            self._suspects.pop(node, None)
            self.lines_at(node).give(line)
            if found.nodes:
                return self._learn(found)
        raise failure

    async def close(self) -> None:
        """Closes all idle connections, and ends the making of others."""
        self.enter()
        await self._asking.stop()
        for lines in self._all_lines():
            await lines.stop()
        for guard in self._guards:
            await guard.aclose()
