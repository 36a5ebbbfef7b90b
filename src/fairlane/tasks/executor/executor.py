"""An executor of concurrent.futures whose calls run on the workers of an app."""

from __future__ import annotations

import concurrent.futures
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack, overload

from fairlane import settings
from fairlane.common import clock
from fairlane.errors import ArgumentsRefused, InvalidArgument, type_of
from fairlane.options import policy_of
from fairlane.tasks.batch import value_of
from fairlane.tasks.executor.call_stream import CallStream, OneCall
from fairlane.tasks.options import TaskOptions, executor_options
from fairlane.tasks.task import Task
from fairlane.tracing.client import creating

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from concurrent.futures import Future

    from fairlane.tasks.app import App
    from fairlane.tasks.batch import Batch

P = ParamSpec("P")
R = TypeVar("R")


class Executor(concurrent.futures.Executor):
    """Runs calls of an app's tasks on its workers, behind the interface of concurrent.futures.

    The calls of `submit` are sub-requests of one request, or of one after the other: at most
    `limit` workers run them at a time. Each `map` is a request of its own. The options are those of
    a task, see TaskOptions, and apply to all calls; the tasks' own options do not. `max_workers` of
    other executors is called `limit` here.

    A future raises TaskError with the remote traceback, and TaskCancelled if the request was
    cancelled. It can be cancelled until its call is sent. A call is sent when the workers need it
    within about a second. Raises ArgumentsRefused and InvalidArgument for wrong options.
    """

    def __init__(self, app: App, **options: Unpack[TaskOptions]) -> None:
        self.app = app
        self._options = executor_options(dict(options))
        policy = dict(self._options)
        max_wait_s = policy.pop("max_wait_s", 0.0)
        self._limit = policy.get("limit", settings.DEFAULT_LIMIT)
        self._batches: list[Batch[Any]] = []  # of `map`, not read to their ends
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
        codec, signature = self.app.codec, task.signature
        with creating(self.app.name) as span:
            body = signature.encode(codec, signature.bind(args, kwargs), trace=span.trace)
            call = OneCall(concurrent.futures.Future(), body, signature, span.trace)
            self._calls.add(call)
        return call.future

    def map(
        self,
        fn: Callable[..., Any],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
    ) -> Iterator[Any]:
        """Submits one request with a call for each tuple of elements; yields the results in order.

        The input is read, and submitted in chunks, before this returns. `chunksize` is not needed:
        workers take slices whose size fits the pace of the calls. Results after `timeout` seconds
        raise WaitTimeout, a TimeoutError. An iteration that ends early cancels the other calls.
        Raises ArgumentsRefused and InvalidArgument.
        """
        if isinstance(chunksize, bool) or not isinstance(chunksize, int) or chunksize < 1:
            raise InvalidArgument(f"chunksize {chunksize!r} is not valid: write 1 or more")
        if timeout is not None and not isinstance(timeout, (int, float)):
            raise InvalidArgument(f"timeout {timeout!r} is not valid: seconds are expected")
        began, found = clock.mono_s(), self._task_of(fn)
        self._calls.check_open()
        task: Task[..., Any, Any] = Task(self.app, found.function, found.signature, self._options)
        until = None if timeout is None else began + timeout
        batch = task.starmap(zip(*iterables, strict=False))
        self._batches.append(batch)
        return self._values(batch, until)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Takes no more calls. With `wait`, returns when every call that was submitted has ended.

        With `cancel_futures`, the calls of `submit` that are not sent yet are cancelled, and those
        of `map` that have not begun. Raises RuntimeError in a callback of a future, with `wait`.
        """
        self._calls.close(cancel=cancel_futures)
        for batch in self._batches if cancel_futures else ():
            batch.cancel("its executor was shut down")
        if wait:
            self._calls.join()
            while self._batches:
                self._batches[-1].wait()
                self._batches.pop()

    def _task_of(self, called: Any) -> Task[..., Any, Any]:
        """Returns the task that a caller means. Raises ArgumentsRefused."""
        if isinstance(called, Task):
            if called.app is not self.app:
                raise ArgumentsRefused(
                    f"task {called.name} belongs to app {called.app.name}: "
                    f"use an executor of that app, because this one has app {self.app.name}"
                )
            return called
        for task in self.app.tasks.values():
            if task.function is called:
                return task
        name = getattr(called, "__qualname__", None) or type_of(called)
        raise ArgumentsRefused(
            f"{name} is no task of app {self.app.name}: register it with @app.task, "
            "because a worker calls only functions that it has"
        )

    def _values(self, batch: Batch[Any], until: float | None) -> Iterator[Any]:
        left = None if until is None else max(0.0, until - clock.mono_s())
        is_whole = False
        try:
            for outcome in batch.outcomes(left):
                yield value_of(outcome)
            is_whole = True
        finally:
            if not is_whole:
                batch.cancel("its iteration ended early")
            if batch in self._batches:
                self._batches.remove(batch)

    def __repr__(self) -> str:
        return f"<Executor of app {self.app.name}, limit {self._limit}>"
