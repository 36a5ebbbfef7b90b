"""How much waits in a queue, and when it is empty: sub-requests, by lane, and how fast they go.

What comes and what goes is not counted anywhere, because that would cost each call of a worker. So
a question about the queue finds it: from when requests were submitted, the last endings, and the
pace that workers report.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fairlane.errors import FairlaneError
from fairlane.operations.find import list_workers
from fairlane.operations.request_state import completion
from fairlane.protocol import keys
from fairlane.protocol.steps import Command
from fairlane.records import QueueBacklog

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fairlane.records import Completion, RequestCounts, WorkerState

_OVER_MS = 60_000  # what was submitted in the last minute says how fast more comes
_PARTS = 3  # of that time
_LEAST_MS = 3_000  # in a shorter time, chance says what came
_MOST_ENDED = 100  # endings that are read


class WaitingRow(NamedTuple):
    """What is needed of an unfinished request."""

    priority: int
    waiting: int
    total: int
    submitted_ms: int

    @classmethod
    def of(cls, counts: RequestCounts) -> WaitingRow:
        """Returns the row of a request's counts."""
        return cls(counts.priority, counts.waiting, counts.total, counts.submitted_ms)


def newest_ended(queue: str) -> Command:
    """Returns the command that reads the newest endings; `endings_of` takes its reply."""
    return Command(b"XREVRANGE", keys.completed(queue), b"+", b"-", b"COUNT", _MOST_ENDED)


def endings_of(queue: str, reply: Iterable[tuple[bytes, object]]) -> list[Completion]:
    """Returns the endings of what `newest_ended` read, the newest first."""
    return [completion(queue, *entry) for entry in reply]


async def workers_of(queue: str) -> list[WorkerState] | None:
    """Returns the workers for `backlog_of`; None if they cannot be read: what waits still can."""
    try:
        return (await list_workers(queue)).workers
    except FairlaneError:
        return None


def backlog_of(
    rows: Sequence[WaitingRow],
    unfinished: int,
    ended: Sequence[Completion],
    workers: Iterable[WorkerState] | None,
    now_ms: int,
    *,
    is_paused: bool,
    away: int = 0,
) -> QueueBacklog:
    """Returns how much waits in a queue, whose `active` has `unfinished` entries.

    Of these, `rows` were read, and `away` others that are no requests with work: announced ones,
    and ended ones that are not retired yet. Entries that were not read count as those that were
    read do on average. But the newest may all be among them, so then nothing says what came.
    `workers` None: they are not known.
    """
    looked_at = len(rows) + away
    is_exact = looked_at >= unfinished
    counts: dict[int, int] = {}
    for row in rows:
        if row.waiting:
            counts[row.priority] = counts.get(row.priority, 0) + row.waiting
    share = 1.0 if is_exact else unfinished / max(1, looked_at)
    lanes = {lane: round(count * share) for lane, count in sorted(counts.items())}
    waiting = sum(lanes.values())
    done_per_s = None if workers is None else sum(map(_pace_of, workers))
    came_per_s = _came_per_s(rows, ended, now_ms) if is_exact else None
    grows_per_s = empty_ms = None
    if came_per_s is not None and done_per_s is not None:
        grows_per_s = came_per_s - done_per_s
    if is_exact and not waiting:
        empty_ms = 0
    elif grows_per_s is not None and grows_per_s < 0 and not is_paused:
        empty_ms = round(1000 * waiting / -grows_per_s)
    return QueueBacklog(
        waiting=waiting,
        empty_ms=empty_ms,
        grows_per_s=_to_thousandths(grows_per_s),
        came_per_s=_to_thousandths(came_per_s),
        done_per_s=_to_thousandths(done_per_s),
        lanes=lanes,
        is_exact=is_exact,
        is_paused=is_paused,
    )


def _to_thousandths(per_s: float | None) -> float | None:
    return None if per_s is None else round(per_s, 3)


def _pace_of(worker: WorkerState) -> float:
    """Returns how many sub-requests a worker finishes in a second with the leases that it has."""
    if not worker.is_alive or not worker.units:
        return 0.0
    return (worker.per_s or 0.0) * min(1.0, worker.leases / worker.units)


def _came_per_s(
    rows: Iterable[WaitingRow], ended: Sequence[Completion], now_ms: int
) -> float | None:
    """Returns how many sub-requests come in a second, by the last minute.

    The minute has three parts, and the least of them counts. So a single large request, which is
    over when it was submitted, is no trend. If the log was read for a shorter time, that counts;
    None if it is too short.
    """
    over_ms = _OVER_MS
    if len(ended) == _MOST_ENDED:
        over_ms = min(over_ms, now_ms - ended[-1].ended_ms)
    if over_ms < _LEAST_MS:
        return None
    parts = [0] * _PARTS
    totals = [(row.submitted_ms, row.total) for row in rows]
    totals += [(one.submitted_ms, one.total) for one in ended]
    for submitted_ms, total in totals:
        age_ms = now_ms - submitted_ms
        if 0 <= age_ms < over_ms:
            parts[_PARTS * age_ms // over_ms] += total
    return 1000 * _PARTS * min(parts) / over_ms
