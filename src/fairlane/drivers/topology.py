"""Where the keys of a URL are: the slot map, the health of each server, the state of a batch.

It does no I/O. A URL names one server, or a cluster with several primaries.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from functools import cache
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.retry import Retry

from fairlane import settings
from fairlane.common import clock
from fairlane.drivers import error_mapping, urls
from fairlane.errors import FairlaneError, NodeAway, RedisUnreachable
from fairlane.protocol.steps import Batch, Call, Command, key_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fairlane.drivers.urls import Address
    from fairlane.protocol.steps import Operation


def group(
    keys: dict[int, bytes | None], home: Callable[[bytes], Address | None]
) -> list[tuple[bytes | None, list[int]]]:
    """Returns for each node one of its keys and the indexes of its steps, in their order.

    `keys` maps the index of each step to the key that routes it. While the nodes are unknown, steps
    are grouped by slot.
    """
    groups: dict[Address | int | None, tuple[bytes | None, list[int]]] = {}
    for index, key in keys.items():
        node = None if key is None else home(key) or key_slot(key)
        groups.setdefault(node, (key, []))[1].append(index)
    return list(groups.values())


class SlotMap:
    """Maps slots to primaries, as read from the reply to CLUSTER SLOTS."""

    def __init__(self, reply: list[Any], asked: str) -> None:
        ranges = sorted((row[0], row[1], row[2]) for row in reply)
        self._starts = [first for first, _, _ in ranges]
        self._ends = [last for _, last, _ in ranges]
        # If a node reports no name of its own, we use the name under which we reached it.
        self._homes: list[Address] = [
            ((home[0] or b"").decode() or asked, home[1]) for _, _, home in ranges
        ]

    @property
    def nodes(self) -> list[Address]:
        """Returns every primary once."""
        return list(dict.fromkeys(self._homes))

    def home(self, key: bytes) -> Address | None:
        """Returns the primary of the key's slot; None if no node serves it."""
        slot = key_slot(key)
        at = bisect_right(self._starts, slot) - 1
        return self._homes[at] if at >= 0 and slot <= self._ends[at] else None


# ------------------------------------------------------------------ topology
# The servers behind a URL. `sync` and `aio` name their classes of redis-py in KINDS.


_TRIES = 3
_PAUSE_PER_TRY = 10  # the pause after a slow try, as a multiple of the time that the try took
BRIEF = ("socket_timeout", "socket_connect_timeout")


