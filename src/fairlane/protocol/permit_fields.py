"""The fields of `tok:{id}`: permits that are queued or held (lua/v1/lib/permits/permits.lua)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


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
