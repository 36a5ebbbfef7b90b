"""A request whose calls are awaited, and one that is still open."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from fairlane.common import clock
from fairlane.common.chunking import Bodies, Body, chunks_async
from fairlane.common.clock import ms_of
from fairlane.errors import FairlaneError
from fairlane.model import DeadChoice
from fairlane.protocol import keys

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Generator, Iterable
    from types import TracebackType

    from fairlane.aio.queue import Queue
    from fairlane.operations.open_request import Submission
    from fairlane.protocol.steps import Operation
    from fairlane.records import (
        DeadSubRequest,
        Progress,
        RecentLeases,
        RequestErrors,
        Result,
        WhyWaiting,
    )
    from fairlane.tracing import ClientSpan


class Request:
    """A request by its id; see queue.Request."""

    def __init__(self, queue: Queue, request_id: str, total: int | None = None) -> None:
        self.queue = queue
        self.id = keys.check_name("request id", request_id)
        self.total = total

    async def state(self) -> str:
        """Returns active, paused, cancelling, expiring, done, cancelled. Raises RequestNotFound."""
        from fairlane.operations import completion

        return await self.queue.driver.run(completion.state(self.id))

    async def progress(self) -> Progress:
        """Returns the counts now: total, done, dead, cancelled, held, limit. RequestNotFound."""
        from fairlane.operations import request_state

        return await self.queue.driver.run(request_state.progress(self.id))

    async def wait(self, timeout: float | None = None) -> str:  # noqa: ASYNC109  same word as in the blocking API
        """Returns the final state once the request has ended: done or cancelled.

        `timeout` in seconds; raises WaitTimeout, RequestNotFound, RequestLost.
        """
        from fairlane.operations import completion

        return await self.queue.driver.run(completion.wait(self.id, clock.mono_s, timeout))

    async def results(
        self,
        order: str = "input",
        *,
        timeout: float | None = None,  # noqa: ASYNC109  same word as in the blocking API
    ) -> AsyncIterator[Result]:
        """Yields every result, also while the request runs; see queue.Request.results."""
        from fairlane.operations.results import flow

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

    async def why(self) -> WhyWaiting:
        """Returns what holds up the request, and an estimate; see queue.Request.why."""
        from fairlane.operations.why import why

        return await self.queue.driver.run(why(self.id))

    async def leases(self, after: str = "") -> RecentLeases:
        """Returns who holds its permits, and what was settled last; see queue.Request.leases."""
        from fairlane.operations.estimate import recent_leases

        return await self.queue.driver.run(recent_leases(self.id, after))

    async def cancel(self, reason: str = "cancelled by the caller") -> bool:
        """Cancels the request; True if it has ended, False while some of it is still held."""
        from fairlane.operations import change

        own = change.cancel(self.id, reason, queue=self.queue.name)
        return await self.queue.driver.run(own)

    async def pause(self) -> str:
        """Starts no more sub-requests until `resume`; see queue.Request.pause."""
        from fairlane.operations import change

        return await self.queue.driver.run(change.pause(self.id))

    async def resume(self) -> str:
        """Continues a paused request; see queue.Request.resume."""
        from fairlane.operations import change

        return await self.queue.driver.run(change.resume(self.id))

    async def set_limit(self, limit: int) -> None:
        """Lets at most `limit` workers take slices from now on; see queue.Request.set_limit."""
        from fairlane.operations import change

        await self.queue.driver.run(change.set_limit(self.id, limit))

    async def set_priority(self, priority: int) -> None:
        """Moves tokens of the request to the lane `priority`; see queue.Request.set_priority."""
        from fairlane.operations import change

        await self.queue.driver.run(change.set_priority(self.id, priority))

    async def set_deadline(self, deadline_s: float) -> None:
        """Starts nothing after so many seconds from now; see queue.Request.set_deadline."""
        from fairlane.operations import change

        await self.queue.driver.run(change.set_deadline(self.id, ms_of("deadline_s", deadline_s)))

    async def set_share(self, share: int) -> None:
        """Gives the tenant of this request another share; see queue.Request.set_share."""
        from fairlane.operations import change

        await self.queue.driver.run(change.set_share(self.id, share))

    async def set_rate(
        self, rate: str | None = None, burst: int | None = None, weight: int | None = None
    ) -> None:
        """Lets at most `rate` sub-requests start from now on; see queue.Request.set_rate."""
        from fairlane.operations.rates import set_rate

        await self.queue.driver.run(set_rate(self.id, rate, burst, weight))

    async def errors(self) -> RequestErrors:
        """Returns how sub-requests failed; see queue.Request.errors."""
        from fairlane.operations import dead_letters

        return await self.queue.driver.run(dead_letters.request_errors(self.id))

    async def dead(self) -> AsyncIterator[DeadSubRequest]:
        """Yields the dead sub-requests with their bodies, first to die first. RequestNotFound."""
        from fairlane.operations import dead_letters

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
        from fairlane.operations import requeue

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
        from fairlane.operations import requeue

        choice = DeadChoice.of(fingerprint, indexes)
        return await self.queue.driver.run(requeue.drop_dead(self.id, choice))

    def __repr__(self) -> str:
        return f"<Request {self.id}>"


class OpenRequest(Request):
    """A request that is still being submitted; see request.OpenRequest.

    The end of `async with queue.open() as request` seals it; after `await queue.open()` call
    `seal`, or use it in `async with`. One task at a time may add to it.
    """

    def __init__(self, queue: Queue, submission: Submission) -> None:
        super().__init__(queue, submission.new.id)
        self._submission = submission

    @property
    def added(self) -> int:
        """Returns how many bodies were added so far; see request.OpenRequest.added."""
        return self._submission.total + self._submission.left_out

    @property
    def left_out(self) -> int:
        """Returns how many of the bodies were left out as repeats; 0 unless it is `distinct`."""
        return self._submission.left_out

    async def add(self, body: Body) -> int | None:
        """Adds one sub-request; returns its index, None if it was left out; see add_many."""
        before = self.left_out
        total = await self.add_many([body])
        return total - 1 if self.left_out == before else None

    async def add_many(self, bodies: Bodies) -> int:
        """Adds sub-requests of an ordinary or async iterable; returns how many there are now."""
        async for chunk in chunks_async(bodies):
            await self.queue.driver.run(self._submission.add(chunk))
        return self._submission.total

    async def seal(self) -> int:
        """Ends the submission; returns how many sub-requests it has. A repeat changes nothing."""
        self.total = await self.queue.driver.run(self._submission.seal())
        return self.total

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            await self.seal()
            return
        with suppress(FairlaneError):  # the block's own error is the one to raise
            await self.queue.driver.run(self._submission.take_back(error))


class Opening:
    """What Queue.open returns: await it for an OpenRequest, or use it in `async with`."""

    def __init__(self, queue: Queue, begun: Operation[Submission], span: ClientSpan) -> None:
        self._queue, self._begun, self._span = queue, begun, span
        self._request: OpenRequest | None = None

    def __await__(self) -> Generator[Any, None, OpenRequest]:
        return self._open().__await__()

    async def _open(self) -> OpenRequest:
        with self._span:
            begun = await self._queue.driver.run(self._begun)
            self._span.sent(begun.new.id, None)
        self._request = OpenRequest(self._queue, begun)
        return self._request

    async def __aenter__(self) -> OpenRequest:
        return await self._open()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._request is not None:
            await self._request.__aexit__(kind, error, trace)
