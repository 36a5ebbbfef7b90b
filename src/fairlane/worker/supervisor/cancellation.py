"""Detects within a second that a request was stopped while its handlers run.

A lease is extended when a third of it is used up, which is too late for a handler that waits to be
cancelled. So a count in the queue's `conf` grows with each cancel, with each discard by a producer,
and with each reap that stops a request after its deadline or because it was left open. A supervisor
reads that count about twice a second, but only while a lease is held for long: one command, however
many leases it has. If the count has changed, all leases are extended, and each reply reports
whether its lease is still wanted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlane.common import clock
from fairlane.errors import FairlaneError
from fairlane.operations.maintenance.registry import count_cancels

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fairlane.drivers.sync.driver import SyncDriver
    from fairlane.worker.held import Held

_YOUNG_S = 0.25  # leases of quick handlers end earlier than this
_EVERY_S = 0.4
_AGAIN_S = 5.0  # after Redis has not answered


class CancellationWatch:
    """The count of cancelled requests of a queue, as one worker last read it."""

    def __init__(self, driver: SyncDriver, queue: str) -> None:
        self._driver, self._queue = driver, queue
        self._seen: bytes | None = b""  # not read so far
        self._read_at = 0.0  # when it may be read again

    def are_new(self, all_held: Iterable[Held]) -> bool:
        """Returns True if requests may have been cancelled since the last call. Never raises."""
        now = clock.mono_s()
        if now < self._read_at or all(held.taken > now - _YOUNG_S for held in all_held):
            return False
        self._read_at = now + _EVERY_S
        before = self._seen
        try:
            self._seen = self._driver.run(count_cancels(self._queue))
        except FairlaneError:
            self._read_at = now + _AGAIN_S
            return False
        return self._seen != before
