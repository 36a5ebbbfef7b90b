"""Runs plain Redis commands by redis-py: the upper limit of a queue on streams."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import redis
from actions import main
from handlers import BODY
from peer import Peer

if TYPE_CHECKING:
    from resp import Resp

_PIPELINE = 1_000


class Raw(Peer):
    """Reads by XREADGROUP and acknowledges by XACK.

    Variants: "" reads COUNT 100, "count1" reads COUNT 1, "script" has one script for both commands.
    """

    script = """
redis.call('XACK', KEYS[1], 'g', ARGV[1])
return redis.call('XREADGROUP', 'GROUP', 'g', 'c', 'COUNT', 1, 'STREAMS', KEYS[1], '>')
"""

    def open(self) -> None:
        self.redis = redis.Redis.from_url(self.spec.url, protocol=2)
        self.declare(self.redis)

    def declare(self, client: redis.Redis) -> None:
        with contextlib.suppress(redis.ResponseError):  # the group exists
            client.execute_command("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")

    def put(self, bodies: list[str], tag: int = 0) -> None:
        del tag
        for at in range(0, len(bodies), _PIPELINE):
            pipe = self.redis.pipeline(transaction=False)
            for body in bodies[at : at + _PIPELINE]:
                pipe.execute_command("XADD", "s", "*", "b", body)
            pipe.execute()

    def put_single(self, body: str) -> None:
        self.redis.execute_command("XADD", "s", "*", "b", body)

    def ask(self) -> Any:
        self.put_single(BODY)
        return self.redis.execute_command("BRPOP", "results", 3)

    def work(self) -> None:
        client = redis.Redis.from_url(self.spec.url, protocol=2)
        if self.spec.action == "latency":
            self._answer(client)
        elif self.spec.variant == "script":
            self._step(client)
        count = 1 if self.spec.variant == "count1" else 100
        words = ("XREADGROUP", "GROUP", "g", "c", "COUNT", count, "BLOCK", 2000, "STREAMS", "s")
        while True:
            for _, entries in client.execute_command(*words, ">") or ():
                for _, fields in entries:
                    self.handler(fields[b"b"])
                client.execute_command("XACK", "s", "g", *(entry[0] for entry in entries))

    def _step(self, client: redis.Redis) -> None:
        sha, last = client.script_load(self.script), "0-0"
        while True:
            found = client.execute_command("EVALSHA", sha, 1, "s", last)
            if found:
                last, fields = found[0][1][0]
                self.handler(fields[1])

    def _answer(self, client: redis.Redis) -> None:
        words = ("XREADGROUP", "GROUP", "g", "c", "COUNT", 1, "BLOCK", 2000, "STREAMS", "s", ">")
        self.declare(client)
        while True:
            for _, entries in client.execute_command(*words) or ():
                for at, fields in entries:
                    body = self.handler(fields[b"b"])
                    client.execute_command("XACK", "s", "g", at)
                    client.execute_command("LPUSH", "results", body)

    def left(self, redis: Resp) -> int:
        group = dict(zip(*[iter(redis("XINFO", "GROUPS", "s")[0])] * 2, strict=True))
        return group["pending"] + group["lag"]

    def stored(self, redis: Resp) -> int | None:
        del redis
        return None


if __name__ == "__main__":
    main(Raw)
