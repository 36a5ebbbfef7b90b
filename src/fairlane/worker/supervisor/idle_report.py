"""Logs what a worker with `--until-idle` still waits for."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from fairlane.common import clock
from fairlane.errors import FairlaneError
from fairlane.operations.why import waiting

if TYPE_CHECKING:
    from fairlane.drivers.sync.driver import SyncDriver
    from fairlane.worker.lease_board import LeaseBoard

_log = logging.getLogger("fairlane.worker")
_QUIET_S = 5.0  # without work for so long, the cause is read; also the time between two reads
_SHOWN = 5  # requests named


class IdleReport:
    """Reads now and then why nothing happens, and logs a new cause."""

    def __init__(self, driver: SyncDriver, queue: str, board: LeaseBoard) -> None:
        self._driver, self._queue, self._board = driver, queue, board
        self._quiet_since = clock.mono_s()
        self._slices = 0  # how many were settled at the last look
        self._logged: list[tuple[str, str, int]] = []

    def look(self) -> None:
        """Logs a new cause; to be called often. Raises no error of Redis."""
        slices, now = self._board.counts()["slices"], clock.mono_s()
        if slices != self._slices or self._board.held():
            self._quiet_since, self._slices = now, slices
        if now - self._quiet_since < _QUIET_S:
            return
        self._quiet_since = now
        try:
            found, more = self._driver.run(waiting(self._queue))
        except FairlaneError:
            return  # the heartbeat logs this error
        causes = [(one.request_id, one.kind, one.due_ms) for one in found]
        if not found or causes == self._logged:
            return
        self._logged = causes
        named = ", ".join(f"{one.request_id} ({one.why})" for one in found[:_SHOWN])
        more += max(0, len(found) - _SHOWN)
        _log.info(
            "nothing can start: waiting for request%s %s%s",
            "s" if len(found) > 1 else "",
            named,
            f" and {more:,} more" if more else "",
        )
