"""The limits by key of a queue: reads them, sets them, and repairs what damage has left of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from fairlane.errors import InvalidArgument
from fairlane.model import Token
from fairlane.operations.create import NO_ORDER
from fairlane.operations.tokens import FIRST, parse
from fairlane.options import check_whole
from fairlane.options_table import BY_NAME
from fairlane.protocol import keys, request_hash, scripts
from fairlane.protocol.request_hash import as_text, hmget, parse_fields
from fairlane.protocol.server_info import time_ms
from fairlane.protocol.steps import Command, SingleServer, run_all
from fairlane.records import KeyPage, KeyState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from fairlane.options import Limits

ORDER = "!"  # before the name of an order key
LINE = 2**52  # the least score of what waits, as in lua/v1/lib/limit_keys.lua
STOPS = 2**51  # the least score of a stop in an order key
_SCAN = 500  # keys of one reply
_CHECKED = 100  # keys that one script checks
_ENTRIES = 1_000  # of the keys that one script checks, because it blocks the server
_OF_ORDER = 200  # entries of an order key that a script reads at most
_PAGE = 1_000  # entries of one reply
_SHOWN = 100  # leases and tokens of one key ...
_SHOWN_OF_EACH = 10  # ... and of each key of a list


class InKeys(NamedTuple):
    """What a token that is in no lane does: the key for which it waits, and its place there.

    `is_stopped`: a stop of this order key is ahead of its request.
    """

    key: str
    place: int
    is_stopped: bool = False


async def list_keys(queue: str, most: int = 1_000) -> KeyPage:
    """Returns the state of at most `most` keys that are used or set, by name."""
    check_whole("limit", most, 1, 1_000)
    found, cursor = dict[str, str](), b"0"
    while len(found) <= most:
        cursor, flat = await Command(b"HSCAN", keys.of_limits(queue)[3], cursor, b"COUNT", _SCAN)
        found |= as_text(flat)
        if cursor == b"0":
            break
    chosen = sorted(found)[:most]
    states = await _states(queue, {name: found[name] for name in chosen}, _SHOWN_OF_EACH)
    return KeyPage(states, more=len(found) > len(chosen))


async def read_key(queue: str, name: str, *, order: bool = False) -> KeyState:
    """Returns the state of one key, with up to 100 of its holders. Raises InvalidArgument.

    If both a limit and an order have this name, it is the limit, unless `order`.
    """
    keys.check_key_name(name)
    names = [ORDER + name] if order else [name, ORDER + name]
    texts = await Command(b"HMGET", keys.of_limits(queue)[3], *names)
    stored = {one: text.decode() for one, text in zip(names, texts, strict=True) if text}
    found = await _states(queue, dict([*stored.items()][:1]), _SHOWN)
    if not found:
        raise InvalidArgument(
            f"key {name} is not in use in queue {queue}: a request names it, or `fairlane key set` "
            "sets its limit"
        )
    return found[0]


async def set_key(queue: str, name: str, limit: int | None) -> int | None:
    """Sets the limit of a key, or takes it back (None); returns the limit before, if any.

    A limit that is taken back stays until nothing uses the key. Work that waits starts as far as
    there is room. Leases above a lower limit end as ever. Raises InvalidArgument.
    """
    keys.check_key_name(name)
    if limit is not None:
        check_whole(f"limit of key {name}", limit, 1, BY_NAME["limit"].most)
    return await _set(queue, name, limit, "set")


async def _set(queue: str, name: str, limit: int | None, by: str) -> int | None:
    names = (*keys.of_limits(queue), keys.limit_key(queue, name))
    call = scripts.set_key_limit(names, name=name, limit=limit or 0, by=by)
    reply = await call
    former = reply.former
    while reply.is_more:  # one call starts a part of what waits
        reply = await call
    return int(former) if former else None


async def resume_key(queue: str, name: str) -> str | None:
    """Lets those behind a stop of an order key go on; returns the request that stopped them.

    None = nothing had stopped them. Raises InvalidArgument.
    """
    keys.check_name("key", name)
    names = (*keys.of_limits(queue), keys.limit_key(queue, ORDER + name))
    resumed = await SingleServer(scripts.resume_key(names, name=ORDER + name))
    if resumed is None:
        raise InvalidArgument(NO_ORDER)
    return resumed.decode() or None


class _LimitText(NamedTuple):
    """The limit of a key, and who has set it: a person, or a worker for its task."""

    limit: int
    is_set: bool
    of_task: int | None

    @staticmethod
    def of(text: str) -> _LimitText | None:
        """Returns what a field of the queue's limits says; None if it cannot be read."""
        limit, _, rest = text.partition(" ")
        by, _, behind = rest.partition(" ")
        if not limit.isdecimal():
            return None
        number = limit if by == "task" else behind
        return _LimitText(int(limit), by == "set", int(number) if number.isdecimal() else None)


