"""The events of a poller: each frame is encoded once, however many watch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from fairlane.live import Poller
from fairlane.web.live.schemas import RawLive, now_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from fairlane.operations.observe import Snapshot

# An error names the place of Redis, which is none of a caller's business.
_CUT_OFF = "Redis does not answer"
_UNREAD = "The queue cannot be read: fairlane doctor finds out why"


class Broadcast:
    """The events of a poller, whose parts are encoded once for all watchers.

    A watcher that reads slowly gets several frames in one event, and loses those that history no
    longer keeps. So its memory is bounded.
    """

    def __init__(self, read: Callable[[], Awaitable[Snapshot]]) -> None:
        self.poller = Poller(read)
        self._frames: dict[int, msgspec.Raw] = {}
        self._now: tuple[int, msgspec.Raw | None] = (-1, None)

    async def events(self, after: int) -> AsyncGenerator[RawLive, None]:
        """Yields what is new behind the frame `after`, without an end."""
        poller = self.poller
        seen = -1 if poller.frames or poller.away else poller.changes
        async with poller.watching():
            while True:
                seen = await poller.next_change(seen)
                event = self._event(after)
                after = poller.frames[-1].number if poller.frames else after
                yield event

    def _event(self, after: int) -> RawLive:
        poller = self.poller
        kept = {one.number: self._frames.get(one.number) for one in poller.frames}
        self._frames = {
            one.number: kept[one.number] or msgspec.Raw(msgspec.json.encode(one))
            for one in poller.frames
        }
        frames = [self._frames[one.number] for one in poller.after(after)]
        away = (_CUT_OFF if poller.is_cut_off else _UNREAD) if poller.away else ""
        return RawLive(frames, poller.every_s, self._details(), away)

    def _details(self) -> msgspec.Raw | None:
        latest, poller = self.poller.latest, self.poller
        if latest is None or poller.away:
            return None
        if self._now[0] != poller.changes:
            self._now = poller.changes, msgspec.Raw(msgspec.json.encode(now_of(latest)))
        return self._now[1]

    @property
    def number(self) -> int:
        """Returns the number of the newest frame."""
        return self.poller.frames[-1].number if self.poller.frames else 0
