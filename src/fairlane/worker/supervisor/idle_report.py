"""Says what keeps a worker waiting that is to end when its queue is idle."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from fairlane.common import clock
from fairlane.errors import FairlaneError
from fairlane.operations.diagnosis.blockers import waiting

if TYPE_CHECKING:
    from fairlane.drivers.sync.driver import SyncDriver
    from fairlane.worker.lease_board import LeaseBoard

_log = logging.getLogger("fairlane.worker")
_QUIET_S = 5.0  # nothing is said or asked before, and not more often
_SHOWN = 5  # requests named


class IdleReport:
    """Asks why nothing happens, now and then, and says it when the answer is a new one."""

    def __init__(self, driver: SyncDriver, queue: str, board: LeaseBoard) -> None:
        self._driver, self._queue, self._board = driver, queue, board
        self._quiet_since = clock.mono_s()
        self._slices = 0  # settled by then
        self._said: list[tuple[str, str, int]] = []

    def look(self) -> None:
        """To be called often; raises nothing that Redis does."""
        slices, now = self._board.counts()["slices"], clock.mono_s()
        if slices != self._slices or self._board.held():
            self._quiet_since, self._slices = now, slices
        if now - self._quiet_since < _QUIET_S:
            return
        self._quiet_since = now
        try:
            found, more = self._driver.run(waiting(self._queue))
        except FairlaneError:
            return  # the beat says so
        causes = [(one.request_id, one.kind, one.due_ms) for one in found]
        if not found or causes == self._said:
            return
        self._said = causes
        named = ", ".join(f"{one.request_id} ({one.why})" for one in found[:_SHOWN])
        more += max(0, len(found) - _SHOWN)
        _log.info(
            "nothing can start: waiting for request%s %s%s",
            "s" if len(found) > 1 else "",
            named,
            f" and {more:,} more" if more else "",
        )
