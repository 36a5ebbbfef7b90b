"""Runs streaq on Redis streams: asyncio, uvloop, enqueue_many."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from actions import main
from handlers import BODY
from peer import AsyncPeer
from streaq import Worker

if TYPE_CHECKING:
    from resp import Resp


class Streaq(AsyncPeer):
    def worker(self) -> Worker[Any]:
        spec = self.spec
        worker: Worker[Any] = Worker(
            redis_url=spec.url,
            queue_name="q",
            concurrency=spec.concurrency,
            priorities=["low", "high"] if spec.action == "urgent" else ["low"],
            handle_signals=False,
        )
        sync, coroutine = self.handler, self.handler_async

        def handle(body: str) -> Any:
            return sync(body)

        async def handle_async(body: str) -> Any:
            return await coroutine(body)

        options = {"ttl": 600 if spec.results else 0, "name": "handle", "silent": True}
        chosen = handle_async if spec.mode == "async" else handle
        self.task = worker.task(**options)(chosen)
        return worker

    async def aopen(self) -> None:
        self.client = self.worker()
        await self.client.__aenter__()

    async def aput(self, bodies: list[str], tag: int = 0) -> None:
        del tag
        for at in range(0, len(bodies), 1_000):
            tasks = [self.task.enqueue(body) for body in bodies[at : at + 1_000]]
            await self.client.enqueue_many(tasks)

    async def aput_single(self, body: str) -> None:
        await self.task.enqueue(body)

    async def aput_urgent(self, body: str) -> None:
        await self.task.enqueue(body).start(priority="high")

    async def aask(self) -> Any:
        return (await (await self.task.enqueue(BODY)).result(5)).result

    async def awork(self) -> None:
        await self.worker().run_async()

    def left(self, redis: Resp) -> int:
        count = 0
        for name in ("low", "high"):
            if not redis("EXISTS", f"streaq:q:queues:{name}"):
                continue
            groups = redis("XINFO", "GROUPS", f"streaq:q:queues:{name}")
            if groups:
                group = dict(zip(*[iter(groups[0])] * 2, strict=True))
                count += group["pending"] + (group["lag"] or 0)
            else:
                count += redis("XLEN", f"streaq:q:queues:{name}")
        return count

    def stored(self, redis: Resp) -> int | None:
        return redis("ZCARD", "streaq:q:index:results")


if __name__ == "__main__":
    main(Streaq)
