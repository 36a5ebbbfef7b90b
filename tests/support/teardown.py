"""What must hold of the keys at the end of every test (DESIGN §7)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import redis

_DISPATCH = re.compile(
    rb"\{[^{}]+\}:(?:active|logged|stats|completed|conf|workers|delayed|[0-9]{1,2})"
)
_REQUEST = re.compile(rb"(?:sub|counter|req|tok|lease|retry|out|dead):(\{[^{}]+\})")
_ENDED = (b"done", b"cancelled")
_LASTS = -1


def check_world(client: redis.Redis) -> None:
    """Assert that no key is left forever but the dispatch slot's and those of live requests."""
    stray = [key for key in client.scan_iter(count=1000) if _is_stray(client, key)]
    assert not stray, f"keys without a TTL are left: {sorted(stray)}"


def _is_stray(client: redis.Redis, key: bytes) -> bool:
    if client.pttl(key) != _LASTS or _DISPATCH.fullmatch(key):
        return False
    match = _REQUEST.fullmatch(key)
    if match is None:
        return True
    state = client.hget(b"req:" + match[1], "state")
    return state is None or state in _ENDED
