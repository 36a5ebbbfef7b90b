"""Checks the keys that are left at the end of every test."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import redis

_DISPATCH = re.compile(
    rb"\{[^{}]+\}:(?:active|hooked|logged|stats|tasks|completed|conf|fleets|load|workers|delayed|schedules|ticks|firing|turns|tenants|[0-9]{1,2})"
)
_SERVER = re.compile(
    rb"(?:audit|hooks):\{[^{}]+\}(?:[:/][a-z0-9.]+)?"
)  # what `fairlane serve` keeps
_REQUEST = re.compile(rb"(?:sub|counter|req|tok|lease|retry|out|dead|few|error):(\{[^{}]+\})")
_OF_A_PERSON = b"{lists}:"  # the tests' lists, which stay as any list of a user
_TOPIC = re.compile(rb"topic:\{[^{}]+\}(?::conf)?")  # with its own retention
_ENDED = (b"done", b"cancelled")
_LIMIT_KEY = re.compile(rb"(\{[^{}]+\}):key:.+")
_LASTS = -1


def check_world(client: redis.Redis) -> None:
    """Asserts that no key is kept forever except the dispatch slot's and those of live requests."""
    for key in client.scan_iter(match=b"{*}:load"):
        _check_load(client, key, key[: key.index(b"}") + 1])
    stray = [key for key in client.scan_iter(count=1000) if _is_stray(client, key)]
    assert not stray, f"keys without a TTL are left: {sorted(stray)}"


def _check_load(client: Any, key: bytes, tag: bytes) -> None:
    """Asserts that only what is in `active` counts as waiting, and that the sum is right."""
    loads: dict[bytes, bytes] = client.hgetall(key)
    counted = set(loads) - set(client.zrange(tag + b":active", 0, -1))
    assert not counted, f"{key!r} counts requests that are not in `active`: {counted}"
    numbers = [[int(number) for number in load.split(b":")] for load in loads.values()]
    waiting = sum(max(0, admitted - settled) for admitted, _, settled in numbers)
    assert waiting == int(client.hget(tag + b":conf", "waiting") or 0), (
        f"{loads} add up to {waiting}"
    )


def _is_stray(client: redis.Redis, key: bytes) -> bool:
    if client.pttl(key) != _LASTS or _DISPATCH.fullmatch(key) or key.startswith(_OF_A_PERSON):
        return False
    if _TOPIC.fullmatch(key) or _SERVER.fullmatch(key):
        return False
    if _LIMIT_KEY.fullmatch(key):
        members: Any = client.zrange(key, 0, -1)
        return all(_is_over(client, b"{%b}" % one.partition(b"#")[0]) for one in members)
    if key.endswith(b"}:limits"):
        limits: Any = client.hgetall(key)
        tag = key.removesuffix(b"limits") + b"key:"
        return not all(b" " in text or client.exists(tag + name) for name, text in limits.items())
    match = _REQUEST.fullmatch(key)
    if match is None:
        return True
    return _is_over(client, match[1])


def _is_over(client: Any, tag: bytes) -> bool:
    state = client.hget(b"req:" + tag, "state")
    return state is None or state in _ENDED
