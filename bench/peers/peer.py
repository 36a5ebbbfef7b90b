"""What a peer says about itself: how it submits, how it works, what is left."""

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
    """One measurement; the same words for every peer."""

    action: str
    url: str
    variant: str = ""  # of the peer
    n: int = 0
    single: bool = False  # one call for each
    results: bool = True
    handler: str = "noop"
    mode: str = "sync"  # or async
    ms: float = 0.0  # of one handler call
    concurrency: int = 1  # handler calls at once in a process
    processes: int = 1
    samples: int = 0
    sizes: list[int] = field(default_factory=list)  # of the requests
    size: int = 0  # of every request; 0 = one request
    lanes: int = 1
    fill: bool = False  # submit first
    fill_s: float = 1e9  # ... but for so long at most
    partly: bool = False  # n handler calls are enough, more may wait
    cap_s: float = 60.0


class Peer(ABC):
    """A peer with a blocking client."""

    many_processes = False  # True: `work` itself runs spec.processes processes

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.handler: Callable[[Any], Any]
        self.handler_async: Callable[[Any], Awaitable[Any]]

    def open(self) -> None:  # noqa: B027  a peer may need no connection
        """Connects as a client."""

    @abstractmethod
    def put(self, bodies: list[str], tag: int = 0) -> None:
        """Submits them, all at once if the peer can; `tag` says which request they belong to."""

    def put_single(self, body: str) -> None:
        """Submits one with a call of its own."""
        self.put([body])

    def put_urgent(self, body: str) -> None:
        """Submits one that is to overtake all others."""
        self.put_single(body)

    @abstractmethod
    def ask(self) -> Any:
        """Submits one, waits for its result and returns it."""

    @abstractmethod
    def work(self) -> None:
        """Works, in a process of its own, until it is killed."""

    @abstractmethod
    def left(self, redis: Resp) -> int:
        """How many wait or are in work, as Redis says."""

    @abstractmethod
    def stored(self, redis: Resp) -> int | None:
        """How many results Redis holds; None if the peer stores none."""

    def settled(self, redis: Resp) -> bool:
        """Whether all is done: nothing left, and every result there."""
        if self.left(redis):
            return False
        stored = self.stored(redis) if self.spec.results else None
        return stored is None or stored >= self.spec.n

    def submit(self) -> None:
        """All of them, as the measurement wants it."""
        if self.spec.single:
            for _ in range(self.spec.n):
                self.put_single(BODY)
        else:
            self.put([BODY] * self.spec.n)

    def clocked_ask(self, now: Callable[[], float]) -> tuple[float, float]:
        """The times before and after `ask`."""
        before = now()
        self.ask()
        return before, now()


class AsyncPeer(Peer):
    """A peer with an asyncio client: the same as coroutines, named with an `a` before."""

    def open(self) -> None:
        self.loop = new_loop()
        self.loop.run_until_complete(self.aopen())

    @abstractmethod
    async def aopen(self) -> None:
        """Connects as a client."""

    @abstractmethod
    async def aput(self, bodies: list[str], tag: int = 0) -> None:
        """See put."""

    async def aput_single(self, body: str) -> None:
        await self.aput([body])

    async def aput_urgent(self, body: str) -> None:
        await self.aput_single(body)

    @abstractmethod
    async def aask(self) -> Any:
        """See ask."""

    @abstractmethod
    async def awork(self) -> None:
        """See work."""

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

    def clocked_ask(self, now: Callable[[], float]) -> tuple[float, float]:
        async def clocked() -> tuple[float, float]:
            before = now()
            await self.aask()
            return before, now()

        return self.loop.run_until_complete(clocked())


def new_loop() -> asyncio.AbstractEventLoop:
    """uvloop's where the peer's environment has it."""
    try:
        import uvloop
    except ImportError:
        loop = asyncio.new_event_loop()
    else:
        loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    return loop


async def gather(calls: Iterator[Awaitable[Any]], width: int = 1_000) -> None:
    """Awaits all of them, `width` at once."""
    while batch := list(islice(calls, width)):
        await asyncio.gather(*batch)
