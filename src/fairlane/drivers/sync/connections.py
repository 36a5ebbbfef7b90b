"""Where the blocking driver sends its steps: one server, or the primaries of a cluster."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from typing import Any

import redis
from redis.connection import Connection, ConnectionPool, SSLConnection
from redis.sentinel import Sentinel, SentinelConnectionPool

from fairlane.drivers.cluster import slot_map
from fairlane.drivers.cluster.topology import Kinds, ServerHealth, Topology
from fairlane.drivers.wire import tls_probe
from fairlane.errors import RedisUnreachable


class ServerConnections(ServerHealth):
    """Idle connections to one server, shared by threads and safe across a fork."""

    def __init__(self, pool: Any, place: str) -> None:
        self.place = place
        self._pool = pool
        self._idle: deque[Connection] = deque()
        self._pid = os.getpid()

    def take(self) -> Connection:
        """A connection, made if none is idle. A Sentinel's asks for its master as it connects."""
        if self.is_suspect:
            self._probe()
        if self.may_be_plain:
            self._greet()
        if self._pid != os.getpid():  # a forked child must not speak on its parent's sockets
            self._idle, self._pid = deque(), os.getpid()
        try:
            line = self._idle.pop()
        except IndexError:
            # Not pool.make_connection: it counts what it made and refuses after a hundred.
            line = self._pool.connection_class(**self._pool.connection_kwargs)
        line.connect()  # nothing, if it is
        return line

    def _probe(self) -> None:
        """Returns when the server answers; raises soon when it does not."""
        line = self._pool.connection_class(**self.briefly(self._pool.connection_kwargs))
        try:
            line.connect()
            line.send_command("PING")
            line.read_response()
        except redis.exceptions.ResponseError:
            pass  # an answer, too
        except redis.exceptions.TimeoutError:
            self.was_too_slow()
            raise
        finally:
            line.disconnect()
        self.has_answered()

    def _greet(self) -> None:
        """Raises ConnectionError if the server answers without TLS."""
        options = self._pool.connection_kwargs
        line = self._pool.connection_class(**tls_probe.greeting_options(options))
        try:
            line.connect()
        except redis.exceptions.TimeoutError:
            tls_probe.refuse_plain(options)
        finally:
            line.disconnect()
        self.may_be_plain = False

    def give(self, line: Connection) -> None:
        """Back among the idle ones; a broken one reconnects at its next use."""
        self._idle.append(line)
        self.note_reply()

    def close(self) -> None:
        """Closes the idle connections; one in use is given back as ever.

        After an error: those made before are no better.
        """
        with contextlib.suppress(IndexError):  # another thread may take the last one
            while self._idle:
                self._idle.pop().disconnect()


class Servers(Topology[ServerConnections]):
    """One server, or the primaries of a cluster as they are needed."""

    KINDS = Kinds(
        ConnectionPool, SSLConnection, Sentinel, SentinelConnectionPool, ServerConnections
    )

    def lines_for(self, key: bytes | slot_map.Address | None) -> ServerConnections:
        """The connections to the server of this key, or to this primary.

        Asks a cluster for its slots when needed.
        """
        if self._one is not None:
            return self._one
        return self._there(self.slots(), key)

    def slots(self) -> slot_map.SlotMap:
        """A cluster's slots, asked for when needed."""
        return self._map or self._learn(self._ask())

    def _ask(self) -> slot_map.SlotMap:
        failure: Exception = RedisUnreachable(f"no node of {self.place} answers")
        for node in self._to_ask():
            line = None
            try:
                line = self.lines_at(node).take()
                line.send_command("CLUSTER", "SLOTS")
                found = slot_map.SlotMap(line.read_response(), node[0])
            except (redis.RedisError, OSError) as error:
                if line is not None:
                    line.disconnect()
                failure = error
                self.failed(self.lines_at(node))
                continue
            self._suspects.pop(node, None)
            self.lines_at(node).give(line)
            if found.nodes:
                return found
        raise failure

    def close(self) -> None:
        """Closes all idle connections."""
        for lines in self._all_lines():
            lines.close()
        for guard in self._guards:
            guard.close()
