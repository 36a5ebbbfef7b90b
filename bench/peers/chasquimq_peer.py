"""Runs ChasquiMQ: a Rust engine with asyncio handlers, uvloop, add_bulk. It needs Redis 8.6."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from actions import main
from chasquimq import Queue, Worker
from handlers import BODY
from peer import AsyncPeer

if TYPE_CHECKING:
    from resp import Resp

_STREAM = "{chasqui:q}:stream"
_OTHERS = tuple(f"{{chasqui:q}}:{name}" for name in ("promoter:lock", "scheduler:lock"))
_MOST = (
    100_000_000  # because the default trims a stream of more than 1,000,000 jobs, and loses them
)
_POLL_S = 0.0005


class Chasquimq(AsyncPeer):
    async def aopen(self) -> None:
        self.queue = Queue("q", redis_url=self.spec.url, max_stream_len=_MOST)

    async def aput(self, bodies: list[str], tag: int = 0) -> None:
        del tag
        for at in range(0, len(bodies), 1_000):
            chunk = bodies[at : at + 1_000]
            await self.queue.add_bulk([{"name": "handle", "data": body} for body in chunk])

    async def aput_single(self, body: str) -> None:
        await self.queue.add("handle", body)

    async def aask(self) -> Any:
        job = await self.queue.add("handle", BODY)
        return await job.wait_for_result(timeout=5, poll_interval=_POLL_S)

    async def awork(self) -> None:
        coroutine = self.handler_async

        async def handle(job: Any) -> Any:
            return await coroutine(job.data)

        worker = Worker(
            "q",
            handle,
            redis_url=self.spec.url,
            concurrency=self.spec.concurrency,
            store_results=self.spec.results,
            events_enabled=False,
        )
        await worker.run()

    def left(self, redis: Resp) -> int:
        return redis("XLEN", _STREAM)  # an acknowledged job is deleted

    def stored(self, redis: Resp) -> int | None:
        return redis("DBSIZE") - redis("EXISTS", _STREAM, *_OTHERS)  # a key for each result


if __name__ == "__main__":
    main(Chasquimq)
