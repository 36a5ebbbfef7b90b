"""Follows the completion log for all streams of a server with one blocking call."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from fairlane import settings
from fairlane.errors import FairlaneError
from fairlane.operations.completion import last_completion, read_completions

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from fairlane.aio.queue import Queue

_AGAIN_S = 1.0  # after an error of Redis


class Follower:
    """Waits for new endings with one blocking call, however many streams there are."""

    def __init__(self) -> None:
        self.count = 0  # grows whenever there may be new endings
        self._changed = asyncio.Condition()
        self._streams = 0
        self._task: asyncio.Task[None] | None = None

    async def wait(self, seen: int) -> None:
        """Returns when `count` is not `seen` any more: only then there may be something to read."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.count != seen)

    @contextlib.asynccontextmanager
    async def following(self, queue: Queue) -> AsyncGenerator[None, None]:
        """Follows the log while any stream is in this context."""
        self._streams += 1
        if self._task is None:
            self._task = asyncio.create_task(self._follow(queue))
        try:
            yield
        finally:
            self._streams -= 1
            if not self._streams and self._task is not None:
                task, self._task = self._task, None
                task.cancel()

    async def _follow(self, queue: Queue) -> None:
        driver, name = queue.driver, queue.name
        after = ""
        while True:
            try:
                if not after:
                    after = await driver.run(last_completion(name))
                    await self._wake(1)  # what was logged before that place, each reads for itself
                found = await driver.run(read_completions(name, after, settings.BLOCK_MS))
            except FairlaneError:  # the streams stay open until Redis answers again
                after = ""
                await asyncio.sleep(_AGAIN_S)
                continue
            if found:
                after = found[-1].log_id
                await self._wake(len(found))

    async def _wake(self, more: int) -> None:
        async with self._changed:
            self.count += more
            self._changed.notify_all()
