# Generated from tasks/async_batch.py by `make generate`: do not edit it.
"""What a submission in the blocking API returns: one result, or many in input order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from fairlane.tasks.async_batch import AsyncBatch, AsyncSubmitted
from fairlane.tasks.result_reader import Gaps, ResultReader, value_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlane.errors import TaskError
    from fairlane.records import Progress
    from fairlane.request import Request

__all__ = [
    "AsyncBatch",
    "AsyncSubmitted",
    "Batch",
    "Submitted",
]

R = TypeVar("R")
_CANCEL = "cancelled by the caller"


class _Values(Generic[R]):
    """Yields the results of a batch. It is no generator: after an error the next result follows."""

    def __init__(self, outcomes: Iterator[R | TaskError]) -> None:
        self._outcomes = outcomes

    def __iter__(self) -> Iterator[R]:
        return self

    def __next__(self) -> R:
        return value_of(next(self._outcomes))


class Batch(Generic[R]):
    """A request of many calls of one task; iterating it yields their results in input order.

    `id` is the request's id, and `request` the request itself. An iteration reads results also
    while the request runs, and raises TaskError in place of a result that will not come.
    """

    def __init__(self, request: Request, reader: ResultReader[R]) -> None:
        self.request, self.id = request, request.id
        self._reader = reader

    def __iter__(self) -> Iterator[R]:
        return _Values(self.outcomes())

    def outcomes(
        self,
        timeout: float | None = None,
    ) -> Iterator[R | TaskError]:
        """Yields a value or a TaskError for each call, in input order; see Request.results.

        `timeout` bounds the seconds of the whole reading. Raises WaitTimeout and RequestLost.
        """
        gaps = Gaps(self._reader)
        for result in self.request.results(timeout=timeout):
            yield from gaps.until(result.index)
            yield self._reader.outcome(result)
        total = self.request.total
        if total is None:
            progress = self.progress()
            total = progress.total
        yield from gaps.until(total)

    def wait(self, timeout: float | None = None) -> str:
        """Blocks until the request has ended; returns done or cancelled. Raises WaitTimeout."""
        return self.request.wait(timeout)

    def progress(self) -> Progress:
        """Returns the counts now; see Request.progress."""
        return self.request.progress()

    def cancel(self, reason: str = _CANCEL) -> bool:
        """Cancels the calls that have not ended; see Request.cancel."""
        return self.request.cancel(reason)

    def errors(self) -> Iterator[TaskError]:
        """Yields the error of each call that is dead by now, the first to die first."""
        for dead in self.request.dead():
            yield self._reader.dead(dead.index, dead.attempt, dead.error)

    def requeue_dead(self) -> int:
        """Runs the dead calls again; returns how many. See Request.requeue_dead.

        If the batch has ended, it ends once more, and its results are then those of the whole.
        """
        return self.request.requeue_dead()

    def __repr__(self) -> str:
        return f"<Batch {self.id}>"


class Submitted(Generic[R]):
    """A request of one call of a task; `id` is the request's id."""

    def __init__(self, request: Request, reader: ResultReader[R]) -> None:
        self.request, self.id = request, request.id
        self._reader = reader

    def result(self, timeout: float | None = None) -> R:
        """Blocks until the call has ended and returns its result; `timeout` is in seconds.

        Raises TaskError, WaitTimeout (the call goes on) and RequestLost.
        """
        for result in self.request.results(timeout=timeout):
            return value_of(self._reader.outcome(result))
        raise self._reader.cancelled(0)

    def wait(self, timeout: float | None = None) -> str:
        """Blocks until the request has ended; returns done or cancelled. Raises WaitTimeout."""
        return self.request.wait(timeout)

    def cancel(self, reason: str = _CANCEL) -> bool:
        """Cancels the call unless it has ended; see Request.cancel."""
        return self.request.cancel(reason)

    def __repr__(self) -> str:
        return f"<Submitted {self.id}>"
