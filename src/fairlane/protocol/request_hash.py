"""The fields of `req:{id}` by name; numbers share some of them (lua/v1/lib/state.lua)."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlane.protocol import keys
from fairlane.protocol.steps import Command

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


PACKED: Mapping[str, tuple[str, ...]] = {
    "policy": (
        *("limit", "priority", "attempts", "backoff_min", "backoff_max", "lease_ms"),
        *("retain_ms", "time_limit_ms", "durable", "deadline", "born", "shards", "remember_ms"),
    ),
    "counts": (
        *("seq", "queued", "high", "fresh", "total", "done", "dead", "open", "few"),
        *("max_body", "last_ms", "sleep_due", "sleeper", "free"),
    ),
    "gate": ("opens", "rates", "limited", "turn", "wait", "keys"),
    "opened": ("reopened", "since", "cut", "hold", "holder"),
}
VALUE = "v:"  # of a value that the steps of a flow share, before its name
_NOT_OF_REQUEST = (VALUE, "c:")  # see lua/v1/lib/flows.lua
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
            values = stored[packed].split(_separator(packed))
            found.update(zip(names, values, strict=False))
    if "digest" in found:
        found.setdefault("chain", found["digest"])
        found.setdefault("chunks", "1")
    return found


def hmget(request_id: str, *names: str) -> Command:
    """Returns the command that reads these fields; `parse_fields` reads its reply."""
    return Command(b"HMGET", keys.request_hash(request_id), *_plan(names).stored)


def parse_fields(names: Sequence[str], reply: Sequence[bytes | None]) -> list[str]:
    """Returns the fields of hmget's reply in the order of these names; "" for a missing field."""
    plan = _plan(tuple(names))
    texts = ["" if value is None else value.decode("utf-8", "replace") for value in reply]
    if plan.is_chain:  # its defaults depend on the digest
        pairs = zip(plan.stored, texts, strict=True)
        found = unpacked({name: text for name, text in pairs if text})
        return [found.get(name, "") for name in names]
    parts = {at: texts[at].split(separator) for at, separator in plan.packed}
    return [
        texts[at] if place < 0 else parts[at][place] if place < len(parts[at]) else ""
        for at, place in plan.places
    ]


async def read(request_id: str, *names: str) -> list[str]:
    """Returns these fields as text, in their order; "" for a missing field."""
    reply = await hmget(request_id, *names)
    return parse_fields(names, reply)


class _FieldPlan(NamedTuple):
    """How the fields of some names are read.

    `stored` are the fields to read, `packed` those of them that numbers share, each with what
    separates these. `places` has for each name its stored field and its place in it, -1 = alone.
    """

    stored: tuple[str, ...]
    packed: tuple[tuple[int, str], ...]
    places: tuple[tuple[int, int], ...]
    is_chain: bool


@lru_cache(maxsize=64)  # lists read thousands of requests by the same few names
def _plan(names: tuple[str, ...]) -> _FieldPlan:
    stored = list(dict.fromkeys(_HOME.get(name, name) for name in names))
    is_chain = "chain" in stored or "chunks" in stored
    if is_chain and "digest" not in stored:  # without a digest their defaults mean nothing
        stored.append("digest")
    packed = ((at, _separator(name)) for at, name in enumerate(stored) if name in PACKED)
    homes = [(name, _HOME.get(name)) for name in names]
    places = (
        (stored.index(home or name), PACKED[home].index(name) if home else -1)
        for name, home in homes
    )
    return _FieldPlan(tuple(stored), tuple(packed), tuple(places), is_chain)


def _separator(packed: str) -> str:
    return _SEPARATORS.get(packed, ":")


def as_text(flat: Any) -> dict[str, str]:
    """Returns a hash's reply as a dict of text; a body is never in a hash."""
    pairs = flat.items() if isinstance(flat, dict) else zip(flat[::2], flat[1::2], strict=True)
    return {name.decode(): value.decode("utf-8", "replace") for name, value in pairs}


# ------------------------------------------------------------------ permit fields
# The fields of `tok:{id}`: permits that are queued or held (lua/v1/lib/permits.lua).


class QueuedPermit(NamedTuple):
    """A permit whose token is on its way to the lane of this number; `due_ms` is 0 for now."""

    k: str
    g: str
    since_ms: int
    lane: int
    due_ms: int


class HeldPermit(NamedTuple):
    """A permit under a lease, which still owes `owed` sub-requests.

    `op` is of its acquire. `first` is the first of its entries, "" once some of them are settled.
    """

    k: str
    fence: str
    op: str
    owed: str
    first: str
    worker: str


def queued(fields: Mapping[str, str]) -> Iterator[QueuedPermit]:
    """Yields the queued permits."""
    for k, text in fields.items():
        if text.startswith("q:"):
            _, g, since, lane, due = text.split(":")
            yield QueuedPermit(k, g, int(since), int(lane), int(due))


def held(fields: Mapping[str, str]) -> Iterator[HeldPermit]:
    """Yields the held permits."""
    for k, text in fields.items():
        if text.startswith("h:"):
            _, fence, _, op, _, owed, _, first, _, worker = text.split(":", 9)
            yield HeldPermit(k, fence, op, owed, first, worker)
