"""One queue over several primaries: its lanes may be spread over shards, each in a slot of its own.

The limit stays with the request; only its tokens go to the shards in turn. A request keeps the
shards of its submission, so each permit holds the lane of its token. When the shards of a queue are
changed, the former ones are served until every request has been moved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

from fairlane import settings
from fairlane.errors import FairlaneError, InvalidArgument, RedisUnreachable
from fairlane.model import ENDED_STATES
from fairlane.operations.tokens import follow_up
from fairlane.protocol import keys, scripts
from fairlane.protocol.request_hash import hmget, parse_fields
from fairlane.protocol.steps import Batch, Call, Command, call_each, run_each_or_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fairlane.protocol.lua import Reply


MOST = 16  # shards of a queue
HIGHEST = 255  # the highest number of one
_PAGE = 200  # requests moved in one call
_NO_RIGHT = ("NOPERM", "executing the script", "ACL failure")  # by the version of Redis
_FIELDS = ("state", "queue", "shards")


class Shards(NamedTuple):
    """The shards of a queue; none = its own lanes."""

    numbers: tuple[int, ...] = ()

    @classmethod
    def of(cls, text: bytes | str) -> Shards:
        """Reads the text that scripts use: numbers with commas between them.

        Numbers that this release does not use are skipped.
        """
        shown = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        parts = [part for part in shown.split(",") if part.isdecimal() and int(part) <= HIGHEST]
        return cls(tuple(dict.fromkeys(map(int, parts))))

    @property
    def text(self) -> str:
        """Returns the text that `of` reads."""
        return ",".join(map(str, self.numbers))

    def turned(self, request_id: str) -> str:
        """Returns the text, rotated by the request's id, so that single permits spread."""
        if not self.numbers:
            return ""
        first = crc32(request_id.encode()) % len(self.numbers)
        return Shards(self.numbers[first:] + self.numbers[:first]).text


class ShardLayout(NamedTuple):
    """The dispatch slot's record: the shards, those being left, and since when (its ms).

    `names_keys`: some request of the queue has named a key (lua/v1/lib/limit_keys.lua).
    """

    present: Shards
    left: Shards
    since: int
    names_keys: bool = False

    @property
    def served(self) -> tuple[int, ...]:
        """Returns the numbers of all that may have tokens."""
        return served(self.present.text, self.left.text)


def served(present: bytes | str, left: bytes | str) -> tuple[int, ...]:
    """Returns the numbers of all shards that may have tokens; usually (0,), the own lanes."""
    numbers = Shards.of(present).numbers or (0,)
    return tuple(dict.fromkeys(numbers + Shards.of(left).numbers))


async def read_shards(queue: str) -> ShardLayout:
    """Returns the shards of a queue now."""
    names = (b"shards", b"left", b"shards_since", b"has_keys")
    found = await Command(b"HMGET", keys.conf(queue), *names)
    present, left, since, has_keys = (value or b"" for value in found)
    return ShardLayout(Shards.of(present), Shards.of(left), int(since or 0), bool(has_keys))


def check_count(count: int) -> None:
    """Raises InvalidArgument unless a queue may have this many shards."""
    if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= MOST:
        raise InvalidArgument(
            f"{count!r} shards are not possible: a whole number from 0 (the queue's own lanes) "
            f"to {MOST} is expected"
        )


def choose(queue: str, count: int, home: Callable[[bytes], Any]) -> Shards:
    """Returns `count` shards, on as many primaries as possible; 0 = the queue's own lanes.

    `home` returns the node of a key. Raises InvalidArgument.
    """
    check_count(count)
    by_node: dict[Any, list[int]] = {}
    for number in range(1, HIGHEST + 1):
        by_node.setdefault(home(keys.delayed(queue, number)), []).append(number)
    chosen: list[int] = []
    while len(chosen) < count:
        chosen += [numbers.pop(0) for numbers in by_node.values() if numbers][: count - len(chosen)]
    return Shards(tuple(sorted(chosen)))


async def set_shards(queue: str, shards: Shards) -> ShardLayout:
    """Spreads a queue: new requests immediately, existing ones by `move`.

    Raises InvalidArgument if requests of the queue have ever named keys.
    """
    return await _set_shards(queue, shards.text)


