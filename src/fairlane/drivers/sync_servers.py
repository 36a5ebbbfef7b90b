"""Where the blocking driver sends its steps: one server, or the primaries of a cluster."""

from __future__ import annotations

import os
from collections import deque
from typing import Any

import redis
from redis.connection import Connection, ConnectionPool
from redis.sentinel import Sentinel, SentinelConnectionPool

from ..errors import RedisUnreachable
from . import routes, wire


class Lines:
    """Idle connections to one server, shared by threads and safe across a fork."""

    def __init__(self, pool: Any, place: str) -> None:
        self.place = place
        self._pool = pool
        self._idle: deque[Connection] = deque()
        self._pid = os.getpid()

    def take(self) -> Connection:
        """A connection, made if none is idle. A Sentinel's asks for its master as it connects."""
        if self._pid != os.getpid():  # a forked child must not speak on its parent's sockets
            self._idle, self._pid = deque(), os.getpid()
        try:
            line = self._idle.pop()
        except IndexError:
            # Not pool.make_connection: it counts what it made and refuses after a hundred.
            line = self._pool.connection_class(**self._pool.connection_kwargs)
        line.connect()  # nothing, if it is
        return line

    def give(self, line: Connection) -> None:
        """Back among the idle ones; a broken one reconnects at its next use."""
        self._idle.append(line)

    def close(self) -> None:
        """Closes the idle connections; one in use closes when its owner is done."""
        while self._idle:
            self._idle.pop().disconnect()


class Servers:
    """One server, or the primaries of a cluster as they are needed."""

    def __init__(self, url: str, timeout_s: float) -> None:
        self.place = wire.hide_secret(wire.check_url(url))
        self._options = wire.connection_options(timeout_s)
        self._one: Lines | None = None
        self._nodes: dict[routes.Address, Lines] = {}
        self._map: routes.SlotMap | None = None
        self._seeds: list[routes.Address] = []
        self._guards: list[Any] = []
        self.nodes: list[routes.Address | None] = [None]  # as At wants them, once asked for
        if url.startswith("redis+cluster:"):
            self._seeds, own = routes.split_cluster(url)
            self._options |= own
        else:
            self._one = Lines(self._pool(url), self.place)

    def _pool(self, url: str) -> Any:
        if not url.startswith("redis+sentinel:"):
            return wire.from_url(ConnectionPool, url, self._options)
        sentinels, master, own = wire.split_sentinel(url)
        guards = Sentinel(sentinels, sentinel_kwargs=self._options, **self._options, **own)
        self._guards = guards.sentinels
        return SentinelConnectionPool(master, guards, **self._options, **own)

    @property
    def is_one(self) -> bool:
        """True when every key lives on the same server."""
        return self._one is not None

    def home(self, key: bytes) -> routes.Address | None:
        """The node of this key as known now; None before the cluster was asked."""
        return self._map.home(key) if self._map is not None else None

    def lines_for(self, key: bytes | routes.Address | None) -> Lines:
        """The connections to the server of this key, or to this primary.

        Asks a cluster for its slots when needed.
        """
        if self._one is not None:
            return self._one
        if self._map is None:
            self._map = self._ask()
            self.nodes = [*self._map.nodes]
        if isinstance(key, tuple):
            if key in self._map.nodes:
                return self._node(key)
            raise RedisUnreachable(f"{key[0]}:{key[1]} is no primary of {self.place} any more")
        home = self._map.home(key) if key is not None else self._map.nodes[0]
        if home is None:
            self._map = None
            raise redis.exceptions.ClusterDownError("CLUSTERDOWN Hash slot not served")
        return self._node(home)

    def moved(self) -> None:
        """A node disowned a slot or fell silent: the slots are asked for anew."""
        self._map = None

    def _node(self, node: routes.Address) -> Lines:
        if node not in self._nodes:
            pool = ConnectionPool(host=node[0], port=node[1], **self._options)
            self._nodes[node] = Lines(pool, f"{node[0]}:{node[1]}")
        return self._nodes[node]

    def _ask(self) -> routes.SlotMap:
        failure: Exception = RedisUnreachable(f"no node of {self.place} answers")
        for node in dict.fromkeys([*self._nodes, *self._seeds]):
            line = None
            try:
                line = self._node(node).take()
                line.send_command("CLUSTER", "SLOTS")
                found = routes.SlotMap(line.read_response(), node[0])
            except (redis.RedisError, OSError) as error:
                if line is not None:
                    line.disconnect()
                failure = error
                continue
            self._node(node).give(line)
            if found.nodes:
                return found
        raise failure

    def close(self) -> None:
        """Closes all idle connections."""
        for lines in [*self._nodes.values(), *([self._one] if self._one else [])]:
            lines.close()
        for guard in self._guards:
            guard.close()
