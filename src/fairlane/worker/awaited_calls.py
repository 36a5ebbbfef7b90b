"""Reports what the handlers of a worker wait for, if all its units wait for other requests."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from fairlane.common import clock
from fairlane.errors import FairlaneError
from fairlane.operations.starved import starved

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairlane.drivers.sync import SyncDriver
    from fairlane.worker.board import Held, LeaseBoard

_log = logging.getLogger("fairlane.worker")
_AFTER_S = 5.0  # all units wait for so long: a shorter time is no sign of anything
_AGAIN_S = 10.0  # between two looks at the other workers


class AwaitedCalls:
    """The requests for which all units of a worker wait. It reads the board alone."""

    def __init__(self, driver: SyncDriver, queue: str, board: LeaseBoard) -> None:
        self._driver, self._queue, self._board = driver, queue, board
        self._since: float | None = None
        self._look_at = 0.0
        self._logged = ""

    def look(self, leases: Sequence[Held]) -> list[str]:
        """Returns the awaited requests if all units have waited for a while; else none."""
        now, found = clock.mono_s(), dict[int, str]()
        for held in leases:
            record = self._board.records[held.unit]
            if awaited := record.awaited():
                found[record.owner] = awaited
        if len(found) < self._board.units:
            self._since, self._logged = None, ""
            return []
        if self._since is None:
            self._since = now
        return list(dict.fromkeys(found.values())) if now - self._since >= _AFTER_S else []

    def report(self, awaited: Sequence[str]) -> None:
        """Logs, once, that no unit of any worker is left to run them. Raises no error of Redis."""
        now = clock.mono_s()
        if not awaited or now < self._look_at:
            return
        self._look_at = now + _AGAIN_S
        try:
            found = self._driver.run(starved(self._queue))
        except FairlaneError:
            return  # the heartbeat logs this error
        if found is not None and found.text != self._logged:
            self._logged = found.text
            _log.warning("%s: %s", found.text, found.remedy)
