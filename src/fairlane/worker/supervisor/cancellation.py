"""Detects within a second that a request was stopped while its handlers run, and may end those.

A lease is extended when a third of it is used up, which is too late for a handler that waits to be
cancelled. So a count in the queue's `conf` grows with each cancel, with each discard by a producer,
and with each reap that stops a request after its deadline or because it was left open. A supervisor
reads that count about twice a second, but only while a lease is held for long: one command, however
many leases it has. If the count has changed, all leases are extended, and each reply reports
whether its lease is still wanted.

A handler that ignores this may finish, unless the worker has a `cancel_grace_s`: then its process
is killed so long after the cancel was detected.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from fairlane.common import clock
from fairlane.common.text import exact
from fairlane.errors import FairlaneError, InvalidArgument
from fairlane.operations.workers import count_cancels
from fairlane.worker.process.pool import kill, listed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fairlane.drivers.sync.driver import SyncDriver
    from fairlane.worker.held import Held
    from fairlane.worker.process.pool import Child, ProcessPool
    from fairlane.worker.supervisor.lease_keeper import LeaseKeeper

_log = logging.getLogger("fairlane.worker")
_LONGEST_GRACE_S = 86_400
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


def check_grace(grace_s: float | None) -> float | None:
    """Returns the seconds that a handler may go on after a cancel. Raises InvalidArgument."""
    is_number = isinstance(grace_s, (int, float)) and not isinstance(grace_s, bool)
    if grace_s is not None and not (is_number and 0 <= grace_s <= _LONGEST_GRACE_S):
        raise InvalidArgument(
            f"cancel_grace_s {grace_s!r} is not valid: 0 to {_LONGEST_GRACE_S:,} seconds are "
            "expected, None = a handler may finish"
        )
    return grace_s


class CancelGrace:
    """Ends the processes whose handlers go on for too long after their request was cancelled."""

    def __init__(self, children: ProcessPool, keeper: LeaseKeeper, grace_s: float | None) -> None:
        self._children, self._keeper, self._grace_s = children, keeper, grace_s

    def look(self) -> None:
        """Kills the processes whose grace is over; never waits."""
        if self._grace_s is None or not self._keeper.cancelled:
            return
        until = clock.mono_s() - self._grace_s
        for pid, child in self._children.running.items():
            if not (child.late or child.unwanted):  # else it is killed, but not collected yet
                child.unwanted = [held for held in _in_turn(child) if self._is_over(held, until)]
                if child.unwanted:
                    kill(pid)

    def _is_over(self, held: Held, until: float) -> bool:
        cancelled_at = self._keeper.cancelled.get((held.unit, held.version))
        return cancelled_at is not None and cancelled_at <= until

    def settle(self, child: Child) -> bool:
        """Gives back all leases of a killed process, uncharged; False, as the cause is known."""
        what = listed([held.what for held in child.unwanted])
        line = "process %d of the worker was killed: %s went on for %s s after the cancel; "
        line += "no attempt is charged"
        _log.warning(
            line, child.pid, what, exact(self._grace_s or 0), extra={"child_pid": child.pid}
        )
        self._keeper.give_back([held for record in child.records if (held := record.held())])
        return False


def _in_turn(child: Child) -> list[Held]:
    """Returns the leases that the handlers of a process work on."""
    held = (record.held() for record in child.records)
    return [one for one in held if one is not None and one.has_its_turn]
