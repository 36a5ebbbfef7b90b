"""The webhooks of a queue: what is posted where, and how far each one is in the completion log.

A webhook has a cursor of its own, which moves after each delivery. So nothing is missed while no
server runs, and after a crash the last event comes again.
"""

from __future__ import annotations

import base64
import secrets
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import msgspec

from fairlane import settings
from fairlane.errors import InvalidArgument, WebhookNotFound
from fairlane.model import ENDINGS
from fairlane.operations.completion import last_completion, mark, unmark
from fairlane.operations.find import filter_of
from fairlane.protocol import keys
from fairlane.protocol.server_info import time_ms
from fairlane.protocol.steps import Batch, Command

if TYPE_CHECKING:
    from collections.abc import Iterable


T = TypeVar("T")
MOST_HOOKS = 50  # of a queue: each may have one call on its way
_LONGEST_URL = 2_048
_LOCK_MS = 10_000  # a server that does not renew it for so long is dead
_CLOCK_BACK_MS = 120_000  # a pause that begins so far ahead is of a clock that went back
_PREFIX = "whsec_"
_READER = b"webhook:"


class Webhook(msgspec.Struct, frozen=True, kw_only=True):
    """Where events are posted: those in one of `states` (none = all) of requests with all `tags`.

    `states` are states and outcomes.
    `secret` signs them, `since` is where its first event is looked for, and `id` is its own.
    """

    id: str
    url: str
    secret: str
    since: str
    created_ms: int
    states: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<Webhook {self.id}>"  # without the secret


class Deliveries(msgspec.Struct, frozen=True, kw_only=True):
    """How far a webhook is: it has delivered everything up to `cursor`.

    The next event failed `attempts` times since `failing_since_ms`, and is posted again at
    `next_ms`, after a pause of `pause_ms`; `pending` is its place. `stopped` says why nothing is
    posted any more. Times are of the queue's Redis, in ms.
    """

    id: str
    cursor: str
    pending: str = ""
    delivered: int = 0
    attempts: int = 0
    failing_since_ms: int = 0
    next_ms: int = 0
    pause_ms: int = 0
    last_error: str = ""
    stopped: str = ""

    def is_due(self, now_ms: int) -> bool:
        """Returns True if the pause is over, or began at a time that the clock has not reached."""
        return not self.next_ms - self.pause_ms - _CLOCK_BACK_MS <= now_ms < self.next_ms


class Hook(NamedTuple):
    """A webhook by its name, and how far it is."""

    name: str
    webhook: Webhook
    deliveries: Deliveries

    @property
    def state(self) -> str:
        """Returns active, failing, or stopped."""
        if self.deliveries.stopped:
            return "stopped"
        return "failing" if self.deliveries.attempts else "active"


class Round(NamedTuple):
    """What a server reads before it delivers; `is_own` is False if another server delivers."""

    is_own: bool
    hooks: list[Hook]
    newest: str
    now_ms: int


def check_url(url: str) -> str:
    """Returns a URL to which events may be posted. Raises InvalidArgument."""
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in {"http", "https"} and bool(parts.hostname)
        is_valid = is_valid and (parts.port is None or parts.port > 0)
    except ValueError:
        is_valid = False
    if not is_valid or len(url) > _LONGEST_URL or not url.isprintable() or " " in url:
        raise InvalidArgument(
            "the webhook's URL is not valid: write http:// or https:// and a host, up to "
            f"{_LONGEST_URL:,} characters"
        )
    if parts.username is not None or parts.fragment:
        raise InvalidArgument(
            "the webhook's URL has a user or a fragment: leave them out, the signature proves "
            "where an event is from"
        )
    return url


def new_secret() -> str:
    """Returns a secret in the form of Standard Webhooks."""
    return _PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


def key_of(secret: str) -> bytes:
    """Returns the bytes that sign."""
    return base64.b64decode(secret.removeprefix(_PREFIX))


async def add_webhook(
    queue: str, name: str, url: str, states: Iterable[str] = (), tags: Iterable[str] = ()
) -> Hook:
    """Adds a webhook for the events from now on. Its secret is returned only here.

    Raises InvalidArgument, also if there is one of this name, or there are 50.
    """
    keys.check_name("webhook", name)
    check_url(url)
    wanted = filter_of(states=list(states), tags=list(tags))
    if not wanted.states <= {*ENDINGS}:
        raise InvalidArgument(
            f"state {', '.join(sorted(wanted.states))} is not valid: a request ends as "
            f"{' or '.join(ENDINGS)}"
        )
    definitions, _ = keys.hooks(queue)
    since = await last_completion(queue)
    count, time = await Batch([Command(b"HLEN", definitions), Command(b"TIME")])
    if count >= MOST_HOOKS:
        raise InvalidArgument(f"queue {queue} has {count} webhooks, which is the most: remove one")
    made = Webhook(
        id=secrets.token_hex(8), url=url, secret=new_secret(), since=since,
        created_ms=time_ms(time), states=tuple(sorted(wanted.states)),
        tags=tuple(sorted(wanted.tags)),
    )  # fmt: skip
    raw = msgspec.json.encode(made)
    is_new = await Command(b"HSETNX", definitions, name, raw)
    stored = raw if is_new else await Command(b"HGET", definitions, name)
    if stored != raw:
        raise InvalidArgument(f"webhook {name} is there already: remove it, or take another name")
    await mark(queue, {_reader(made): since}, settings.LOG_READER_MS)
    return Hook(name, made, Deliveries(id=made.id, cursor=since))


async def list_webhooks(queue: str) -> list[Hook]:
    """Returns the webhooks by name."""
    replies = await Batch([Command(b"HGETALL", key) for key in keys.hooks(queue)])
    return _hooks(*replies)


