"""What a submission in the asyncio API returns: one result, or many in input order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

# blocking: from fairlane.tasks.async_batch import AsyncBatch, AsyncSubmitted
from fairlane.tasks.result_reader import Gaps, ResultReader, value_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Generator

    from fairlane.aio.request import Request
    from fairlane.errors import TaskError
    from fairlane.records import Progress

__all__ = [
    "AsyncBatch",
    # blocking: "AsyncBatch",
    "AsyncSubmitted",
    # blocking: "AsyncSubmitted",
]

R = TypeVar("R")
_CANCEL = "cancelled by the caller"


class _AsyncValues(Generic[R]):
    """Yields the results of a batch. It is no generator: after an error the next result follows."""

    def __init__(self, outcomes: AsyncIterator[R | TaskError]) -> None:
        self._outcomes = outcomes

    def __aiter__(self) -> AsyncIterator[R]:
        return self

    async def __anext__(self) -> R:
        return value_of(await anext(self._outcomes))


class AsyncBatch(Generic[R]):
    """A request of many calls of one task; iterating it yields their results in input order.

    `id` is the request's id, and `request` the request itself. An iteration reads results also
    while the request runs, and raises TaskError in place of a result that will not come.
    """

    def __init__(self, request: Request, reader: ResultReader[R]) -> None:
        self.request, self.id = request, request.id
        self._reader = reader

    def __aiter__(self) -> AsyncIterator[R]:
        return _AsyncValues(self.outcomes())

    async def outcomes(
        self,
        timeout: float | None = None,  # noqa: ASYNC109  same word as in the blocking API
    ) -> AsyncIterator[R | TaskError]:
        """Yields a value or a TaskError for each call, in input order; see Request.results.

        `timeout` bounds the seconds of the whole reading. Raises WaitTimeout and RequestLost.
        """
        gaps = Gaps(self._reader)
        async for result in self.request.results(timeout=timeout):
            for cancelled in gaps.until(result.index):
                yield cancelled
            yield self._reader.outcome(result)
        total = self.request.total
        if total is None:
            progress = await self.progress()
            total = progress.total
        for cancelled in gaps.until(total):
            yield cancelled

    async def wait(self, timeout: float | None = None) -> str:  # noqa: ASYNC109  see outcomes
        """Waits until the request has ended; returns done or cancelled. Raises WaitTimeout."""
        return await self.request.wait(timeout)

    async def progress(self) -> Progress:
        """Returns the counts now; see Request.progress."""
        return await self.request.progress()

    async def cancel(self, reason: str = _CANCEL) -> bool:
        """Cancels the calls that have not ended; see Request.cancel."""
        return await self.request.cancel(reason)

    async def errors(self) -> AsyncIterator[TaskError]:
        """Yields the error of each call that is dead by now, the first to die first."""
        async for dead in self.request.dead():
            yield self._reader.dead(dead.index, dead.attempt, dead.error)

    async def requeue_dead(self) -> int:
        """Runs the dead calls again; returns how many. See Request.requeue_dead.

        If the batch has ended, it ends once more, and its results are then those of the whole.
        """
        return await self.request.requeue_dead()

    def __repr__(self) -> str:
        return f"<AsyncBatch {self.id}>"


class AsyncSubmitted(Generic[R]):
    """A request of one call of a task; `id` is the request's id."""

    def __init__(self, request: Request, reader: ResultReader[R]) -> None:
        self.request, self.id = request, request.id
        self._reader = reader

    async def result(self, timeout: float | None = None) -> R:  # noqa: ASYNC109  see AsyncBatch
        """Waits until the call has ended and returns its result; `timeout` is in seconds.

        Raises TaskError, WaitTimeout (the call goes on) and RequestLost.
        """
        async for result in self.request.results(timeout=timeout):
            return value_of(self._reader.outcome(result))
        raise self._reader.cancelled(0)

    def __await__(self) -> Generator[object, None, R]:  # asyncio only
        return self.result().__await__()

    async def wait(self, timeout: float | None = None) -> str:  # noqa: ASYNC109  see AsyncBatch
        """Waits until the request has ended; returns done or cancelled. Raises WaitTimeout."""
        return await self.request.wait(timeout)

    async def cancel(self, reason: str = _CANCEL) -> bool:
        """Cancels the call unless it has ended; see Request.cancel."""
        return await self.request.cancel(reason)

    def __repr__(self) -> str:
        return f"<AsyncSubmitted {self.id}>"
