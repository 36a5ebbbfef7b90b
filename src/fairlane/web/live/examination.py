"""What is wrong with the servers and the queue, and the remedies; examined once a minute."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from fairlane.common import clock
from fairlane.operations.doctor import examine_queue, examine_servers
from fairlane.web.live.schemas import Doctor, finding_of

if TYPE_CHECKING:
    from fairlane.aio.queue import Queue

FRESH_S = 60.0


class Examination:
    """The last examination of a queue; it is made again after a minute."""

    def __init__(self) -> None:
        self._last: Doctor | None = None
        self._until = 0.0
        self._turn = asyncio.Lock()

    async def read(self, queue: Queue) -> Doctor:
        """Returns the findings. Raises RedisError if no server answers."""
        async with self._turn:
            if self._last is None or clock.mono_s() >= self._until:
                servers = examine_servers(clock.mono_s, clock.wall_ms)
                found = await queue.driver.run(servers)
                found += await queue.driver.run(examine_queue(queue.name))
                self._last = Doctor(clock.wall_ms(), [finding_of(one) for one in found])
                self._until = clock.mono_s() + FRESH_S
            return self._last
