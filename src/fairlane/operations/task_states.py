"""The tasks of a queue: what was measured of each, and what waits, runs and is dead of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from fairlane.call_records import TaskPage, TaskState
from fairlane.common.task_names import OTHER
from fairlane.operations.dead_letters import list_dead, requests_with_dead
from fairlane.operations.long_calls import Usual, slow_on, unusual
from fairlane.operations.stats import MOST_RELEASES, MOST_TASKS, Measured, by_task

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from fairlane.call_records import LongCall
    from fairlane.operations.observe import Snapshot
    from fairlane.operations.stats import TaskStats
    from fairlane.records import DeadRequest, WorkerState

_MEDIAN, _P99 = 0.5, 0.99
_MOST_MIXED = 50  # requests of several tasks whose dead sub-requests are read


async def task_page(found: Snapshot, *, by_release: bool = False) -> TaskPage:
    """Returns the tasks of a queue from a snapshot of it; by release, what was measured of each.

    Dead sub-requests are counted as those of `fairlane dead list`: see requests_with_dead.
    """
    calls = unusual_of(found.workers, found.tasks, found.measured)
    if by_release:
        rows = [
            _state(of.task, one, found.now_ms, release=of.release or None)
            for of, one in found.tasks.items()
        ]
        return _page(rows, MOST_TASKS * MOST_RELEASES, found, calls, is_exact=True)
    counts = _Counts()
    for one in found.requests:
        counts.add(one.tasks, one.total, waiting=one.waiting, running=one.held)
    more = await _add_dead(counts, found.queue)
    for call in calls:
        counts.of(call.task or OTHER)["long_calls"] += 1
    rows = _joined(by_task(found.tasks), counts.found, found.now_ms)
    is_exact = found.is_exact and counts.is_exact and not more
    return _page(rows, MOST_TASKS, found, calls, is_exact=is_exact)


def unusual_of(
    workers: Iterable[WorkerState], tasks: TaskStats, lanes: Mapping[int, Measured]
) -> list[LongCall]:
    """Returns the calls that run unusually long on these workers, the longest first."""
    slow = slow_on(workers)
    return unusual(slow, Usual(by_task(tasks), lanes)) if slow else []


# ------------------------------------------------------------------ counts


class _Counts:
    """What waits, runs and is dead, by task. A request of several tasks counts with shares."""

    def __init__(self) -> None:
        self.found: dict[str, Counter[str]] = {}
        self.is_exact = True

    def of(self, task: str) -> Counter[str]:
        """Returns the counts of a task."""
        return self.found.setdefault(task, Counter())

    def add(self, tasks: Mapping[str, int | None], total: int, **counts: int) -> None:
        """Adds counts of a request to its tasks, in proportion to their calls."""
        self.is_exact &= len(tasks) <= 1
        known: int = sum(count or 0 for count in tasks.values())
        unknown = [*tasks.values()].count(None)
        each = max(0, total - known) / unknown if unknown else 0.0
        shares = {name: each if count is None else count for name, count in tasks.items()}
        for what, left in counts.items():
            rest = sum(shares.values())
            for name, share in shares.items():
                part = round(left * share / rest) if rest else 0
                if part:
                    self.of(name)[what] += part
                left, rest = left - part, rest - share  # noqa: PLW2901  what the others share


async def _add_dead(counts: _Counts, queue: str) -> int:
    """Adds the dead sub-requests that are kept; returns how many requests were not read."""
    having, more = await requests_with_dead(queue)
    mixed = 0
    for one in having:
        if len(one.tasks) > 1 and mixed < _MOST_MIXED:
            mixed += 1
            tasks = await _dead_by_task(one)
            counts.add(tasks, sum(tasks.values()), dead=one.kept)
        else:
            counts.add(one.tasks, one.total, dead=one.kept)
    return more


async def _dead_by_task(one: DeadRequest) -> dict[str, int]:
    """Returns how many of a request's first dead sub-requests call each of its tasks."""
    return dict(Counter(dead.task or OTHER for dead in await list_dead(one.id, b"")))


# ------------------------------------------------------------------ rows


def _joined(
    measured: Mapping[str, Measured], counts: Mapping[str, Counter[str]], now_ms: int
) -> list[TaskState]:
    names = dict.fromkeys([*measured, *counts])
    return [
        _state(name, measured.get(name), now_ms, counts=counts.get(name, Counter()))
        for name in names
    ]


def _state(
    task: str,
    measured: Measured | None,
    now_ms: int,
    *,
    release: str | None = None,
    counts: Counter[str] | None = None,
) -> TaskState:
    one = measured or Measured()
    recent, recent_failed, seconds = one.lately.since(now_ms)
    known = one.ran.count > 0
    state = TaskState(
        task=task,
        release=release,
        done=one.ran.count,
        failed=one.counts["failed"],
        recent=recent,
        recent_failed=recent_failed,
        per_s=round(recent / seconds, 3),
        p50_ms=one.ran.quantile(_MEDIAN) / 1000 if known else None,
        p99_ms=one.ran.quantile(_P99) / 1000 if known else None,
        slowest_ms=one.ran.max / 1000 if known else None,
    )
    if counts is None:
        return state
    return replace(
        state,
        waiting=counts["waiting"],
        running=counts["running"],
        dead=counts["dead"],
        long_calls=counts["long_calls"],
    )


def _page(
    rows: Sequence[TaskState],
    most: int,
    found: Snapshot,
    calls: list[LongCall],
    *,
    is_exact: bool,
) -> TaskPage:
    """Returns the rows in their order; OTHER, which is many tasks, is the last one."""
    ordered = sorted(rows, key=_order)
    named = [one for one in ordered if one.task != OTHER]
    return TaskPage(
        tasks=[*named[:most], *(one for one in ordered if one.task == OTHER)],
        more=len(named[most:]),
        is_exact=is_exact,
        long_calls=calls,
        releases=found.releases,
        now_ms=found.now_ms,
    )


def _order(one: TaskState) -> tuple[object, ...]:
    """Returns what sorts tasks: what needs a person comes first, then what has most to do."""
    share = one.recent_failed / one.recent if one.recent else 0.0
    return (
        *(-(one.long_calls or 0), -share, -(one.dead or 0)),
        *(-(one.waiting or 0), -one.per_s, -one.done, one.task, one.release or ""),
    )
