"""Leases and calls of the handler as the supervisor reads them from the board."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Turn(IntEnum):
    """When a lease of a unit is worked on."""

    NOW = 0
    LATER = 1  # it waits for other leases
    OVER = 2
    GRANTED = 3  # it is alone in its unit, and its handler was not called yet


@dataclass(frozen=True, slots=True)
class Held:
    """A lease as the supervisor reads it; times in seconds of time.monotonic().

    `version` is the version of the record; no other lease of this unit has it. (Fences differ only
    among the leases of one request.) If the lease covers one sub-request, `index` is its index, and
    it is at `attempt` of `attempts`. If it covers several, `index` is minus their number, and the
    others are 0.
    """

    unit: int
    version: int
    request_id: str
    k: str
    fence: int
    op: str
    deadline: float
    taken: float
    lease_s: float
    index: int = -1
    attempt: int = 0
    attempts: int = 0
    turn: int = Turn.NOW

    @property
    def has_its_turn(self) -> bool:
        """Returns True from the first call of its handler until the last call has ended."""
        return self.turn == Turn.NOW

    @property
    def waits(self) -> bool:
        """Returns True while the lease waits for other leases of its unit."""
        return self.turn == Turn.LATER

    @property
    def count(self) -> int:
        """Returns the number of sub-requests that the lease covers."""
        return max(1, -self.index)

    @property
    def what(self) -> str:
        """Names what was worked on, with the index if it is known, for people."""
        which = "sub-requests" if self.index < 0 else f"sub-request {self.index}"
        return f"{which} of request {self.request_id}"


@dataclass(frozen=True, slots=True)
class Running:
    """A call of a handler that has a time limit; times in seconds of time.monotonic().

    `number` is unique among the calls of this unit. `entry_id` is the entry it works on, or b""
    for a batch of several. `thread` is the identity of its thread.
    """

    unit: int
    number: int
    entry_id: bytes
    began: float
    until: float
    limit_s: float
    taken_ms: int
    attempt: int
    attempts: int
    backoff_ms: tuple[int, int]
    thread: int
