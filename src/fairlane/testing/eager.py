"""An eager mode: a submitted call runs immediately, in the caller's process, without any Redis."""

from __future__ import annotations

import asyncio
import contextlib
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any

from fairlane.common import clock
from fairlane.common.chunking import chunks, chunks_async
from fairlane.errors import InvalidArgument, RequestNotFound
from fairlane.model import Entry, Slice
from fairlane.options import policy_of
from fairlane.protocol import keys
from fairlane.records import DeadSubRequest, Progress, Result
from fairlane.tasks.app import StandIn, check_apps
from fairlane.tasks.serve import TaskCalls
from fairlane.testing.run import WatchedHandler
from fairlane.worker.board import LeaseBoard
from fairlane.worker.calls import Runner

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator

    from fairlane.common.chunking import Bodies, Body
    from fairlane.option_types import Duration
    from fairlane.options import Policy
    from fairlane.tasks.app import App
    from fairlane.worker.calls import Outcome

_WORKER = "eager"


@contextlib.contextmanager
def eager(*apps: App) -> Iterator[None]:
    """Runs every call of these apps' tasks where it is submitted, without Redis and workers.

    `submit` and `map` return when their calls have ended, with results and errors as those of a
    worker. Attempts are used up without pauses. Nothing is shared between processes, and an
    Executor needs run_tasks instead. A `with` block, or a decorator. Raises InvalidArgument.
    """
    if not apps:
        raise InvalidArgument("no app is named: eager needs one")
    check_apps("eager", apps)
    queues = [EagerQueue(app) for app in apps]
    before = [app.stand_in for app in apps]
    for app, queue in zip(apps, queues, strict=True):
        app.stand_in = StandIn(queue, AsyncEagerQueue(queue))
    try:
        yield
    finally:
        for app, former in zip(apps, before, strict=True):
            app.stand_in = former
        for queue in queues:
            queue.close()


class EagerQueue:
    """Stands in for a queue: what is submitted has ended when `submit_request` returns."""

    def __init__(self, app: App) -> None:
        self.name = app.name
        self._app = app
        self._requests: dict[str, EagerRequest] = {}
        self._handler: Any = None
        self._variables = Context()  # of the process that it replaces
        self._count = 0

    @property
    def driver(self) -> Any:
        """Raises InvalidArgument: there is no Redis."""
        raise InvalidArgument(
            f"app {self.name} is in eager mode, which has no Redis: use run_tasks for this test"
        )

    def submit_request(
        self,
        bodies: Iterable[Body],
        *,
        id: str | None = None,  # noqa: A002  the word of the API
        max_wait: Duration = 0.0,  # noqa: ARG002  there is always room
        **options: Any,
    ) -> EagerRequest:
        """Runs the calls of one request. An id that was used before finds its request."""
        policy = policy_of(self.name, **options)
        request_id = keys.new_id() if id is None else keys.check_name("request id", id)
        if request_id not in self._requests:
            found = [body for chunk in chunks(bodies) for body in chunk]
            self._requests[request_id] = self._run(request_id, policy, found)
        return self._requests[request_id]

    def submit_flow(self, *_: object, **__: object) -> Any:
        """Raises InvalidArgument: workers hand over from step to step."""
        return self.driver

    def request(self, id: str) -> EagerRequest:  # noqa: A002  the word of the API
        """Returns the request with this id; one that was not submitted raises at its first use."""
        return self._requests.get(id) or EagerRequest(keys.check_name("request id", id))

    def close(self) -> None:
        """Runs the app's hooks of the end, if a call ran."""
        if self._handler is not None:
            self._variables.copy().run(self._handler.stop)

    def _run(self, request_id: str, policy: Policy, bodies: list[bytes]) -> EagerRequest:
        is_first, count = self._handler is None, len(self._app.tasks)
        if is_first or count != self._count:  # a task may be registered within the block
            self._handler, self._count = WatchedHandler(TaskCalls([self._app])), count
        if is_first:
            self._variables = copy_context()
            self._variables.run(self._handler.start)
        handler = self._handler
        runner = Runner(handler.shape, LeaseBoard(1, 0).records[0], queue=self.name)
        request = EagerRequest(request_id, policy, len(bodies))
        for index, body in enumerate(bodies):
            variables = self._variables.copy()
            outcome = variables.run(_attempts, runner, request_id, policy, index, body)
            request.add(index, body, *outcome)
            handler.check()
        return request


def _attempts(
    runner: Runner, request_id: str, policy: Policy, index: int, body: bytes
) -> tuple[Outcome, int]:
    """Runs one call until it has a result, or no attempt is left; returns the last outcome."""
    entry: Entry = (b"%d-%d" % (clock.wall_ms(), index), (b"b", body))
    for attempt in range(1, policy.attempts + 1):
        taken = Slice(
            request_id, "0", b"1", b"", attempt, policy.attempts, policy.backoff_ms,
            policy.lease_ms, policy.priority, clock.wall_ms(), [entry],
        )  # fmt: skip
        outcome = runner.run_slice(taken, 0)
        if not outcome.verdicts or outcome.verdicts[0].verdict == "dead":
            break
    return outcome, attempt


