"""Submits each request to the shortest of several queues, blocking and for asyncio."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Self, Unpack

from fairlane import settings
from fairlane.aio.queue import Queue as AsyncQueue
from fairlane.drivers.aio.driver import AsyncDriver
from fairlane.drivers.sync.driver import SyncDriver
from fairlane.errors import RedisError
from fairlane.operations.submit.place import check_queues, place, withdraw
from fairlane.options import RequestOptions, id_for, policy_of
from fairlane.queue import Queue
from fairlane.redis_url import resolve_url

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fairlane.aio.request import Request as AsyncRequest
    from fairlane.common.chunking import Bodies, Body
    from fairlane.request import Request


class QueueBalancer:
    """Several queues on one Redis; any thread may use it.

    On one server each request goes to the queue that has the fewest unfinished requests at that
    moment. In a cluster the queues are compared by one look, at no more than eight of them.
    """

    def __init__(self, driver: SyncDriver, queues: Iterable[str]) -> None:
        self.queues = check_queues(queues)
        self._driver = driver

    @classmethod
    def from_url(
        cls,
        queues: Iterable[str],
        url: str | None = None,
        *,
        patience_s: float = settings.PATIENCE_S,
    ) -> Self:
        """Returns a balancer of the queues with these names; see Queue.from_url.

        Raises InvalidArgument.
        """
        return cls(SyncDriver(resolve_url(url), patience_s=patience_s), queues)

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
        request_id = id_for(policy_of(self.queues[0], **options), id)
        found = self._driver.run(place(self.queues, request_id))
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

    def close(self) -> None:
        """Closes the idle connections."""
        self._driver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncQueueBalancer:
    """Does what QueueBalancer does, awaited."""

    def __init__(self, driver: AsyncDriver, queues: Iterable[str]) -> None:
        self.queues = check_queues(queues)
        self._driver = driver

    @classmethod
    def from_url(
        cls,
        queues: Iterable[str],
        url: str | None = None,
        *,
        patience_s: float = settings.PATIENCE_S,
    ) -> Self:
        """Returns a balancer of the queues with these names; see QueueBalancer.from_url."""
        return cls(AsyncDriver(resolve_url(url), patience_s=patience_s), queues)

    async def submit_request(
        self,
        bodies: Bodies,
        *,
        id: str | None = None,  # noqa: A002  the word of the API
        max_wait_s: float = 0.0,
        **options: Unpack[RequestOptions],
    ) -> AsyncRequest:
        """Submits one request to the shortest queue; see QueueBalancer.submit_request."""
        request_id = id_for(policy_of(self.queues[0], **options), id)
        found = await self._driver.run(place(self.queues, request_id))
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

    async def close(self) -> None:
        """Closes the idle connections."""
        await self._driver.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
