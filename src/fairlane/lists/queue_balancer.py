"""Submits each request to the shortest of several queues, blocking and for asyncio."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Unpack

from fairlane.aio.queue import Queue as AsyncQueue
from fairlane.errors import RedisError
from fairlane.lists.connected import AsyncConnected, Connected
from fairlane.operations.admission import check_queues, place, withdraw
from fairlane.options import RequestOptions, id_for, policy_of
from fairlane.queue import Queue

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fairlane.aio.request import Request as AsyncRequest
    from fairlane.common.chunking import Bodies, Body
    from fairlane.request import Request


class QueueBalancer(Connected):
    """Several queues on one Redis; any thread may use it.

    On one server each request goes to the queue that has the fewest unfinished requests at that
    moment. In a cluster the queues are compared by one look, at no more than eight of them.
    """

    @staticmethod
    def _checked(names: Iterable[str]) -> tuple[str, ...]:
        return check_queues(names)

    def submit_request(
        self,
        bodies: Iterable[Body],
        *,
        id: str | None = None,  # noqa: A002  the word of the API
        max_wait_s: float = 0.0,
        **options: Unpack[RequestOptions],
    ) -> Request:
        """Submits one request to the shortest queue; the request's `queue.name` is which one.

        With an `id`, a repeat finds the same queue. The options and errors are those of
        Queue.submit_request.
        """
        request_id = id_for(policy_of(self.names[0], **options), id)
        found = self._driver.run(place(self.names, request_id))
        queue = Queue(self._driver, found.queue)
        try:
            return queue.submit_request(bodies, id=request_id, max_wait_s=max_wait_s, **options)
        except BaseException:
            with contextlib.suppress(RedisError):  # then it counts until its grace is over
                self._driver.run(withdraw(found, request_id))
            raise

    def post(
        self,
        body: Body,
        *,
        id: str | None = None,  # noqa: A002  the word of the API
        max_wait_s: float = 0.0,
        **options: Unpack[RequestOptions],
    ) -> Request:
        """Submits a request of one sub-request to the shortest queue; see submit_request."""
        return self.submit_request([body], id=id, max_wait_s=max_wait_s, **options)


class AsyncQueueBalancer(AsyncConnected):
    """Does what QueueBalancer does, awaited."""

    @staticmethod
    def _checked(names: Iterable[str]) -> tuple[str, ...]:
        return check_queues(names)

    async def submit_request(
        self,
        bodies: Bodies,
        *,
        id: str | None = None,  # noqa: A002  the word of the API
        max_wait_s: float = 0.0,
        **options: Unpack[RequestOptions],
    ) -> AsyncRequest:
        """Submits one request to the shortest queue; see QueueBalancer.submit_request."""
        request_id = id_for(policy_of(self.names[0], **options), id)
        found = await self._driver.run(place(self.names, request_id))
        queue = AsyncQueue(self._driver, found.queue)
        try:
            return await queue.submit_request(
                bodies, id=request_id, max_wait_s=max_wait_s, **options
            )
        except BaseException:
            with contextlib.suppress(RedisError):  # then it counts until its grace is over
                await self._driver.run(withdraw(found, request_id))
            raise

    async def post(
        self,
        body: Body,
        *,
        id: str | None = None,  # noqa: A002  the word of the API
        max_wait_s: float = 0.0,
        **options: Unpack[RequestOptions],
    ) -> AsyncRequest:
        """Submits a request of one sub-request; see QueueBalancer.post."""
        return await self.submit_request([body], id=id, max_wait_s=max_wait_s, **options)
