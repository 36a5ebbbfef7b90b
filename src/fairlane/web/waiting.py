"""Shares the waits of a server's callers at Redis: for work, and for results.

A wait holds a connection of its own. So only one of the callers that wait for work waits at Redis,
and one call waits for the next results of all requests (0046).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from fairlane import settings
from fairlane.common import clock
from fairlane.errors import FairlaneError
from fairlane.operations.completion import (
    ResultPage,
    last_completion,
    parse_results,
    place,
    read_completions,
    read_results,
)
from fairlane.operations.results import flow
from fairlane.protocol import keys
from fairlane.protocol.steps import Batch, Command

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from fairlane.aio.queue import Queue
    from fairlane.records import Result


# ------------------------------------------------------------------ recent
# A value that is read once for many callers.


T = TypeVar("T")
RECENT_S = 0.9  # less than the second between two looks of the dashboard's poller


class Recent(Generic[T]):
    """A value that concurrent callers read together, and that is used again for a moment.

    So the load of Redis does not grow with the number of callers. It is used until `keep_s` seconds
    after its read began, and `rest_s` after it ended, however long the read takes.
    """

    def __init__(
        self, read: Callable[[], Awaitable[T]], *, keep_s: float = RECENT_S, rest_s: float = 0.0
    ) -> None:
        self._read, self._keep_s, self._rest_s = read, keep_s, rest_s
        self._forgotten = 0
        self._lock = asyncio.Lock()
        self._value: T | None = None
        self._until = -math.inf

    async def get(self) -> T:
        """Returns the value, which is read if it is too old; raises what `read` raises."""
        async with self._lock:
            began = clock.mono_s()
            if self._value is None or began >= self._until:
                self._value = None
                forgotten = self._forgotten
                self._value = await self._read()
                if forgotten == self._forgotten:
                    until = max(began + self._keep_s, clock.mono_s() + self._rest_s)
                    self._until = until
            return self._value

    def forget(self) -> None:
        """Lets the next caller read anew, because what is read was changed."""
        self._forgotten += 1
        self._until = -math.inf


# ------------------------------------------------------------------ follower
# Follows the completion log for all streams of a server with one blocking call.


_AGAIN_S = 1.0  # the pause after an error of Redis


class Follower:
    """Waits for new endings with one blocking call, however many streams there are."""

    def __init__(self) -> None:
        self.count = 0  # grows whenever there may be new endings
        self._changed = asyncio.Condition()
        self._streams = 0
        self._task: asyncio.Task[None] | None = None

    async def wait(self, seen: int) -> None:
        """Returns when `count` differs from `seen`, because then there may be endings to read."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.count != seen)

    @contextlib.asynccontextmanager
    async def following(self, queue: Queue) -> AsyncGenerator[None, None]:
        """Follows the log while any stream is in this context."""
        self._streams += 1
        if self._task is None:
            self._task = asyncio.create_task(self._follow(queue))
        try:
            yield
        finally:
            self._streams -= 1
            if not self._streams and self._task is not None:
                task, self._task = self._task, None
                task.cancel()

    async def _follow(self, queue: Queue) -> None:
        driver, name = queue.driver, queue.name
        after = ""
        while True:
            try:
                if not after:
                    after = await driver.run(last_completion(name))
                    await self._wake(1)  # each stream reads earlier endings itself
                found = await driver.run(read_completions(name, after, settings.BLOCK_MS))
            except FairlaneError:  # the streams stay open until Redis answers again
                after = ""
                await asyncio.sleep(_AGAIN_S)
                continue
            if found:
                after = found[-1].log_id
                await self._wake(len(found))

    async def _wake(self, more: int) -> None:
        async with self._changed:
            self.count += more
            self._changed.notify_all()


Entries = list[tuple[bytes, list[bytes]]]
LOOK_S = 1.0  # between two checks if a caller still waits
MAX_TRIES = 16  # concurrent tries, because the first calls of a server need own connections
BLOCK_MS = 250  # one wait for results; a new reader is part of the next wait
PAGE = 8  # entries of `out` that one wait brings of each request
STATE_S = settings.BLOCK_MS / 1000  # between two checks if a request has ended
_SOONEST_S, _LATEST_S = 0.02, 0.5  # between two looks at results in a cluster
_EACH_S = 0.001  # that and more for each request, so there are at most 1,000 looks a second


