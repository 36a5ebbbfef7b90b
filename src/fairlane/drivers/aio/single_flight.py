"""What many tasks want at once is done once, whoever of them goes away meanwhile."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import redis

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")
_AGAIN_S = 0.05


class SingleFlight(Generic[T]):
    """Runs `make` as a task of its own; who wants its result while it runs waits for that run."""

    def __init__(self, make: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._make = make
        self._task: asyncio.Task[T] | None = None

    async def result(self) -> T:
        """What `make` returns. Raises what it raises, and ConnectionError when it is stopped."""
        me = asyncio.current_task()
        seen = me.cancelling() if me is not None else 0
        task = self._task
        if task is None:
            task = self._task = asyncio.create_task(self._make())
            task.add_done_callback(self._over)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            is_me = me is not None and me.cancelling() > seen
            if is_me or not task.cancelled():  # who asked was, and not only what he asked for
                raise
            raise redis.ConnectionError("Connection closed.") from None

    async def stop(self) -> None:
        """Ends what runs. Told again: wait_for of Python 3.11, under redis-py, may swallow it."""
        task = self._task
        while task is not None and not task.done():
            task.cancel()
            await asyncio.wait([task], timeout=_AGAIN_S)

    def forget(self) -> None:
        """What ran in an event loop that is over never ends."""
        self._task = None

    def _over(self, task: asyncio.Task[T]) -> None:
        if self._task is task:
            self._task = None
        if not task.cancelled():
            task.exception()  # it was for those who waited, if any still did
