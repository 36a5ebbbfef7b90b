"""The demand of a queue for all callers of one server: one walk, however many call.

A snapshot has the exact demand of a queue with few requests. With more requests it takes a walk
over all of them. Walks are made while there are callers, with pauses, and callers get the result of
the last one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, NamedTuple

from fairlane.common import clock
from fairlane.errors import FairlaneError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from fairlane.found import Demand
    from fairlane.operations.observe import Snapshot

EVERY_S = 5.0  # from the beginning of a walk to that of the next, at least
REST = 4.0  # a pause is so many times as long as the walk before it
ASKED_S = 60.0  # walks go on for so long after the last call
OLDEST_S = 120.0  # no older result is shown
PATIENCE_S = 0.05  # a call takes so long, with its snapshot, if the first walk has not ended
_log = logging.getLogger(__name__)


class DemandNow(NamedTuple):
    """A demand, and how long ago it was read."""

    demand: Demand
    age_s: float


class SharedDemand:
    """The demand as `snapshot` has it if that is exact, else the result of the last `walk`."""

    def __init__(
        self,
        snapshot: Callable[[], Awaitable[Snapshot]],
        walk: Callable[[], Awaitable[Demand]],
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._snapshot, self._walk, self._patience_s = snapshot, walk, patience_s
        self._last: Demand | None = None
        self._read_at = self._asked_at = self._first_began_at = 0.0
        self._first = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def get(self) -> DemandNow:
        """Returns the demand, which is not exact before the first walk ends. Raises RedisError."""
        began_at = clock.mono_s()
        found = (await self._snapshot()).demand
        if found.is_exact:
            return DemandNow(found, 0.0)
        self._asked_at = clock.mono_s()
        if self._task is None or self._task.done():
            self._first.clear()
            self._first_began_at = began_at
            self._task = asyncio.create_task(self._walk_on())
        # A walk that has taken longer is long: later calls do not wait for it again.
        left_s = self._first_began_at + self._patience_s - clock.mono_s()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, left_s)):
                await self._first.wait()
        age_s = clock.mono_s() - self._read_at
        if self._last is None or age_s > OLDEST_S:
            return DemandNow(found, 0.0)
        last = self._last._replace(is_paused=found.is_paused)
        return DemandNow(last._replace(demand=0) if found.is_paused else last, age_s)

    async def _walk_on(self) -> None:
        """Walks while there are calls; the pauses are longer than the walks."""
        while clock.mono_s() < self._asked_at + ASKED_S:
            began = clock.mono_s()
            try:
                self._last, self._read_at = await self._walk(), began
                self._first.set()
            except FairlaneError as error:
                _log.warning("the demand of the queue cannot be read: %s", error)
            took = clock.mono_s() - began
            await asyncio.sleep(max(EVERY_S - took, REST * took))

    def stop(self) -> None:
        """Ends the walks."""
        if self._task is not None:
            self._task.cancel()