class TakeLine:
    """The callers that wait for work, in a line: only the first one waits at Redis."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._tries = asyncio.Semaphore(MAX_TRIES)

    async def take(
        self,
        take: Callable[[float], Awaitable[list[T]]],
        wait_s: float,
        goes_on: Callable[[], Awaitable[bool]],
    ) -> list[T]:
        """Returns what `take` finds within `wait_s`; [] also if the caller has gone.

        `take` gets how long it may wait at Redis. `goes_on` is called each second.
        """
        ends = clock.mono_s() + wait_s
        async with self._tries:
            found = await take(0.0)
        if found or wait_s <= 0:
            return found
        async with self._my_turn(ends, goes_on) as is_first:
            while is_first and not found and (left_s := ends - clock.mono_s()) > 0:
                found = await take(min(LOOK_S, left_s))
                if not found and not await goes_on():
                    break
        return found

    @contextlib.asynccontextmanager
    async def _my_turn(
        self, ends: float, goes_on: Callable[[], Awaitable[bool]]
    ) -> AsyncGenerator[bool, None]:
        """Waits for the first place; yields False if the time is over or the caller has gone."""
        turn = asyncio.ensure_future(self._turn.acquire())
        try:
            while not turn.done():
                left_s = ends - clock.mono_s()
                await asyncio.wait({turn}, timeout=max(0.0, min(LOOK_S, left_s)))
                if not turn.done() and (left_s <= 0 or not await goes_on()):
                    break
            yield turn.done()
        finally:
            if turn.done():
                self._turn.release()
            else:
                turn.cancel()


class _Read(NamedTuple):
    """The arguments with which `read_results` reads what is behind the entry `after` of `out`."""

    request_id: str
    after: bytes
    block_ms: int
    born: str = ""


@dataclass
class _Wait:
    """The streams that wait for entries behind the same one."""

    found: asyncio.Future[Entries] = field(default_factory=asyncio.Future)
    streams: int = 0


class SharedResultsReader:
    """Reads the results of many requests. One call waits for the next results of all.

    In a cluster, requests are in different slots, and no call can wait for several slots. There
    each request is polled, less often if there are many.
    """

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._waits: dict[tuple[str, bytes], _Wait] = {}
        self._pause_s = _SOONEST_S
        self._task: asyncio.Task[None] | None = None

    async def results(self, request_id: str, order: str) -> AsyncGenerator[Result, None]:
        """Yields every result, also while the request runs; see queue.Request.results."""
        items = flow(request_id, order, read=_Read)
        try:
            item: Any = next(items)
            while True:
                if isinstance(item, list):
                    for result in item:
                        yield result
                    item = next(items)
                elif isinstance(item, _Read):
                    item = items.send(await self._read(item))
                else:
                    item = items.send(await self._queue.driver.run(item))
        except StopIteration:
            return

    async def _read(self, wanted: _Read) -> ResultPage:
        request_id, after, _, born = wanted
        page = await self._queue.driver.run(read_results(request_id, after, 0, born))
        if page.entries or page.is_last:
            return page
        rows = await self._next(request_id, after)
        return page._replace(entries=[(name, parse_results(fields)) for name, fields in rows])

    async def _next(self, request_id: str, after: bytes) -> Entries:
        """Returns entries behind `after` as soon as there are any; [] after STATE_S."""
        at = (request_id, after)
        wait = self._waits.setdefault(at, _Wait())
        wait.streams += 1
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._follow())
        self._pause_s = _SOONEST_S
        try:
            await asyncio.wait({wait.found}, timeout=STATE_S)
            return wait.found.result() if wait.found.done() else []
        finally:
            wait.streams -= 1
            if not wait.streams and self._waits.get(at) is wait:
                del self._waits[at]

    async def _follow(self) -> None:
        driver = self._queue.driver
        while self._waits:
            # If readers are at two places of one stream, the earlier one need not wait.
            asked = dict(sorted(self._waits, key=_newest_first))
            try:
                if driver.is_cluster:
                    await asyncio.sleep(max(self._pause_s, _EACH_S * len(asked)))
                    self._pause_s = min(2 * self._pause_s, _LATEST_S)
                    found = await driver.run(_look_at_each(asked))
                else:
                    found = await driver.run(_wait_for_any(asked))
            except FairlaneError:  # the streams' own calls raise it
                await asyncio.sleep(_AGAIN_S)
                continue
            for request_id, rows in found:
                wait = self._waits.pop((request_id, asked[request_id]), None)
                if wait is not None:
                    wait.found.set_result(rows)
                    self._pause_s = _SOONEST_S


def _newest_first(at: tuple[str, bytes]) -> tuple[int, int]:
    ms, seq = place(at[1].decode())
    return -ms, -seq


async def _wait_for_any(asked: dict[str, bytes]) -> list[tuple[str, Entries]]:
    """Returns what is behind these entries, as soon as there is anything."""
    names = {keys.results(one): one for one in asked}
    reply = await Command(
        *(b"XREAD", b"COUNT", PAGE, b"BLOCK", BLOCK_MS, b"STREAMS"), *names, *asked.values()
    )
    return [(names[name], rows) for name, rows in reply or []]


async def _look_at_each(asked: dict[str, bytes]) -> list[tuple[str, Entries]]:
    """Returns what is behind these entries now."""
    looks = [
        Command(b"XREAD", b"COUNT", PAGE, b"STREAMS", keys.results(one), after)
        for one, after in asked.items()
    ]
    replies = await Batch(looks, lenient=True)
    return [
        (one, entries)
        for one, reply in zip(asked, replies, strict=True)
        if not isinstance(reply, FairlaneError)
        for _, entries in reply or ()
    ]
