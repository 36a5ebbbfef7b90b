"""The own id of a message, and the ids by which a request takes each sub-request once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlane.errors import InvalidArgument, type_of

if TYPE_CHECKING:
    from collections.abc import Sequence

Key = Callable[[bytes], str | bytes]
_ID_BYTES = 16  # lua/v1/lib/ids.lua has the number


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


def packed_ids(bodies: Sequence[bytes], key: Key) -> bytes:
    """Returns the ids of sub-requests as the scripts take them: 16 bytes for the key of each one.

    Raises InvalidArgument for a key that is neither text nor bytes.
    """
    return b"".join([_id_of(key(body)) for body in bodies])


def _id_of(key: str | bytes) -> bytes:
    given: object = key
    if isinstance(given, str):
        given = given.encode("utf-8", "surrogatepass")
    if not isinstance(given, bytes):
        raise InvalidArgument(
            f"the key of a sub-request is {type_of(given)}: text or bytes are expected from the "
            "function that distinct names"
        )
    return hashlib.blake2b(given, digest_size=_ID_BYTES).digest()


def read_distinct(distinct: bool | Key) -> dict[str, Any]:
    """Returns what a policy has of the option: if sub-requests are distinct, and by which key.

    Raises InvalidArgument.
    """
    if isinstance(distinct, bool):
        return {"distinct": distinct}
    if callable(distinct):
        return {"distinct": True, "key": distinct}
    raise InvalidArgument(f"distinct is {type_of(distinct)}: give True, or a function of a body")
