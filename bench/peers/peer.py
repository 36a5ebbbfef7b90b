"""Defines the methods of a peer: how it submits, how it works, and how many calls are left."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

from handlers import BODY

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from resp import Resp


@dataclass
class Spec:
    """Describes one measurement, in the same terms for every peer."""

    action: str
    url: str
    variant: str = ""  # variant of the peer
    n: int = 0
    single: bool = False  # whether each body has a call of its own
    results: bool = True
    handler: str = "noop"
    mode: str = "sync"  # or async
    ms: float = 0.0  # time of one handler call
    concurrency: int = 1  # concurrent handler calls in a process
    processes: int = 1
    samples: int = 0
    sizes: list[int] = field(default_factory=list)  # sizes of the requests
    size: int = 0  # size of every request; 0 = one request
    lanes: int = 1
    fill: bool = False  # whether the action submits first
    fill_s: float = 1e9  # time limit of this submission
    partly: bool = False  # whether n handler calls suffice while more calls wait
    cap_s: float = 60.0


class Peer(ABC):
    """Defines a peer with a blocking client."""

    many_processes = False  # True if `work` itself starts spec.processes processes

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.handler: Callable[[Any], Any]
        self.handler_async: Callable[[Any], Awaitable[Any]]

    def open(self) -> None:  # noqa: B027  a peer may need no connection
        """Connects as a client."""

    @abstractmethod
    def put(self, bodies: list[str], tag: int = 0) -> None:
        """Submits bodies of the request `tag`, in one call if the peer supports that."""

    def put_single(self, body: str) -> None:
        """Submits one body by a call of its own."""
        self.put([body])

    def put_urgent(self, body: str) -> None:
        """Submits one body that must overtake all others."""
        self.put_single(body)

    @abstractmethod
    def ask(self) -> Any:
        """Submits one body; waits for the result and returns it."""

    @abstractmethod
    def work(self) -> None:
        """Runs a worker until its process is killed."""

    @abstractmethod
    def left(self, redis: Resp) -> int:
        """Returns how many calls wait or run, as a count in Redis."""

    @abstractmethod
    def stored(self, redis: Resp) -> int | None:
        """Returns how many results Redis holds; None if the peer stores none."""

    def settled(self, redis: Resp) -> bool:
        """Returns whether no call is left and every result is stored."""
        if self.left(redis):
            return False
        stored = self.stored(redis) if self.spec.results else None
        return stored is None or stored >= self.spec.n

    def submit(self) -> None:
        """Submits all bodies, each by a call of its own if the measurement requires that."""
        if self.spec.single:
            for _ in range(self.spec.n):
                self.put_single(BODY)
        else:
            self.put([BODY] * self.spec.n)

    def clocked_ask(self, now: Callable[[], float]) -> tuple[float, float | None]:
        """Returns the times before and after `ask`; None if no result can be awaited."""
        before = now()
        self.ask()
        return before, now()


class AsyncPeer(Peer):
    """Defines a peer with an asyncio client; the names of its coroutines begin with `a`."""

    def open(self) -> None:
        self.loop = new_loop()
        self.loop.run_until_complete(self.aopen())

    @abstractmethod
    async def aopen(self) -> None:
        """Connects as a client."""

    @abstractmethod
    async def aput(self, bodies: list[str], tag: int = 0) -> None:
        """Submits bodies as `put` does."""

    async def aput_single(self, body: str) -> None:
        await self.aput([body])

    async def aput_urgent(self, body: str) -> None:
        await self.aput_single(body)

    @abstractmethod
    async def aask(self) -> Any:
        """Submits one body and returns its result as `ask` does."""

    @abstractmethod
    async def awork(self) -> None:
        """Runs a worker as `work` does."""

    def ask(self) -> Any:
        return self.loop.run_until_complete(self.aask())

    def put(self, bodies: list[str], tag: int = 0) -> None:
        self.loop.run_until_complete(self.aput(bodies, tag))

    def put_single(self, body: str) -> None:
        self.loop.run_until_complete(self.aput_single(body))

    def put_urgent(self, body: str) -> None:
        self.loop.run_until_complete(self.aput_urgent(body))

    def submit(self) -> None:
        self.loop.run_until_complete(self._submit())

    def work(self) -> None:
        new_loop().run_until_complete(self.awork())

    async def _submit(self) -> None:
        if self.spec.single:
            for _ in range(self.spec.n):
                await self.aput_single(BODY)
        else:
            await self.aput([BODY] * self.spec.n)

    def clocked_ask(self, now: Callable[[], float]) -> tuple[float, float | None]:
        async def clocked() -> tuple[float, float]:
            before = now()
            await self.aask()
            return before, now()

        return self.loop.run_until_complete(clocked())


def new_loop() -> asyncio.AbstractEventLoop:
    """Returns a loop of uvloop if the peer's environment has uvloop, else one of asyncio."""
    try:
        import uvloop
    except ImportError:
        loop = asyncio.new_event_loop()
    else:
        loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    return loop


async def gather(calls: Iterator[Awaitable[Any]], width: int = 1_000) -> None:
    """Awaits all calls, `width` of them concurrently."""
    while batch := list(islice(calls, width)):
        await asyncio.gather(*batch)
