"""An executor of concurrent.futures whose calls run on the workers of an app."""

from __future__ import annotations

import atexit
import concurrent.futures
import math
import os
import threading
import weakref
from collections import deque
from concurrent.futures import BrokenExecutor, Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack, overload

from fairlane import settings
from fairlane.common import clock
from fairlane.common.task_names import some_tasks
from fairlane.errors import (
    ArgumentsRefused,
    FairlaneError,
    InvalidArgument,
    QueueFull,
    RedisFull,
    RequestEnded,
    RequestNotFound,
    TaskCancelled,
    TaskError,
    type_of,
)
from fairlane.operations.submit import open_request
from fairlane.options import Limits, check_limits, check_whole, policy_of
from fairlane.options_table import BY_NAME
from fairlane.protocol import keys
from fairlane.tasks.app import App, check_apps
from fairlane.tasks.keys import merged_keys
from fairlane.tasks.options import executor_options, hiding
from fairlane.tasks.result_reader import ResultReader
from fairlane.tasks.task import Task
from fairlane.tracing import creating, sending_created

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from fairlane.operations.submit import Submission
    from fairlane.option_types import TaskOptions
    from fairlane.options import Policy
    from fairlane.queue import Queue
    from fairlane.records import Result
    from fairlane.tasks.signature import TaskSignature
    from fairlane.tracing import ClientSpan


# ------------------------------------------------------------------ call stream
# Sends an executor's calls to the workers, and gives each future its result.
#
# One thread sends the calls, as chunks of an open request. Another thread reads the results while
# sent calls have none. The request is sealed when it is idle for a moment, or has very many calls.
# Then the next call begins another request. So at most one request of a stream runs at any time,
# and its limit bounds all calls. An executor has a stream for each set of keys that its tasks name.


_IDLE_S = 1.0  # an open request without any call is sealed after so long
_MOST_CALLS = 100_000  # of one request, because its results are kept together
# A deadline counts from the beginning of a request, which takes calls for this part of it.
_CALLS_PART = 0.1
_HELD_S = 0.05  # at the end, the pause between two looks at calls that workers run
_TAKEN_BACK = "its executor was shut down"


class CallFuture(Future[Any]):
    """The future of one call."""

    def take_back(self) -> None:
        """Cancels the future of a call that was sent, and that no worker has begun."""
        with self._condition:
            self._state = (
                "PENDING"  # because `cancel` refuses a sent call, as it does one that runs
            )
        self.cancel()
        self.set_running_or_notify_cancel()


@dataclass(slots=True, frozen=True)
class OneCall:
    """One call: its future, its encoded arguments, its result's decoder, and its trace."""

    future: CallFuture
    body: bytes
    signature: TaskSignature
    trace: str = ""


class EndedPace:
    """Counts the calls that ended within the last second."""

    def __init__(self) -> None:
        self._second, self._now, self._before = 0, 0, 0

    def add(self, now: float) -> None:
        """Counts one more, which ended at `now`, in seconds of a monotonic clock."""
        self._turn(now)
        self._now += 1

    def count(self, now: float) -> int:
        """Returns how many ended in the second before `now`, if each second's calls end evenly."""
        self._turn(now)
        return self._now + int(self._before * (1 - now % 1))

    def _turn(self, now: float) -> None:
        second = int(now)
        if second != self._second:
            self._before = self._now if second == self._second + 1 else 0
            self._second, self._now = second, 0


@dataclass(slots=True)
class _Current:
    """The request that runs: its id, and the calls without a result by their indexes.

    It takes calls `until` then, in seconds of a monotonic clock. `ending` is how many results are
    being set now. `is_adding`: a chunk is on its way to Redis.
    `is_sealed`: it takes no more calls. `is_over`: it has ended. `is_taken_back`: its calls that no
    worker has begun are cancelled.
    """

    id: str
    until: float = math.inf
    sent: dict[int, OneCall] = field(default_factory=dict)
    ending: int = 0
    is_adding: bool = False
    is_sealed: bool = False
    is_over: bool = False
    is_taken_back: bool = False