class LateDelivery(NamedTuple):
    """What holds up the deliveries of a webhook: `stopped` or failed attempts, both without a URL.

    If `name` is "", no server delivers, although webhooks have events to deliver.
    """

    name: str
    attempts: int = 0
    error: str = ""
    is_stopped: bool = False


async def late_deliveries(queue: str) -> list[LateDelivery]:
    """Returns what holds up webhooks. It reads no definition, because these have secrets."""
    replies = await Batch(
        [
            Command(b"HGETALL", keys.hooks(queue)[1]),
            Command(b"EXISTS", keys.hooks_lock(queue)),
            Command(b"HGETALL", keys.log_readers(queue)),
            Command(b"XREVRANGE", keys.completed(queue), b"+", b"-", b"COUNT", 1),
        ]
    )
    progress, is_served, readers, newest = replies
    found = list[LateDelivery]()
    for name, raw in _pairs(progress):
        far, shown = _decoded(raw, Deliveries), name.decode("utf-8", "replace")
        if far is not None and (far.stopped or far.attempts):
            error = far.stopped or far.last_error
            found.append(LateDelivery(shown, far.attempts, error, bool(far.stopped)))
    places = [
        place.partition(b" ")[0] for name, place in _pairs(readers) if name.startswith(_READER)
    ]
    if not is_served and newest and any(place != newest[0][0] for place in places):
        found.append(LateDelivery(""))
    return found


async def remove_webhook(queue: str, name: str) -> None:
    """Removes a webhook. Raises WebhookNotFound."""
    definitions, progress = keys.hooks(queue)
    removed = await _find(queue, name)
    await Batch([Command(b"HDEL", definitions, name), Command(b"HDEL", progress, name)])
    await unmark(queue, _reader(removed.webhook))


async def resume_webhook(queue: str, name: str, *, skip: bool = False) -> Hook:
    """Posts the failed event again now, also if the webhook was stopped; or skips it.

    Raises WebhookNotFound.
    """
    hook = await _find(queue, name)
    before = hook.deliveries
    after = Deliveries(
        id=before.id,
        cursor=before.pending if skip and before.pending else before.cursor,
        delivered=before.delivered,
    )
    await save(queue, name, after)
    return hook._replace(deliveries=after)


async def save(queue: str, name: str, deliveries: Deliveries) -> None:
    """Writes how far a webhook is; of one that was removed meanwhile nothing stays."""
    definitions, progress = keys.hooks(queue)
    await Command(b"HSET", progress, name, msgspec.json.encode(deliveries))
    if not await Command(b"HEXISTS", definitions, name):
        await Command(b"HDEL", progress, name)


async def begin_round(queue: str, server: str) -> Round:
    """Takes or keeps the lock for this server, and reads what is to be delivered."""
    lock, log = keys.hooks_lock(queue), keys.completed(queue)
    if not await Command(b"HLEN", keys.hooks(queue)[0]):
        return Round(False, [], "", 0)
    is_new = await Command(b"SET", lock, server, b"NX", b"PX", _LOCK_MS)
    holder = server.encode() if is_new else await Command(b"GET", lock)
    if holder != server.encode():
        # A lock that was taken before the clock went back would stay for longer.
        await Command(b"PEXPIRE", lock, _LOCK_MS, b"LT")
        return Round(False, [], "", 0)
    _, *hashes, last, time = await Batch(
        [
            Command(b"PEXPIRE", lock, _LOCK_MS),
            *(Command(b"HGETALL", key) for key in keys.hooks(queue)),
            Command(b"XREVRANGE", log, b"+", b"-", b"COUNT", 1),
            Command(b"TIME"),
        ]
    )
    newest = last[0][0].decode() if last else "0-0"
    found = _hooks(*hashes)
    # The log keeps what they have not received; a stopped one holds nothing.
    active = [hook for hook in found if not hook.deliveries.stopped]
    places = {_reader(hook.webhook): hook.deliveries.cursor for hook in active}
    await mark(queue, places, settings.LOG_READER_MS)
    await unmark(queue, *(_reader(one.webhook) for one in found if one.deliveries.stopped))
    return Round(True, found, newest, time_ms(time))


def _reader(webhook: Webhook) -> str:
    """Returns the name of a webhook among the readers of the log."""
    return f"{_READER.decode()}{webhook.id}"


async def end_rounds(queue: str, server: str) -> None:
    """Lets another server deliver, if this one has the lock."""
    if await Command(b"GET", keys.hooks_lock(queue)) == server.encode():
        await Command(b"DEL", keys.hooks_lock(queue))


async def _find(queue: str, name: str) -> Hook:
    for hook in await list_webhooks(queue):
        if hook.name == name:
            return hook
    raise WebhookNotFound(f"webhook {name} is not in queue {queue}: fairlane webhook list")


def _hooks(definitions: Any, progress: Any) -> list[Hook]:
    """Returns what stands in both hashes; a definition that cannot be read is left out."""
    far = {name: _decoded(raw, Deliveries) for name, raw in _pairs(progress)}
    found = []
    for name, raw in _pairs(definitions):
        webhook = _decoded(raw, Webhook)
        if webhook is None:
            continue
        deliveries = far.get(name)
        if deliveries is None or deliveries.id != webhook.id:
            deliveries = Deliveries(id=webhook.id, cursor=webhook.since)
        found.append(Hook(name.decode("utf-8", "replace"), webhook, deliveries))
    return sorted(found, key=lambda hook: hook.name)


def _pairs(flat: Any) -> list[tuple[bytes, bytes]]:
    pairs = flat.items() if isinstance(flat, dict) else zip(flat[::2], flat[1::2], strict=True)
    return list(pairs)


def _decoded(raw: bytes, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.MsgspecError:  # a newer release may have written it
        return None
