"""The asyncio API: the same queue and requests, awaited. `from fairlane.aio import Queue`."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self, Unpack

from fairlane import settings
from fairlane.common import clock
from fairlane.common.chunking import Bodies, Body, chunks_async, chunks_of_groups_async
from fairlane.drivers.aio.driver import AsyncDriver
from fairlane.errors import FairlaneError
from fairlane.model import Completion, DeadChoice, DeadSubRequest, Progress, Result
from fairlane.operations.control import (
    change,
    completion,
    completion_log,
    dead_letters,
    request_state,
    requeue,
)
from fairlane.operations.create import admission
from fairlane.operations.find import failures, filters, overview, requests, workers
from fairlane.operations.lease import shards
from fairlane.operations.lease.stats import Measured, read_stats
from fairlane.operations.maintenance import queue_pause
from fairlane.operations.many import selection
from fairlane.operations.many.apply import apply
from fairlane.operations.results import flow
from fairlane.operations.submit.many import Many, each_request
from fairlane.operations.submit.open_request import open_request
from fairlane.operations.submit.stream import submit
from fairlane.options import ms_of, policy_of
from fairlane.protocol import keys
from fairlane.queue import resolve_url
from fairlane.schedules.awaited import AsyncSchedules

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator, Generator, Iterable
    from types import TracebackType

    from fairlane.found import (
        ChangeReport,
        RequestChoice,
        RequestErrors,
        RequestFilters,
        RequestPage,
        WorkerPage,
    )
    from fairlane.operations.create.admission import Bounds
    from fairlane.operations.lease.shards import ShardLayout
    from fairlane.operations.maintenance.queue_pause import QueuePause
    from fairlane.operations.many.change import Change
    from fairlane.operations.many.selection import Selection
    from fairlane.operations.submit.open_request import Submission
    from fairlane.options import RequestOptions, SharedOptions
    from fairlane.protocol.steps import Operation


class Request:
    """A request by its id; see queue.Request."""

    def __init__(self, queue: Queue, request_id: str, total: int | None = None) -> None:
        self.queue = queue
        self.id = keys.check_name("request id", request_id)
        self.total = total

    async def state(self) -> str:
        """Returns active, paused, cancelling, expiring, done, cancelled. Raises RequestNotFound."""
        return await self.queue.driver.run(completion.state(self.id))

    async def progress(self) -> Progress:
        """Returns the counts now: total, done, dead, cancelled, held, limit. RequestNotFound."""
        return await self.queue.driver.run(request_state.progress(self.id))

    async def wait(self, timeout: float | None = None) -> str:  # noqa: ASYNC109  same word as in the blocking API
        """Returns the final state once the request has ended: done or cancelled.

        `timeout` in seconds; raises WaitTimeout, RequestNotFound, RequestLost.
        """
        return await self.queue.driver.run(completion.wait(self.id, clock.mono_s, timeout))

    async def results(
        self,
        order: str = "input",
        *,
        timeout: float | None = None,  # noqa: ASYNC109  same word as in the blocking API
    ) -> AsyncIterator[Result]:
        """Yields every result, also while the request runs; see queue.Request.results."""
        items = flow(self.id, order, timeout)
        try:
            item = next(items)
            while True:
                if isinstance(item, list):
                    for result in item:
                        yield result
                    item = next(items)
                else:
                    item = items.send(await self.queue.driver.run(item))
        except StopIteration:
            return

    async def cancel(self, reason: str = "cancelled by the caller") -> bool:
        """Cancels the request; True if it has ended, False while workers still hold slices."""
        own = change.cancel(self.id, reason, queue=self.queue.name)
        return await self.queue.driver.run(own)

    async def pause(self) -> str:
        """Starts no more sub-requests until `resume`; see queue.Request.pause."""
        return await self.queue.driver.run(change.pause(self.id))

    async def resume(self) -> str:
        """Continues a paused request; see queue.Request.resume."""
        return await self.queue.driver.run(change.resume(self.id))

    async def set_limit(self, limit: int) -> None:
        """Lets at most `limit` workers take slices from now on; see queue.Request.set_limit."""
        await self.queue.driver.run(change.set_limit(self.id, limit))

    async def set_priority(self, priority: int) -> None:
        """Moves tokens of the request to the lane `priority`; see queue.Request.set_priority."""
        await self.queue.driver.run(change.set_priority(self.id, priority))

    async def set_deadline(self, deadline_s: float) -> None:
        """Starts nothing after so many seconds from now; see queue.Request.set_deadline."""
        await self.queue.driver.run(change.set_deadline(self.id, ms_of("deadline_s", deadline_s)))

    async def errors(self) -> RequestErrors:
        """Returns how sub-requests failed; see queue.Request.errors."""
        return await self.queue.driver.run(failures.request_errors(self.id))

    async def dead(self) -> AsyncIterator[DeadSubRequest]:
        """Yields the dead sub-requests with their bodies, first to die first. RequestNotFound."""
        after = ""
        while page := await self.queue.driver.run(dead_letters.read_dead(self.id, after)):
            for dead in page:
                yield dead
            after = page[-1].dead_id

    async def requeue_dead(
        self,
        *,
        fingerprint: str | Iterable[str] | None = None,
        indexes: Iterable[int] | None = None,
    ) -> Request:
        """Lets dead sub-requests run again; see queue.Request.requeue_dead."""
        choice = DeadChoice.of(fingerprint, indexes)
        run_by, _ = await self.queue.driver.run(requeue.requeue_dead(self.id, choice))
        return self if run_by == self.id else Request(self.queue, run_by)

    async def drop_dead(
        self,
        *,
        fingerprint: str | Iterable[str] | None = None,
        indexes: Iterable[int] | None = None,
    ) -> int:
        """Deletes dead sub-requests; see queue.Request.drop_dead."""
        choice = DeadChoice.of(fingerprint, indexes)
        return await self.queue.driver.run(requeue.drop_dead(self.id, choice))

    def __repr__(self) -> str:
        return f"<Request {self.id}>"


class OpenRequest(Request):
    """A request that is still being submitted; see request.OpenRequest.

    The end of `async with queue.open() as request` seals it; after `await queue.open()` call
    `seal`. One task at a time may add to it.
    """

    def __init__(self, queue: Queue, submission: Submission) -> None:
        super().__init__(queue, submission.new.id)
        self._submission = submission

    @property
    def added(self) -> int:
        """Returns how many sub-requests were added so far, also by an earlier process."""
        return self._submission.total

    async def add(self, body: Body) -> int:
        """Adds one sub-request; returns its index; see request.OpenRequest.add_many."""
        return await self.add_many([body]) - 1

    async def add_many(self, bodies: Bodies) -> int:
        """Adds sub-requests of an ordinary or async iterable; returns how many there are now."""
        async for chunk in chunks_async(bodies):
            await self.queue.driver.run(self._submission.add(chunk))
        return self.added

    async def seal(self) -> int:
        """Ends the submission; returns how many sub-requests it has. A repeat changes nothing."""
        self.total = await self.queue.driver.run(self._submission.seal())
        return self.total

    async def take_back(self, error: BaseException) -> None:
        """Withdraws the request, or cancels it if a worker holds a part; `error` is the reason."""
        await self.queue.driver.run(self._submission.take_back(error))


class Opening:
    """What Queue.open returns: await it for an OpenRequest, or use it in `async with`."""

    def __init__(self, queue: Queue, begun: Operation[Submission]) -> None:
        self._queue, self._begun = queue, begun
        self._request: OpenRequest | None = None

    def __await__(self) -> Generator[Any, None, OpenRequest]:
        return self._open().__await__()

    async def _open(self) -> OpenRequest:
        self._request = OpenRequest(self._queue, await self._queue.driver.run(self._begun))
        return self._request

    async def __aenter__(self) -> OpenRequest:
        return await self._open()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        request = self._request
        if request is None:
            return
        if error is None:
            await request.seal()
            return
        with suppress(FairlaneError):  # the block's own error is the one to raise
            await request.take_back(error)


class Queue:
    """A queue by name, for one event loop."""

    def __init__(self, driver: AsyncDriver, name: str = settings.DEFAULT_QUEUE) -> None:
        self.driver = driver
        self.name = keys.check_name("queue", name)

    @classmethod
    def from_url(
        cls,
        url: str | None = None,
        *,
        name: str = settings.DEFAULT_QUEUE,
        patience_s: float = settings.PATIENCE_S,
    ) -> Queue:
        """Returns a queue on the Redis at `url`; see fairlane.queue.Queue.from_url."""
        return cls(AsyncDriver(resolve_url(url), patience_s=patience_s), name)

    async def submit_request(
        self,
        bodies: Bodies,
        *,
        id: str | None = None,  # noqa: A002  the word of the API
        max_wait_s: float = 0.0,
        **options: Unpack[RequestOptions],
    ) -> Request:
        """Submits one request from an ordinary or an async iterable; see fairlane.queue.Queue."""
        policy = policy_of(self.name, **options)
        request = Request(self, keys.new_id() if id is None else id)
        source = chunks_async(bodies)
        request.total = await self.driver.run(submit(request.id, policy, max_wait_s), source)
        return request

    async def submit_chunks(
        self,
        chunks: Iterable[Iterable[Body]] | AsyncIterable[Iterable[Body]],
        *,
        id: str | None = None,  # noqa: A002  the word of the API
        max_wait_s: float = 0.0,
        **options: Unpack[RequestOptions],
    ) -> Request:
        """Submits one request from groups of bodies; see fairlane.queue.Queue.submit_chunks."""
        policy = policy_of(self.name, **options)
        request = Request(self, keys.new_id() if id is None else id)
        source = chunks_of_groups_async(chunks)
        request.total = await self.driver.run(submit(request.id, policy, max_wait_s), source)
        return request

    async def submit_many(
        self,
        requests: Iterable[Bodies] | AsyncIterable[Bodies],
        *,
        ids: Iterable[str] | None = None,
        limit: int | Iterable[int] = settings.DEFAULT_LIMIT,
        max_wait_s: float = 0.0,
        **options: Unpack[SharedOptions],
    ) -> list[Request]:
        """Submits many requests in few round trips; see fairlane.queue.Queue.submit_many."""
        many = self.submit_each(requests, ids=ids, limit=limit, max_wait_s=max_wait_s, **options)
        return [request async for request in many]

    async def submit_each(
        self,
        requests: Iterable[Bodies] | AsyncIterable[Bodies],
        *,
        ids: Iterable[str] | None = None,
        limit: int | Iterable[int] = settings.DEFAULT_LIMIT,
        max_wait_s: float = 0.0,
        **options: Unpack[SharedOptions],
    ) -> AsyncIterator[Request]:
        """Yields each request when it is in Redis; see fairlane.queue.Queue.submit_each."""
        many = Many.of(self.name, limit, max_wait_s, ids, **options)
        with many.names_submitted():
            try:
                async for bodies in each_request(requests):
                    taken = await many.take_async(bodies)
                    if (step := many.step(taken)) is not None:
                        await self.driver.run(step, taken.rest)
                        for request_id, total in many.take_submitted():
                            yield Request(self, request_id, total)
                many.check_ends()
                await self.driver.run(many.rest())
            except Exception:
                for request_id, total in many.take_submitted():
                    yield Request(self, request_id, total)
                raise
        for request_id, total in many.take_submitted():
            yield Request(self, request_id, total)

    def open(
        self,
        *,
        id: str | None = None,  # noqa: A002  the word of the API
        max_wait_s: float = 0.0,
        **options: Unpack[RequestOptions],
    ) -> Opening:
        """Begins a request and leaves it open; see fairlane.queue.Queue.open."""
        policy = policy_of(self.name, **options)
        begun = open_request(keys.new_id() if id is None else id, policy, [], max_wait_s)
        return Opening(self, begun)

    def request(self, id: str) -> Request:  # noqa: A002  the word of the API
        """Returns the request with this id, without a call to Redis."""
        return Request(self, id)

    @property
    def schedules(self) -> AsyncSchedules:
        """Returns the recurring work of this queue; see fairlane.queue.Queue.schedules."""
        return AsyncSchedules(self.driver, self.name)

    async def completions(
        self, since: str | None = None, *, follow: bool = True
    ) -> AsyncIterator[Completion]:
        """Yields endings from the durable log; see fairlane.queue.Queue.completions."""
        after = (
            await self.driver.run(completion_log.last_completion(self.name))
            if since is None
            else since
        )
        block = settings.BLOCK_MS if follow else 0
        while True:
            endings = await self.driver.run(
                completion_log.read_completions(self.name, after, block)
            )
            for ending in endings:
                after = ending.log_id
                yield ending
            if not endings and not follow:
                return

    async def status(self) -> dict[str, Any]:
        """Returns counts, workers and unfinished requests; see fairlane.queue.Queue.status."""
        return await self.driver.run(overview.queue_status(self.name))

    async def list_requests(
        self, *, limit: int = 100, after: str = "", **wanted: Unpack[RequestFilters]
    ) -> RequestPage:
        """Returns a page of requests; see fairlane.queue.Queue.list_requests."""
        chosen = filters.filter_of(**wanted)
        return await self.driver.run(requests.list_requests(self.name, chosen, limit, after))

    async def select(
        self, change: Change, ids: Iterable[str] | None = None, **wanted: Unpack[RequestChoice]
    ) -> Selection:
        """Returns the requests that `change` would change; see fairlane.queue.Queue.select."""
        return await self.driver.run(selection.choose(self.name, change, ids, **wanted))

    async def change(self, selected: Selection, report: ChangeReport | None = None) -> ChangeReport:
        """Makes the change in batches; see fairlane.queue.Queue.change."""
        return await self.driver.run(apply(selected, report))

    async def workers(self, limit: int = 1000) -> WorkerPage:
        """Returns the workers with the newest beats; see fairlane.queue.Queue.workers."""
        return await self.driver.run(workers.list_workers(self.name, limit))

    async def stats(self) -> dict[int, Measured]:
        """Returns priority -> what the workers measured: waited (ms) and ran (microseconds)."""
        return await self.driver.run(read_stats(self.name))

    async def set_max_waiting(self, most: int) -> Bounds:
        """Bounds how many sub-requests may wait; see fairlane.queue.Queue.set_max_waiting."""
        return await self.driver.run(admission.set_max_waiting(self.name, most))

    async def set_shards(self, count: int) -> ShardLayout:
        """Spreads this queue's lanes over slots; see fairlane.queue.Queue.set_shards."""
        self.driver.servers.moved()
        await self.driver.run(shards.read_shards(self.name))
        wanted = shards.choose(self.name, count, self.driver.servers.homes)
        return await self.driver.run(shards.set_shards(self.name, wanted))

    async def pause(self, *, for_s: float | None = None) -> QueuePause:
        """Pauses this queue; see fairlane.queue.Queue.pause."""
        return await self.driver.run(queue_pause.pause_queue(self.name, for_s))

    async def resume(self) -> bool:
        """Ends the pause of this queue; returns False if it was not paused."""
        return await self.driver.run(queue_pause.resume_queue(self.name))

    async def close(self) -> None:
        """Closes the idle connections."""
        await self.driver.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
