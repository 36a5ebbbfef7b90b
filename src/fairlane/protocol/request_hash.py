"""The fields of `req:{id}` by name; numbers share some of them (lua/v1/lib/core/state.lua)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlane.protocol import keys
from fairlane.protocol.steps import Command, Operation

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PACKED: Mapping[str, tuple[str, ...]] = {
    "policy": (
        *("limit", "priority", "attempts", "backoff_min", "backoff_max", "lease_ms"),
        *("retain_ms", "time_limit_ms", "durable", "deadline", "born", "shards"),
    ),
    "counts": (
        *("seq", "queued", "high", "fresh", "total", "done", "dead", "open", "few"),
        *("max_body", "last_ms", "sleep_due", "sleeper", "free"),
    ),
    "gate": ("opens", "rates", "limited", "turn"),
}
VALUE = "v:"  # of a value that the steps of a flow share, before its name
_NOT_OF_REQUEST = (VALUE, "c:")  # see lua/v1/lib/flows/shared.lua
_SEPARATORS = {"gate": "|"}
_HOME = {name: packed for packed, names in PACKED.items() for name in names}


def unpacked(stored: Mapping[str, str]) -> dict[str, str]:
    """Returns a whole hash with each packed number under its own name.

    What the steps of a flow share is left out.
    """
    found = {
        name: value
        for name, value in stored.items()
        if name not in PACKED and not name.startswith(_NOT_OF_REQUEST)
    }
    for packed, names in PACKED.items():
        if packed in stored:
            values = stored[packed].split(_SEPARATORS.get(packed, ":"))
            found.update(zip(names, values, strict=False))
    if "digest" in found:
        found.setdefault("chain", found["digest"])
        found.setdefault("chunks", "1")
    return found


def hmget(request_id: str, *names: str) -> Command:
    """Returns the command that reads these fields; `parse_fields` reads its reply."""
    return Command(b"HMGET", keys.request_hash(request_id), *_stored(names))


def parse_fields(names: Sequence[str], reply: Sequence[bytes | None]) -> list[str]:
    """Returns the fields of hmget's reply in the order of these names; "" for a missing field."""
    stored = {
        name: value.decode("utf-8", "replace")
        for name, value in zip(_stored(names), reply, strict=True)
        if value is not None
    }
    found = unpacked(stored) if stored else {}
    return [found.get(name, "") for name in names]


def read(request_id: str, *names: str) -> Operation[list[str]]:
    """Returns these fields as text, in their order; "" for a missing field."""
    reply = yield hmget(request_id, *names)
    return parse_fields(names, reply)


def _stored(names: Sequence[str]) -> list[str]:
    """Returns the stored fields to read. The digest needs the chain: both are equal at first."""
    found = dict.fromkeys(_HOME.get(name, name) for name in names)
    if "chain" in found or "chunks" in found:  # without a digest their defaults mean nothing
        found["digest"] = None
    return list(found)


def as_text(flat: Any) -> dict[str, str]:
    """Returns a hash's reply as a dict of text; a body is never in a hash."""
    pairs = flat.items() if isinstance(flat, dict) else zip(flat[::2], flat[1::2], strict=True)
    return {name.decode(): value.decode("utf-8", "replace") for name, value in pairs}
