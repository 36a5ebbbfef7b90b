"""What a submission returns: one call's result, or many results in input order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

from fairlane.common.fingerprint import read_failure
from fairlane.errors import TaskCancelled, TaskError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Generator, Iterable, Iterator

    from fairlane import aio
    from fairlane.records import DeadSubRequest, Progress, Result
    from fairlane.request import Request
    from fairlane.tasks.codec import Codec
    from fairlane.tasks.signature import TaskSignature

R = TypeVar("R")
_CANCEL = "cancelled by the caller"


class ResultReader(Generic[R]):
    """Turns results of one request into values and errors; does no I/O."""

    def __init__(self, signature: TaskSignature, codec: Codec, request_id: str) -> None:
        self._signature, self._codec, self._id = signature, codec, request_id

    def outcome(self, result: Result) -> R | TaskError:
        """Returns the value of a result, or why there is none."""
        if result.status == "dead":
            return self.dead(result.index, result.attempt, result.error or "")
        try:
            value: R = self._signature.decode_result(self._codec, result.body)
        except msgspec.MsgspecError as error:
            return self._error(
                f"returned what its annotation does not allow: {error}", result.index,
                result.attempt, error_type=type(error).__name__, message=str(error),
            )  # fmt: skip
        return value

    def dead(self, index: int, attempts: int, text: str) -> TaskError:
        """Returns the error of a dead sub-request; `text` is what the worker kept."""
        failure = read_failure(text)
        count = f"{attempts} attempt" + ("" if attempts == 1 else "s")
        return self._error(
            f"is dead after {count}: {failure.headline}", index, attempts,
            error_type=failure.type, message=failure.message, traceback=text,
        )  # fmt: skip

    def letters(self, page: Iterable[DeadSubRequest]) -> Iterator[TaskError]:
        """Yields the errors of dead letters."""
        return (self.dead(one.index, one.attempt, one.error) for one in page)

    def cancelled(self, index: int) -> TaskCancelled:
        """Returns the error of a sub-request that has no result."""
        which = f"sub-request {index} of request {self._id}"
        return TaskCancelled(
            f"task {self._signature.task}: {which} was cancelled",
            task=self._signature.task, request_id=self._id, index=index, message="cancelled",
        )  # fmt: skip

    def _error(
        self, what: str, index: int, attempts: int,
        *, error_type: str, message: str, traceback: str = "",
    ) -> TaskError:  # fmt: skip
        which = f"sub-request {index} of request {self._id}"
        return TaskError(
            f"task {self._signature.task}: {which} {what}",
            task=self._signature.task, request_id=self._id, index=index, attempts=attempts,
            error_type=error_type, message=message, traceback=traceback,
        )  # fmt: skip


class _InOrder(Generic[R]):
    """Fills the gaps that cancelled sub-requests leave among results in input order."""

    def __init__(self, reader: ResultReader[R]) -> None:
        self._reader, self._next = reader, 0

    def take(self, result: Result) -> Iterator[R | TaskError]:
        """Yields what is due up to this result."""
        yield from self._gap(result.index)
        self._next = result.index + 1
        yield self._reader.outcome(result)

    def rest(self, total: int) -> Iterator[TaskError]:
        """Yields what is due after the last result of `total`."""
        return self._gap(total)

    def _gap(self, until: int) -> Iterator[TaskError]:
        while self._next < until:
            self._next += 1
            yield self._reader.cancelled(self._next - 1)


def value_of(outcome: R | TaskError) -> R:
    """Returns a value, or raises the error that stands in its place."""
    if isinstance(outcome, TaskError):
        raise outcome
    return outcome


class Batch(Generic[R]):
    """A request of many calls of one task; iterating it yields their results in input order.

    `id` is the request's id, and `request` the request itself. An iteration reads results also
    while the request runs, and raises TaskError in place of a result that will not come.
    """

    def __init__(self, request: Request, reader: ResultReader[R]) -> None:
        self.request, self.id = request, request.id
        self._reader = reader

    def __iter__(self) -> Iterator[R]:
        return map(value_of, self.outcomes())

    def outcomes(self, timeout: float | None = None) -> Iterator[R | TaskError]:
        """Yields a value or a TaskError for each call, in input order; see Request.results.

        `timeout` bounds the seconds of the whole reading. Raises WaitTimeout and RequestLost.
        """
        order = _InOrder(self._reader)
        for result in self.request.results(timeout=timeout):
            yield from order.take(result)
        total = self.request.total
        yield from order.rest(self.progress().total if total is None else total)

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
        return self._reader.letters(self.request.dead())

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


class AsyncBatch(Generic[R]):
    """The same as Batch for asyncio: `async for value in batch`."""

    def __init__(self, request: aio.Request, reader: ResultReader[R]) -> None:
        self.request, self.id = request, request.id
        self._reader = reader

    async def __aiter__(self) -> AsyncIterator[R]:
        async for outcome in self.outcomes():
            kept = [outcome]
            del outcome  # an iterator keeps no result that it has yielded
            yield value_of(kept.pop())

    async def outcomes(
        self,
        timeout: float | None = None,  # noqa: ASYNC109  same word as in the blocking API
    ) -> AsyncIterator[R | TaskError]:
        """Yields a value or a TaskError for each call, in input order; see Batch.outcomes."""
        order = _InOrder(self._reader)
        async for result in self.request.results(timeout=timeout):
            taken = [*order.take(result)]
            while taken:
                yield taken.pop(0)
        total = self.request.total
        if total is None:
            total = (await self.progress()).total
        for outcome in order.rest(total):
            yield outcome

    async def wait(self, timeout: float | None = None) -> str:  # noqa: ASYNC109  see outcomes
        """Returns done or cancelled once the request has ended. Raises WaitTimeout."""
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

    def __repr__(self) -> str:
        return f"<AsyncBatch {self.id}>"


class AsyncSubmitted(Generic[R]):
    """The same as Submitted for asyncio; `await submitted` returns the result, too."""

    def __init__(self, request: aio.Request, reader: ResultReader[R]) -> None:
        self.request, self.id = request, request.id
        self._reader = reader

    async def result(self, timeout: float | None = None) -> R:  # noqa: ASYNC109  see AsyncBatch
        """Returns the call's result once it has ended; see Submitted.result."""
        async for result in self.request.results(timeout=timeout):
            return value_of(self._reader.outcome(result))
        raise self._reader.cancelled(0)

    def __await__(self) -> Generator[object, None, R]:
        return self.result().__await__()

    async def wait(self, timeout: float | None = None) -> str:  # noqa: ASYNC109  see AsyncBatch
        """Returns done or cancelled once the request has ended. Raises WaitTimeout."""
        return await self.request.wait(timeout)

    async def cancel(self, reason: str = _CANCEL) -> bool:
        """Cancels the call unless it has ended; see Request.cancel."""
        return await self.request.cancel(reason)

    def __repr__(self) -> str:
        return f"<AsyncSubmitted {self.id}>"
