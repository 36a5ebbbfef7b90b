"""Pushes to the shortest of several lists, blocking and for asyncio."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from fairlane import settings
from fairlane.common.chunking import Body, chunks, chunks_async
from fairlane.drivers.aio.driver import AsyncDriver
from fairlane.drivers.sync.driver import SyncDriver
from fairlane.operations.lists.balance import check_lists, push_shortest
from fairlane.redis_url import resolve_url

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fairlane.common.chunking import Bodies


class Balancer:
    """Several lists on one Redis; any thread may use it.

    On one server, and in a cluster where all lists have the same hash tag, each message goes to the
    list that is the shortest at that moment. Other lists in a cluster are compared by one look, at
    no more than eight of them for each chunk of messages.
    """

    def __init__(self, driver: SyncDriver, lists: Iterable[str]) -> None:
        self.lists = check_lists(lists)
        self._driver = driver

    @classmethod
    def from_url(
        cls,
        lists: Iterable[str],
        url: str | None = None,
        *,
        patience_s: float = settings.PATIENCE_S,
    ) -> Self:
        """Returns a balancer of `lists` on the Redis at `url`; see Queue.from_url.

        Raises InvalidArgument.
        """
        return cls(SyncDriver(resolve_url(url), patience_s=patience_s), lists)

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
            found = self._driver.run(push_shortest(self.lists, chunk))
            _add(counts, found)
        return counts

    def close(self) -> None:
        """Closes the idle connections."""
        self._driver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncBalancer:
    """Does what Balancer does, awaited."""

    def __init__(self, driver: AsyncDriver, lists: Iterable[str]) -> None:
        self.lists = check_lists(lists)
        self._driver = driver

    @classmethod
    def from_url(
        cls,
        lists: Iterable[str],
        url: str | None = None,
        *,
        patience_s: float = settings.PATIENCE_S,
    ) -> Self:
        """Returns a balancer of `lists` on the Redis at `url`; see Balancer.from_url."""
        return cls(AsyncDriver(resolve_url(url), patience_s=patience_s), lists)

    async def push(self, message: Body) -> str:
        """Pushes one message; see Balancer.push."""
        (name,) = await self.push_many([message])
        return name

    async def push_many(self, messages: Bodies) -> dict[str, int]:
        """Pushes messages of an ordinary or an async iterable; see Balancer.push_many."""
        counts: dict[str, int] = {}
        async for chunk in chunks_async(messages):
            found = await self._driver.run(push_shortest(self.lists, chunk))
            _add(counts, found)
        return counts

    async def close(self) -> None:
        """Closes the idle connections."""
        await self._driver.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _add(counts: dict[str, int], found: dict[str, int]) -> None:
    for name, count in found.items():
        counts[name] = counts.get(name, 0) + count