async def _states(queue: str, found: Mapping[str, str], shown: int) -> list[KeyState]:
    """Returns the states of keys with these texts of limits; leaves out a text of no limit.

    Up to `shown` holders and tokens in line are read of each.
    """
    orders = [name for name in found if name.startswith(ORDER)]
    stored = {
        name: one
        for name, text in found.items()
        if name not in orders and (one := _LimitText.of(text))
    }
    reads = [part for name in stored for part in _reads(keys.limit_key(queue, name), shown)]
    replies = await run_all([*reads, Command(b"TIME")])
    now_ms, each = time_ms(replies[-1]), len(reads) // max(1, len(stored))
    rows = [replies[at : at + each] for at in range(0, len(reads), each or 1)]
    lines = [[token for raw in row[-1] if (token := parse(raw)) is not None] for row in rows]
    since = iter(await _since([token for line in lines for token in line]))
    states = list[KeyState]()
    for (name, one), row, line in zip(stored.items(), rows, lines, strict=True):
        held, called, waiting, holders, _ = row
        oldest = min((at for _ in line if (at := next(since)) is not None), default=None)
        states.append(
            KeyState(
                name=name,
                limit=one.limit,
                is_set=one.is_set,
                of_task=one.of_task,
                held=held,
                called=called,
                waiting=waiting,
                waits_ms=None if oldest is None else max(0, now_ms - oldest),
                holders=tuple(dict.fromkeys(raw.partition(b"#")[0].decode() for raw in holders)),
                next_requests=tuple(dict.fromkeys(token.request_id for token in line)),
            )
        )
    return states + await _order_states(queue, orders, shown)


async def _order_states(queue: str, names: Sequence[str], shown: int) -> list[KeyState]:
    """Returns the states of order keys. Up to `shown` requests that come next are read of each."""
    if not names:
        return []
    reads = [part for name in names for part in _order_reads(keys.limit_key(queue, name), shown)]
    replies = await run_all([*reads, Command(b"TIME")])
    now_ms, each = time_ms(replies[-1]), len(reads) // max(1, len(names))
    rows = [replies[at : at + each] for at in range(0, len(reads), each or 1)]
    following = [[one.decode() for one in row[-1]] for row in rows]
    born = iter(await run_all([hmget(one, "born") for line in following for one in line]))
    states = list[KeyState]()
    for name, (waiting, started, stops, _), line in zip(names, rows, following, strict=True):
        known = [parse_fields(("born",), next(born))[0] for _ in line]
        oldest = min((int(one) for one in known if one), default=None)
        states.append(
            KeyState(
                name=name.removeprefix(ORDER),
                limit=1,
                is_set=False,
                of_task=None,
                held=len(started),
                called=0,
                waiting=waiting,
                waits_ms=None if oldest is None else max(0, now_ms - oldest),
                holders=tuple(one.decode() for one in started),
                next_requests=tuple(line),
                is_order=True,
                stopped_by=stops[0].decode().partition(":")[2] if stops else None,
            )
        )
    return states


def _order_reads(zset: bytes, shown: int) -> list[Command]:
    below_stops, below_line = b"(%d" % STOPS, b"(%d" % (LINE - 1)
    return [
        Command(b"ZCOUNT", zset, 0, below_stops),
        Command(b"ZRANGEBYSCORE", zset, b"-inf", b"(0", b"LIMIT", 0, shown),
        Command(b"ZRANGEBYSCORE", zset, STOPS, below_line, b"LIMIT", 0, 1),
        Command(b"ZRANGEBYSCORE", zset, 0, below_stops, b"LIMIT", 0, shown),
    ]


def _reads(zset: bytes, shown: int) -> list[Command]:
    return [
        Command(b"ZCOUNT", zset, b"-inf", b"(0"),
        Command(b"ZCOUNT", zset, 0, b"(%d" % (LINE - 1)),
        Command(b"ZCOUNT", zset, LINE, b"+inf"),
        Command(b"ZRANGEBYSCORE", zset, b"-inf", b"(0", b"LIMIT", 0, shown),
        Command(b"ZRANGEBYSCORE", zset, LINE, b"+inf", b"LIMIT", 0, shown),
    ]


async def _since(tokens: Sequence[Token]) -> list[int | None]:
    """Returns since when the permits of these tokens have been queued, ms; None = it is stale."""
    texts = await run_all([Command(b"HGET", keys.permits(one.request_id), one.k) for one in tokens])
    born = await run_all([hmget(one.request_id, "born") for one in tokens])
    found = list[int | None]()
    for token, text, row in zip(tokens, texts, born, strict=True):
        fields = {token.k: text.decode()} if text else {}
        queued = [one for one in request_hash.queued(fields) if one.g == token.g]
        (began,) = parse_fields(("born",), row)
        since = int(began) if text is None and began else None
        found.append(queued[0].since_ms if queued else since)
    return found


