"""Runs Celery on Redis. Its worker acknowledges before the call, which is its default."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import handlers
from actions import main
from celery import Celery
from peer import Peer

if TYPE_CHECKING:
    from resp import Resp


class CeleryPeer(Peer):
    many_processes = True

    def __init__(self, spec: Any) -> None:
        super().__init__(spec)
        self.app = Celery("bench", broker=spec.url, backend=spec.url)
        self.app.conf.update(
            task_ignore_result=not spec.results,
            worker_prefetch_multiplier=1 if spec.action in {"urgent", "fairness"} else 64,
            worker_disable_rate_limits=True,
            worker_hijack_root_logger=False,
            worker_enable_remote_control=False,
            worker_send_task_events=False,
            broker_connection_retry_on_startup=True,
            broker_transport_options={
                "priority_steps": [0, 9],
                "queue_order_strategy": "priority" if spec.action == "urgent" else "round_robin",
            },
        )

    def names(self) -> list[str]:
        return [f"q{tag}" for tag in range(max(1, len(self.spec.sizes)))]

    def open(self) -> None:
        self.task = self.app.task(name="handle")(handlers.handle)
        self.producer = self.app.producer_pool.acquire(block=True)

    def put(self, bodies: list[str], tag: int = 0) -> None:
        for body in bodies:
            self.task.apply_async((body,), producer=self.producer, queue=f"q{tag}", priority=9)

    def put_urgent(self, body: str) -> None:
        self.task.apply_async((body,), producer=self.producer, queue="q0", priority=0)

    def ask(self) -> Any:
        sent = self.task.apply_async(
            (handlers.BODY,), producer=self.producer, queue="q0", priority=9
        )
        return sent.get(timeout=5)

    def work(self) -> None:
        handler, spec = self.handler, self.spec

        def handle(body: str) -> Any:
            return handler(body)

        self.app.task(name="handle")(handle)
        pool, count = "threads", spec.concurrency
        if spec.processes > 1:
            pool, count = "prefork", spec.processes
        elif spec.concurrency == 1:
            pool = "solo"
        self.app.Worker(
            pool=pool,
            concurrency=count,
            queues=self.names(),
            loglevel="ERROR",
            quiet=True,
            without_gossip=True,
            without_mingle=True,
            without_heartbeat=True,
        ).start()

    def left(self, redis: Resp) -> int:
        steps = ("", "\x06\x169")
        waiting = sum(redis("LLEN", f"{name}{step}") for name in self.names() for step in steps)
        return waiting + redis("HLEN", "unacked")

    def stored(self, redis: Resp) -> int | None:
        own = ("_kombu.binding.q0", "_kombu.binding_permanent.q0")
        return redis("DBSIZE") - redis("EXISTS", *own)  # a key for each result


if __name__ == "__main__":
    main(CeleryPeer)
