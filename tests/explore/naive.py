"""Explores the naive protocol that Fairlane grew from: the explorer must see it fail.

A producer creates the stream and the counter, then pushes `limit` tokens; a worker pops a token,
reads one sub-request, works, lowers the counter, pushes the token back; the last one destroys
everything and signals. What a dead worker held is put into the stream again by any worker.
Nothing expires, nothing can be repeated: each fault of the model breaks another promise.

`handled` and `ended` are history for the explorer; the protocol itself never reads them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import redis

from fairlane.protocol.lua import Script
from fairlane.protocol.steps import Batch, Call, Command, Handle
from fairlane.worker.unit import Lease, LeaseBatch
from tests.explore.machinery.actors import Role, kind
from tests.explore.machinery.explorer import System
from tests.explore.machinery.protocol import Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fairlane.protocol.steps import Operation
    from tests.explore.machinery.actors import Actor

KEYS = {
    "stream": b"sub:{r}",
    "counter": b"counter:{r}",
    "lane": b"{req}:5",
    "handled": b"handled:{r}",
    "ended": b"ended:{r}",
}
ENQUEUE = Script(
    "enqueue",
    """
-- Says: = status
local req_stream = string.format("sub:{%s}", KEYS[1])
redis.call("SET", string.format("counter:{%s}", KEYS[1]), #ARGV)
redis.call("XADD", req_stream, "*", "req", "0")
redis.call("XTRIM", req_stream, "MAXLEN", "0")
redis.call("XGROUP", "CREATE", req_stream, req_stream, "$")
for _, r in ipairs(ARGV) do
  redis.call("XADD", req_stream, "*", "req", r)
end
return redis.status_reply("OK")
""",
)
INSERT_TOKENS = Script(
    "insert_tokens",
    """
-- Says: = status
for i = 1, ARGV[2] do
  redis.call("LPUSH", KEYS[1], ARGV[1])
end
return redis.status_reply("OK")
""",
)
COMPLETE = Script(
    "complete",
    """
-- Says: = status
local req_stream = string.format("sub:{%s}", KEYS[1])
local counter = string.format("counter:{%s}", KEYS[1])
redis.call("HSET", string.format("handled:{%s}", KEYS[1]), ARGV[2], 1)
local remaining = redis.call("DECR", counter)
if remaining == 0 then
  redis.call("XGROUP", "DESTROY", req_stream, req_stream)
  redis.call("DEL", req_stream)
  redis.call("DEL", counter)
  redis.call("RPUSH", string.format("ended:{%s}", KEYS[1]), "1")
  redis.call("PUBLISH", KEYS[1], "1")
else
  redis.call("XACK", req_stream, req_stream, ARGV[1])
end
return redis.status_reply("OK")
""",
)


class Taken(NamedTuple):
    """The sub-request that a worker holds, in the explorer's words."""

    k: str
    fence: bytes
    entries: tuple[tuple[bytes, Any], ...]
    attempt: int = 1
    request_id: str = "r"


async def submit(count: int, limit: int) -> int:
    """Submits in two calls, because the tokens are in another slot than the stream."""
    await Call(ENQUEUE, (b"r",), [b"%d" % i for i in range(count)], list)
    await Call(INSERT_TOKENS, (KEYS["lane"],), [b"r", limit], list)
    return count


async def serve(worker: str) -> None:
    """Pops a token, reads one sub-request, works, completes it, and pushes the token back."""
    while True:
        (_, (token,)), *_ = await Batch([Command(b"BRPOP", KEYS["lane"], 0)])
        stream = KEYS["stream"]
        try:
            read = await Command(
                *(b"XREADGROUP", b"GROUP", stream, worker, b"COUNT", 1),
                *(b"STREAMS", stream, b">"),
            )
        except redis.ResponseError:
            continue  # NOGROUP: the request is over, the token is stale
        if read:
            entry_id, fields = read[0][1][0]
            taken: Any = Taken(worker, entry_id, ((entry_id, fields),))
            lease = Lease(taken, record=None)  # type: ignore[arg-type]
            await Handle(LeaseBatch([lease], 1.0, is_alone=True))
            await Call(COMPLETE, (b"r",), [entry_id, fields[1]], list)
        await Command(b"LPUSH", KEYS["lane"], token)


@kind("naive producer")
def _produce(role: Role, _: tuple[Any, ...]) -> Operation[Any]:
    return submit(role.option("count"), role.option("limit"))


@kind("naive worker")
def _work(role: Role, _: tuple[Any, ...]) -> Operation[Any]:
    return serve(role.name)


class Facts(NamedTuple):
    is_empty: bool
    has_stream: bool
    tokens: int
    handled: int
    ends: int


class Naive(Protocol):
    """The keys and the promises of the naive protocol."""

    declares = False
    keys = KEYS
    tolerated = frozenset({"ResponseError"})  # a producer that starts again: BUSYGROUP

    def __init__(self, promise: str = "", count: int = 2, limit: int = 1) -> None:
        """Checks one `promise`; that the end stays reachable is always checked."""
        self.promise, self.count, self.limit = promise, count, limit

    def read(self, i: int, raw: Any) -> tuple[Any, str]:
        """Numbers a stream's entries by their place, because their ids are times of the server."""
        if list(KEYS)[i] != "stream":
            return raw, repr(raw)
        entries, pending, groups = raw
        bodies = {entry_id: fields[1] for entry_id, fields in entries}
        held = [(bodies.get(entry_id), consumer) for entry_id, consumer, *_ in pending]
        return raw, repr((list(bodies.values()), held, len(groups)))

    def facts(self, said: Sequence[Any]) -> Facts:
        stream, _, lane, handled, ended = said
        return Facts(
            is_empty=not any(said),
            has_stream=bool(stream),
            tokens=len(lane or ()),
            handled=len(handled or ()) // 2,
            ends=len(ended or ()),
        )

    def wrong_stand(self, facts: Facts) -> tuple[str, ...]:
        """Checks that the end is complete, and signalled once."""
        if self.promise == "complete" and facts.ends and facts.handled < self.count:
            return (f"complete, but {facts.handled} of {self.count} were handled",)
        if self.promise == "once" and facts.ends > 1:
            return (f"it ended {facts.ends} times",)
        return ()

    def wrong_actors(self, facts: Facts, actors: Sequence[Actor]) -> tuple[str, ...]:
        """Checks the limit."""
        at_work = sum(bool(actor.fences) for actor in actors)
        if self.promise == "limit" and at_work > self.limit:
            return (f"{at_work} work, the limit is {self.limit}",)
        return ()

    def refused(self, error: str) -> tuple[str, ...]:
        """Accepts every error, because a worker expects that the group may be gone."""
        return ()

    def pops(self, facts: Facts, most: int) -> Iterator[tuple[bytes, Command]]:
        if facts.tokens:
            yield KEYS["lane"], Command(b"RPOP", KEYS["lane"], most)

    def is_goal(self, facts: Facts, actors: Sequence[Actor]) -> bool:
        return facts.ends > 0


def system(name: str, faults: tuple[int, int, int], workers: int) -> System:
    """Returns a system of two sub-requests with a limit of one."""
    producer = Role("p", "naive producer", (("count", 2), ("limit", 1)))
    others = [Role(f"w:{number}", "naive worker") for number in range(1, workers + 1)]
    return System(name, (producer, *others), faults, most=200_000)
