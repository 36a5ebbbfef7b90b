"""The demand of the queue, which the leader measures while its metrics are read.

The more requests there are, the longer it takes, and the longer is the pause after it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlane import settings
from fairlane.common import clock
from fairlane.operations.estimate import demand
from fairlane.worker.maintenance.duty import NEVER

if TYPE_CHECKING:
    from fairlane.drivers.sync.driver import SyncDriver
    from fairlane.found import Demand

EVERY_S = 5.0
_ASKED_S = 150.0  # so long after the metrics were last read, it is measured
_FRESH_S = 30.0  # so long after the next value was due, the last one is shown


class DemandGauge:
    """The last demand. Unless something reads the metrics, nothing is measured."""

    def __init__(self, driver: SyncDriver, queue: str) -> None:
        self._driver, self._queue = driver, queue
        self._last: Demand | None = None
        self._next_at = self._asked_at = -NEVER

    def ask(self) -> Demand | None:
        """Notes that the metrics are read; returns the last demand, None if there is no new one."""
        self._asked_at = clock.mono_s()
        return self._last if self._asked_at < self._next_at + _FRESH_S else None

    def measure(self) -> float:
        """Reads the demand; returns when it is to be read again. Raises FairlaneError."""
        began = clock.mono_s()
        self._last = self._driver.run(demand(self._queue))
        now = clock.mono_s()
        self._next_at = now + max(EVERY_S, settings.AUDIT_REST_FACTOR * (now - began))
        return self._next_at if now - self._asked_at < _ASKED_S else NEVER

    @property
    def next_at(self) -> float:
        """Returns when it may be measured next, in seconds of clock.mono_s."""
        return self._next_at
