"""Runs RQ: SimpleWorker, which does not fork for a call, enqueue_many, concurrency by processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from actions import main
from handlers import BODY
from peer import Peer
from redis import Redis
from rq import Queue, SimpleWorker
from rq.serializers import JSONSerializer

if TYPE_CHECKING:
    from resp import Resp

_HANDLER = "handlers.handle"


class Rq(Peer):
    def __init__(self, spec: Any) -> None:
        super().__init__(spec)
        spec.processes, spec.concurrency = spec.processes * spec.concurrency, 1
        self.ttl = 600 if spec.results else 0

    def names(self) -> list[str]:
        return ["urgent", *(f"q{tag}" for tag in range(max(1, len(self.spec.sizes))))]

    def open(self) -> None:
        redis = Redis.from_url(self.spec.url)
        self.queues = {
            name: Queue(name, connection=redis, serializer=JSONSerializer) for name in self.names()
        }

    def put(self, bodies: list[str], tag: int = 0) -> None:
        queue = self.queues[f"q{tag}"]
        for at in range(0, len(bodies), 1_000):
            queue.enqueue_many(
                [
                    Queue.prepare_data(_HANDLER, args=(body,), result_ttl=self.ttl)
                    for body in bodies[at : at + 1_000]
                ]
            )

    def put_single(self, body: str) -> None:
        self.queues["q0"].enqueue(_HANDLER, body, result_ttl=self.ttl)

    def put_urgent(self, body: str) -> None:
        self.queues["urgent"].enqueue(_HANDLER, body, result_ttl=self.ttl)

    def ask(self) -> Any:
        done = self.queues["q0"].enqueue(_HANDLER, BODY, result_ttl=self.ttl)
        return done.latest_result(timeout=5).return_value

    def work(self) -> None:
        redis = Redis.from_url(self.spec.url)
        worker = SimpleWorker(self.names(), connection=redis, serializer=JSONSerializer)
        worker.log_job_description = False
        fair = self.spec.action == "fairness"
        worker.work(logging_level="ERROR", **({"dequeue_strategy": "round_robin"} if fair else {}))

    def left(self, redis: Resp) -> int:
        return sum(
            redis("LLEN", f"rq:queue:{name}") + redis("ZCARD", f"rq:wip:{name}")
            for name in self.names()
        )

    def stored(self, redis: Resp) -> int | None:
        return redis("ZCARD", "rq:finished:q0")


if __name__ == "__main__":
    main(Rq)
