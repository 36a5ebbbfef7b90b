"""The own id of a message, and messages without their repeats."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    Body = TypeVar("Body", str, bytes)


class Xid(NamedTuple):
    """The own id of a message, and what it is: `number`, `meta` or `sha1`."""

    text: str
    kind: str


def xid(body: str | bytes) -> str:
    """Returns the own id of a message: itself if it is digits, else `meta.id`, else its SHA-1.

    `meta.id` is that of a JSON object, as text. The SHA-1 is 40 hex digits of the message's bytes.
    It is the rule of mpush, so both give a message the same id.
    """
    return xid_of(body).text


def xid_of(body: str | bytes) -> Xid:
    """Returns what `xid` does, and which part of the rule applied."""
    raw = body.encode() if isinstance(body, str) else bytes(body)
    if raw.isdigit():
        return Xid(raw.decode(), "number")
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError):
        found = None
    meta = found.get("meta") if isinstance(found, dict) else None
    own = meta.get("id") if isinstance(meta, dict) else None
    if isinstance(own, (str, int)) and not isinstance(own, bool) and own != "":
        return Xid(str(own), "meta")
    return Xid(hashlib.sha1(raw, usedforsecurity=False).hexdigest(), "sha1")


def distinct(bodies: Iterable[Body], key: Callable[[Body], str] = xid) -> Iterator[Body]:
    """Yields the bodies whose `key` has not come before, lazily; keeps all keys in memory."""
    seen: set[str] = set()
    for body in bodies:
        name = key(body)
        if name not in seen:
            seen.add(name)
            yield body