class CallStream:
    """The calls of one executor that name the same keys."""

    def __init__(self, app: App, policy: Policy, max_wait_s: float) -> None:
        self._app, self._policy, self._max_wait_s = app, policy, max_wait_s
        self._is_closed = self._takes_back = False
        self._begin()

    def _begin(self) -> None:
        """Begins without any call, also after a fork, because a fork has none of these threads."""
        self._pid = os.getpid()
        self._changed = threading.Condition()  # guards everything below
        self._waiting: deque[OneCall] = deque()
        self._again: list[OneCall] = []  # not in their request before it ended
        self._now = _Current("")
        self._pace = EndedPace()
        self._thread: threading.Thread | None = None
        self._reader: threading.Thread | None = None
        self._to_read: SimpleQueue[_Current | None] = SimpleQueue()
        self._failure: BaseException | None = None

    def add(self, calls: Iterable[OneCall]) -> None:
        """Takes calls. Raises RuntimeError and BrokenExecutor, see Executor.submit."""
        if self._pid != os.getpid():
            self._begin()
        with self._changed:
            self._check_open()
            self._waiting.extend(calls)
            if self._thread is None and self._waiting:
                # Both threads start here, because none can start while the interpreter ends.
                before, self._to_read = self._reader, SimpleQueue()
                self._reader = threading.Thread(
                    target=self._read, args=(self._to_read, before), name="fairlane-results",
                    daemon=True,
                )  # fmt: skip
                self._thread = threading.Thread(
                    target=self._run, args=(self._to_read,), name="fairlane-executor", daemon=True
                )
                _streams.add(self)
                self._reader.start()
                self._thread.start()
            self._changed.notify_all()

    def check_open(self) -> None:
        """Raises what `add` raises if no call is taken any more."""
        with self._changed:
            self._check_open()

    def close(self, *, cancel: bool) -> None:
        """Takes no more calls; if `cancel`, cancels those that no worker has begun."""
        with self._changed:
            self._is_closed = True
            self._takes_back |= cancel
            while cancel and self._waiting:
                future = self._waiting.popleft().future
                future.cancel()
                future.set_running_or_notify_cancel()
            self._changed.notify_all()

    def join(self) -> None:
        """Returns when every call has ended, its callbacks have run, and both threads have ended.

        Raises RuntimeError in such a callback, which would wait for itself.
        """
        if self._pid != os.getpid():
            return
        with self._changed:
            thread, reader = self._thread, self._reader
        if threading.current_thread() in {thread, reader}:
            raise RuntimeError("shutdown in a callback of a future needs wait=False")
        for one in (thread, reader):
            if one is not None:
                one.join()

    def _check_open(self) -> None:
        if self._failure is not None:
            raise BrokenExecutor("a call could not be sent: the executor is broken") from (
                self._failure
            )
        if self._is_closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        if _is_ending:
            raise RuntimeError("cannot schedule new futures after interpreter shutdown")

    # The thread that sends.

    def _run(self, to_read: SimpleQueue[_Current | None]) -> None:
        try:
            while first := self._first():
                self._run_request(self._app.queue, first, to_read)
        except BaseException as error:  # noqa: BLE001  raised by every future
            self._break(error)
        finally:
            to_read.put(None)

    def _first(self) -> list[OneCall]:
        """Returns the calls that begin a request; [] = this thread must end."""
        with self._changed:
            self._now = _Current(keys.new_id(), self._until())
            if calls := self._take():
                self._now.sent = dict(enumerate(calls))
            else:
                self._thread = None  # the next call starts another one
            return calls

    def _until(self) -> float:
        """Returns how long a request that begins now may take calls."""
        deadline_ms = self._policy.deadline_ms
        return clock.mono_s() + deadline_ms / 1000 * _CALLS_PART if deadline_ms else math.inf

    def _run_request(
        self, queue: Queue, first: list[OneCall], to_read: SimpleQueue[_Current | None]
    ) -> None:
        """Sends calls to one request until it is sealed, and returns when all have ended."""
        now = self._now
        # Later calls may be of other tasks: the names are those of the first calls.
        policy = replace(self._policy, task=some_tasks(call.signature.task for call in first))
        try:
            with self._sending(first, 0):
                request = queue.driver.run(
                    open_request(now.id, policy, [call.body for call in first], self._max_wait_s)
                )
        except (QueueFull, RedisFull) as error:
            self._refuse(first, error)
            return
        first.clear()  # this thread keeps no future, because a future keeps its result
        to_read.put(now)
        try:
            self._send(queue, request)
        except RequestEnded:  # a person has cancelled it
            pass
        except BaseException as error:
            with suppress(FairlaneError):
                queue.driver.run(request.take_back(error))
            raise
        with self._changed:
            now.is_sealed = True
            self._changed.notify_all()
            while (now.sent or now.ending) and self._failure is None and not self._takes_back:
                self._changed.wait()
        if self._takes_back:
            self._take_back(queue)

    def _send(self, queue: Queue, request: Submission) -> None:
        while request.total < _MOST_CALLS:
            calls = self._next(request.total)
            if calls == []:
                break
            try:
                with self._sending(calls or [], request.total):
                    queue.driver.run(request.add([call.body for call in calls or ()]))
            except RequestEnded:
                self._again = self._withdraw(calls or [])
                raise
            except (QueueFull, RedisFull) as error:
                self._refuse(calls or [], error)
            finally:
                with self._changed:
                    self._now.is_adding = False
                    self._changed.notify_all()
                del calls
        if not self._takes_back:  # else the request is cancelled, and needs no seal
            queue.driver.run(request.seal())

    def _take_back(self, queue: Queue) -> None:
        """Cancels the calls that no worker has begun, and returns when the others have ended.

        A pause comes first, because a cancel alone would interrupt async calls.
        """
        now, request = self._now, queue.request(self._now.id)
        now.is_taken_back = True
        with suppress(RequestEnded, RequestNotFound):
            request.pause()
            while request.progress().held:
                with self._changed:
                    self._changed.wait(_HELD_S)
            request.cancel(_TAKEN_BACK)
        with self._changed:
            while (now.sent or now.ending) and self._failure is None:
                self._changed.wait()

    def _sending(self, calls: list[OneCall], first: int) -> ClientSpan:
        traces = [call.trace for call in calls]
        return sending_created(self._app.name, self._now.id, first, traces)

    def _next(self, index: int) -> list[OneCall] | None:
        """Waits for calls to send, and notes them as sent from `index` on.

        Returns [] if the executor is closed, if no call runs and none came for a moment, if the
        request takes no more calls, or has ended early. Returns None if nothing came for so long
        that an empty chunk must keep the request open.
        """
        with self._changed:
            now = self._now
            while not now.is_over:
                if self._failure is not None:
                    raise self._failure
                if clock.mono_s() > now.until:
                    break
                if calls := self._take():
                    now.sent.update(enumerate(calls, index))
                    now.is_adding = True
                    self._changed.notify_all()
                    return calls
                if self._is_closed and not self._waiting:
                    break
                is_idle = not self._waiting and not now.sent
                if self._changed.wait(_IDLE_S if is_idle else settings.OPEN_MS / 4000):
                    continue
                if not is_idle:
                    return None
                break
            return []

    def _take(self) -> list[OneCall]:
        """Takes as many waiting calls as workers may need soon, and as fit into one chunk."""
        if self._again:
            taken, self._again = self._again, []
            return taken
        wanted = max(2 * self._policy.limit, self._pace.count(clock.mono_s()))
        room = min(wanted - len(self._now.sent), settings.CHUNK_ENTRIES)
        taken, size = list[OneCall](), 0
        while self._waiting and len(taken) < room:
            size += len(self._waiting[0].body)
            if taken and size > settings.CHUNK_BYTES:
                break
            call = self._waiting.popleft()
            if call.future.set_running_or_notify_cancel():
                taken.append(call)
        return taken

    def _withdraw(self, calls: list[OneCall]) -> list[OneCall]:
        """Notes these calls as no longer sent; returns those of them that have not ended."""
        refused = {id(call) for call in calls}
        with self._changed:
            sent = self._now.sent
            self._now.sent = {at: call for at, call in sent.items() if id(call) not in refused}
            return [call for call in sent.values() if id(call) in refused]

    def _refuse(self, calls: list[OneCall], error: FairlaneError) -> None:
        """Ends calls for which there is no room; others may be sent later."""
        for call in self._withdraw(calls):
            call.future.set_exception(error)

    def _break(self, error: BaseException) -> None:
        """Ends every open future with the error."""
        with self._changed:
            self._failure = self._failure or error
            left = [*self._now.sent.values(), *self._again]
            left += [one for one in self._waiting if one.future.set_running_or_notify_cancel()]
            self._now.sent, self._again = {}, []
            self._waiting.clear()
            self._changed.notify_all()
        for call in left:
            call.future.set_exception(error)

    # The thread that reads.

    def _read(self, to_read: SimpleQueue[_Current | None], before: threading.Thread | None) -> None:
        """Reads the results of one request after the other; ends after the reader before it."""
        while (now := to_read.get()) is not None:
            self._receive(now)
            del now
        if before is not None:
            before.join()

    def _receive(self, now: _Current) -> None:
        """Gives each call of a request its result; returns when all calls have one."""
        try:
            for result in self._app.queue.request(now.id).results("done"):
                if self._end(now, result):
                    return
        except BaseException as error:  # noqa: BLE001  raised by every future
            with self._changed:
                is_needed = bool(now.sent) or not now.is_sealed
            if is_needed:  # else every result was read, and the executor may be on another request
                self._break(error)
            return
        with self._changed:
            while now.is_adding:  # a late chunk goes to the next request
                self._changed.wait()
            left, now.sent, now.is_over = now.sent, {}, True
            now.ending += len(left)
            self._changed.notify_all()
        for index, call in left.items():
            reader = ResultReader[Any](call.signature, self._app.codec, now.id)
            self._set(now, [call.future, reader.cancelled(index)])

    def _end(self, now: _Current, result: Result) -> bool:
        """Ends one call; returns True if no other call will have a result.

        While no call is sent, this thread waits for the next call and does not read. So its end
        needs no answer of Redis.
        """
        with self._changed:
            call = now.sent.pop(result.index, None)
            if call is not None:  # else a dead call that a person has requeued
                now.ending += 1
                self._pace.add(clock.mono_s())
        if call is not None:
            reader = ResultReader[Any](call.signature, self._app.codec, now.id)
            ended = [call.future, reader.outcome(result)]
            del call
            self._set(now, ended)
        with self._changed:
            while not now.sent and not now.is_sealed and self._failure is None:
                self._changed.wait()
            return not now.sent

    def _set(self, now: _Current, ended: list[Any]) -> None:
        """Ends a future, which runs its callbacks; `ended` is the future and its outcome.

        This thread keeps neither while it waits, so that the program may drop the last reference.
        """
        future, outcome = ended
        ended.clear()
        try:
            if isinstance(outcome, TaskCancelled) and now.is_taken_back:
                future.take_back()
            elif isinstance(outcome, TaskError):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)
        finally:
            del future, outcome
            with self._changed:
                now.ending -= 1
                self._changed.notify_all()


