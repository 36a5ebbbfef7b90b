"""Runs taskiq on Redis streams: the broker that acknowledges, asyncio, uvloop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from actions import main
from handlers import BODY
from peer import AsyncPeer, gather
from taskiq.api import run_receiver_task
from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

if TYPE_CHECKING:
    from resp import Resp


class Taskiq(AsyncPeer):
    def broker(self) -> Any:
        broker = RedisStreamBroker(self.spec.url, queue_name="q", consumer_id="0")
        if self.spec.results:
            backend = RedisAsyncResultBackend(self.spec.url, result_ex_time=600)
            broker = broker.with_result_backend(backend)
        sync, coroutine = self.handler, self.handler_async

        def handle(body: str) -> Any:
            return sync(body)

        async def handle_async(body: str) -> Any:
            return await coroutine(body)

        chosen = handle_async if self.spec.mode == "async" else handle
        self.task = broker.register_task(chosen, "handle")
        return broker

    async def aopen(self) -> None:
        await self.broker_started()

    async def broker_started(self) -> Any:
        broker = self.broker()
        await broker.startup()
        return broker

    async def aput(self, bodies: list[str], tag: int = 0) -> None:
        del tag
        await gather((self.task.kiq(body) for body in bodies), 100)

    async def aput_single(self, body: str) -> None:
        await self.task.kiq(body)

    async def aask(self) -> Any:
        return await (await self.task.kiq(BODY)).wait_result(check_interval=0.0005, timeout=5)

    async def awork(self) -> None:
        broker = self.broker()
        await run_receiver_task(
            broker,
            sync_workers=self.spec.concurrency,
            max_async_tasks=self.spec.concurrency,
            max_prefetch=self.spec.concurrency,
            validate_params=False,
            run_startup=True,
        )

    def left(self, redis: Resp) -> int:
        group = dict(zip(*[iter(redis("XINFO", "GROUPS", "q")[0])] * 2, strict=True))
        return group["pending"] + group["lag"]

    def stored(self, redis: Resp) -> int | None:
        return redis("DBSIZE") - 1  # a key for each result, and the stream


if __name__ == "__main__":
    main(Taskiq)
