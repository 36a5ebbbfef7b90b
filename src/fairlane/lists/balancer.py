"""Pushes to the shortest of several lists, blocking and for asyncio."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Unpack

from fairlane.aio.queue import Queue as AsyncQueue
from fairlane.common.chunking import Body, chunks, chunks_async
from fairlane.errors import RedisError
from fairlane.lists.service import AsyncConnected, Connected
from fairlane.operations.admission import check_queues, place, withdraw
from fairlane.operations.lists import check_lists, push_shortest
from fairlane.options import id_for, policy_of
from fairlane.queue import Queue

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fairlane.aio.request import Request as AsyncRequest
    from fairlane.common.chunking import Bodies
    from fairlane.option_types import Duration, RequestOptions
    from fairlane.request import Request


class Balancer(Connected):
    """Several lists on one Redis; any thread may use it.

    On one server, and in a cluster where all lists have the same hash tag, each message goes to the
    list that is the shortest at that moment. Other lists in a cluster are compared by one look, at
    no more than eight of them for each chunk of messages.
    """

    @staticmethod
    def _checked(names: Iterable[str]) -> tuple[str, ...]:
        return check_lists(names)

    def push(self, message: Body) -> str:
        """Pushes one message with LPUSH; returns the list that got it.

        Raises InvalidArgument, RedisError.
        """
        (name,) = self.push_many([message])
        return name

    def push_many(self, messages: Iterable[Body]) -> dict[str, int]:
        """Pushes each message to the shortest list; returns how many each list got.

        `messages` may be lazy: they are sent in chunks of at most 1,000 and 1 MiB. Raises
        InvalidArgument, RedisError; chunks before the one that failed are pushed.
        """
        counts: dict[str, int] = {}
        for chunk in chunks(messages):
            found = self._driver.run(push_shortest(self.names, chunk))
            _add(counts, found)
        return counts


class AsyncBalancer(AsyncConnected):
    """Does what Balancer does, awaited."""

    @staticmethod
    def _checked(names: Iterable[str]) -> tuple[str, ...]:
        return check_lists(names)

    async def push(self, message: Body) -> str:
        """Pushes one message; see Balancer.push."""
        (name,) = await self.push_many([message])
        return name

    async def push_many(self, messages: Bodies) -> dict[str, int]:
        """Pushes messages of an ordinary or an async iterable; see Balancer.push_many."""
        counts: dict[str, int] = {}
        async for chunk in chunks_async(messages):
            found = await self._driver.run(push_shortest(self.names, chunk))
            _add(counts, found)
        return counts


def _add(counts: dict[str, int], found: dict[str, int]) -> None:
    for name, count in found.items():
        counts[name] = counts.get(name, 0) + count


# ------------------------------------------------------------------ queue balancer
# Submits each request to the shortest of several queues, blocking and for asyncio.


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
        max_wait: Duration = 0.0,
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
            return queue.submit_request(bodies, id=request_id, max_wait=max_wait, **options)
        except BaseException:
            with contextlib.suppress(RedisError):  # then it counts until its grace is over
                self._driver.run(withdraw(found, request_id))
            raise

    def post(
        self,
        body: Body,
        *,
        id: str | None = None,  # noqa: A002  the word of the API
        max_wait: Duration = 0.0,
        **options: Unpack[RequestOptions],
    ) -> Request:
        """Submits a request of one sub-request to the shortest queue; see submit_request."""
        return self.submit_request([body], id=id, max_wait=max_wait, **options)


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
        max_wait: Duration = 0.0,
        **options: Unpack[RequestOptions],
    ) -> AsyncRequest:
        """Submits one request to the shortest queue; see QueueBalancer.submit_request."""
        request_id = id_for(policy_of(self.names[0], **options), id)
        found = await self._driver.run(place(self.names, request_id))
        queue = AsyncQueue(self._driver, found.queue)
        try:
            return await queue.submit_request(bodies, id=request_id, max_wait=max_wait, **options)
        except BaseException:
            with contextlib.suppress(RedisError):  # then it counts until its grace is over
                await self._driver.run(withdraw(found, request_id))
            raise

    async def post(
        self,
        body: Body,
        *,
        id: str | None = None,  # noqa: A002  the word of the API
        max_wait: Duration = 0.0,
        **options: Unpack[RequestOptions],
    ) -> AsyncRequest:
        """Submits a request of one sub-request; see QueueBalancer.post."""
        return await self.submit_request([body], id=id, max_wait=max_wait, **options)