# ------------------------------------------------------------------ one request


async def find_waiting(queue: str, request_id: str) -> InKeys | None:
    """Returns where the first token of a request waits for a key."""
    turn, named = await request_hash.read(request_id, "turn", "keys")
    _, _, limits = named.partition("%")
    stored = as_text(await Command(b"HGETALL", keys.permits(request_id)))
    permits = dict.fromkeys((one.k, one.g) for one in request_hash.queued(stored))
    permits[FIRST] = None  # it may have no field
    tokens = [Token(request_id, k, g, turn, limits).text for k, g in permits]
    for name in Token(request_id, *FIRST, turn, limits).key_names:
        zset = keys.limit_key(queue, name)
        if name.startswith(ORDER):
            score = await Command(b"ZSCORE", zset, request_id)
            if score is None:
                continue
            place = int(float(score))
            ahead = await Command(b"ZCOUNT", zset, b"-inf", b"(%d" % place)
            stops = await _stops_ahead(zset, place)
            if ahead + stops:
                return InKeys(name, ahead + stops + 1, is_stopped=stops > 0)
            continue
        scores = await run_all([Command(b"ZSCORE", zset, one) for one in tokens])
        if waiting := [at for one in scores if one is not None and (at := int(float(one))) >= LINE]:
            ahead = await Command(b"ZCOUNT", zset, LINE, b"(%d" % min(waiting))
            return InKeys(name, ahead + 1)
    return None


def _stops_ahead(zset: bytes, score: int) -> Command:
    """Counts the stops that hold a request with this score back: none if it has started."""
    return Command(b"ZCOUNT", zset, STOPS, b"(%d" % min(LINE - 1, STOPS + max(0, score)))


async def in_force(queue: str, limits: Limits) -> Limits:
    """Returns these keys, each with the limit that it has in the queue now.

    A key that is not in use has the limit that is given. A requeue and a tick of a schedule submit
    with these limits, because no person is there to choose another one.
    """
    if not limits:
        return limits
    names = [name for name, _ in limits]
    texts = await Command(b"HMGET", keys.of_limits(queue)[3], *names)
    return tuple(
        (name, found.limit if (found := _stored(text)) else limit)
        for (name, limit), text in zip(limits, texts, strict=True)
    )


def _stored(text: bytes | None) -> _LimitText | None:
    return None if text is None else _LimitText.of(text.decode())


# ------------------------------------------------------------------ tasks


class TaskLimit(NamedTuple):
    """A task whose limit is not the one that a worker has for it.

    `before` was in force when the worker looked, None = none. `now` is in force after that. If
    `is_set`, a person has set it.
    """

    task: str
    before: int | None
    now: int | None
    is_set: bool


async def register_tasks(queue: str, wanted: Mapping[str, int | None]) -> list[TaskLimit]:
    """Sets the limits of tasks, None = it has none; returns those that were others before.

    A number that a person has set stays in force.
    """
    found = list[TaskLimit]()
    for task, limit, stored in await _of_tasks(queue, wanted):
        if limit == (stored.of_task if stored else None):
            continue
        await _set(queue, keys.key_of_task(task), limit, "task")
        is_set, before = bool(stored and stored.is_set), stored.limit if stored else None
        found.append(TaskLimit(task, before, before if is_set else limit, is_set))
    return found


async def other_limits(queue: str, wanted: Mapping[str, int | None]) -> list[TaskLimit]:
    """Returns the tasks for which another worker has registered another limit since."""
    found = list[TaskLimit]()
    for task, limit, stored in await _of_tasks(queue, wanted):
        if limit != (stored.of_task if stored else None):
            now = stored.limit if stored else None
            found.append(TaskLimit(task, now, now, bool(stored and stored.is_set)))
    return found


async def _of_tasks(
    queue: str, wanted: Mapping[str, int | None]
) -> list[tuple[str, int | None, _LimitText | None]]:
    if not wanted:
        return []
    names = [keys.key_of_task(task) for task in wanted]
    texts = await Command(b"HMGET", keys.of_limits(queue)[3], *names)
    return [(*one, _stored(text)) for one, text in zip(wanted.items(), texts, strict=True)]