class ServerHealth:
    """Tracks whether a server answers."""

    place = ""
    may_be_plain = False  # the URL requires TLS, and the server may answer without it
    probes_first = False  # its next connection is a short probe, because it may not answer
    _try_s = 0.0
    _away_since = 0.0  # the first call without a reply, by clock.mono_s; 0 = the server answers
    _tried_at = _again_at = _noted_at = 0.0

    def briefly(self, options: dict[str, Any]) -> dict[str, Any]:
        """Returns the options of a connection with a short timeout, to probe the server."""
        usual = options.get("socket_timeout") or settings.SOCKET_TIMEOUT_S
        self._try_s = min(usual, self._try_s or settings.FIRST_RETRY_TIMEOUT_S)
        return options | dict.fromkeys(BRIEF, self._try_s)

    def note_slow_probe(self) -> None:
        """Doubles the timeout of the next probe: the server may be slow."""
        self._try_s *= 2

    def note_probe_reply(self) -> None:
        """Notes that a probe was answered: no more probes."""
        self.probes_first, self._try_s = False, 0.0

    def note_no_reply(self) -> None:
        """Notes a call without a reply. The longer there is none, the longer is the pause to a try.

        A server that hangs makes each try slow, so the pause also grows with the time of the try.
        """
        now, (least, most) = clock.mono_s(), settings.AWAY_AGAIN_S
        self._away_since = self._away_since or now
        took = now - self._tried_at if self._tried_at else 0.0
        pause = max(least, (now - self._away_since) / 4, _PAUSE_PER_TRY * took)
        self._again_at, self._tried_at, self._noted_at = now + min(most, pause), 0.0, now

    def note_reply(self) -> None:
        """Notes that the server has answered a call."""
        self._away_since = self._tried_at = 0.0

    def is_away(self, away_s: float) -> bool:
        """Returns True if the server has not answered for `away_s`."""
        return self._away_since > 0 and clock.mono_s() - self._away_since >= away_s

    def claim_try(self, away_s: float, again_s: float = math.inf) -> bool:
        """Returns True if the caller may use the server.

        If the server is away, True claims the try that is due, so that other callers skip it. A try
        is due after `again_s` at the latest.
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


class IoKinds(NamedTuple):
    """The classes of one kind of I/O, blocking or asyncio."""

    pool: Any
    secure: Any
    sentinel: Any
    sentinel_pool: Any
    lines: Any


def connection_options(timeout_s: float) -> dict[str, Any]:
    """Returns the options of each connection: no hidden retries, replies undecoded.

    redis-py's own retries would run a slow script several times for one call. Our retries repeat a
    call with the same op id, so that a script recognises the repeat.
    """
    return {
        "retry": Retry(NoBackoff(), 0),
        "retry_on_error": [],
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "socket_read_size": 1 << 18,
        "protocol": 2,
        "health_check_interval": 0,
        **_library(),
    }


@cache
def _library() -> dict[str, Any]:
    """Returns how redis-py names itself to a server.

    Otherwise it reads its version from the files of its package for each connection, which takes
    longer than the connection.
    """
    name = getattr(redis, "DriverInfo", None)  # older versions read it once
    return {} if name is None else {"driver_info": name()}


def kinds_of(connection: Any, sentinel: Any, lines: Any) -> IoKinds:
    """Returns the classes of two modules of redis-py, and the class of connections."""
    return IoKinds(
        connection.ConnectionPool,
        connection.SSLConnection,
        sentinel.Sentinel,
        sentinel.SentinelConnectionPool,
        lines,
    )


class Topology(Generic[L]):
    """The servers behind a URL, as far as they are found."""

    KINDS: IoKinds

    def __init__(self, url: str, timeout_s: float) -> None:
        self.place = urls.hide_secret(url)
        target = urls.read(url)
        if target.kind != "one":  # another node may take over
            timeout_s = min(timeout_s, settings.FAILOVER_TIMEOUT_S)
        self._options = connection_options(timeout_s) | target.options
        self.is_one = target.kind != "cluster"  # every key is on the same server
        self.only: L | None = None  # the connections to that server
        self._nodes: dict[Address, L] = {}
        self._map: SlotMap | None = None
        self._last_map: SlotMap | None = None  # the last one read, even if outdated
        self._seeds: list[Address] = []
        self._asked_last: dict[Address, bool] = {}  # nodes to ask last, newest at the end
        self._asked_at = 0.0  # when the slots were last read, by clock.mono_s
        self._guards: list[Any] = []
        self.nodes: list[Address | None] = [None]  # for OnNode, once they were read
        if target.kind == "cluster":
            self._seeds = [*target.hosts]
            if target.is_secure:
                self._options["connection_class"] = self.KINDS.secure
        else:
            self.only = self.KINDS.lines(self._pool(target), self.place)
            self.only.may_be_plain = target.kind == "one" and target.is_secure

    def _pool(self, target: urls.Target) -> Any:
        kinds = self.KINDS
        if target.kind == "one":
            return kinds.pool.from_url(target.rest, **self._options)
        options = self._options | ({"ssl": True} if target.is_secure else {})
        own = {name: value for name, value in options.items() if name not in urls.OF_KEYS}
        guards = kinds.sentinel(target.hosts, sentinel_kwargs=own | dict(target.guards))
        self._guards = guards.sentinels
        return kinds.sentinel_pool(target.master, guards, **options)

    def home(self, key: bytes) -> Address | None:
        """Returns the node of this key as known now; None before the slots are read."""
        slots = self._map  # another thread may forget it meanwhile
        return slots.home(key) if slots is not None else None

    @property
    def node_lookup(self) -> Callable[[bytes], Address | None]:
        """Returns a function from a key to its node by the last slot map, also an outdated one.

        Later maps do not change it.
        """
        last_map = self._last_map
        return last_map.home if last_map is not None else lambda _: None

    def forget_slots(self) -> None:
        """Makes the next call read the slots, because a node refused one or did not answer."""
        self._map = None

    def forget_old_slots(self) -> None:
        """Makes the next call read the slots if they are old, because a replica may lead now."""
        if clock.mono_s() - self._asked_at > settings.SLOTS_AGAIN_S:
            self._map = None

    def note_failed(self, lines: L) -> None:
        """Notes that a server did not answer: the slots are read from it last.

        Its next connection is a short try. Otherwise each try would cost the whole timeout while
        the server hangs and no replica has taken over.
        """
        self.ask_last(lines)
        if lines is not self.only:
            lines.probes_first = True

    def probe_all(self) -> None:
        """Makes the next connection to each server a short try, until the server answers."""
        for lines in self._all_lines():
            lines.probes_first = True

    def ask_last(self, lines: L) -> None:
        """Makes a server the last from which the slots are read.

        It may be cut off from the others: then it answers, but its map may be wrong.
        """
        self._map = None
        lines.note_no_reply()
        for node, known in list(self._nodes.items()):  # another thread may add one
            if known is lines:
                self._asked_last.pop(node, None)
                self._asked_last[node] = True

    def _learn(self, found: SlotMap) -> SlotMap:
        """Keeps a slot map that a cluster sent."""
        self._asked_at = clock.mono_s()
        self._map, self._last_map, self.nodes = found, found, [*found.nodes]
        return found

    def _there(self, slots: SlotMap, key: bytes | Address | None) -> L:
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

    def _any(self, nodes: list[Address]) -> Address:
        return next((node for node in nodes if node not in self._asked_last), nodes[0])

    def tries(self) -> Iterator[bool]:
        """Yields for each try to reach a server, True for the last one. A cluster has several."""
        count = 1 if self.is_one else _TRIES
        return (left == 1 for left in range(count, 0, -1))

    def lines_at(self, node: Address) -> L:
        """Returns the connections to a node, also to one that is no primary."""
        if node not in self._nodes:
            pool = self.KINDS.pool(host=node[0], port=node[1], **self._options)
            self._nodes.setdefault(node, self.KINDS.lines(pool, f"{node[0]}:{node[1]}"))
        return self._nodes[node]

    def _to_ask(self) -> list[Address]:
        """Returns the nodes to read the slots from: those in use first, those that failed last."""
        known = [*self._nodes, *self._seeds, *(node for node in self.nodes if node)]
        fine = [node for node in known if node not in self._asked_last]
        # `known` again, because another thread may have taken one out of `_asked_last` meanwhile.
        return list(dict.fromkeys([*fine, *self._asked_last, *known]))

    def _all_lines(self) -> list[L]:
        return [*self._nodes.values(), *([self.only] if self.only else [])]


# ------------------------------------------------------------------ batch state
# Keeps the state of a batch, without I/O: its unanswered steps, their routes and the replies.
#
# In a cluster the steps of a batch go to several nodes. A node may refuse a step because its slot
# is elsewhere or is being moved. An answered step is never sent again; the others are, in turns.


_MOST_HOPS = 5  # redirections of one step without a pause


class NodePart(NamedTuple):
    """The steps that go to one node, and the key or address by which the node is found."""

    place: bytes | Address | None
    indexes: list[int]
    asking: bool = False  # the slot is being moved to this node: ASKING goes before each step


class BatchState:
    """The state of one batch. `is_retryable`: after this error a step is sent again.

    `away_s`: as in Batch; None for a single server.
    """

    def __init__(
        self,
        batch: Batch,
        place: str,
        is_retryable: Callable[[Exception], bool],
        away_s: float | None = None,
    ) -> None:
        self.steps = batch.steps
        self.replies: list[Any] = [None] * len(batch.steps)
        self._is_lenient, self._place, self._is_retryable = batch.lenient, place, is_retryable
        self._left: dict[int, Address | None] = dict.fromkeys(range(len(batch.steps)))
        self._errors: dict[int, Exception] = {}
        self._hops = 0
        self._rest_until: float | None = None
        self._away_s, self._again_s = away_s, batch.again_s
        self._sent: set[int] = set()  # steps that a node may have performed without a reply
        if self._away_s is not None:
            self._rest_until = clock.mono_s() + self._away_s
        self._is_late = False
        self._apart: list[int] = []  # steps with `apart` whose slot is being moved
        self._keys: list[bytes | None] = []  # in a cluster, of each step
        self._first: int | None = None  # the first step with a key
        self._beside: list[int] = []  # steps without a key, which go to the node of that step

    @property
    def is_over(self) -> bool:
        """Returns True when every step is answered."""
        return not self._left

    def parts(self, home: Callable[[bytes], Address | None] | None) -> list[NodePart]:
        """Groups the unanswered steps by node; `home` maps keys to nodes, None = one server."""
        if home is None:
            return [NodePart(None, list(self._left))]
        if not self._keys:
            self._find_keys()
        if self._first in self._left:  # it was redirected: the steps without a key follow it
            self._left |= dict.fromkeys(self._beside, self._left[self._first])
        straight = {index: self._keys[index] for index, at in self._left.items() if at is None}
        found = [NodePart(key, indexes) for key, indexes in group(straight, home)]
        aside: dict[Address, list[int]] = {}
        for index, asked in self._left.items():
            if asked is not None:
                aside.setdefault(asked, []).append(index)
        return [*found, *(NodePart(node, indexes, True) for node, indexes in aside.items())]

    def _find_keys(self) -> None:
        """Finds the key of each step. Keyless steps (TIME) go to the first keyed step's node."""
        own = [key_of(step) for step in self.steps]
        self._first = next((index for index, key in enumerate(own) if key is not None), None)
        self._beside = [index for index, key in enumerate(own) if key is None]
        first = None if self._first is None else own[self._first]
        self._keys = [first if key is None else key for key in own]

    def answer(self, index: int, reply: Any) -> None:
        """Notes the reply to a step, or its error."""
        if not isinstance(reply, Exception) or not self._is_retryable(reply):
            self.replies[index] = reply
            del self._left[index]
            return
        self._errors[index] = reply
        self._left[index] = asked_at(reply)
        if error_mapping.is_on_the_move(reply) and self.steps[index].apart is not None:
            self._apart.append(index)
            del self._left[index]

    def note_broken(self, indexes: list[int], error: Exception) -> None:
        """Notes that the connection broke, or was not made, before these steps were answered.

        A step that is sent at most once has the reply None, because it may have been performed.
        """
        for index in indexes:
            if index in self._left:
                is_over = self.steps[index].is_once and self._is_retryable(error)
                self.answer(index, None if is_over else error)

    def skip_if_away(self, indexes: list[int], server: ServerHealth) -> bool:
        """Gives up these steps and returns True if the server is away and no try is due."""
        if self._away_s is None or server.claim_try(self._away_s, self._again_s):
            return False
        self._give_up(indexes, server)
        return True

    def give_up_if_away(self, indexes: list[int], server: ServerHealth | None) -> None:
        """Gives up the unanswered ones of these steps if the server is unreachable by now."""
        if server is not None and self._away_s is not None and server.is_away(self._away_s):
            self._give_up([index for index in indexes if index in self._left], server)

    def _give_up(self, indexes: list[int], server: ServerHealth) -> None:
        for index in indexes:
            self.replies[index] = self._noted(server.away_error(), was_sent=index in self._sent)
            del self._left[index]

    def note_sent(self, indexes: list[int]) -> None:
        """Notes that steps are sent now: a node that hangs may perform them later."""
        if self._away_s is not None:
            self._sent.update(indexes)

    @staticmethod
    def _noted(error: FairlaneError, *, was_sent: bool) -> FairlaneError:
        if isinstance(error, NodeAway):
            error.was_sent = was_sent
        return error

    def fallbacks(self) -> Iterator[tuple[int, Operation[Any]]]:
        """Yields each step whose slot is being moved, and the operation to run in its place.

        Their results go into `replies`. The next turn follows without a pause, even if these
        operations have used up all patience.
        """
        while self._apart:
            index = self._apart.pop(0)
            other = self.steps[index].apart
            if other is not None:
                self._is_late = True
                yield index, other()

    def is_enough(self) -> bool:
        """Returns True if the batch has waited long enough for the rest.

        Once some steps of a lenient batch are answered, it waits for BATCH_REST_S more, because
        their leases or tokens must not wait. A batch with an `away_s` waits for `away_s` in all.
        """
        if self._rest_until is None:
            if not self._is_lenient or len(self._left) == len(self.steps):
                return False
            self._rest_until = clock.mono_s() + settings.BATCH_REST_S
        return clock.mono_s() >= self._rest_until

    def pause(self, delays: Iterator[float]) -> float | None:
        """Returns the seconds until the next turn; None when patience is over."""
        is_late, self._is_late = self._is_late, False
        if all(asked is not None for asked in self._left.values()) and self._hops < _MOST_HOPS:
            self._hops += 1
            return 0.0
        return 0.0 if is_late else next(delays, None)

    def result(self, *, is_replica: bool = False) -> list[Any]:
        """Returns the replies. Raises the first error, unless the batch is lenient: it is a reply.

        If no step of the batch was answered, it raises in any case.
        """
        for index in self._left:
            self.replies[index] = self._error(index)
        failed = [index for index, reply in enumerate(self.replies) if isinstance(reply, Exception)]
        if failed and (not self._is_lenient or all(map(self._is_lost, range(len(self.steps))))):
            first = self._ours(failed[0], is_replica=is_replica)
            raise self._noted(first, was_sent=bool(self._sent)) from None
        for index in failed:
            self.replies[index] = self._ours(index)
        return self.replies

    def _error(self, index: int) -> Exception:
        """Returns the error of a step that is still unanswered."""
        error = self._errors[index]
        if self._away_s is None:
            return error
        ours = given_up(error, self._place, self._away_s)
        return self._noted(ours, was_sent=index in self._sent)

    def _is_lost(self, index: int) -> bool:
        return index in self._left or isinstance(self.replies[index], RedisUnreachable)

    def _ours(self, index: int, *, is_replica: bool = False) -> FairlaneError:
        error = self.replies[index]
        if isinstance(error, FairlaneError):  # of the operation that ran in the step's place
            return error
        step = self.steps[index]
        return error_mapping.translate(error, self._place, is_replica=is_replica, step=step)


def batch_of(step: Command | Call[Any]) -> Batch:
    """Returns the batch of one step."""
    return Batch([step], away_s=step.away_s)


def asked_at(error: Exception) -> Address | None:
    """Returns the node that an ASK names."""
    if isinstance(error, redis.exceptions.AskError) and not isinstance(
        error, redis.exceptions.MovedError
    ):
        return (error.host, error.port) if error.host else None
    return None
