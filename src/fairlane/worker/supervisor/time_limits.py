"""Ends the handlers that run for longer than they may, with the processes they run in.

An async handler is cancelled by its own unit; here it ends up only if that did not help, because it
swallowed the cancellation or never let go of the event loop.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from fairlane.common import clock
from fairlane.common.backoff import retry_delay_ms
from fairlane.model import Verdict, result_head
from fairlane.worker.handler.errors import too_long
from fairlane.worker.process import stack_dump
from fairlane.worker.process.pool import ALONE, kill, listed

if TYPE_CHECKING:
    from fairlane.worker.held import Running
    from fairlane.worker.lease_board import LeaseRecord
    from fairlane.worker.process.pool import Child, ProcessPool
    from fairlane.worker.supervisor.lease_keeper import LeaseKeeper

_log = logging.getLogger("fairlane.worker")
_TELL_S = 1.0  # how long a process may take to write where it is, before it is killed


class TimeLimits:
    """Looks after the calls of one worker's handler; `is_async`: a process's units are tasks."""

    def __init__(self, children: ProcessPool, keeper: LeaseKeeper, *, is_async: bool) -> None:
        self._children = children
        self._keeper = keeper
        self._is_async = is_async
        # pid -> when it was asked where it is, and how many bytes of an answer there were at the
        # last look
        self._asked: dict[int, tuple[float, int]] = {}

    def look(self) -> None:
        """Asks a process that overstays where it is, and kills it a moment later; never waits."""
        now = clock.mono_s()
        # What has died needs no more, and its number may be another process's.
        running = self._children.running
        self._asked = {pid: asked for pid, asked in self._asked.items() if pid in running}
        for pid, child in running.items():
            if child.late:  # killed, but the system has not let go of it yet
                continue
            late = [call for record in child.records if (call := _overdue(record, now))]
            child.asked = late
            if not late:
                self._asked.pop(pid, None)
            elif pid not in self._asked:
                self._asked[pid] = (now, 0)
                stack_dump.ask(pid, child.stacks)
            elif self._has_told(child, now):
                del self._asked[pid]
                child.late = late
                kill(pid)

    def _has_told(self, child: Child, now: float) -> bool:
        """True when its answer is there and grows no more, or when it had long enough."""
        asked, before = self._asked[child.pid]
        size = stack_dump.size(child.stacks)
        self._asked[child.pid] = (asked, size)
        return 0 < size == before or now - asked >= _TELL_S

    @property
    def is_waiting(self) -> bool:
        """True between question and kill."""
        return bool(self._asked)

    def settle(self, child: Child) -> bool:
        """A process was killed: what overstayed is charged, all else given back uncharged.

        True if it was charged to nobody: of several tasks in one event loop that stands still,
        the one to blame is not known.
        """
        held = [held for record in child.records if (held := record.held())]
        running_ones = [one for one in held if one.has_its_turn]
        is_known = not self._is_async or len(running_ones) == 1
        late = {running.unit: running for running in child.late}
        text = stack_dump.read(child.stacks)
        if not is_known:
            self._tell(child, listed([one.what for one in running_ones]), ALONE)
        for one in held:
            record = next(record for record in child.records if record.unit == one.unit)
            running = late.get(one.unit)
            # It may have ended its call and begun another one before the kill.
            if running is None or record.running() != running:
                self._keeper.give_back([one])
                continue
            child.records[0].count(timeouts=1)  # a unit's own: a spare one's are not added up
            if is_known:
                end = "it is charged" if running.entry_id else "nobody is charged"
                self._tell(child, _what(one.request_id, running), end)
            if not is_known or not running.entry_id:
                self._keeper.give_back([one])
                continue
            child.records[0].count_failed(running.attempt, running.attempts)
            self._keeper.give_back([one], [_verdict(running, text)])
            self._keeper.timed_out(one.request_id)
        return not is_known

    def _tell(self, child: Child, what: str, end: str) -> None:
        text = too_long(child.late[0].limit_s)
        _log.error("process %d of the worker was killed: %s in %s; %s", child.pid, text, what, end)


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
