"""Chooses the lanes that a unit pops next: the queue's own lanes, or those of its shards in turn.

A unit pops from one shard after the other, so a few workers serve all of them. If one shard has
work of some priority, the unit takes only equally or more urgent work from the others. So a token
waits for at most one slice of each shard longer than in a queue without shards. After a round
without a token, the unit waits at one shard for a moment, then at the next one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from zlib import crc32

from fairlane import settings
from fairlane.operations import tokens
from fairlane.protocol import keys

if TYPE_CHECKING:
    from fairlane.protocol.steps import Pop, Popped
    from fairlane.worker.lease_board import LeaseRecord

_LAST = keys.LANES - 1


class LaneRotation:
    """The order in which one unit pops from the shards."""

    def __init__(self, queue: str, worker: str, record: LeaseRecord) -> None:
        self._queue, self._worker, self._record = queue, worker, record
        self._at = crc32(f"{worker}/{record.unit}".encode())
        self._known = b""
        self._shards: tuple[int, ...] = (0,)
        self._bound = _LAST  # less urgent lanes than this are not popped
        self._misses = 0

    @property
    def is_one(self) -> bool:
        """Returns True if the queue is not spread over shards."""
        self._look()
        return len(self._shards) == 1

    @property
    def is_unsharded(self) -> bool:
        """Returns True if all tokens are in the queue's own lanes."""
        self._look()
        return self._shards == (0,)

    def lanes(self, last: bytes = b"") -> tuple[bytes, ...]:
        """Returns the queue's own lanes, from the most urgent one up to `last`; b"" = all."""
        found = keys.lanes(self._queue)
        return found[: keys.number_of(last) % keys.LANES + 1] if last else found

    def next(self, most: int) -> Pop:
        """Returns the next pop, of up to `most` tokens; pass its reply to `record_pop`."""
        self._look()
        shards = self._shards
        if len(shards) == 1:
            return tokens.pop(self._queue, settings.BLOCK_MS, self._worker, most, shards[0])
        shard = shards[self._at % len(shards)]
        self._at += 1  # also if no reply comes: this node may be unreachable, and others not
        if self._misses < len(shards):
            return tokens.pop_ahead(self._queue, self._bound, most, shard)
        return tokens.pop(self._queue, settings.SHARD_BLOCK_MS, self._worker, most, shard)

    def record_pop(self, popped: Popped | None) -> None:
        """Notes what the last pop returned."""
        if len(self._shards) == 1:
            return
        if popped is not None:
            self._misses = 0
            if not keys.is_wake(popped.lane):
                self._bound = keys.number_of(popped.lane) % keys.LANES
            return
        self._misses += 1
        if self._misses >= len(self._shards) and self._bound < _LAST:  # no shard has so urgent work
            self._misses, self._bound = 0, _LAST

    def ahead(self, lane: bytes, most: int) -> Pop:
        """Returns the pop of tokens as urgent as `lane` or more, which does not wait."""
        self._look()
        priority = keys.number_of(lane) % keys.LANES
        shard = self._shards[self._at % len(self._shards)]
        self._at += 1  # as in next: otherwise the two together might always skip one shard
        return tokens.pop_ahead(self._queue, priority, most, shard)

    def failed(self) -> float:
        """Notes that the last pop had no reply; returns the seconds until the next one.

        The other shards are tried immediately. After a round without a token there is a pause, as
        long as a pop would wait.
        """
        is_vain = self._misses >= len(self._shards)
        self.record_pop(None)
        return settings.SHARD_BLOCK_MS / 1000 if is_vain else 0.0

    def _look(self) -> None:
        """Reads from the board which shards may have tokens now."""
        known = self._record.shards
        if known != self._known:
            self._known, self._shards = known, tuple(known) or (0,)
            self._bound, self._misses = _LAST, 0
