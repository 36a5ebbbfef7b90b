"""Kills the processes whose handlers run for longer than their time limit.

An async handler is cancelled by its own unit. Its process is killed only if that did not help,
because the handler caught the cancellation or blocked the event loop.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from fairlane.common import clock
from fairlane.common.backoff import retry_delay_ms
from fairlane.model import Verdict, result_head
from fairlane.worker.handler.errors import too_long
from fairlane.worker.log.failures import attempt_fields
from fairlane.worker.process import stack_dump
from fairlane.worker.process.pool import ALONE, kill, listed

if TYPE_CHECKING:
    from fairlane.worker.held import Running
    from fairlane.worker.lease_board import LeaseRecord
    from fairlane.worker.process.pool import Child, ProcessPool
    from fairlane.worker.supervisor.lease_keeper import LeaseKeeper

_log = logging.getLogger("fairlane.worker")
_DUMP_S = 1.0  # how long a process may take to write its stacks before it is killed


class TimeLimits:
    """The time limits of one worker's calls; `is_async`: a process's units are tasks."""

    def __init__(self, children: ProcessPool, keeper: LeaseKeeper, *, is_async: bool) -> None:
        self._children = children
        self._keeper = keeper
        self._is_async = is_async
        # pid -> when it got the signal for its stacks, and how many bytes it had written by then
        self._asked: dict[int, tuple[float, int]] = {}

    def look(self) -> None:
        """Makes a late process write its stacks, and kills it soon after; never waits."""
        now = clock.mono_s()
        # After a process has died, another process may have its pid.
        running = self._children.running
        self._asked = {pid: asked for pid, asked in self._asked.items() if pid in running}
        for pid, child in running.items():
            if child.late:  # killed, but not collected yet
                continue
            late = [call for record in child.records if (call := _overdue(record, now))]
            child.asked = late
            if not late:
                self._asked.pop(pid, None)
            elif pid not in self._asked:
                self._asked[pid] = (now, 0)
                stack_dump.ask(pid, child.stacks)
            elif self._has_dumped(child, now):
                del self._asked[pid]
                child.late = late
                kill(pid)

    def _has_dumped(self, child: Child, now: float) -> bool:
        """Returns True if the stacks are written and grow no more, or if their time is up."""
        asked, before = self._asked[child.pid]
        size = stack_dump.size(child.stacks)
        self._asked[child.pid] = (asked, size)
        return 0 < size == before or now - asked >= _DUMP_S

    @property
    def is_waiting(self) -> bool:
        """Returns True between the signal and the kill."""
        return bool(self._asked)

    def settle(self, child: Child) -> bool:
        """Charges the late calls of a killed process, and gives back all else uncharged.

        Returns True if none was charged: if one event loop with several tasks is blocked, the
        cause is unknown.
        """
        all_held = [held for record in child.records if (held := record.held())]
        in_turn = [held for held in all_held if held.has_its_turn]
        is_known = not self._is_async or len(in_turn) == 1
        late = {running.unit: running for running in child.late}
        text = stack_dump.read(child.stacks)
        if not is_known:
            self._log_killed(child, listed([held.what for held in in_turn]), ALONE)
        for held in all_held:
            record = next(record for record in child.records if record.unit == held.unit)
            running = late.get(held.unit)
            # The process may have ended its call and begun another one before the kill.
            if running is None or record.running() != running:
                self._keeper.give_back([held])
                continue
            child.records[0].count(timeouts=1)  # a unit's own: a spare one's are not added up
            verdict = _verdict(running, text) if is_known and running.entry_id else None
            if is_known:
                self._log_charge(child, held.request_id, running, verdict)
            if verdict is None:
                self._keeper.give_back([held])
                continue
            child.records[0].count_failed(running.attempt, running.attempts)
            self._keeper.give_back([held], [verdict])
            self._keeper.timed_out(held.request_id)
        return not is_known

    def _log_charge(
        self, child: Child, request_id: str, running: Running, verdict: Verdict | None
    ) -> None:
        """Logs which call was late, and what follows for its sub-request."""
        what = _what(request_id, running)
        if verdict is None:
            self._log_killed(child, what, "no attempt is charged")
            return
        attempt, attempts = running.attempt, running.attempts
        delay_ms = None if attempt >= attempts else verdict.delay_ms
        then = "it is dead" if delay_ms is None else f"the next is due in {delay_ms / 1000:.1f} s"
        index = int(running.entry_id.partition(b"-")[2])
        error = too_long(running.limit_s)
        fields = attempt_fields(request_id, index, attempt, attempts, delay_ms, error)
        end = f"attempt {attempt} of {attempts} is charged, {then}"
        self._log_killed(child, what, end, fields)

    def _log_killed(
        self, child: Child, what: str, end: str, fields: dict[str, Any] | None = None
    ) -> None:
        text, extra = too_long(child.late[0].limit_s), {"child_pid": child.pid, **(fields or {})}
        line = "process %d of the worker was killed: %s in %s; %s"
        _log.error(line, child.pid, text, what, end, extra=extra)


def _overdue(record: LeaseRecord, now: float) -> Running | None:
    running = record.running()
    return running if running is not None and running.until < now else None


def _what(request_id: str, running: Running) -> str:
    index = running.entry_id.partition(b"-")[2].decode()
    return f"sub-request {index} of request {request_id}" if index else f"request {request_id}"


def _verdict(running: Running, text: str) -> Verdict:
    submitted, _, index = running.entry_id.partition(b"-")
    waited = max(0, running.taken_ms - int(submitted))
    delay = retry_delay_ms(running.attempt, *running.backoff_ms)
    head = result_head(index, b"x", running.attempt, waited, int(running.limit_s * 1e6))
    lines = stack_dump.stack_of(text, running.thread)
    where = "\n".join(["", "Stack (most recent call first):", *lines, ""]) if lines else ""
    return Verdict(running.entry_id, "timeout", delay, head, too_long(running.limit_s) + where)
