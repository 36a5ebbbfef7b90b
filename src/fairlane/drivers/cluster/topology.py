"""The servers behind a URL, without I/O: one server, or the primaries of a cluster.

`sync` and `aio` name their classes of redis-py in KINDS.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import redis

from fairlane import settings
from fairlane.common import clock
from fairlane.drivers import urls
from fairlane.drivers.wire import encoding, error_mapping
from fairlane.errors import FairlaneError, NodeAway, RedisUnreachable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fairlane.drivers.cluster import slot_map

_TRIES = 3
_SHARE = 10  # the pause after a slow try is so many times as long as the try, up to the maximum
BRIEF = ("socket_timeout", "socket_connect_timeout")


class ServerHealth:
    """Tracks whether a server answers."""

    place = ""
    may_be_plain = False  # the URL requires TLS, and the server may answer without it
    is_suspect = False  # its last call was not answered, so the next connection is a short try
    _try_s = 0.0
    _away_since = 0.0  # the first call without a reply, by clock.mono_s; 0 = the server answers
    _tried_at = _again_at = _noted_at = 0.0

    def briefly(self, options: dict[str, Any]) -> dict[str, Any]:
        """Returns the options of a connection with a short timeout, to probe the server."""
        usual = options.get("socket_timeout") or settings.SOCKET_TIMEOUT_S
        self._try_s = min(usual, self._try_s or settings.FIRST_RETRY_TIMEOUT_S)
        return options | dict.fromkeys(BRIEF, self._try_s)

    def was_too_slow(self) -> None:
        """Doubles the timeout of the next probe: the server may be slow."""
        self._try_s *= 2

    def has_answered(self) -> None:
        """Notes that a probe was answered: no more probes."""
        self.is_suspect, self._try_s = False, 0.0

    def note_silence(self) -> None:
        """Notes a call without a reply. The longer there was none, the later is the next try.

        A server that hangs makes each try slow, so the pause also grows with the time of the try.
        """
        now, (least, most) = clock.mono_s(), settings.AWAY_AGAIN_S
        self._away_since = self._away_since or now
        took = now - self._tried_at if self._tried_at else 0.0
        pause = max(least, (now - self._away_since) / 4, _SHARE * took)
        self._again_at, self._tried_at, self._noted_at = now + min(most, pause), 0.0, now

    def note_reply(self) -> None:
        """Notes that the server has answered a call."""
        self._away_since = self._tried_at = 0.0

    def is_away(self, away_s: float) -> bool:
        """Returns True if the server has not answered for `away_s`."""
        return self._away_since > 0 and clock.mono_s() - self._away_since >= away_s

    def may_try(self, away_s: float, again_s: float = math.inf) -> bool:
        """Returns True unless the server is away. When a try is due, one caller makes it.

        A try is due after `again_s` at the latest.
        """
        if not self.is_away(away_s):
            return True
        now = clock.mono_s()
        if now < min(self._again_at, self._noted_at + again_s):
            return False
        self._tried_at = self._noted_at = now
        self._again_at = now + settings.AWAY_AGAIN_S[1]
        return True

    def away_error(self) -> NodeAway:
        """Returns the error of a call that is given up because the server is away."""
        away_s = clock.mono_s() - self._away_since
        text = f"Redis at {self.place} has not answered for {away_s:.0f} s: it is tried again soon"
        return NodeAway(text, away_s)


def given_up(error: Exception, place: str, away_s: float) -> FairlaneError:
    """Returns the error of a call that was repeated for `away_s` only."""
    ours = error_mapping.translate(error, place)
    return NodeAway(str(ours), away_s) if isinstance(ours, RedisUnreachable) else ours


L = TypeVar("L", bound=ServerHealth)  # a driver's Lines: its connections to one server


class Kinds(NamedTuple):
    """The classes of one kind of I/O, blocking or asyncio."""

    pool: Any
    secure: Any
    sentinel: Any
    sentinel_pool: Any
    lines: Any


def kinds_of(connection: Any, sentinel: Any, lines: Any) -> Kinds:
    """Returns the classes of two modules of redis-py, and the class of connections."""
    return Kinds(
        connection.ConnectionPool,
        connection.SSLConnection,
        sentinel.Sentinel,
        sentinel.SentinelConnectionPool,
        lines,
    )


class Topology(Generic[L]):
    """The servers behind a URL, as far as they are found."""

    KINDS: Kinds

    def __init__(self, url: str, timeout_s: float) -> None:
        self.place = urls.hide_secret(url)
        target = urls.read(url)
        if target.kind != "one":  # another node may take over
            timeout_s = min(timeout_s, settings.FAILOVER_TIMEOUT_S)
        self._options = encoding.connection_options(timeout_s) | target.options
        self._one: L | None = None
        self._nodes: dict[slot_map.Address, L] = {}
        self._map: slot_map.SlotMap | None = None
        self._last_map: slot_map.SlotMap | None = None  # the last one read, even if outdated
        self._seeds: list[slot_map.Address] = []
        self._suspects: dict[slot_map.Address, bool] = {}  # nodes to ask last, newest at the end
        self._asked_at = 0.0  # when the slots were last read, by clock.mono_s
        self._guards: list[Any] = []
        self.nodes: list[slot_map.Address | None] = [None]  # for OnNode, once they were read
        if target.kind == "cluster":
            self._seeds = [*target.hosts]
            if target.is_secure:
                self._options["connection_class"] = self.KINDS.secure
        else:
            self._one = self.KINDS.lines(self._pool(target), self.place)
            self._one.may_be_plain = target.kind == "one" and target.is_secure

    def _pool(self, target: urls.Target) -> Any:
        kinds = self.KINDS
        if target.kind == "one":
            return kinds.pool.from_url(target.rest, **self._options)
        options = self._options | ({"ssl": True} if target.is_secure else {})
        own = {name: value for name, value in options.items() if name not in urls.OF_KEYS}
        guards = kinds.sentinel(target.hosts, sentinel_kwargs=own | dict(target.guards))
        self._guards = guards.sentinels
        return kinds.sentinel_pool(target.master, guards, **options)

    @property
    def is_one(self) -> bool:
        """Returns True if every key is on the same server."""
        return self._one is not None

    @property
    def only(self) -> L | None:
        """Returns the connections to the server that has every key, if one has."""
        return self._one

    def home(self, key: bytes) -> slot_map.Address | None:
        """Returns the node of this key as known now; None before the slots are read."""
        slots = self._map  # another thread may forget it meanwhile
        return slots.home(key) if slots is not None else None

    @property
    def homes(self) -> Callable[[bytes], slot_map.Address | None]:
        """Returns a lookup of a key's node in the present slot map; later maps do not change it."""
        last_map = self._last_map
        return last_map.home if last_map is not None else lambda _: None

    def moved(self) -> None:
        """Makes the next call read the slots, because a node refused one or did not answer."""
        self._map = None

    def look_again(self) -> None:
        """Makes the next call read the slots if they are old, because a replica may lead now."""
        if clock.mono_s() - self._asked_at > settings.SLOTS_AGAIN_S:
            self._map = None

    def failed(self, lines: L) -> None:
        """Notes that a server did not answer: the slots are read from it last.

        Its next connection is a short try. Otherwise each try would cost the whole timeout while
        the server hangs and no replica has taken over.
        """
        self.distrust(lines)
        if lines is not self._one:
            lines.is_suspect = True

    def doubt(self) -> None:
        """Makes the next connection to each server a short try, until the server answers."""
        for lines in self._all_lines():
            lines.is_suspect = True

    def distrust(self, lines: L) -> None:
        """Makes a server the last from which the slots are read.

        It may be cut off from the others: then it answers, but its map may be wrong.
        """
        self._map = None
        lines.note_silence()
        for node, known in list(self._nodes.items()):  # another thread may add one
            if known is lines:
                self._suspects.pop(node, None)
                self._suspects[node] = True

    def _learn(self, found: slot_map.SlotMap) -> slot_map.SlotMap:
        """Keeps a slot map that a cluster sent."""
        self._asked_at = clock.mono_s()
        self._map, self._last_map, self.nodes = found, found, [*found.nodes]
        return found

    def _there(self, slots: slot_map.SlotMap, key: bytes | slot_map.Address | None) -> L:
        """Returns the connections to the primary of this key or address; None = any primary."""
        if isinstance(key, tuple):
            if key in slots.nodes:
                return self.lines_at(key)
            raise RedisUnreachable(f"{key[0]}:{key[1]} is no primary of {self.place} any more")
        home = slots.home(key) if key is not None else self._any(slots.nodes)
        if home is None:
            self._map = None
            raise redis.exceptions.ClusterDownError("CLUSTERDOWN Hash slot not served")
        return self.lines_at(home)

    def _any(self, nodes: list[slot_map.Address]) -> slot_map.Address:
        return next((node for node in nodes if node not in self._suspects), nodes[0])

    def tries(self) -> Iterator[bool]:
        """Yields once for each try to reach any server, in a cluster a different one each time.

        Yields True for the last try.
        """
        count = 1 if self.is_one else _TRIES
        return (left == 1 for left in range(count, 0, -1))

    def lines_at(self, node: slot_map.Address) -> L:
        """Returns the connections to a node, also to one that is no primary."""
        if node not in self._nodes:
            pool = self.KINDS.pool(host=node[0], port=node[1], **self._options)
            self._nodes.setdefault(node, self.KINDS.lines(pool, f"{node[0]}:{node[1]}"))
        return self._nodes[node]

    def _to_ask(self) -> list[slot_map.Address]:
        """Returns the nodes to read the slots from: those in use first, those that failed last."""
        known = [*self._nodes, *self._seeds, *(node for node in self.nodes if node)]
        fine = [node for node in known if node not in self._suspects]
        return list(dict.fromkeys([*fine, *self._suspects, *known]))

    def _all_lines(self) -> list[L]:
        return [*self._nodes.values(), *([self._one] if self._one else [])]
