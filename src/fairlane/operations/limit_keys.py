"""The limits by key of a queue: reads them, sets them, and repairs what damage has left of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from fairlane.errors import InvalidArgument
from fairlane.operations.create import NO_LIMITS
from fairlane.operations.tokens import parse
from fairlane.options import check_whole
from fairlane.options_table import BY_NAME
from fairlane.protocol import keys, request_hash, scripts
from fairlane.protocol.request_hash import as_text, hmget, parse_fields
from fairlane.protocol.server_info import time_ms
from fairlane.protocol.steps import Batch, Command, SingleServer, run_all
from fairlane.records import KeyPage, KeyState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairlane.model import Token

LINE = 2**52  # the least score of what waits, as in lua/v1/lib/limit_keys.lua
_SCAN = 500  # keys of one reply
_CHECKED = 100  # keys that one script checks
_PAGE = 1_000  # waiting tokens of one reply
_SHOWN = 100  # leases and tokens of one key


class InKeys(NamedTuple):
    """What a token that is in no lane does: the key for which it waits, and its place there."""

    key: str
    place: int


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
    states = [await _state(queue, name, found[name]) for name in chosen]
    return KeyPage([one for one in states if one is not None], more=len(found) > len(chosen))


async def read_key(queue: str, name: str) -> KeyState:
    """Returns the state of one key, with up to 100 of its holders. Raises InvalidArgument."""
    keys.check_name("key", name)
    text = await Command(b"HGET", keys.of_limits(queue)[3], name)
    found = None if text is None else await _state(queue, name, text.decode())
    if found is None:
        raise InvalidArgument(
            f"key {name} is not in use in queue {queue}: a request names it, or `fairlane key set` "
            "sets its limit"
        )
    return found


async def set_key(queue: str, name: str, limit: int | None) -> int | None:
    """Sets the limit of a key until it is taken back (None); returns the limit before, if any.

    Work that waits starts as far as there is room. Leases above a lower limit end as ever. Raises
    InvalidArgument.
    """
    keys.check_name("key", name)
    if limit is not None:
        check_whole(f"limit of key {name}", limit, 1, BY_NAME["limit"].most)
    names = (*keys.of_limits(queue), keys.limit_key(queue, name))
    call = scripts.set_key_limit(names, name=name, limit=limit or 0)
    reply = await SingleServer(call)
    if reply is None:
        raise InvalidArgument(NO_LIMITS)
    former = reply.former
    while reply is not None and reply.is_more:  # one call starts a part of what waits
        reply = await SingleServer(call)
    return int(former) if former else None


async def _state(queue: str, name: str, text: str) -> KeyState | None:
    """Returns the state of a key whose limit is this text; None if its limit cannot be read."""
    limit, _, is_set = text.partition(" ")
    if not limit.isdigit():
        return None
    zset = keys.limit_key(queue, name)
    held, called, waiting, holders, first, time = await Batch(
        [
            Command(b"ZCOUNT", zset, b"-inf", b"(0"),
            Command(b"ZCOUNT", zset, 0, b"(%d" % (LINE - 1)),
            Command(b"ZCOUNT", zset, LINE, b"+inf"),
            Command(b"ZRANGEBYSCORE", zset, b"-inf", b"(0", b"LIMIT", 0, _SHOWN),
            Command(b"ZRANGEBYSCORE", zset, LINE, b"+inf", b"LIMIT", 0, _SHOWN),
            Command(b"TIME"),
        ]
    )
    tokens = [token for raw in first if (token := parse(raw)) is not None]
    since = await _since(tokens)
    oldest = min(since, default=None)
    return KeyState(
        name=name,
        limit=int(limit),
        is_set=bool(is_set),
        held=held,
        called=called,
        waiting=waiting,
        waits_ms=None if oldest is None else max(0, time_ms(time) - oldest),
        holders=tuple(dict.fromkeys(raw.partition(b"#")[0].decode() for raw in holders)),
        next_requests=tuple(dict.fromkeys(token.request_id for token in tokens)),
    )


async def _since(tokens: Sequence[Token]) -> list[int]:
    """Returns since when the permits of these tokens have been queued, ms; without stale ones."""
    texts = await run_all([Command(b"HGET", keys.permits(one.request_id), one.k) for one in tokens])
    born = await run_all([hmget(one.request_id, "born") for one in tokens])
    found = list[int]()
    for token, text, row in zip(tokens, texts, born, strict=True):
        fields = {token.k: text.decode()} if text else {}
        queued = [one for one in request_hash.queued(fields) if one.g == token.g]
        (began,) = parse_fields(("born",), row)
        if queued:
            found.append(queued[0].since_ms)
        elif text is None and began:
            found.append(int(began))
    return found


# ------------------------------------------------------------------ one request


async def find_waiting(queue: str, names: Sequence[str], request_id: str) -> InKeys | None:
    """Returns where a token of a request waits for a key, among the first 10,000 of its line."""
    prefix = f"{request_id}#".encode()
    for name in names:
        zset, place = keys.limit_key(queue, name), 0
        for first in range(0, 10 * _PAGE, _PAGE):
            page = await Command(b"ZRANGEBYSCORE", zset, LINE, b"+inf", b"LIMIT", first, _PAGE)
            for token in page:
                place += 1
                if token.startswith(prefix):
                    return InKeys(name, place)
            if len(page) < _PAGE:
                break
    return None


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


async def check_all(queue: str, names: Sequence[str]) -> int:
    """Corrects what damage has left in these keys; returns how many entries."""
    count = 0
    for first in range(0, len(names), _CHECKED):
        part = names[first : first + _CHECKED]
        call = scripts.check_keys(keys.of_limits(queue), names=part)
        count += await SingleServer(call) or 0
    return count


async def waiting_requests(queue: str, names: Sequence[str]) -> list[bytes]:
    """Returns the requests of all tokens that wait for these keys."""
    found = dict[bytes, None]()
    for name in names:
        zset, first, page = keys.limit_key(queue, name), 0, list[bytes]()
        while first == 0 or len(page) == _PAGE:
            page = await Command(b"ZRANGEBYSCORE", zset, LINE, b"+inf", b"LIMIT", first, _PAGE)
            found |= dict.fromkeys(token.partition(b"#")[0] for token in page)
            first += _PAGE
    return list(found)


async def wait_in_line(queue: str, tokens: Sequence[Token]) -> set[str]:
    """Returns the texts of those tokens that wait for one of their keys."""
    asked = [
        (token.text, Command(b"ZSCORE", keys.limit_key(queue, part.partition("=")[0]), token.text))
        for token in tokens
        for part in token.keys.split(",")
        if part
    ]
    scores: list[Any] = await run_all([command for _, command in asked])
    return {
        text
        for (text, _), score in zip(asked, scores, strict=True)
        if score is not None and float(score) >= LINE
    }
