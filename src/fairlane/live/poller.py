"""Reads a queue once a second for everyone who watches it, and keeps the last minutes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from typing import TYPE_CHECKING

from fairlane.common import clock
from fairlane.common.text import exact
from fairlane.errors import FairlaneError, RedisUnreachable
from fairlane.live.frames import Frame, Totals, frame_of, rates_between

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from fairlane.operations.observe import Snapshot

EVERY_S = 1.0
KEEP_S = 300.0
RATE_S = 5.0  # two reads that make a rate are about so far apart
ANSWER_S = 3.0  # a read that takes longer counts as no answer
_log = logging.getLogger(__name__)


class Poller:
    """Reads a queue while it has viewers. Any number of viewers costs one read a second.

    `frames` are the last `keep_s` seconds, `latest` is the newest snapshot. `away` is a sentence if
    the last read failed, else ""; `is_cut_off`: it failed because Redis did not answer.
    """

    def __init__(
        self,
        read: Callable[[], Awaitable[Snapshot]],
        *,
        every_s: float = EVERY_S,
        keep_s: float = KEEP_S,
    ) -> None:
        self.every_s, self.keep_s = every_s, keep_s
        self.frames: deque[Frame] = deque(maxlen=max(1, round(keep_s / every_s)))
        self.latest: Snapshot | None = None
        self.away, self.is_cut_off = "", False
        self.changes = 0  # reads, and outages
        self._read = read
        self._totals: deque[Totals] = deque(maxlen=max(2, round(RATE_S / every_s) + 1))
        self._number = 0
        self._changed = asyncio.Condition()
        self._watchers = 0
        self._task: asyncio.Task[None] | None = None

    async def next_change(self, seen: int) -> int:
        """Returns `changes` as soon as it is not `seen` any more."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.changes != seen)
        return self.changes

    def after(self, number: int) -> list[Frame]:
        """Returns the frames after this one, oldest first."""
        return [one for one in self.frames if one.number > number]

    @contextlib.asynccontextmanager
    async def watching(self) -> AsyncGenerator[None, None]:
        """Reads the queue while any viewer is in this context."""
        self._watchers += 1
        if self._task is None:
            self._task = asyncio.create_task(self._poll())
        try:
            yield
        finally:
            self._watchers -= 1
            if not self._watchers and self._task is not None:
                task, self._task = self._task, None
                task.cancel()

    async def _poll(self) -> None:
        while True:
            began = clock.mono_s()
            await self.look()
            await asyncio.sleep(max(0.0, began + self.every_s - clock.mono_s()))

    async def look(self) -> None:
        """Makes one look, and wakes the watchers if anything has changed."""
        is_cut_off = True
        try:
            async with asyncio.timeout(max(ANSWER_S, self.every_s)):
                found = await self._read()
        except TimeoutError:
            away = f"Redis has not answered for {exact(max(ANSWER_S, self.every_s))} s"
        except FairlaneError as error:
            away, is_cut_off = str(error), isinstance(error, RedisUnreachable)
        except Exception:  # noqa: BLE001  a bug must not end the looks, or all watchers wait for ever
            away, is_cut_off = "the queue cannot be read", False
            if not self.away:
                _log.exception("%s", away)
        else:
            self._add(found)
            away, is_cut_off = "", False
        if not away or not self.away:  # an outage is one change, however long it is
            async with self._changed:
                self.away, self.is_cut_off = away, is_cut_off
                self.changes += 1
                self._changed.notify_all()

    def _add(self, found: Snapshot) -> None:
        totals = Totals.of(found)
        rates = rates_between(self._totals[0] if self._totals else None, totals)
        self._totals.append(totals)
        while self._totals[0].at_ms < found.now_ms - 2 * RATE_S * 1000:
            self._totals.popleft()  # without a watcher meanwhile
        while self.frames and self.frames[0].at_ms < found.now_ms - self.keep_s * 1000:
            self.frames.popleft()
        self._number += 1
        self.latest = found
        self.frames.append(frame_of(self._number, found, rates))
