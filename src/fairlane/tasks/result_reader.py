"""Turns the results of a request into values and errors of its task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

from fairlane.common.fingerprint import read_failure
from fairlane.errors import TaskCancelled, TaskError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlane.records import Result
    from fairlane.tasks.codec import Codec
    from fairlane.tasks.signature import TaskSignature

R = TypeVar("R")


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


class Gaps(Generic[R]):
    """Finds the gaps that cancelled sub-requests leave among results in input order."""

    def __init__(self, reader: ResultReader[R]) -> None:
        self._reader, self._next = reader, 0

    def until(self, index: int) -> Iterator[TaskError]:
        """Yields an error for each sub-request without a result before the one at `index`."""
        yield from map(self._reader.cancelled, range(self._next, index))
        self._next = index + 1


def value_of(outcome: R | TaskError) -> R:
    """Returns a value, or raises the error that stands in its place."""
    if isinstance(outcome, TaskError):
        raise outcome
    return outcome
