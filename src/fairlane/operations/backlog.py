"""How much waits in a queue, and when it is empty: sub-requests, by lane, and how fast they go.

What comes and what goes is not counted anywhere, because that would cost each call. So it is found
from what a question about the queue reads anyway: when requests were submitted, and the pace that
workers report.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fairlane.operations.request_state import completion
from fairlane.protocol import keys
from fairlane.protocol.steps import Command
from fairlane.records import QueueBacklog

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fairlane.records import Completion, WorkerState

_OVER_MS = 60_000  # what was submitted in the last minute says how fast more comes
_PARTS = 3  # of that time
_MOST_ENDED = 100  # endings that are read


class WaitingRow(NamedTuple):
    """What is needed of an unfinished request."""

    priority: int
    waiting: int
    total: int
    submitted_ms: int


def newest_ended(queue: str) -> Command:
    """Returns the command that reads the newest endings; `endings_of` takes its reply."""
    return Command(b"XREVRANGE", keys.completed(queue), b"+", b"-", b"COUNT", _MOST_ENDED)


def endings_of(queue: str, reply: Iterable[tuple[bytes, object]]) -> list[Completion]:
    """Returns the endings of what `newest_ended` read, the newest first."""
    return [completion(queue, *entry) for entry in reply]


def backlog_of(
    rows: Sequence[WaitingRow],
    unfinished: int,
    ended: Sequence[Completion],
    workers: Iterable[WorkerState],
    now_ms: int,
) -> QueueBacklog:
    """Returns how much waits in a queue, of which `rows` were read of `unfinished` requests.

    Requests that were not read count as those that were read do on average.
    """
    lanes: dict[int, int] = {}
    for row in rows:
        if row.waiting:
            lanes[row.priority] = lanes.get(row.priority, 0) + row.waiting
    waiting = sum(lanes.values())
    is_exact = len(rows) >= unfinished
    if not is_exact and rows:
        waiting = round(waiting * unfinished / len(rows))
    done_per_s = sum(map(_pace_of, workers))
    came_per_s = _came_per_s(rows, ended, now_ms)
    grows_per_s = came_per_s - done_per_s
    empty_ms = None
    if not waiting:
        empty_ms = 0
    elif grows_per_s < 0:
        empty_ms = round(1000 * waiting / -grows_per_s)
    return QueueBacklog(
        waiting=waiting,
        empty_ms=empty_ms,
        grows_per_s=round(grows_per_s, 3),
        came_per_s=round(came_per_s, 3),
        done_per_s=round(done_per_s, 3),
        lanes=dict(sorted(lanes.items())),
        is_exact=is_exact,
    )


def _pace_of(worker: WorkerState) -> float:
    """Returns how many sub-requests a worker finishes in a second with the leases that it has."""
    if not worker.is_alive or not worker.units:
        return 0.0
    return (worker.per_s or 0.0) * min(1.0, worker.leases / worker.units)


def _came_per_s(rows: Iterable[WaitingRow], ended: Sequence[Completion], now_ms: int) -> float:
    """Returns how many sub-requests come in a second, by the last minute.

    The minute has three parts, and the least of them counts. So a single large request, which is
    over when it was submitted, is no trend.
    """
    over_ms = _OVER_MS
    if len(ended) == _MOST_ENDED:  # the log was read for a shorter time
        over_ms = max(1_000, min(over_ms, now_ms - ended[-1].ended_ms))
    parts = [0] * _PARTS
    totals = [(row.submitted_ms, row.total) for row in rows]
    totals += [(one.submitted_ms, one.total) for one in ended]
    for submitted_ms, total in totals:
        age_ms = now_ms - submitted_ms
        if 0 <= age_ms < over_ms:
            parts[_PARTS * age_ms // over_ms] += total
    return 1000 * _PARTS * min(parts) / over_ms