async def _set_shards(queue: str, text: str, since: str = "") -> ShardLayout:
    call = scripts.set_shards((keys.conf(queue),), shards=text, since=since)
    reply = await call
    if reply.is_keyed:
        raise InvalidArgument(
            f"queue {queue} has requests with limits by key or an order, or had some, which may be "
            "repaired: shards have no keys, so use another queue for work that needs shards"
        )
    return ShardLayout(Shards.of(reply.shards), Shards.of(reply.left), int(reply.since))


async def move(queue: str) -> int:
    """Moves the tokens of requests that still use shards which are left; returns how many requests.

    A left shard is forgotten when no request uses it, and no producer that read it still submits.
    A request on an unreachable node may use it, and is moved later. Safe to run twice, and
    concurrently.
    """
    spread = await read_shards(queue)
    if not spread.left.numbers:
        return 0
    _, (seconds, _) = await Batch([Command(b"EXISTS", keys.conf(queue)), Command(b"TIME")])
    ids = await Command(b"ZRANGE", keys.active(queue), 0, -1)
    names = [name.decode("utf-8", "replace") for name in ids]
    count = away = 0
    for start in range(0, len(names), _PAGE):
        moved, missing = await _move(queue, names[start : start + _PAGE], spread.present)
        count, away = count + moved, away + missing
    is_old = int(seconds) * 1000 > spread.since + 2 * (settings.INTENT_GRACE_MS + settings.AUDIT_MS)
    if is_old and not count and not away:
        await _forget(queue, spread)
    return count


async def _forget(queue: str, spread: ShardLayout) -> None:
    """Forgets shards that were left, and their stale tokens, unless the layout has changed."""
    found = await _set_shards(queue, "=", str(spread.since))
    if found.since == spread.since and not found.left.numbers:
        await Batch(
            [
                Command(
                    b"UNLINK",
                    *(keys.delayed(queue, shard), *keys.turns(queue, shard)),
                    *keys.lanes(queue, shard),
                )
                for shard in spread.left.numbers
            ]
        )


async def change_shards(queue: str, request_id: str, present: Shards) -> None:
    """Moves one request whose tokens are in a shard that no worker pops."""
    call = scripts.change_shards(keys.request_keys(request_id), shards=present.turned(request_id))
    await _dispatch(queue, [(request_id, await call)])


async def _move(queue: str, names: list[str], present: Shards) -> tuple[int, int]:
    """Moves some; returns how many, and how many are not there yet, on a node away, or refused."""
    replies = await run_each_or_error([hmget(name, *_FIELDS) for name in names])
    calls: list[tuple[str, Call[Any]]] = []
    away = 0
    for name, reply in zip(names, replies, strict=True):
        if isinstance(reply, FairlaneError):  # doctor reports any other error
            away += isinstance(reply, RedisUnreachable)
            continue
        state, home, shards = parse_fields(_FIELDS, reply)
        away += state in {"", "abandoned"}
        if home == queue and state not in {"", "abandoned", *ENDED_STATES}:
            wanted = present.turned(name)
            if shards != wanted:
                calls.append((name, scripts.change_shards(keys.request_keys(name), shards=wanted)))
    if not calls:
        return 0, away
    answers = await call_each([call for _, call in calls])
    named = [(name, reply) for (name, _), reply in zip(calls, answers, strict=True)]
    moved = [(name, reply) for name, reply in named if not isinstance(reply, FairlaneError)]
    await _dispatch(queue, moved)
    failed = [reply for reply in answers if isinstance(reply, FairlaneError)]
    return len(moved), away + sum(_may_be_moved_later(error) for error in failed)


def _may_be_moved_later(error: FairlaneError) -> bool:
    """Returns True if a node is away or a right is missing, False for damage (see doctor)."""
    is_refused = any(words in str(error) for words in _NO_RIGHT)
    return is_refused or isinstance(error, RedisUnreachable)


async def _dispatch(queue: str, replies: Iterable[tuple[str, Reply]]) -> None:
    if calls := follow_up(queue, *replies):
        await Batch(calls)
