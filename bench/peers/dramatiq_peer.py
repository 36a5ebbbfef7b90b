"""Runs Dramatiq on Redis: threads, the middleware that a worker needs, no Prometheus."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import dramatiq
from actions import main
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import AsyncIO, Retries
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend
from handlers import BODY
from peer import Peer

if TYPE_CHECKING:
    from resp import Resp


class Dramatiq(Peer):
    def actors(self) -> None:
        spec = self.spec
        middleware = [Retries(max_retries=3)]
        if spec.mode == "async":
            middleware.append(AsyncIO())
        if spec.results:
            middleware.append(Results(backend=RedisBackend(url=spec.url), store_results=True))
        self.broker = RedisBroker(url=spec.url, middleware=middleware)
        dramatiq.set_broker(self.broker)
        handler = self.handler_async if spec.mode == "async" else self.handler
        self.send = {}
        for name in self.names():
            priority = 0 if name == "urgent" else 9
            actor = dramatiq.actor(actor_name=name, queue_name=name, priority=priority)(handler)
            self.send[name] = actor.send

    def names(self) -> list[str]:
        return ["urgent", *(f"q{tag}" for tag in range(max(1, len(self.spec.sizes))))]

    def open(self) -> None:
        self.actors()

    def put(self, bodies: list[str], tag: int = 0) -> None:
        send = self.send[f"q{tag}"]
        for body in bodies:
            send(body)

    def put_urgent(self, body: str) -> None:
        self.send["urgent"](body)

    def ask(self) -> Any:
        return self.send["q0"](BODY).get_result(block=True, timeout=5_000)

    def work(self) -> None:
        self.actors()
        worker = dramatiq.Worker(self.broker, worker_threads=self.spec.concurrency)
        worker.start()
        threading.Event().wait()

    def left(self, redis: Resp) -> int:
        return sum(redis("HLEN", f"dramatiq:{name}.msgs") for name in self.names())

    def stored(self, redis: Resp) -> int | None:
        return redis("DBSIZE")  # a key for each result


if __name__ == "__main__":
    main(Dramatiq)
