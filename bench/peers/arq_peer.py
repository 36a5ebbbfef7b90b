"""Runs arq: asyncio, uvloop. The worker polls every 10 ms instead of its default 500 ms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from actions import main
from arq import Worker, create_pool, func
from arq.connections import RedisSettings
from handlers import BODY
from peer import AsyncPeer, gather

if TYPE_CHECKING:
    from resp import Resp

_POLL_S = 0.01


class Arq(AsyncPeer):
    async def aopen(self) -> None:
        self.pool = await create_pool(RedisSettings.from_dsn(self.spec.url))

    async def aput(self, bodies: list[str], tag: int = 0) -> None:
        del tag
        await gather((self.pool.enqueue_job("handle", body) for body in bodies), 200)

    async def aput_single(self, body: str) -> None:
        await self.pool.enqueue_job("handle", body)

    async def aask(self) -> Any:
        return await (await self.pool.enqueue_job("handle", BODY)).result(
            timeout=5, poll_delay=_POLL_S
        )

    async def awork(self) -> None:
        coroutine = self.handler_async

        async def handle(_: Any, body: str) -> Any:
            return await coroutine(body)

        worker = Worker(
            [func(handle, name="handle")],
            redis_settings=RedisSettings.from_dsn(self.spec.url),
            max_jobs=self.spec.concurrency,
            poll_delay=_POLL_S,
            keep_result=600 if self.spec.results else 0,
            handle_signals=False,
            log_results=False,
        )
        await worker.main()

    def left(self, redis: Resp) -> int:
        return redis("ZCARD", "arq:queue")

    def stored(self, redis: Resp) -> int | None:
        return redis("DBSIZE")  # a key for each result


if __name__ == "__main__":
    main(Arq)
