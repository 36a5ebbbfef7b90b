"""The state of a request: its counts, its failed attempts, the holders of its permits."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlane.common.rate import parse_rates
from fairlane.errors import RequestNotFound
from fairlane.model import Completion, FailedAttempt, Progress
from fairlane.operations.batching import run_each
from fairlane.protocol import keys, request_hash
from fairlane.protocol.request_hash import as_text, unpacked
from fairlane.protocol.server_info import time_ms
from fairlane.protocol.steps import Batch, Command

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def number(fields: dict[str, str], name: str) -> int:
    """Returns a number of a request's hash, 0 if it is missing or no number."""
    return int(fields.get(name) or 0)


def not_found(request_id: str) -> RequestNotFound:
    """Returns the error for an id whose request does not exist, or is no longer kept."""
    return RequestNotFound(
        f"there is no request {request_id} (an ended one is kept only for its retention)"
    )


async def progress(request_id: str) -> Progress:
    """Returns the counts of a request now. Raises RequestNotFound."""
    fields, held = await Batch(
        [
            Command(b"HGETALL", keys.request_hash(request_id)),
            Command(b"ZCARD", keys.leases(request_id)),
        ]
    )
    found = progress_of(request_id, fields, held)
    if found is None:
        raise not_found(request_id)
    return found


def progress_of(request_id: str, fields: Any, held: int) -> Progress | None:
    """Returns the counts in a request's hash; None if there is no such request."""
    detail = unpacked(as_text(fields)) if fields else {}
    if not detail or detail.get("state") == "abandoned":
        return None
    get = detail.get  # a list has a thousand of them
    return Progress(
        id=request_id,
        state=detail["state"],
        total=int(get("total") or 0),
        done=int(get("done") or 0),
        dead=int(get("dead") or 0),
        cancelled=int(get("cancelled") or 0),
        held=held,
        limit=int(get("limit") or 0),
        priority=int(get("priority") or 0),
        queue=detail["queue"],
        reason=get("reason", ""),
        submitted_ms=int(get("born") or 0),
        ended_ms=int(get("ended") or 0),
        is_open=get("open") == "1",
        timeouts=int(get("timeouts") or 0),
        deadline_ms=int(get("deadline") or 0),
        time_limit_ms=int(get("time_limit_ms") or 0),
        durable=int(get("durable") or 0),
        parent=get("parent", ""),
        failures=int(get("failures") or 0),
        last_failure=_noted(get("failure", ""), "x"),
        given_back=_noted(get("failure", ""), "g"),
        opens_ms=int(get("opens") or 0),
        rates=parse_rates(get("rates", "")),
        tags=tuple(filter(None, get("tags", "").split(","))),
        tenant=get("tenant", ""),
        share=int(get("share") or 0) or (1 if get("tenant") else 0),
        left_out=int(get("left_out") or 0),
        detail=detail,
    )


def _noted(text: str, wanted: str) -> FailedAttempt | None:
    """Reads what note_failure (lib/state.lua) wrote; None unless its status is the wanted one."""
    if not text:
        return None
    at_ms, head, error = text.split(" ", 2)
    index, status, attempt, *_ = head.split(":")
    if status != wanted:
        return None
    return FailedAttempt(int(index), int(attempt), int(at_ms), error)


async def waiting_retries(request_id: str) -> tuple[int, int]:
    """Returns how many sub-requests wait for another attempt, and when the first is due, in ms."""
    key = keys.retries(request_id)
    count, first = await Batch(
        [Command(b"ZCARD", key), Command(b"ZRANGE", key, 0, 0, b"WITHSCORES")]
    )
    return count, int(float(first[1])) if first else 0


async def moment(request_id: str) -> int:
    """Returns the time of the request's Redis in ms; all times of the request are by that clock."""
    # A step without a key, as TIME, goes to the node of the step with a key.
    ask = [Command(b"EXISTS", keys.request_hash(request_id)), Command(b"TIME")]
    _, time = await Batch(ask)
    return time_ms(time)


async def holders(request_id: str) -> list[dict[str, str]]:
    """Returns the holders of this request's permits: worker, permit, fence, owed, each as text."""
    fields = await Command(b"HGETALL", keys.permits(request_id))
    rows = [
        {"permit": one.k, "fence": one.fence, "owed": one.owed, "worker": one.worker}
        for one in request_hash.held(as_text(fields))
    ]
    return sorted(rows, key=lambda row: int(row["permit"]))


def completion(log_id: bytes, fields: Any) -> Completion:
    """Reads one entry of the completion log; in a damaged one a missing number is 0."""
    text = as_text(fields)
    numbers = {name: int(value) for name, value in text.items() if value.isdecimal()}
    return Completion(
        log_id=log_id.decode(),
        id=text.get("id", ""),
        state=text.get("state", ""),
        priority=numbers.get("priority", 0),
        total=numbers.get("total", 0),
        done=numbers.get("done", 0),
        dead=numbers.get("dead", 0),
        cancelled=numbers.get("cancelled", 0),
        submitted_ms=numbers.get("born", 0),
        ended_ms=numbers.get("ended", 0),
        reason=text.get("reason", ""),
    )


def asks_of_progress(ids: Sequence[str]) -> list[Command]:
    """Returns two commands for each request; `progress_of` takes their replies."""
    return [
        command
        for one in ids
        for command in (
            Command(b"HGETALL", keys.request_hash(one)),
            Command(b"ZCARD", keys.leases(one)),
        )
    ]


# ------------------------------------------------------------------ call progress
# How far single calls of a handler are: a worker's record has it, beside what the worker holds.
#
# The text is `3 leases; 4 units 12.5/s; fairlane 0.1; r1#0 4 30/100`: after the number of leases,
# how many calls the worker makes concurrently, and how many it finishes in a second, and its
# release. Then comes a part for each call that has reported its progress, with request, permit,
# index, done and total. The last heartbeat wrote it.


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


async def read_calls(queue: str, request_id: str, workers: Sequence[str]) -> list[CallProgress]:
    """Returns the calls of a request that these workers, at most 50 of them, reported."""
    asked = [Command(b"HGET", keys.worker(queue, worker), b"holds") for worker in workers[:_MOST]]
    texts = [reply.decode() for reply in await run_each(asked) if isinstance(reply, bytes)]
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
