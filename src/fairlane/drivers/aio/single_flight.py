"""Single flight: one run serves all tasks that wait for it, also if some are cancelled."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import redis

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")
_AGAIN_S = 0.05


class SingleFlight(Generic[T]):
    """Runs `make` as its own task; every caller meanwhile waits for that run."""

    def __init__(self, make: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._make = make
        self._task: asyncio.Task[T] | None = None

    async def result(self) -> T:
        """Returns what `make` returns. Raises what it raises, and ConnectionError if stopped."""
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
            if is_me or not task.cancelled():  # the caller itself was cancelled
                raise
            raise redis.ConnectionError("Connection closed.") from None

    async def stop(self) -> None:
        """Cancels the run until it ends; asyncio.wait_for of Python 3.11 may swallow a cancel."""
        task = self._task
        while task is not None and not task.done():
            task.cancel()
            await asyncio.wait([task], timeout=_AGAIN_S)

    def forget(self) -> None:
        """Drops the run. For a run whose event loop has ended, which never finishes."""
        self._task = None

    def _over(self, task: asyncio.Task[T]) -> None:
        if self._task is task:
            self._task = None
        if not task.cancelled():
            task.exception()  # else asyncio logs it as never retrieved; the callers have raised it
