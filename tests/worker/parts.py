"""What the tests of a worker's parts share: a unit, a slice, replies as Redis sends them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane.model import Slice
from fairlane.worker.board import Board, Record
from fairlane.worker.loop import Unit
from fairlane.worker.slices import SliceSizes

if TYPE_CHECKING:
    from fairlane.model import Entry

OP = b"0123456789abcdef0123456789abcdef"
TAKEN_MS = 1_700_000_000_500
SUBMITTED_MS = 1_700_000_000_000


def entries_of(*bodies: bytes) -> list[Entry]:
    """Sub-requests as a reply brings them."""
    return [(b"%d-%d" % (SUBMITTED_MS, i), (b"b", body)) for i, body in enumerate(bodies)]


def slice_of(*bodies: bytes, **changed: Any) -> Slice:
    """A slice of request `r1`, first attempt."""
    given: dict[str, Any] = {
        "request_id": "r1",
        "k": "0",
        "fence": b"7",
        "op": OP,
        "attempt": 1,
        "attempts": 5,
        "backoff_ms": (1_000, 300_000),
        "lease_ms": 30_000,
        "priority": 5,
        "taken_ms": TAKEN_MS,
        "entries": entries_of(*bodies),
    }
    return Slice(**(given | changed))


def record_of_its_own() -> Record:
    """The record of a board of one unit."""
    return Board(1).records[0]


def unit_of_its_own(slice_ms: float = 20.0) -> Unit:
    """A unit that holds nothing and has learned nothing."""
    return Unit("req", "w:1", "7", record_of_its_own(), SliceSizes(slice_ms))


def granted(*bodies: bytes, tokens: tuple[Any, ...] = (), fence: int = 7) -> list[Any]:
    """What acquire answers when it grants a slice."""
    policy = [TAKEN_MS, SUBMITTED_MS, 30_000, 5, 1_000, 300_000, 5]
    return [b"ok", b"%d" % fence, 1, policy, entries_of(*bodies), list(tokens)]


# Parametrizes `redis_server` with one kind. What such a test is about (processes, signals, order)
# is the same on every kind of server, while the way of the data is tested on all of them.
ON_SINGLE = pytest.mark.parametrize("redis_server", ["single"], indirect=True)
