"""Topics: publishes messages; each subscriber has its own place, takes and acknowledges."""

from __future__ import annotations

from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from fairlane import settings
from fairlane.errors import FairlaneError, InvalidArgument, SubscriberNotFound, TopicNotFound
from fairlane.protocol import keys, scripts
from fairlane.protocol.steps import Batch, Command, Nodes, OnNode, run_each

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


# ------------------------------------------------------------------ publish
# Publishes messages to a topic, and sets how long it keeps them.


_MARKER_MS = 600_000  # a call is repeated for two minutes at most
LEAST_RETAIN_S, LONGEST_RETAIN_S = 1, 366 * 86_400
MOST_RETAINED = 100_000_000


async def publish(name: str, messages: Sequence[bytes]) -> range:
    """Adds up to 1,000 messages to a topic, all or none; returns their numbers.

    A repeat of a call with a lost reply adds nothing again. Raises RedisError.
    """
    call = scripts.publish(
        (*keys.topic(name), keys.topic_op(name, keys.new_id())),
        ttl=_MARKER_MS,
        retain_ms=settings.TOPIC_RETAIN_MS,
        retain_count=settings.TOPIC_RETAIN_COUNT,
        messages=messages,
    )
    reply = await call
    return range(reply.first, reply.last + 1)


async def set_retention(name: str, age_s: float | None, count: int | None) -> None:
    """Sets how long a topic keeps messages, and how many; None leaves one of them as it is.

    It applies from the next publication on. Raises InvalidArgument.
    """
    fields: list[str | int] = []
    if age_s is not None:
        if not isinstance(age_s, (int, float)) or not LEAST_RETAIN_S <= age_s <= LONGEST_RETAIN_S:
            raise InvalidArgument(
                f"retention of {age_s!r} seconds is not valid: {LEAST_RETAIN_S} to "
                f"{LONGEST_RETAIN_S:,} are expected"
            )
        fields += ["retain_ms", int(age_s * 1000)]
    if count is not None:
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MOST_RETAINED:
            raise InvalidArgument(
                f"retention of {count!r} messages is not valid: 1 to {MOST_RETAINED:,} are expected"
            )
        fields += ["retain_count", count]
    if fields:
        await Command(b"HSET", keys.topic(name)[1], *fields)


async def delete_topic(name: str) -> bool:
    """Deletes a topic with its messages and subscribers; returns False if there was none.

    After a lost reply the repeat finds none.
    """
    return bool(await Command(b"UNLINK", *keys.topic(name)))


# ------------------------------------------------------------------ subscribers
# Subscribers of a topic: each has its own place, and takes and acknowledges messages.


Start = Literal["new", "first"]
_READ = "read:"
_LONGEST_REDELIVER_S = 7 * 86_400
_MOST = 1_000  # messages of one call, because more would hold Redis for long
_MOST_NAMED = 100  # pages of 1,000 keys that are looked at for names like a mistyped one


class TopicMessage(NamedTuple):
    """A message of a topic. `id` acknowledges it; `number` grows by one with each message.

    `is_repeat`: it was delivered before and not acknowledged in time, so it may be done already.
    """

    id: str
    body: bytes
    is_repeat: bool

    @property
    def number(self) -> int:
        """Returns the message's number in its topic, from 1."""
        return int(self.id.partition("-")[2])

    @property
    def published_ms(self) -> int:
        """Returns when the message was published, in ms since 1970."""
        return int(self.id.partition("-")[0])


class Subscriber(NamedTuple):
    """How far a subscriber is.

    `waiting`: messages that it has not read. `pending`: read and not acknowledged. `missed`:
    deleted by the retention before it acknowledged them. `seen_ms`: when it last took messages, in
    ms since 1970; 0 = never. `oldest_ms`: when the oldest message that it has not acknowledged was
    published; 0 = there is none.
    """

    name: str
    waiting: int
    pending: int
    missed: int
    seen_ms: int
    oldest_ms: int

    @property
    def lag(self) -> int:
        """Returns how many messages it has not acknowledged."""
        return self.waiting + self.pending


class TopicState(NamedTuple):
    """A topic: how many messages it has now, how many were ever published, and its subscribers.

    `retain_ms` and `retain_count`: how long it keeps a message, and how many.
    """

    name: str
    messages: int
    published: int
    retain_ms: int
    retain_count: int
    subscribers: list[Subscriber]


class _Taken(NamedTuple):
    newest: bytes
    messages: list[TopicMessage]


def check_driver(driver: object) -> None:
    """Raises InvalidArgument for what connects to no Redis, such as a name."""
    if not hasattr(driver, "run"):
        raise InvalidArgument(
            f"topic of {driver!r} is not valid: Topic.from_url('orders') opens the topic orders"
        )


