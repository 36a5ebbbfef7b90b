"""Calls the scripts of a request that takes each id once, and reads its set of ids."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlane.common.xid import packed_ids, xid
from fairlane.protocol import keys
from tests.support.scripts.requests import HOUR, numbered, with_policy

if TYPE_CHECKING:
    from tests.support.scripts.requests import Lane

EXTRAS = "distinct=1"
USUAL: dict[str, Any] = {
    "priority": 5,
    "limit": 3,
    "attempts": 3,
    "backoff_min": 1_000,
    "backoff_max": 10_000,
    "lease_ms": 30_000,
    "retain_ms": HOUR,
    "time_limit_ms": 0,
    "durable": 0,
    "deadline_ms": 0,
    "queue": "req",
    "digest": "d1",
    "open_ms": HOUR,
    "extras": EXTRAS,
    "shards": "",
    "over": 0,
}


class Distinct:
    """Calls the scripts as a producer whose request takes each id once; a body's key is its xid.

    `texts` replace the bodies and the text of their ids.
    """

    def __init__(self, lane: Lane) -> None:
        self.lane, self.ids = lane, keys.unique_ids(lane.id)
        self.names = (*lane.names, self.ids)

    def call(self, name: str, **given: Any) -> list[Any]:
        """Runs a script with the set of ids among its keys, then checks the request."""
        reply: list[Any] = self.lane.call(name, self.names, **given)
        assert not self.lane.checked or self.lane.check() == []
        return reply

    def enqueue(self, bodies: list[bytes] | int, **given: Any) -> list[Any]:
        own = {"intent": self.lane.now, "bodies": given.pop("texts", None) or with_ids(bodies)}
        return self.call("enqueue", **with_policy(USUAL | own | given))

    def append(self, bodies: list[bytes] | int, chunk: int = 2, **given: Any) -> list[Any]:
        usual: dict[str, Any] = {"chain": f"c{chunk}", "before": self.lane.hash().get("chain", "")}
        usual |= {"chunk": chunk, "open_ms": HOUR}
        usual |= {"bodies": given.pop("texts", None) or with_ids(bodies)}
        return self.call("append", **(usual | given))

    def seal(self) -> list[Any]:
        stored = self.lane.hash()
        return self.call("seal", chunks=stored.get("chunks", 1), chain=stored.get("chain", ""))

    def known(self) -> int:
        """Returns how many ids the set holds."""
        count: Any = self.lane.client.scard(self.ids)
        return int(count)


def with_ids(bodies: list[bytes] | int) -> list[bytes]:
    """Returns bodies, followed by the text of their ids."""
    chosen = numbered(bodies) if isinstance(bodies, int) else bodies
    return [*chosen, packed_ids(chosen, xid)]
