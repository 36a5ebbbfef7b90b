"""What the heartbeat of a worker reports: its leases, its pace, and how far single calls are.

The text is `3 leases; 4 units 12.5/s; fairlane 0.1; release 2026.11; r1#0 4 30/100; r2#1 7 2 613s
send_mail; waits r3 r4`. After the number of leases come how many calls the worker makes
concurrently and how many it finishes in a second, its version of Fairlane, and the release of the
users' code. Then come a part for each call that has reported its progress, with request, permit,
index, done and total, and one for each slow call, with request, permit, index, attempt, time and
task. The index of a batch is minus the number of its sub-requests. If the handlers of all units
wait for requests, these are named last.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote, unquote

from fairlane.call_records import SlowCall
from fairlane.protocol import keys
from fairlane.protocol.steps import Command, run_each
from fairlane.records import CallProgress

if TYPE_CHECKING:
    from collections.abc import Sequence

_MOST = 50  # calls in one record that have reported their progress, and workers that are asked
MOST_SLOW = 20  # slow calls in one record
_MOST_AWAITED = 5  # awaited requests in one record
_LEASES = re.compile(r"([0-9]{1,9}) leases")
_PACE = re.compile(r"(?P<units>\d{1,6}) units (?P<per_s>\d{1,12}\.\d{1,6})/s")
_VERSION = re.compile(r"fairlane ([0-9A-Za-z.+!_-]{1,40})")
_RELEASE = re.compile(r"release (\S{1,64})")
_PROGRESS = re.compile(r"(?P<id>\S+)#(?P<k>\d+) (?P<index>\d+) (?P<done>\d+)/(?P<total>\d+)")
_SLOW = re.compile(
    r"(?P<id>\S+)#(?P<k>\d+) (?P<index>-?\d+) (?P<attempt>\d+) (?P<ran_s>\d+)s(?: (?P<task>\S+))?"
)


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


class Holds(NamedTuple):
    """What a worker reports of itself; `version` is that of Fairlane, `release` the users' own."""

    leases: int = 0
    pace: WorkerPace = WorkerPace()
    version: str = ""
    release: str = ""
    calls: Sequence[CallProgress] = ()
    slow: Sequence[SlowCall] = ()
    awaits: Sequence[str] = ()

    @property
    def text(self) -> str:
        """Returns what `read_holds` reads, with bounded length."""
        parts = [f"{self.leases} leases", self.pace.text, f"fairlane {self.version}"]
        parts += [f"release {self.release}"] if self.release else []
        for call in self.calls[:_MOST]:
            parts.append(f"{call.id}#{call.permit} {call.index} {call.done}/{call.total}")
        for slow in self.slow[:MOST_SLOW]:
            index = -slow.count if slow.index is None else slow.index
            task = f" {quote(slow.task, safe='')}" if slow.task else ""
            ran_s = slow.ran_ms // 1000
            parts.append(f"{slow.id}#{slow.permit} {index} {slow.attempt} {ran_s}s{task}")
        awaits = self.awaits[:_MOST_AWAITED]
        return "; ".join([*parts, *([f"waits {' '.join(awaits)}"] if awaits else [])])


def read_holds(text: str) -> Holds:
    """Returns what a heartbeat reported; what is not known has the values of `Holds()`."""
    head, *parts = text.split("; ")
    leases = _LEASES.match(head)
    pace, version, release = WorkerPace(), "", ""
    calls, slow, awaits = list[CallProgress](), list[SlowCall](), ""
    for part in (head, *parts):
        if found := _PROGRESS.fullmatch(part):
            numbers = (int(found[name]) for name in ("k", "index", "done", "total"))
            calls.append(CallProgress(found["id"], *numbers))
        elif found := _SLOW.fullmatch(part):
            slow.append(_slow_call(found))
        elif found := _PACE.fullmatch(part):
            pace = WorkerPace(int(found["units"]), float(found["per_s"]))
        elif found := _VERSION.fullmatch(part):
            version = found[1]
        elif found := _RELEASE.fullmatch(part):
            release = found[1]
        elif part.startswith("waits "):
            awaits = part.removeprefix("waits ")
    count = int(leases[1]) if leases else 0
    return Holds(count, pace, version, release, tuple(calls), tuple(slow), tuple(awaits.split()))


def _slow_call(found: re.Match[str]) -> SlowCall:
    index = int(found["index"])
    return SlowCall(
        id=found["id"],
        permit=int(found["k"]),
        index=index if index >= 0 else None,
        count=max(1, -index),
        attempt=int(found["attempt"]),
        ran_ms=1000 * int(found["ran_s"]),
        task=unquote(found["task"]) if found["task"] else None,
    )


async def read_reported(queue: str, workers: Sequence[str]) -> dict[str, Holds]:
    """Returns what these workers, at most 50 of them, reported with their last heartbeats."""
    asked = workers[:_MOST]
    steps = [Command(b"HGET", keys.worker(queue, worker), b"holds") for worker in asked]
    replies = zip(asked, await run_each(steps), strict=True)
    return {
        name: read_holds(reply.decode("utf-8", "replace"))
        for name, reply in replies
        if isinstance(reply, bytes)
    }