async def subscribe(topic: str, subscriber: str, start: Start) -> bool:
    """Adds a subscriber; returns False if it was there, and keeps its place then.

    It gets every message from now on, with `first` also those that the topic still has. Raises
    InvalidArgument.
    """
    keys.check_name("subscriber", subscriber)
    if start not in {"new", "first"}:
        raise InvalidArgument(f"start {start!r} is not valid: new or first is expected")
    most, both = settings.MOST_SUBSCRIBERS, keys.topic(topic)
    add = partial(scripts.subscribe, both, subscriber=subscriber, start=start, most=most)
    while (reply := await add()).is_leaving:
        await unsubscribe(topic, subscriber)
    if reply.is_full:
        raise InvalidArgument(
            f"topic {topic} has {settings.MOST_SUBSCRIBERS:,} subscribers already: remove one first"
        )
    is_new: bool = reply.is_ok
    return is_new


async def unsubscribe(topic: str, subscriber: str) -> bool:
    """Removes a subscriber and what waits for it; returns False if there was none.

    One call to Redis removes a thousand messages, because all of them would hold Redis for long.
    From the first one on there is no such subscriber. If the rest fails, a repeat of this, or the
    next subscription of that name, removes what is left.
    """
    keys.check_name("subscriber", subscriber)
    while (reply := await scripts.unsubscribe(keys.topic(topic), subscriber=subscriber)).is_more:
        pass
    was_there: bool = reply.is_removed
    return was_there


async def fetch(
    topic: str, subscriber: str, count: int, redeliver_s: float, wait_s: float
) -> list[TopicMessage]:
    """Returns up to `count` messages for a subscriber, oldest first.

    If there is none, it waits up to `wait_s` seconds, and no more than 2, for one. A message that
    is not acknowledged in `redeliver_s` seconds is delivered again, also if the reply to this call
    is lost. Raises InvalidArgument, SubscriberNotFound.
    """
    keys.check_name("subscriber", subscriber)
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= _MOST:
        raise InvalidArgument(f"count {count!r} is not valid: 1 to {_MOST:,} are expected")
    if not 0 <= redeliver_s <= _LONGEST_REDELIVER_S:
        raise InvalidArgument(
            f"redelivery after {redeliver_s!r} s is not valid: "
            f"0 to {_LONGEST_REDELIVER_S:,} s are expected"
        )
    taken = await _take_messages(topic, subscriber, count, redeliver_s)
    if taken.messages or wait_s <= 0:
        return taken.messages
    stream, _ = keys.topic(topic)
    block_ms = max(1, int(min(wait_s, redeliver_s or wait_s, settings.BLOCK_MS / 1000) * 1000))
    block = (b"XREAD", b"COUNT", 1, b"BLOCK", block_ms, b"STREAMS", stream, taken.newest)
    await Command(*block)
    return (await _take_messages(topic, subscriber, count, redeliver_s)).messages


async def _take_messages(topic: str, subscriber: str, count: int, redeliver_s: float) -> _Taken:
    call = scripts.take_messages(
        keys.topic(topic), subscriber=subscriber, most=count, redeliver=int(redeliver_s * 1000)
    )
    reply = await call
    if reply.is_gone:
        raise await _not_found(topic, subscriber)
    again, fresh = _messages(reply.again, is_repeat=True), _messages(reply.fresh, is_repeat=False)
    return _Taken(reply.last, [*again, *fresh])


def _messages(flat: Sequence[bytes], *, is_repeat: bool) -> list[TopicMessage]:
    pairs = zip(flat[::2], flat[1::2], strict=True)
    return [TopicMessage(one.decode(), body, is_repeat) for one, body in pairs]


async def acknowledge(topic: str, subscriber: str, ids: Iterable[str]) -> int:
    """Acknowledges messages: they are not delivered again. Returns how many were not before.

    After a lost reply the repeat counts only what was left. Raises InvalidArgument,
    SubscriberNotFound.
    """
    keys.check_name("subscriber", subscriber)
    wanted = list(ids)
    if not wanted:
        return 0
    for one in wanted:
        first, mark, rest = one.partition("-") if isinstance(one, str) else ("", "", "")
        if not (mark and first.isascii() and rest.isascii() and first.isdigit() and rest.isdigit()):
            raise InvalidArgument(f"message id {one!r} is not valid: an id such as 5-1 is expected")
    stream, _ = keys.topic(topic)
    acked = 0
    for start in range(0, len(wanted), _MOST):  # a call with all of them would hold Redis for long
        acked += await Command(b"XACK", stream, subscriber, *wanted[start : start + _MOST])
    if not acked and subscriber not in await _subscribers(topic):
        raise await _not_found(topic, subscriber)
    return acked


