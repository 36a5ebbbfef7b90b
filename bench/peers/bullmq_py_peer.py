"""Runs BullMQ's Python port: asyncio, uvloop, addBulk."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any

from actions import main
from bullmq import Queue, QueueEvents, Worker
from handlers import BODY
from peer import AsyncPeer

if TYPE_CHECKING:
    from resp import Resp


class BullmqPy(AsyncPeer):
    async def aopen(self) -> None:
        self.queue = Queue("q", {"connection": self.spec.url})
        self.numbers = itertools.count()
        self.waiting: dict[str, asyncio.Future[Any]] = {}
        if self.spec.action == "latency":
            self.events = QueueEvents("q", {"connection": self.spec.url})
            self.events.on("completed", self._completed)
            await asyncio.sleep(0.5)  # because it misses the events before its first read

    def _completed(self, event: dict[str, Any], *_: Any) -> None:
        future = self.waiting.pop(event["jobId"], None)
        if future:
            future.set_result(event["returnvalue"])

    def options(self) -> dict[str, Any]:
        return {} if self.spec.results else {"removeOnComplete": True}

    async def aput(self, bodies: list[str], tag: int = 0) -> None:
        del tag
        options = self.options()
        if self.spec.action == "urgent":
            options["priority"] = 10
        for at in range(0, len(bodies), 1_000):
            await self.queue.addBulk(
                [
                    {"name": "handle", "data": body, "opts": options}
                    for body in bodies[at : at + 1_000]
                ]
            )

    async def aput_single(self, body: str) -> None:
        await self.queue.add("handle", body, self.options())

    async def aput_urgent(self, body: str) -> None:
        await self.queue.add("handle", body, {**self.options(), "priority": 1})

    async def aask(self) -> Any:
        future = asyncio.get_running_loop().create_future()
        name = f"ask{next(self.numbers)}"  # because BullMQ drops an id that exists
        self.waiting[name] = future
        await self.queue.add("handle", BODY, {"jobId": name})
        return await asyncio.wait_for(future, 5)

    async def awork(self) -> None:
        coroutine = self.handler_async

        async def handle(job: Any, _: str) -> Any:
            return await coroutine(job.data)

        options = {"connection": self.spec.url, "concurrency": self.spec.concurrency}
        worker = Worker("q", handle, {**options, "autorun": False})
        await worker.run()

    def left(self, redis: Resp) -> int:
        lists = redis("LLEN", "bull:q:wait") + redis("LLEN", "bull:q:active")
        return lists + redis("ZCARD", "bull:q:prioritized")

    def stored(self, redis: Resp) -> int | None:
        return redis("ZCARD", "bull:q:completed")


if __name__ == "__main__":
    main(BullmqPy)
