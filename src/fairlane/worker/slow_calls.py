"""Names the calls of a worker that run for ten seconds or longer, for its heartbeats."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlane import settings
from fairlane.call_records import SlowCall
from fairlane.common import clock
from fairlane.common.task_names import task_of
from fairlane.operations.holds import MOST_SLOW

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairlane.records import CallProgress
    from fairlane.worker.board import Held, LeaseBoard

_Name = tuple[int, int, int]  # unit, version of its lease, index
_Report = tuple[int, int, float]  # done, total, when that was new
_OF_A_TASK = 3  # calls of each task, so that those of a slow task leave room for others


class SlowCalls:
    """The slow calls of a worker. It reads the board alone, and what a call has reported."""

    def __init__(self, board: LeaseBoard) -> None:
        self._board = board
        self._reports: dict[_Name, _Report] = {}  # of calls that have reported their progress

    def look(self, leases: Sequence[Held]) -> list[SlowCall]:
        """Returns those of the calls under these leases that run for long, the longest first.

        Of each task there are at most three. A call that reports its progress is not among them.
        """
        now = clock.mono_s()
        before, self._reports = self._reports, {}
        found = []
        for held in leases:
            record = self._board.records[held.unit]
            running = record.running()
            if running is None or running.version != held.version:
                continue
            ran_s = now - running.began
            report, index = record.reported(held), running.index
            if report is not None and report.index != index:
                report = None  # of an earlier call under this lease
            if ran_s < settings.SLOW_CALL_S or self._goes_on(report, held, before):
                continue
            found.append(
                SlowCall(
                    id=held.request_id, permit=int(held.k), index=index,
                    count=held.count if index is None else 1, attempt=running.attempt,
                    ran_ms=int(1000 * ran_s), task=task_of(running.start) or None,
                )
            )  # fmt: skip
        return _longest(found)

    def _goes_on(
        self, report: CallProgress | None, held: Held, before: dict[_Name, _Report]
    ) -> bool:
        """Returns True if the call has reported further progress within the last minute."""
        if report is None:
            return False
        now, name = clock.mono_s(), (held.unit, held.version, report.index)
        last = before.get(name)
        if last is None or last[:2] != (report.done, report.total):
            last = (report.done, report.total, now)
        self._reports[name] = last
        return now - last[2] < settings.PROGRESS_S


def _longest(found: list[SlowCall]) -> list[SlowCall]:
    counts: dict[str | None, int] = {}
    chosen = []
    for one in sorted(found, key=lambda one: -one.ran_ms):
        counts[one.task] = counts.get(one.task, 0) + 1
        if counts[one.task] <= _OF_A_TASK:
            chosen.append(one)
    return chosen[:MOST_SLOW]
