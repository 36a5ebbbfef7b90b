"""Drives the scripts of the sink, one by one, in the slot of a request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlane.protocol import keys
from fairlane.spark.commit import pack
from tests.support.scripts.requests import HOUR, numbered

if TYPE_CHECKING:
    from tests.support.scripts.requests import Lane

DAY = 24 * HOUR
TXN = "t1"


class Sink:
    """A transaction that writes to the request of a lane."""

    def __init__(self, lane: Lane, txn: str = TXN) -> None:
        self.lane, self.txn = lane, txn
        self.record = keys.transaction(lane.id, txn)
        self.ids = keys.unique_ids(lane.id)

    def area(self, name: str) -> bytes:
        """Returns the key of an area."""
        return keys.area(self.lane.id, self.txn, name)

    def open(self, **options: Any) -> None:
        """Makes the request, open and empty."""
        assert self.lane.enqueue([], open_ms=HOUR, **options)[0] == b"ok"

    def stage(
        self, bodies: list[bytes] | int, *, area: str = "0:1", chunk: Any = 1, **given: Any
    ) -> list[Any]:
        """Stages one chunk; a number means that many bodies b0, b1, ..."""
        packed = pack(numbered(bodies) if isinstance(bodies, int) else bodies)
        given = {"ttl": DAY, "packed": packed} | given
        reply: list[Any] = self.lane.call("stage", (self.area(area),), chunk=chunk, **given)
        return reply

    def pin(self, *areas: tuple[str, int, int], **given: Any) -> list[Any]:
        """Pins areas, each a name, chunks, rows."""
        manifest = "".join(f"{name},{chunks},{rows}\n" for name, chunks, rows in areas)
        given = {"manifest": manifest, "open_ms": HOUR, "ttl": 7 * DAY} | given
        return self._checked("pin_manifest", (*self.lane.names, self.record), **given)

    def roll(self, position: Any = 0, *, area: str = "0:1", **given: Any) -> list[Any]:
        """Rolls one chunk."""
        given = {
            "position": position,
            "chunk": 1,
            "link": f"{self.txn}:{area}:{given.get('chunk', 1)}",
            "last": "",
            "open_ms": HOUR,
            "ttl": 7 * DAY,
            "keep": "",
        } | given
        return self._checked(
            "append_staged", (*self.lane.names, self.record, self.area(area)), **given
        )

    def unstage(self, *areas: str, keep: str = "0") -> list[Any]:
        """Drops areas."""
        names = (self.record, *map(self.area, areas))
        reply: list[Any] = self.lane.call("unstage", names, keep=keep)
        return reply

    def add_unique(self, rows: dict[bytes, bytes], **given: Any) -> list[Any]:
        """Adds sub-requests by their ids."""
        given = {
            "open_ms": HOUR,
            "ttl": DAY,
            "given": pack([*rows]),
            "packed": pack([*rows.values()]),
            "keep": "",
        } | given
        return self._checked("append_unique", (*self.lane.names, self.ids), **given)

    def add_part(
        self, first: Any, bodies: list[bytes] | int, *, partition: int = 0, **given: Any
    ) -> list[Any]:
        """Adds rows of a partition, from its row `first` on."""
        packed = pack(numbered(bodies) if isinstance(bodies, int) else bodies)
        given = {"open_ms": HOUR, "ttl": DAY, "packed": packed, "keep": ""} | given
        names = (*self.lane.names, self.record)
        return self._checked("append_partition", names, partition=partition, first=first, **given)

    def _checked(self, name: str, names: tuple[bytes, ...], **given: Any) -> list[Any]:
        reply: list[Any] = self.lane.call(name, names, **given)
        assert self.lane.check() == [], f"after {name} said {reply[:1]!r}"
        return reply


def bodies_of(lane: Lane) -> list[bytes]:
    """Returns the bodies that wait in the lane's request, in their order."""
    return [fields[b"b"] for _, fields in lane.client.xrange(lane.names[0])]
