# Generated from lists/async_balancer.py by `make generate`: do not edit it.
"""Pushes to the shortest of several lists, and submits to the shortest of several queues."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Self, Unpack

from fairlane import settings
from fairlane.common.chunking import chunks
from fairlane.default_redis import resolve_url
from fairlane.drivers.sync import SyncDriver
from fairlane.errors import RedisError
from fairlane.lists.async_balancer import AsyncBalancer, AsyncQueueBalancer
from fairlane.operations.admission import check_queues, place, withdraw
from fairlane.operations.lists import check_lists, push_shortest
from fairlane.options import id_for, policy_of
from fairlane.queue import Queue

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fairlane.common.chunking import Body
    from fairlane.option_types import Duration, RequestOptions
    from fairlane.request import Request

__all__ = [
    "AsyncBalancer",
    "AsyncQueueBalancer",
    "Balancer",
    "QueueBalancer",
]


class _Named(ABC):
    """Has the checked names."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = self._checked(names)

    @staticmethod
    @abstractmethod
    def _checked(names: Iterable[str]) -> tuple[str, ...]:
        """Returns the names. Raises InvalidArgument."""


class Connected(_Named):
    """Names on one Redis; any thread may use it."""

    def __init__(self, driver: SyncDriver, names: Iterable[str]) -> None:
        super().__init__(names)
        self._driver = driver

    @classmethod
    def from_url(
        cls,
        names: Iterable[str],
        url: str | None = None,
        *,
        patience_s: float = settings.PATIENCE_S,
    ) -> Self:
        """Returns one for these names on the Redis at `url`; see Queue.from_url.

        Raises InvalidArgument.
        """
        return cls(SyncDriver(resolve_url(url), patience_s=patience_s), names)

    def close(self) -> None:
        """Closes the idle connections."""
        self._driver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


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


def _add(counts: dict[str, int], found: dict[str, int]) -> None:
    for name, count in found.items():
        counts[name] = counts.get(name, 0) + count


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
