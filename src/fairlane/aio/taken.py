"""A sub-request that a program took, in the asyncio API."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlane import settings
from fairlane.taken import Holding

if TYPE_CHECKING:
    from fairlane.common.chunking import Body
    from fairlane.drivers.aio import AsyncDriver
    from fairlane.operations.receipt import Receipt


class AsyncTaken(Holding):
    """A sub-request that aio.Queue.take returned, or aio.Queue.taken made; see Taken."""

    def __init__(
        self, driver: AsyncDriver, receipt: Receipt, body: bytes | None = None,
        taken_at: float | None = None, trace: str = "",
    ) -> None:  # fmt: skip
        super().__init__(receipt, body, taken_at, trace)
        self._driver = driver

    async def done(self, result: Body | None = None) -> None:
        """Stores the result and counts the sub-request as done; see Taken.done."""
        with self._settling("done"):
            await self._driver.run(self._done(result))

    async def dead(self, reason: str) -> None:
        """Gives the sub-request up; see Taken.dead."""
        with self._settling("dead"):
            await self._driver.run(self._dead(reason))

    async def release(self, delay_s: float = 0.0) -> None:
        """Returns the sub-request, uncharged; see Taken.release."""
        with self._settling("release"):
            await self._driver.run(self._release(delay_s))

    async def extend(self, visible_for: float = settings.TAKE_VISIBLE_S) -> bool:
        """Holds the sub-request for `visible_for` seconds from now on; see Taken.extend."""
        return await self._driver.run(self._extend(visible_for))
