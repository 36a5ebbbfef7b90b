"""Runs SAQ on Redis: asyncio, uvloop. A blocking handler runs in a pool of threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from actions import main
from handlers import BODY
from peer import AsyncPeer, gather
from saq import Queue, Worker

if TYPE_CHECKING:
    from resp import Resp


class Saq(AsyncPeer):
    def queue_(self) -> Queue:
        return Queue.from_url(self.spec.url, name="q")

    async def aopen(self) -> None:
        self.queue = self.queue_()
        await self.queue.connect()
        self.ttl = 600 if self.spec.results else -1

    async def aput(self, bodies: list[str], tag: int = 0) -> None:
        del tag
        enqueue, ttl = self.queue.enqueue, self.ttl
        await gather(enqueue("handle", body=body, timeout=0, ttl=ttl) for body in bodies)

    async def aput_single(self, body: str) -> None:
        await self.queue.enqueue("handle", body=body, timeout=0, ttl=self.ttl)

    async def aask(self) -> Any:
        asked = await self.queue.enqueue("handle", body=BODY, timeout=0)
        await asked.refresh(until_complete=1)  # by pub/sub, because `apply` polls every 500 ms
        return asked.result

    async def awork(self) -> None:
        sync, coroutine = self.handler, self.handler_async

        def handle(_: Any, *, body: str) -> Any:
            return sync(body)

        async def handle_async(_: Any, *, body: str) -> Any:
            return await coroutine(body)

        chosen = handle_async if self.spec.mode == "async" else handle
        functions = [("handle", chosen)]
        await Worker(self.queue_(), functions, concurrency=self.spec.concurrency).start()

    def left(self, redis: Resp) -> int:
        return redis("LLEN", "saq:q:queued") + redis("LLEN", "saq:q:active")

    def stored(self, redis: Resp) -> int | None:
        return redis("DBSIZE")  # a key for each result


if __name__ == "__main__":
    main(Saq)
