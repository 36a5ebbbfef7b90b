"""Moves tokens to their lanes when they are due, for the short delays of one process.

The leading worker promotes what is due when a heartbeat reports it, which may be a second late.
A retry after 100 ms, or a request with a rate, cannot wait so long. So the process that delayed
a token promotes it, too. Its thread starts with the first short delay. If it fails, or the
process ends, the leader is still there.
"""

from __future__ import annotations

import threading
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from fairlane import settings
from fairlane.common import clock
from fairlane.drivers.sync import SyncDriver
from fairlane.errors import FairlaneError
from fairlane.operations.workers import promote

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


_LONGEST_MS = 1.5 * settings.BEAT_MS  # the leader is in time for longer delays
_AGAIN_S = 0.002  # after a promotion that came too early: the delay counts from the insertion
_LAST_S = 0.5  # the longest pause before another try
_NEVER = float("inf")


class Promoter:
    """Promotes the tokens that this process has delayed. `shards` returns those of the queue."""

    def __init__(self, url: str, queue: str, shards: Callable[[], Sequence[int]]) -> None:
        self._url, self._queue, self._shards = url, queue, shards
        self._due: list[tuple[float, float]] = []  # a heap: s of clock.mono_s, pause after a try
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def after(self, delay_ms: float) -> None:
        """Notes that a token was delayed for so long."""
        if delay_ms > _LONGEST_MS:
            return
        with self._changed:
            heappush(self._due, (clock.mono_s() + delay_ms / 1000, _AGAIN_S))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="promoter", daemon=True)
                self._thread.start()
            self._changed.notify()

    def _run(self) -> None:
        driver = SyncDriver(self._url, patience_s=0)
        while True:
            pauses = self._wait()
            try:
                moved = driver.run(promote(self._queue, self._shards()))
            except FairlaneError:  # the leader reports an outage
                clock.sleep(settings.BEAT_MS / 1000)
            else:
                self._try_again(pauses[moved:])

    def _wait(self) -> list[float]:
        """Waits until a token is due; removes all that are due, and returns their pauses."""
        with self._changed:
            while (first := self._due[0][0] if self._due else _NEVER) > clock.mono_s():
                self._changed.wait(None if first == _NEVER else first - clock.mono_s())
            now, pauses = clock.mono_s(), list[float]()
            while self._due and self._due[0][0] <= now:
                pauses.append(heappop(self._due)[1])
            return pauses

    def _try_again(self, pauses: Sequence[float]) -> None:
        """Notes tokens that were not found: the insertion was late, or another process moved them.

        On a busy machine an insertion may be late by much more than a pause, so the pauses grow.
        """
        with self._changed:
            for pause in pauses:
                if pause <= _LAST_S:
                    heappush(self._due, (clock.mono_s() + pause, 2 * pause))
