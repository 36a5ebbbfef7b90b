"""An executor of concurrent.futures whose calls run on the workers of an app."""

from __future__ import annotations

import concurrent.futures
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack, overload

from fairlane import settings
from fairlane.common import clock
from fairlane.errors import ArgumentsRefused, InvalidArgument, type_of
from fairlane.options import policy_of
from fairlane.tasks.app import App, check_apps
from fairlane.tasks.executor.call_stream import CallFuture, CallStream, OneCall
from fairlane.tasks.options import TaskOptions, executor_options, word_of
from fairlane.tasks.task import Task
from fairlane.tracing.client import creating

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from concurrent.futures import Future

    from fairlane.tasks.signature import TaskSignature

P = ParamSpec("P")
R = TypeVar("R")
_PROTECTING = ("attempts", "time_limit_s", "deadline_s", "rate")  # options of a task


class Executor(concurrent.futures.Executor):
    """Runs calls of an app's tasks on its workers, behind the interface of concurrent.futures.

    The calls are sub-requests of one request, or of one after the other: at most `max_workers`
    workers run them at a time. The other options are those of a task, see TaskOptions, and apply
    to all calls; the tasks' own options do not. So a task with attempts, a time limit, a deadline
    or a rate of its own is refused unless the executor names that option, too. `limit`, the word of
    a task, is the same as `max_workers`.

    A future raises TaskError with the remote traceback, and TaskCancelled if a person cancels the
    request. It can be cancelled until its call is sent. A call is sent when the workers need it
    within about a second. Raises ArgumentsRefused and InvalidArgument for wrong options.
    """

    def __init__(
        self, app: App, max_workers: int | None = None, **options: Unpack[TaskOptions]
    ) -> None:
        check_apps("executor", [app])
        self.app = app
        given = dict(options)
        if max_workers is not None:
            given["limit"] = _limit_of(max_workers, given)
        policy = executor_options(given)
        max_wait_s = policy.pop("max_wait_s", 0.0)
        self._named = frozenset(policy)
        self._limit = policy.get("limit", settings.DEFAULT_LIMIT)
        self._calls = CallStream(app, policy_of(app.name, **policy), max_wait_s)

    @overload
    def submit(self, fn: Task[P, R, Any], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]: ...
    @overload
    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]: ...
    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Submits one call of a task, or of the function that is registered as one.

        Raises ArgumentsRefused, a TypeError: it is no task of the app, or cannot be called so;
        RuntimeError after `shutdown`; BrokenExecutor after an error of Redis.
        """
        task = self._task_of(fn)
        with creating(self.app.name) as span:
            call = self._call(task.signature, args, kwargs, span.trace)
            self._calls.add([call])
        return call.future

    def map(
        self,
        fn: Callable[..., Any],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
    ) -> Iterator[Any]:
        """Submits a call for each tuple of elements; yields the results in order.

        All calls are checked before this returns, and before one is sent. `chunksize` is not
        needed: workers take slices whose size fits the pace of the calls. A result that is not
        there `timeout` seconds after this call raises TimeoutError. An iteration that ends early
        cancels the calls that are not sent. Raises ArgumentsRefused and InvalidArgument.
        """
        if isinstance(chunksize, bool) or not isinstance(chunksize, int) or chunksize < 1:
            raise InvalidArgument(f"chunksize {chunksize!r} is not valid: write 1 or more")
        if timeout is not None and not isinstance(timeout, (int, float)):
            raise InvalidArgument(f"timeout {timeout!r} is not valid: seconds are expected")
        until = None if timeout is None else clock.mono_s() + timeout
        signature = self._task_of(fn).signature
        self._calls.check_open()
        calls = []
        for number, element in enumerate(zip(*iterables, strict=False)):
            with creating(self.app.name) as span:
                where = f" of call {number}"
                calls.append(self._call(signature, element, {}, span.trace, where))
        self._calls.add(calls)
        return _results([call.future for call in reversed(calls)], until)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Takes no more calls. With `wait`, returns when every call that was submitted has ended.

        With `cancel_futures`, the calls that no worker has begun are cancelled, also those that are
        sent. Raises RuntimeError in a callback of a future, with `wait`.
        """
        self._calls.close(cancel=cancel_futures)
        if wait:
            self._calls.join()

    def _call(
        self,
        signature: TaskSignature,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        trace: str,
        where: str = "",
    ) -> OneCall:
        bound = signature.bind(args, kwargs, where)
        body = signature.encode(self.app.codec, bound, where, trace)
        return OneCall(CallFuture(), body, signature, trace)

    def _task_of(self, called: Any) -> Task[..., Any, Any]:
        """Returns the task that a caller means. Raises ArgumentsRefused."""
        if isinstance(called, Task):
            if called.app is not self.app:
                raise ArgumentsRefused(
                    f"task {called.name} belongs to app {called.app.name}: "
                    f"use an executor of that app, because this one has app {self.app.name}"
                )
            return self._unless_protected(called)
        for task in self.app.tasks.values():
            if task.function is called:
                return self._unless_protected(task)
        name = getattr(called, "__qualname__", None) or type_of(called)
        raise ArgumentsRefused(
            f"{name} is no task of app {self.app.name}: register it with @app.task, "
            "because a worker calls only functions that it has"
        )

    def _unless_protected(self, task: Task[..., Any, Any]) -> Task[..., Any, Any]:
        """Returns the task. Raises ArgumentsRefused if an option that protects it would be lost."""
        for option in _PROTECTING:
            if option in task.options and option not in self._named:
                word = word_of(option)
                raise ArgumentsRefused(
                    f"task {task.name} has its own {word}, which the one request of an executor "
                    f"cannot keep: name it as Executor(app, {word}=...)"
                )
        return task

    def __repr__(self) -> str:
        return f"<Executor of app {self.app.name}, limit {self._limit}>"


def _limit_of(max_workers: object, options: dict[str, Any]) -> int:
    """Returns the limit that `max_workers` means. Raises InvalidArgument."""
    if "limit" in options:
        raise InvalidArgument("executor: max_workers and limit are the same: give one of them")
    if isinstance(max_workers, bool) or not isinstance(max_workers, int):
        raise InvalidArgument(f"executor: max_workers {max_workers!r} is not valid: write a number")
    if max_workers < 1:
        raise InvalidArgument(
            f"executor: max_workers must be greater than 0: {max_workers} is not valid"
        )
    return max_workers


def _results(waiting: list[CallFuture], until: float | None) -> Iterator[Any]:
    """Yields the results of futures, the last of the list first; keeps no result that it yielded.

    At its end it cancels the futures that are left.
    """
    try:
        while waiting:
            left = None if until is None else max(0.0, until - clock.mono_s())
            yield _result_of(waiting.pop(), left)
    finally:
        for future in waiting:
            future.cancel()


def _result_of(future: CallFuture, timeout: float | None) -> Any:
    """Returns a result; cancels a future that has none in time."""
    try:
        return future.result(timeout)
    finally:
        future.cancel()
        del future  # because the traceback of an error holds this frame
