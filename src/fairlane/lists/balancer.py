"""Pushes to the shortest of several lists, blocking and for asyncio."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlane.common.chunking import Body, chunks, chunks_async
from fairlane.lists.connected import AsyncConnected, Connected
from fairlane.operations.lists import check_lists, push_shortest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fairlane.common.chunking import Bodies


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
