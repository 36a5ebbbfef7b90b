"""Runs huey on Redis: threads, notification of results. Calls of a dead worker are lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from actions import main
from handlers import BODY
from huey import PriorityRedisHuey, RedisHuey
from peer import Peer
from redis import ConnectionPool

if TYPE_CHECKING:
    from resp import Resp


class HueyPeer(Peer):
    def huey(self) -> Any:
        spec = self.spec
        make = PriorityRedisHuey if spec.action == "urgent" else RedisHuey
        options = {"notify_result": True} if spec.action == "latency" else {}
        pool = ConnectionPool.from_url(spec.url, max_connections=2 * spec.concurrency + 10)
        made = make("q", connection_pool=pool, results=spec.results, immediate=False, **options)
        handler = self.handler

        def handle(body: str) -> Any:
            return handler(body)

        self.task = made.task()(handle)
        return made

    def open(self) -> None:
        self.huey()

    def put(self, bodies: list[str], tag: int = 0) -> None:
        del tag
        for body in bodies:
            self.task(body)

    def put_urgent(self, body: str) -> None:
        self.task(body, priority=9)

    def ask(self) -> Any:
        return self.task(BODY).get(blocking=True, timeout=5)

    def work(self) -> None:
        self.huey().create_consumer(
            workers=self.spec.concurrency,
            worker_type="thread",
            periodic=False,
            check_worker_health=False,
            initial_delay=0.001,
        ).run()

    def left(self, redis: Resp) -> int:
        kind = redis("TYPE", "huey.redis.q")
        return 0 if kind == "none" else redis("ZCARD" if kind == "zset" else "LLEN", "huey.redis.q")

    def stored(self, redis: Resp) -> int | None:
        return redis("HLEN", "huey.results.q")


if __name__ == "__main__":
    main(HueyPeer)
