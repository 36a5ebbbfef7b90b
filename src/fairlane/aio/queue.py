"""A queue whose calls are awaited."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Self, Unpack

from fairlane import settings
from fairlane.aio.request import Opening, Request
from fairlane.common.chunking import Bodies, Body, chunks_async, chunks_of_groups_async
from fairlane.drivers.aio import AsyncDriver
from fairlane.errors import InvalidArgument
from fairlane.operations import admission
from fairlane.operations.submit import Many, each_request, submit
from fairlane.options import id_for, policy_of
from fairlane.protocol import keys
from fairlane.redis_url import resolve_url
from fairlane.tracing import receiving, sending

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping

    from fairlane.aio.flows import AsyncFlowRun, AsyncFlows
    from fairlane.aio.schedules import AsyncSchedules
    from fairlane.aio.taken import AsyncTaken
    from fairlane.model import RequestChoice, RequestFilters
    from fairlane.operations.admission import Bounds
    from fairlane.operations.change import Change, Selection
    from fairlane.operations.flows import Flow
    from fairlane.operations.lease import Measured
    from fairlane.operations.observe import Snapshot
    from fairlane.operations.pause import QueuePause
    from fairlane.operations.shards import ShardLayout
    from fairlane.operations.take import Taker
    from fairlane.options import RequestOptions, SharedOptions
    from fairlane.records import (
        ChangeReport,
        Completion,
        Demand,
        QueueErrors,
        QueueStatus,
        RequestPage,
        WhyWaiting,
        WorkerPage,
    )


class Queue:
    """A queue by name, for one event loop."""

    def __init__(self, driver: AsyncDriver, name: str = settings.DEFAULT_QUEUE) -> None:
        if not hasattr(driver, "run"):
            raise InvalidArgument(
                f"queue of {driver!r} is not valid: Queue.from_url(name='images') opens the queue "
                "images, and Queue.from_url('redis://host:6379') names its Redis"
            )
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
        return await self._submit(chunks_async(bodies), id, max_wait_s, **options)

    async def submit_chunks(
        self,
        chunks: Iterable[Iterable[Body]] | AsyncIterable[Iterable[Body]],
        *,
        id: str | None = None,  # noqa: A002  the word of the API
        max_wait_s: float = 0.0,
        **options: Unpack[RequestOptions],
    ) -> Request:
        """Submits one request from groups of bodies; see fairlane.queue.Queue.submit_chunks."""
        return await self._submit(chunks_of_groups_async(chunks), id, max_wait_s, **options)

    async def _submit(
        self, source: AsyncIterator[list[bytes]], id: str | None, max_wait_s: float,  # noqa: A002
        **options: Unpack[RequestOptions],
    ) -> Request:  # fmt: skip
        with sending(self.name) as span:
            policy = policy_of(self.name, trace=span.trace, **options)
            request = Request(self, id_for(policy, id))
            request.total = await self.driver.run(submit(request.id, policy, max_wait_s), source)
            span.sent(request.id, request.total)
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
        span = sending(self.name)
        many = Many.of(self.name, limit, max_wait_s, ids, trace=span.trace, **options)
        with span, many.names_submitted():
            try:
                async for bodies in each_request(requests):
                    taken = await many.collect_async(bodies)
                    if (step := many.step(taken)) is not None:
                        await self.driver.run(step, taken.rest)
                        for request_id, total in many.take_submitted():
                            yield Request(self, request_id, total)
                many.check_ends()
                await self.driver.run(many.rest())
                span.count(many.sent)
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
        from fairlane.operations.open_request import open_request

        span = sending(self.name)
        policy = policy_of(self.name, trace=span.trace, **options)
        begun = open_request(id_for(policy, id), policy, [], max_wait_s)
        return Opening(self, begun, span)

    def request(self, id: str) -> Request:  # noqa: A002  the word of the API
        """Returns the request with this id, without a call to Redis."""
        return Request(self, id)

    async def post(
        self,
        body: Body,
        *,
        id: str | None = None,  # noqa: A002  the word of the API
        max_wait_s: float = 0.0,
        **options: Unpack[RequestOptions],
    ) -> Request:
        """Submits a request of one sub-request; see fairlane.queue.Queue.post."""
        return await self.submit_request([body], id=id, max_wait_s=max_wait_s, **options)

    async def take(
        self,
        count: int = 1,
        *,
        visible_for: float = settings.TAKE_VISIBLE_S,
        wait_s: float = 0.0,
    ) -> list[AsyncTaken]:
        """Takes up to `count` sub-requests as a worker would; see fairlane.queue.Queue.take."""
        from fairlane.aio.taken import AsyncTaken
        from fairlane.operations.take import take

        with receiving(self.name) as span:
            taken = await self.driver.run(take(self._taker, count, visible_for, wait_s))
            span.received(taken)
        return [AsyncTaken(self.driver, *AsyncTaken.parts_of(delivery)) for delivery in taken]

    @cached_property
    def _taker(self) -> Taker:
        from fairlane.operations.take import Taker
        from fairlane.taken import taker_name

        return Taker(self.name, taker_name)

    def taken(self, receipt: str) -> AsyncTaken:
        """Returns the sub-request with this receipt; see fairlane.queue.Queue.taken."""
        from fairlane.aio.taken import AsyncTaken

        return AsyncTaken(self.driver, *AsyncTaken.parts_of_text(self.name, receipt))

    async def submit_flow(
        self,
        flow: Flow,
        bodies: Bodies,
        *,
        id: str | None = None,  # noqa: A002  the word of the API
        properties: Mapping[str, object] | None = None,
        max_wait_s: float = 0.0,
    ) -> AsyncFlowRun:
        """Submits a flow; see fairlane.queue.Queue.submit_flow."""
        from fairlane.aio.flows import AsyncFlowRun
        from fairlane.operations.flows import checked_flow, submit_flow

        run = keys.new_id() if id is None else id
        with sending(self.name) as span:
            steps = checked_flow(flow).plan(self.name, run, properties or {}, span.trace)
            submitted = submit_flow(steps, max_wait_s)
            span.sent(run, await self.driver.run(submitted, chunks_async(bodies)))
        return AsyncFlowRun(self, run)

    @property
    def flows(self) -> AsyncFlows:
        """Returns the runs of flows that began in this queue; see fairlane.queue.Queue.flows."""
        from fairlane.aio.flows import AsyncFlows

        return AsyncFlows(self)

    @property
    def schedules(self) -> AsyncSchedules:
        """Returns the recurring work of this queue; see fairlane.queue.Queue.schedules."""
        from fairlane.aio.schedules import AsyncSchedules

        return AsyncSchedules(self.driver, self.name)

    async def completions(
        self, since: str | None = None, *, follow: bool = True
    ) -> AsyncIterator[Completion]:
        """Yields endings from the durable log; see fairlane.queue.Queue.completions."""
        from fairlane.operations import completion

        after = (
            await self.driver.run(completion.last_completion(self.name)) if since is None else since
        )
        block = settings.BLOCK_MS if follow else 0
        reader = completion.LogReader(self.name, after)
        while True:
            endings = await self.driver.run(reader.page(block))
            for ending in endings:
                reader.after = ending.log_id
                yield ending
            if not endings and not follow:
                return

    async def status(self) -> QueueStatus:
        """Returns counts, workers and unfinished requests; see fairlane.queue.Queue.status."""
        from fairlane.operations import queues

        return await self.driver.run(queues.queue_status(self.name))

    async def list_requests(
        self, *, limit: int = 100, after: str | None = None, sort: str = "",
        **wanted: Unpack[RequestFilters],
    ) -> RequestPage:  # fmt: skip
        """Returns a page of requests; see fairlane.queue.Queue.list_requests."""
        from fairlane.operations import find

        chosen = find.filter_of(**wanted)
        listing = find.list_requests(self.name, chosen, limit, after, sort)
        return await self.driver.run(listing)

    async def select(
        self,
        change: Change,
        ids: str | Iterable[str] | None = None,
        **wanted: Unpack[RequestChoice],
    ) -> Selection:
        """Returns the requests that `change` would change; see fairlane.queue.Queue.select."""
        from fairlane.operations import change as selection

        return await self.driver.run(selection.choose(self.name, change, ids, **wanted))

    async def change(self, selected: Selection, report: ChangeReport | None = None) -> ChangeReport:
        """Makes the change in batches; see fairlane.queue.Queue.change."""
        from fairlane.operations.change import apply

        return await self.driver.run(apply(selected, report))

    async def workers(self, limit: int = 1000) -> WorkerPage:
        """Returns the workers with the newest beats; see fairlane.queue.Queue.workers."""
        from fairlane.operations import find

        return await self.driver.run(find.list_workers(self.name, limit))

    async def why(self, id: str) -> WhyWaiting:  # noqa: A002  the word of the API
        """Returns what holds up a request, and an estimate; see fairlane.queue.Queue.why."""
        return await self.request(id).why()

    async def errors(self) -> QueueErrors:
        """Returns how sub-requests failed in all requests; see fairlane.queue.Queue.errors."""
        from fairlane.operations import dead_letters

        return await self.driver.run(dead_letters.queue_errors(self.name))

    async def demand(self) -> Demand:
        """Returns how many more leases workers could take; see fairlane.queue.Queue.demand."""
        from fairlane.operations.estimate import demand

        return await self.driver.run(demand(self.name))

    async def snapshot(self) -> Snapshot:
        """Returns how the queue stands; see fairlane.queue.Queue.snapshot."""
        from fairlane.operations.observe import snapshot

        return await self.driver.run(snapshot(self.name))

    async def stats(self) -> dict[int, Measured]:
        """Returns priority -> what the workers measured: waited (ms) and ran (microseconds)."""
        from fairlane.operations.lease import read_stats

        return await self.driver.run(read_stats(self.name))

    async def set_max_waiting(self, most: int) -> Bounds:
        """Bounds how many sub-requests may wait; see fairlane.queue.Queue.set_max_waiting."""
        return await self.driver.run(admission.set_max_waiting(self.name, most))

    async def set_shards(self, count: int) -> ShardLayout:
        """Spreads this queue's lanes over slots; see fairlane.queue.Queue.set_shards."""
        from fairlane.operations import shards

        self.driver.servers.moved()
        await self.driver.run(shards.read_shards(self.name))
        wanted = shards.choose(self.name, count, self.driver.servers.homes)
        return await self.driver.run(shards.set_shards(self.name, wanted))

    async def pause(self, *, for_s: float | None = None) -> QueuePause:
        """Pauses this queue; see fairlane.queue.Queue.pause."""
        from fairlane.operations import pause as queue_pause

        return await self.driver.run(queue_pause.pause_queue(self.name, for_s))

    async def resume(self) -> bool:
        """Ends the pause of this queue; returns False if it was not paused."""
        from fairlane.operations import pause as queue_pause

        return await self.driver.run(queue_pause.resume_queue(self.name))

    async def set_rate(self, rate: str | None, burst: int | None = None) -> None:
        """Gives this queue a rate, or none; see fairlane.queue.Queue.set_rate."""
        from fairlane.operations import rates

        await self.driver.run(rates.set_queue_rate(self.name, rate, burst))

    async def close(self) -> None:
        """Closes the idle connections."""
        await self.driver.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
