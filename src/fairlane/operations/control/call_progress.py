"""How far single calls of a handler are: a worker's record has it, beside what the worker holds.

The text is `3 leases; 4 units 12.5/s; fairlane 0.1; r1#0 4 30/100`: after the number of leases, how
many calls the worker makes concurrently, and how many it finishes in a second, and its release.
Then comes a part for each call
that has reported its progress, with request, permit, index, done and total. The last heartbeat
wrote it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from fairlane.operations.batching import run_each
from fairlane.protocol import keys
from fairlane.protocol.steps import Command

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fairlane.protocol.steps import Operation

_MOST = 50  # calls in one record, and workers that are asked
_PART = re.compile(r"(?P<id>\S+)#(?P<k>\d+) (?P<index>\d+) (?P<done>\d+)/(?P<total>\d+)")
_RELEASE = re.compile(r"; fairlane ([0-9A-Za-z.+!_-]{1,40})(?:;|\Z)")
_PACE = re.compile(r"(?P<units>\d{1,6}) units (?P<per_s>\d{1,12}\.\d{1,6})/s")


class WorkerPace(NamedTuple):
    """A worker makes `units` calls concurrently, and finishes `per_s` sub-requests in a second.

    `per_s` was measured while it worked; 0.0 = not yet.
    """

    units: int = 0
    per_s: float = 0.0

    @property
    def text(self) -> str:
        """Returns the part of a worker's record."""
        return f"{self.units} units {self.per_s:.3f}/s"


@dataclass(frozen=True, slots=True)
class CallProgress:
    """One call under the permit `k`: `done` of `total` parts of the sub-request `index`."""

    request_id: str
    k: str
    index: int
    done: int
    total: int

    @property
    def parts(self) -> dict[str, int]:
        """Returns the numbers by name."""
        return {"index": self.index, "done": self.done, "total": self.total}


def holds_text(leases: int, pace: WorkerPace, release: str, calls: Iterable[CallProgress]) -> str:
    """Returns what a heartbeat reports of a worker of this release, with bounded length."""
    parts = [f"{one.request_id}#{one.k} {one.index} {one.done}/{one.total}" for one in calls]
    return "; ".join([f"{leases} leases", pace.text, f"fairlane {release}", *parts[:_MOST]])


def read_calls(
    queue: str, request_id: str, workers: Sequence[str]
) -> Operation[list[CallProgress]]:
    """Returns the calls of a request that these workers, at most 50 of them, reported."""
    asked = [Command(b"HGET", keys.worker(queue, worker), b"holds") for worker in workers[:_MOST]]
    texts = [reply.decode() for reply in (yield from run_each(asked)) if isinstance(reply, bytes)]
    calls = [call for text in texts for call in read_holds(text)]
    return [call for call in calls if call.request_id == request_id]


def read_holds(text: str) -> list[CallProgress]:
    """Returns the calls in what a heartbeat reported of a worker; see `holds_text`."""
    parts = [_PART.fullmatch(part) for part in text.split("; ")]
    return [
        CallProgress(one["id"], one["k"], int(one["index"]), int(one["done"]), int(one["total"]))
        for one in parts
        if one is not None
    ]


def read_pace(text: str) -> WorkerPace:
    """Returns the pace in what a heartbeat reported of a worker; 0 for an earlier release's."""
    found = next(filter(None, map(_PACE.fullmatch, text.split("; "))), None)
    return WorkerPace(int(found["units"]), float(found["per_s"])) if found else WorkerPace()


def read_release(text: str) -> str:
    """Returns the release in what a heartbeat reported of a worker; "" if there is none."""
    found = _RELEASE.search(text)
    return found[1] if found else ""