async def read_topic(topic: str) -> TopicState:
    """Returns a topic's counts and its subscribers by name; it changes nothing.

    Raises TopicNotFound.
    """
    stream, conf = keys.topic(topic)
    flat, length, first, groups = await Batch(
        [
            Command(b"HGETALL", conf),
            Command(b"XLEN", stream),
            Command(b"XRANGE", stream, b"-", b"+", b"COUNT", 1),
            Command(b"XINFO", b"GROUPS", stream),
        ],
        lenient=True,  # without a stream there are no groups
    )
    for reply in (flat, length, first):
        if isinstance(reply, FairlaneError):
            raise reply
    if not (flat or length):
        raise await topic_not_found(topic)
    known = {key.decode(): value.decode() for key, value in zip(flat[::2], flat[1::2], strict=True)}
    names = sorted(name.removeprefix(_READ) for name in known if name.startswith(_READ))
    places = _places(groups)
    looks = [look for name in names for look in _looks(stream, name, places.get(name, b"0-0"))]
    found = await run_each(looks)
    published = int(known.get("published", 0))
    # Everything before the oldest message is deleted.
    deleted = int(first[0][0].partition(b"-")[2]) - 1 if first else published
    subscribers = [
        _subscriber(name, known, published, deleted, found[2 * at], found[2 * at + 1])
        for at, name in enumerate(names)
    ]
    retain_ms = int(known.get("retain_ms", settings.TOPIC_RETAIN_MS))
    retain_count = int(known.get("retain_count", settings.TOPIC_RETAIN_COUNT))
    return TopicState(topic, length, published, retain_ms, retain_count, subscribers)


def _places(groups: Any) -> dict[str, bytes]:
    """Returns the id of the last message that each subscriber has read, from XINFO GROUPS."""
    if isinstance(groups, FairlaneError):
        return {}
    rows = [dict(zip(row[::2], row[1::2], strict=True)) for row in groups]
    return {row[b"name"].decode(): row[b"last-delivered-id"] for row in rows}


def _looks(stream: bytes, name: str, last: bytes) -> tuple[Command, Command]:
    unread = b"(" + last
    return (
        Command(b"XPENDING", stream, name),
        Command(b"XRANGE", stream, unread, b"+", b"COUNT", 1),
    )


def _subscriber(
    name: str, known: dict[str, str], published: int, deleted: int, pending: Any, unread: Any
) -> Subscriber:
    read = int(known[_READ + name])
    missed = int(known.get(f"missed:{name}", 0)) + max(0, deleted - read)
    count, smallest = pending[:2] if isinstance(pending, list) else (0, None)
    oldest = [smallest] if smallest else []
    oldest += [entry for entry, _ in unread] if isinstance(unread, list) else []
    oldest_ms = min((int(one.partition(b"-")[0]) for one in oldest), default=0)
    seen_ms = int(known.get(f"seen:{name}", 0))
    waiting = published - max(read, deleted)
    return Subscriber(name, waiting, int(count), missed, seen_ms, oldest_ms)


async def list_topics(most_pages: int | None = None) -> list[str]:
    """Returns the names of the topics on a Redis; it scans all keys, or at most so many pages."""
    found: set[str] = set()
    pages = 0
    for node in await Nodes():
        cursor: bytes | int = 0
        while most_pages is None or pages < most_pages:
            pages += 1
            words = (b"SCAN", cursor, b"MATCH", keys.EVERY_TOPIC_CONF, b"COUNT", 1_000)
            cursor, page = await OnNode(node, Command(*words))
            found.update(name for key in page if (name := keys.topic_of(key)) is not None)
            if not int(cursor):
                break
    return sorted(found)


async def topic_not_found(topic: str) -> TopicNotFound:
    """Returns the error for a topic that is not there, with the name that may be meant."""
    try:
        names = await list_topics(_MOST_NAMED)
    except FairlaneError:  # this user may not scan
        names = []
    near = get_close_matches(topic, names, n=1)
    hint = f"did you mean {near[0]}?" if near else "fairlane topic list lists the topics"
    return TopicNotFound(f"topic {topic} does not exist: {hint}")


async def _subscribers(topic: str) -> list[str]:
    try:
        return [one.name for one in (await read_topic(topic)).subscribers]
    except TopicNotFound:
        return []


async def _not_found(topic: str, subscriber: str) -> SubscriberNotFound:
    near = get_close_matches(subscriber, await _subscribers(topic), n=1)
    if near:
        hint = f"did you mean {near[0]}?"
    else:
        hint = f"fairlane topic subscribe {topic} {subscriber} adds it"
    return SubscriberNotFound(f"topic {topic} has no subscriber {subscriber}: {hint}")
