"""Which calls run unusually long: ten times the p99 of their task, and at least ten seconds.

Workers name the calls that run for ten seconds or longer in their heartbeats. What is usual is read
from the statistics only if there is such a call, so it costs nothing else. Statistics have calls
that have ended, so a call that hangs does not make itself usual.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlane import settings
from fairlane.call_records import LongCall
from fairlane.common.text import when
from fairlane.operations.stats import all_of, by_task, read_stats, read_task_stats

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from fairlane.call_records import SlowCall
    from fairlane.operations.stats import Measured
    from fairlane.records import WorkerState

_P99 = 0.99


class Usual:
    """How long the calls of a queue usually take, by task and over all."""

    def __init__(self, tasks: Mapping[str, Measured], lanes: Mapping[int, Measured]) -> None:
        self._tasks, self._whole = tasks, all_of(lanes)

    def of(self, call: SlowCall) -> tuple[float | None, bool]:
        """Returns the p99 in ms, and whether it is that of the task; None: too few calls."""
        own = self._tasks.get(call.task) if call.task else None
        for found, of_task in ((own, True), (self._whole, False)):
            if found is not None and found.ran.count >= settings.UNUSUAL_SAMPLES:
                return found.ran.quantile(_P99) / 1000, of_task
        return None, False


def limit_ms(usual_ms: float | None, count: int = 1) -> float:
    """Returns after how long a call is unusual; a call of a batch handler has `count` of them."""
    if usual_ms is None:
        return settings.UNUSUAL_S * 1000
    return max(settings.SLOW_CALL_S * 1000, settings.UNUSUAL_FACTOR * usual_ms * count)


def unusual(slow: Iterable[tuple[str, int, SlowCall]], usual: Usual) -> list[LongCall]:
    """Returns those of the slow calls that run unusually long, the longest first.

    `slow` has the worker of each, and when that reported it.
    """
    found = []
    for worker, at_ms, one in slow:
        usual_ms, of_task = usual.of(one)
        if one.ran_ms > limit_ms(usual_ms, one.count):
            found.append(
                LongCall(
                    worker=worker, id=one.id, index=one.index, count=one.count,
                    attempt=one.attempt, task=one.task, since_ms=at_ms - one.ran_ms,
                    ran_ms=one.ran_ms, usual_ms=usual_ms, of_task=of_task,
                )
            )  # fmt: skip
    return sorted(found, key=lambda one: (-one.ran_ms, one.id, one.index or 0))


async def long_calls(queue: str, slow: Sequence[tuple[str, int, SlowCall]]) -> list[LongCall]:
    """Returns the same, and reads what is usual if any call is slow."""
    if not slow:
        return []
    tasks = by_task(await read_task_stats(queue))
    return unusual(slow, Usual(tasks, await read_stats(queue)))


async def long_calls_of(
    queue: str, workers: Iterable[WorkerState], request_id: str = ""
) -> list[LongCall]:
    """Returns the calls that run unusually long on these workers; `request_id`: of this request."""
    return await long_calls(queue, slow_on(workers, request_id))


def slow_on(
    workers: Iterable[WorkerState], request_id: str = ""
) -> list[tuple[str, int, SlowCall]]:
    """Returns the slow calls of those workers that are alive."""
    return [
        (one.id, one.beat_ms, call)
        for one in workers
        if one.is_alive
        for call in one.slow
        if not request_id or call.id == request_id
    ]


def words(call: LongCall, now_ms: int) -> str:
    """Returns what is unusual about a call in a sentence, without its request and the remedy."""
    since = when(call.since_ms, now_ms)
    return f"{call.what} has run since {since} on worker {call.worker}; {call.usual}"
