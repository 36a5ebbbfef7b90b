"""Where steps go, without I/O: one server, or the primaries of a cluster as they are needed.

`sync_servers` and `aio_servers` connect; each names its classes of redis-py in KINDS.
"""

from __future__ import annotations

from typing import Any, Generic, NamedTuple, TypeVar

import redis

from ..errors import RedisUnreachable
from . import routes, wire

L = TypeVar("L")  # a driver's Lines: its connections to one server


class Kinds(NamedTuple):
    """The classes of one kind of I/O."""

    pool: Any
    sentinel: Any
    sentinel_pool: Any
    lines: Any


class Places(Generic[L]):
    """What is known of the servers behind a URL."""

    KINDS: Kinds

    def __init__(self, url: str, timeout_s: float) -> None:
        self.place = wire.hide_secret(wire.check_url(url))
        self._options = wire.connection_options(timeout_s)
        self._one: L | None = None
        self._nodes: dict[routes.Address, L] = {}
        self._map: routes.SlotMap | None = None
        self._seeds: list[routes.Address] = []
        self._guards: list[Any] = []
        self.nodes: list[routes.Address | None] = [None]  # as At wants them, once asked for
        if url.startswith("redis+cluster:"):
            self._seeds, own = routes.split_cluster(url)
            self._options |= own
        else:
            self._one = self.KINDS.lines(self._pool(url), self.place)

    def _pool(self, url: str) -> Any:
        kinds = self.KINDS
        if not url.startswith("redis+sentinel:"):
            return wire.from_url(kinds.pool, url, self._options)
        sentinels, master, own = wire.split_sentinel(url)
        guards = kinds.sentinel(sentinels, sentinel_kwargs=self._options, **self._options, **own)
        self._guards = guards.sentinels
        return kinds.sentinel_pool(master, guards, **self._options, **own)

    @property
    def is_one(self) -> bool:
        """True when every key lives on the same server."""
        return self._one is not None

    def home(self, key: bytes) -> routes.Address | None:
        """The node of this key as known now; None before the cluster was asked."""
        return self._map.home(key) if self._map is not None else None

    def moved(self) -> None:
        """A node disowned a slot or fell silent: the slots are asked for anew."""
        self._map = None

    def _know(self, found: routes.SlotMap) -> routes.SlotMap:
        """A cluster has told its slots."""
        self._map, self.nodes = found, [*found.nodes]
        return found

    def _there(self, slots: routes.SlotMap, key: bytes | routes.Address | None) -> L:
        """The connections to the primary of this key, or to the one named; None = any."""
        if isinstance(key, tuple):
            if key in slots.nodes:
                return self._node(key)
            raise RedisUnreachable(f"{key[0]}:{key[1]} is no primary of {self.place} any more")
        home = slots.home(key) if key is not None else slots.nodes[0]
        if home is None:
            self._map = None
            raise redis.exceptions.ClusterDownError("CLUSTERDOWN Hash slot not served")
        return self._node(home)

    def _node(self, node: routes.Address) -> L:
        if node not in self._nodes:
            pool = self.KINDS.pool(host=node[0], port=node[1], **self._options)
            self._nodes[node] = self.KINDS.lines(pool, f"{node[0]}:{node[1]}")
        return self._nodes[node]

    def _to_ask(self) -> list[routes.Address]:
        """The nodes that may tell the slots: those in use first."""
        return list(dict.fromkeys([*self._nodes, *self._seeds]))

    def _all_lines(self) -> list[L]:
        return [*self._nodes.values(), *([self._one] if self._one else [])]