_streams: weakref.WeakSet[CallStream] = weakref.WeakSet()
_is_ending = False  # the interpreter ends, so no thread can be started


@atexit.register
def _finish_all() -> None:
    """Ends the calls of executors that were never shut down, as other executors do."""
    global _is_ending  # noqa: PLW0603  of the process
    _is_ending = True
    for stream in list(_streams):
        stream.close(cancel=False)
    for stream in list(_streams):
        stream.join()


P = ParamSpec("P")
R = TypeVar("R")
_PROTECTING = ("attempts", "time_limit", "deadline", "rate")  # options of a task


class Executor(concurrent.futures.Executor):
    """Runs calls of an app's tasks on its workers, behind the interface of concurrent.futures.

    The calls are sub-requests of one request at a time, which at most `max_workers` workers run.
    Calls of tasks that have a limit or `limits` are sub-requests of a request beside it: there is
    one for all calls with the same keys. The other options are those of TaskOptions, without
    `limit`, `batch_limit`, `delay` and an order key. They apply to all calls, and the tasks' own
    options do not. So a task with attempts, a time limit, a deadline or a rate of its own is
    refused unless the executor names that option, too. A task with an order key, or whose keys
    depend on the arguments, is refused. All calls share a rate. A deadline counts from when a call
    is sent, and may be up to a tenth shorter.

    A future raises TaskError with the remote traceback, and TaskCancelled if a person cancels the
    request. It can be cancelled until its call is sent. A call is sent when the workers need it
    within about a second. Raises ArgumentsRefused and InvalidArgument for wrong options.
    """

    def __init__(
        self, app: App, max_workers: int | None = None, **options: Unpack[TaskOptions]
    ) -> None:
        check_apps("executor", [app])
        self.app = app
        policy = executor_options(dict(options))
        if max_workers is not None:
            policy["limit"] = _limit_of(max_workers)
        fields = [one for task in app.tasks.values() for one in task.options.get("redact", ())]
        policy = hiding(policy, (*app.redact, *fields))
        self._max_wait_s = policy.pop("max_wait", 0.0)
        self._named = frozenset(policy)
        if "rate" in policy:  # also of the next request
            policy.setdefault("rate_key", keys.new_id())
        self._limit = policy.get("limit", settings.DEFAULT_LIMIT)
        self._lock, self._is_shut_down = threading.Lock(), False
        self._policy = policy_of(app.name, **policy)
        self._streams = dict[Limits, CallStream]()  # by the keys of their tasks
        self._streams[()] = CallStream(app, self._policy, self._max_wait_s)

    @overload
    def submit(self, fn: Task[P, R, Any], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]: ...
    @overload
    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]: ...
    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Submits one call of a task, or of the function that is registered as one.

        Raises ArgumentsRefused, a TypeError, if it is no task of the app or cannot be called so.
        Raises RuntimeError after `shutdown`, and BrokenExecutor after an error of Redis.
        """
        task = self._task_of(fn)
        with creating(self.app.name) as span:
            call = self._call(task.signature, args, kwargs, span.trace)
            self._stream_of(task).add([call])
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
        needed, because the size of workers' slices fits the pace of the calls. If a result is not
        there `timeout` seconds after this call, raises TimeoutError. If the iteration ends early,
        calls that are not sent are cancelled. Raises ArgumentsRefused and InvalidArgument.
        """
        if isinstance(chunksize, bool) or not isinstance(chunksize, int) or chunksize < 1:
            raise InvalidArgument(f"chunksize {chunksize!r} is not valid: write 1 or more")
        if timeout is not None and not isinstance(timeout, (int, float)):
            raise InvalidArgument(f"timeout {timeout!r} is not valid: seconds are expected")
        until = None if timeout is None else clock.mono_s() + timeout
        task = self._task_of(fn)
        signature, stream = task.signature, self._stream_of(task)
        stream.check_open()
        calls = []
        for number, element in enumerate(zip(*iterables, strict=False)):
            with creating(self.app.name) as span:
                where = f" of call {number}"
                calls.append(self._call(signature, element, {}, span.trace, where))
        stream.add(calls)
        return _results([call.future for call in reversed(calls)], until)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Takes no more calls. If `wait`, returns when every submitted call has ended.

        If `cancel_futures`, the calls that no worker has begun are cancelled, also those that are
        sent. If `wait`, raises RuntimeError in a callback of a future.
        """
        with self._lock:
            streams, self._is_shut_down = [*self._streams.values()], True
        for stream in streams:
            stream.close(cancel=cancel_futures)
        for stream in streams if wait else ():
            stream.join()

    def _stream_of(self, task: Task[..., Any, Any]) -> CallStream:
        """Returns the stream of the calls with the keys of this task."""
        names = task.keys.fixed
        with self._lock:
            if names not in self._streams:
                limits = check_limits(merged_keys(self._policy.limits, names))
                policy = replace(self._policy, limits=limits)
                stream = self._streams[names] = CallStream(self.app, policy, self._max_wait_s)
                if self._is_shut_down:
                    stream.close(cancel=False)
            return self._streams[names]

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
        if depends := task.keys.depend_on:
            raise ArgumentsRefused(
                f"task {task.name} has keys that depend on argument {depends[0]}, and the calls of "
                "an executor are one request: submit them by the task itself"
            )
        if "order_key" in task.options:
            raise ArgumentsRefused(
                f"task {task.name} has an order key, and the calls of an executor have no order: "
                "submit them by the task itself"
            )
        for option in _PROTECTING:
            if option in task.options and option not in self._named:
                raise ArgumentsRefused(
                    f"task {task.name} has its own {option}, which the one request of an executor "
                    f"cannot keep: name it as Executor(app, {option}=...)"
                )
        return task

    def __repr__(self) -> str:
        return f"<Executor of app {self.app.name}, max_workers {self._limit}>"


def _limit_of(max_workers: object) -> int:
    """Returns the limit that `max_workers` means. Raises InvalidArgument."""
    if isinstance(max_workers, bool) or not isinstance(max_workers, int):
        raise InvalidArgument(f"executor: max_workers {max_workers!r} is not valid: write a number")
    if max_workers < 1:
        raise InvalidArgument(
            f"executor: max_workers must be greater than 0: {max_workers} is not valid"
        )
    return check_whole("executor: max_workers", max_workers, 1, BY_NAME["limit"].most)


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