class KeyRoom:
    """How many more leases the keys of a queue allow: each is read once, and then counted down."""

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self._free = dict[str, int]()

    async def read(self, limits: Iterable[Limits]) -> None:
        """Reads the keys that it does not know yet."""
        named = {name: limit for each in limits for name, limit in each}
        new = [(name, limit) for name, limit in named.items() if name not in self._free]
        for first in range(0, len(new), _SCAN):
            part = await in_force(self._queue, tuple(new[first : first + _SCAN]))
            zsets = [keys.limit_key(self._queue, name) for name, _ in part]
            held = await run_all([Command(b"ZCOUNT", one, b"-inf", b"(0") for one in zsets])
            for (name, limit), count in zip(part, held, strict=True):
                self._free[name] = max(0, limit - count)

    async def have_turn(self, placed: Sequence[tuple[str, str]]) -> set[str]:
        """Returns those of these order keys and requests that may start something now.

        Of an order key that is the first request. If a stop is ahead of it, it is none. A request
        that damage has left without a place takes it again, so it counts.
        """
        names = list(dict.fromkeys(name for name, _ in placed))
        zsets = [keys.limit_key(self._queue, one) for one in names]
        heads = await run_all([Command(b"ZRANGE", one, 0, 0, b"WITHSCORES") for one in zsets])
        rows = [row for row in zip(names, zsets, heads, strict=True) if row[2]]
        stops = await run_all([_stops_ahead(zset, int(float(head[1]))) for _, zset, head in rows])
        first = {
            name: "" if count else head[0].decode()
            for (name, _, head), count in zip(rows, stops, strict=True)
        }
        return {
            request_id for name, request_id in placed if first.get(name, request_id) == request_id
        }

    def take(self, limits: Limits, most: int) -> int:
        """Returns how many of `most` leases of a request have room, and counts them."""
        count = min([most, *(self._free[name] for name, _ in limits)])
        for name, _ in limits:
            self._free[name] -= count
        return count


# ------------------------------------------------------------------ audit


async def names_in_use(queue: str) -> list[str]:
    """Returns all keys that are used or set."""
    found, cursor = list[str](), b""
    while cursor != b"0":
        cursor, flat = await Command(
            b"HSCAN", keys.of_limits(queue)[3], cursor or b"0", b"COUNT", _SCAN
        )
        found += as_text(flat)
    return list(dict.fromkeys(found))


async def check_all(queue: str, names: Sequence[str]) -> int | None:
    """Corrects what damage has left in these keys; returns how many entries.

    None = no server has all keys, and nothing was done: see operations/apart_keys.py.
    """
    count = 0
    for first in range(0, len(names), _CHECKED):
        part = names[first : first + _CHECKED]
        zsets = [keys.limit_key(queue, name) for name in part]
        sizes = await run_all([Command(b"ZCOUNT", one, b"-inf", b"(%d" % LINE) for one in zsets])
        sizes = [
            min(size, _OF_ORDER) if name.startswith(ORDER) else size
            for name, size in zip(part, sizes, strict=True)
        ]
        for group, size in _groups(part, sizes):
            corrected = await _check_group(queue, group, size)
            if corrected is None:
                return None
            count += corrected
    return count


async def _check_group(queue: str, names: Sequence[str], size: int) -> int | None:
    """Checks keys that have so many entries, a part of them in each script; None in a cluster."""
    first = count = 0
    for _ in range(0, max(1, size), _ENTRIES):
        call = scripts.check_keys(keys.of_limits(queue), first=first, most=_ENTRIES, names=names)
        corrected = await SingleServer(call)
        if corrected is None:
            return None
        count += corrected
        first += _ENTRIES - corrected
    return count


def _groups(names: Sequence[str], sizes: Sequence[int]) -> Iterator[tuple[list[str], int]]:
    """Yields names with the number of their entries: about _ENTRIES together, or one large key."""
    group, total = list[str](), 0
    for name, size in zip(names, sizes, strict=True):
        if group and total + size > _ENTRIES:
            yield group, total
            group, total = [], 0
        group.append(name)
        total += size
    yield group, total


async def waiting_requests(queue: str, names: Sequence[str]) -> list[bytes]:
    """Returns the requests of all tokens that wait for these keys."""
    found = dict[bytes, None]()
    for name in names:
        cursor = b""
        while cursor != b"0":
            zset = keys.limit_key(queue, name)
            cursor, flat = await Command(b"ZSCAN", zset, cursor or b"0", b"COUNT", _PAGE)
            for token, score in zip(flat[::2], flat[1::2], strict=True):
                if float(score) >= LINE:
                    found[token.partition(b"#")[0]] = None
    return list(found)


async def wait_in_line(queue: str, tokens: Sequence[Token]) -> set[str]:
    """Returns the texts of those tokens that wait for one of their keys."""
    asked = [
        (token.text, Command(b"ZSCORE", keys.limit_key(queue, name), token.text))
        for token in tokens
        for name in token.key_names
    ]
    scores: list[Any] = await run_all([command for _, command in asked])
    return {
        text
        for (text, _), score in zip(asked, scores, strict=True)
        if score is not None and float(score) >= LINE
    }