class EagerRequest:
    """A request that has ended, with the words of fairlane.queue.Request."""

    def __init__(self, request_id: str, policy: Policy | None = None, total: int = 0) -> None:
        self.id, self.total = request_id, total
        self._policy = policy  # None: it was not submitted
        self._results: list[Result] = []
        self._dead: list[DeadSubRequest] = []

    def add(self, index: int, body: bytes, outcome: Outcome, attempt: int) -> None:
        """Adds the outcome of one call."""
        ran_ms = outcome.seconds * 1000
        if not outcome.verdicts:
            head, value = bytes(outcome.results[0]), bytes(outcome.results[1])  # type: ignore[arg-type]
            stored = None if head.split(b":")[1] == b"n" else value
            found = Result(index, "done", attempt, stored, None, _WORKER, 0, ran_ms)
        else:
            (verdict,) = outcome.verdicts
            reason = "rejected" if verdict.verdict == "dead" else "attempts"
            found = Result(index, "dead", attempt, None, verdict.error, _WORKER, 0, ran_ms)
            self._dead.append(
                DeadSubRequest(
                    index,
                    attempt,
                    reason,
                    verdict.error,
                    _WORKER,
                    body,
                    f"{clock.wall_ms()}-{index}",
                )
            )
        self._results.append(found)

    def _submitted(self) -> Policy:
        """Returns the policy. Raises RequestNotFound."""
        if self._policy is None:
            raise RequestNotFound(f"request {self.id} was not submitted in this eager block")
        return self._policy

    def state(self) -> str:
        """Returns done."""
        self._submitted()
        return "done"

    def wait(self, timeout: float | None = None) -> str:  # noqa: ARG002  it has ended
        """Returns done."""
        self._submitted()
        return "done"

    def cancel(self, reason: str = "") -> bool:  # noqa: ARG002  it has ended
        """Returns True, because the request has ended."""
        self._submitted()
        return True

    def progress(self) -> Progress:
        """Returns the counts."""
        dead, policy = len(self._dead), self._submitted()
        done = len(self._results) - dead
        return Progress(
            id=self.id, queue=policy.queue, state="done", priority=policy.priority,
            total=self.total, done=done, dead=dead, limit=policy.limit,
        )  # fmt: skip

    def results(self, order: str = "input", *, timeout: float | None = None) -> Iterator[Result]:  # noqa: ARG002
        """Yields every result in input order."""
        self._submitted()
        return iter(self._results)

    def dead(self) -> Iterator[DeadSubRequest]:
        """Yields the dead sub-requests."""
        self._submitted()
        return iter(self._dead)


class AsyncEagerQueue:
    """The same for asyncio."""

    def __init__(self, queue: EagerQueue) -> None:
        self._queue = queue

    async def submit_request(self, bodies: Bodies, **options: Any) -> AsyncEagerRequest:
        """Runs the calls of one request."""
        found = [body async for chunk in chunks_async(bodies) for body in chunk]
        request = await asyncio.to_thread(self._queue.submit_request, found, **options)
        return AsyncEagerRequest(request)

    def request(self, id: str) -> AsyncEagerRequest:  # noqa: A002  the word of the API
        """Returns a request that was submitted before."""
        return AsyncEagerRequest(self._queue.request(id))

    async def close(self) -> None:
        """Has nothing to close."""


class AsyncEagerRequest:
    """The same as EagerRequest, with the words of fairlane.aio.Request."""

    def __init__(self, request: EagerRequest) -> None:
        self._request = request
        self.id, self.total = request.id, request.total

    async def state(self) -> str:
        """Returns done."""
        return self._request.state()

    async def wait(self, timeout: float | None = None) -> str:  # noqa: ASYNC109  as in aio
        """Returns done."""
        return self._request.wait(timeout)

    async def cancel(self, reason: str = "") -> bool:
        """Returns True, because the request has ended."""
        return self._request.cancel(reason)

    async def progress(self) -> Progress:
        """Returns the counts."""
        return self._request.progress()

    async def results(
        self,
        order: str = "input",
        *,
        timeout: float | None = None,  # noqa: ASYNC109  as in aio
    ) -> AsyncIterator[Result]:
        """Yields every result in input order."""
        for result in self._request.results(order, timeout=timeout):
            yield result

    async def dead(self) -> AsyncIterator[DeadSubRequest]:
        """Yields the dead sub-requests."""
        for letter in self._request.dead():
            yield letter
