"""Ends or splits calls that last for too long."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from fairlane.common import clock
from fairlane.common.clock import retry_delay_ms
from fairlane.common.text import exact
from fairlane.errors import FairlaneError, InvalidArgument
from fairlane.model import Verdict, result_head
from fairlane.operations.lease import settle_part
from fairlane.operations.orders import read_counts
from fairlane.worker.errors import too_long
from fairlane.worker.log import attempt_fields
from fairlane.worker.pool import ALONE, kill, listed
from fairlane.worker.stack_dump import StackDump

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fairlane.drivers.sync import SyncDriver
    from fairlane.protocol.steps import Call
    from fairlane.worker.board import Held, LeaseBoard, LeaseRecord, Running
    from fairlane.worker.journal import Worked
    from fairlane.worker.lease_keeper import LeaseKeeper
    from fairlane.worker.pool import ChildProcess, ProcessPool


# ------------------------------------------------------------------ cancellation
# Detects within a second that a request was stopped while its handlers run, and may end those.
#
# A lease is extended when a third of it is used up, which is too late for a handler that waits to
# be cancelled. So a count in the queue's `conf` grows with each cancel, with each discard by a
# producer, and with each reap that stops a request after its deadline or because it was left open.
# A supervisor reads that count about twice a second, but only while a lease is held for long: one
# command, however many leases it has. That command also reads the count of orders, see
# worker/orders.py. If the count of cancels has changed, all leases are extended, and each
# reply reports whether its lease is still wanted.
#
# A handler that ignores this may go on for the worker's `cancel_grace_s`. Its process is killed so
# long after the cancel was detected.


_log = logging.getLogger("fairlane.worker")
_LONGEST_GRACE_S = 86_400
_YOUNG_S = 0.25  # leases of quick handlers end earlier than this
_EVERY_S = 0.4
_STOP_AGAIN_S = 5.0  # after Redis has not answered


class CancellationWatch:
    """The count of cancelled requests of a queue, as one worker last read it."""

    def __init__(self, driver: SyncDriver, queue: str) -> None:
        self._driver, self._queue = driver, queue
        self._seen: bytes | None = b""  # not read so far
        self._read_at = 0.0  # when it may be read again
        self._limits = 0  # changes of time limits so far
        self.on_orders: Callable[[int], None] = lambda _: None  # gets the queue's count of orders
        self.on_time_limits: Callable[[], None] = lambda: None  # requests have other ones

    def are_new(self, all_held: Iterable[Held]) -> bool:
        """Returns True if requests may have been cancelled since the last call. Never raises."""
        now = clock.mono_s()
        if now < self._read_at or all(held.taken > now - _YOUNG_S for held in all_held):
            return False
        self._read_at = now + _EVERY_S
        before = self._seen
        try:
            counts = self._driver.run(read_counts(self._queue))
        except FairlaneError:
            self._read_at = now + _STOP_AGAIN_S
            return False
        self._seen = counts.cancels
        self.on_orders(counts.orders)
        has_changed, self._limits = counts.time_limits != self._limits, counts.time_limits
        if has_changed:
            self.on_time_limits()
        return self._seen != before


def check_grace(grace_s: float | None) -> float | None:
    """Returns the seconds that a handler may go on after a cancel. Raises InvalidArgument."""
    is_number = isinstance(grace_s, (int, float)) and not isinstance(grace_s, bool)
    if grace_s is not None and not (is_number and 0 <= grace_s <= _LONGEST_GRACE_S):
        raise InvalidArgument(
            f"cancel_grace_s {grace_s!r} is not valid: 0 to {_LONGEST_GRACE_S:,} seconds are "
            "expected, None = a handler may finish"
        )
    return grace_s


class CancelGrace:
    """Ends the processes whose handlers go on for too long after their request was cancelled."""

    def __init__(self, children: ProcessPool, keeper: LeaseKeeper, grace_s: float | None) -> None:
        self._children, self._keeper, self._grace_s = children, keeper, grace_s

    def look(self) -> None:
        """Kills the processes whose grace is over; never waits."""
        if self._grace_s is None or not self._keeper.cancelled:
            return
        until = clock.mono_s() - self._grace_s
        for pid, child in self._children.running.items():
            if not child.is_ending:
                child.unwanted = [held for held in _in_turn(child) if self._is_over(held, until)]
                if child.unwanted:
                    kill(pid)

    def _is_over(self, held: Held, until: float) -> bool:
        cancelled_at = self._keeper.cancelled.get((held.unit, held.version))
        return cancelled_at is not None and cancelled_at <= until

    def settle(self, child: ChildProcess) -> bool:
        """Gives back all leases of a killed process, uncharged; False, as the cause is known."""
        what = listed([held.what for held in child.unwanted])
        line = "process %d of the worker was killed: %s went on for %s s after the cancel; "
        line += "no attempt is charged"
        _log.warning(
            line, child.pid, what, exact(self._grace_s or 0), extra={"child_pid": child.pid}
        )
        self._keeper.give_back([held for record in child.records if (held := record.held())])
        return False


def _in_turn(child: ChildProcess) -> list[Held]:
    """Returns the leases that the handlers of a process work on."""
    held = (record.held() for record in child.records)
    return [one for one in held if one is not None and one.has_its_turn]


# ------------------------------------------------------------------ stalled leases
# Takes from a slow call what is beside it: results that are made, and work that has not begun.
#
# A unit takes several sub-requests, or several leases, only while its handler is quick. But the
# next body may take long, and another worker may be idle. The process of a slow call may be unable
# to send anything, so the supervisor does: it reads the journal of the unit.
#
# A mark on the board comes first: a unit begins no call that the mark forbids. It notes each
# outcome before it reads the mark. So at the next look the journal shows which call runs, and no
# later one can begin. What both send, Redis counts once.


LOOK_S = 0.02  # between two looks while a batch runs
_LONG_S = 0.04  # a batch that runs longer is slow, if slices take 20 ms
_SLICES = 2  # if slices are longer, a batch is slow after so many of them
_WAITS_S = 0.3  # a lease that waits for longer is stalled, whatever its unit does
_WAITS_SLICES = 5
_RELIEVE_AGAIN_S = 1.0  # until Redis is tried again after a call failed


class StalledLeases:
    """The leases of one worker; its slices take `slice_ms`. `splits`: a call has one sub-request.

    A batch handler's call has the whole slice, so there is nothing to split.
    """

    def __init__(
        self, board: LeaseBoard, keeper: LeaseKeeper, slice_ms: float = 0, *, splits: bool = True
    ) -> None:
        self._board, self._keeper, self._splits = board, keeper, splits
        self._long_s = max(_LONG_S, _SLICES * slice_ms / 1000)
        self._waits_s = max(_WAITS_S, _WAITS_SLICES * slice_ms / 1000)
        self._marked: dict[int, float] = {}  # unit -> when its batch began that was marked
        self._relieved: dict[int, float] = {}  # ... and that holds nothing up any more
        self._again: dict[int, float] = {}  # unit -> when its batch is relieved again
        self._waiting: set[tuple[int, int]] = set()  # unit, version: those that must not begin

    @property
    def is_due(self) -> bool:
        """Returns True if a call has become slow; to be read every LOOK_S while a batch runs."""
        return bool(self._slow())

    def _slow(self) -> dict[int, float]:
        """Returns the units that a slow call keeps, until nothing is beside it."""
        now = clock.mono_s()
        return {
            unit: began
            for unit, began in self._board.long_batches(now - self._long_s).items()
            if self._relieved.get(unit) != began and self._again.get(unit, now) <= now
        }

    def look(self) -> None:
        """Marks what is beside a slow call, and takes it back at the next look."""
        for unit, began in self._slow().items():
            if self._marked.get(unit) == began:
                if self._relieve(unit):
                    self._relieved[unit] = began
                else:
                    self._again[unit] = clock.mono_s() + _RELIEVE_AGAIN_S
            else:
                self._marked[unit] = began
                self._again.pop(unit, None)
                self._mark(unit)

    def _mark(self, unit: int) -> None:
        for record in self._board.of_unit(unit):
            held = record.held()
            if held is None:
                continue
            if held.waits:
                self._stop(held)
            elif held.has_its_turn and held.count > 1 and self._splits:
                record.split(held)

    def _relieve(self, unit: int) -> bool:
        """Settles what is done beside the call of a unit, and gives back what has not begun.

        Returns False if a call failed, so that it must be sent again: Redis counts once.
        """
        records = self._board.of_unit(unit)
        # The turns are read before the journal: a lease's last outcome is noted before its end.
        all_held = [held for record in records if (held := record.held())]
        is_done = self._give_back([held for held in all_held if held.waits])
        is_done &= self._keeper.unanswered.take_back_unread(records[0])
        journal = records[0].journal
        worked = journal.read() if journal is not None else {}
        settled: list[Held] = []
        over: list[Held] = []  # those of `settled` that have nothing left
        calls: list[Call[Any]] = []
        indexes: list[tuple[Held, int]] = []  # what split leases have left
        for held in all_held:
            found = worked.get((held.unit, held.version))
            if found is None or held.waits:
                continue
            is_split = held.has_its_turn and self._board.records[held.unit].has_split(held)
            if is_split and found.count < len(found.ids):
                indexes.append((held, int(found.ids[found.count].partition(b"-")[2])))
            is_over = found.count == len(found.ids) and not held.has_its_turn
            call = _part(held, found, is_split=is_split, is_over=is_over)
            if call is not None:
                settled.append(held)
                calls.append(call)
                over += [held] if is_over else []
        left = self._keeper.settle(settled, calls)
        self._note_returned(held for held in over if held not in left)
        for held, index in indexes:
            if held not in left:
                self._board.records[held.unit].narrow(held, index)
        return is_done and not left

    def look_at_waiting(self) -> None:
        """Gives back leases that wait for long although no batch of their unit is slow.

        Another unit of their process may keep the interpreter lock. To be called less often.
        """
        now = clock.mono_s()
        all_held = self._board.held()
        late = [held for held in all_held if held.waits and now - held.taken > self._waits_s]
        self._waiting &= {(held.unit, held.version) for held in all_held if held.waits}
        self._give_back(late)
        for held in late:
            self._stop(held)

    def _stop(self, held: Held) -> None:
        self._waiting.add((held.unit, held.version))
        self._board.records[held.unit].stop(held)

    def _give_back(self, waiting: list[Held]) -> bool:
        """Gives back those of these leases that were marked at an earlier look.

        Returns False if a call failed: a later look tries again.
        """
        back = [held for held in waiting if (held.unit, held.version) in self._waiting]
        left = self._keeper.give_back(back, is_dead=False) if back else []
        self._note_returned(held for held in back if held not in left)
        return not left

    def _note_returned(self, leases: Iterable[Held]) -> None:
        for held in leases:
            self._board.records[held.unit].returned(held)


def _part(held: Held, worked: Worked, *, is_split: bool, is_over: bool) -> Call[Any] | None:
    """Returns the call that settles the outcomes of a lease; None if it holds nothing up.

    A lease whose entries all have outcomes `is_over`: it ends. Any other lease is still its
    unit's. Only of a lease that is split go back those that have not begun, because its unit
    begins none of them.
    """
    late = worked.ids[worked.count + 1 :] if is_split else []
    verdicts = worked.verdicts + [Verdict(entry, "unbegun", 0, b"", "") for entry in late]
    if not (worked.done or verdicts):
        return None
    return settle_part(
        held.request_id, held.k, str(held.fence), held.op,
        worked.done, worked.results, verdicts, keep=not is_over,
    )  # fmt: skip


# ------------------------------------------------------------------ time limits
# Kills the processes whose handlers run for longer than their time limit.
#
# An async handler is cancelled by its own unit. Its process is killed only if that did not help,
# because the handler caught the cancellation or blocked the event loop.


class TimeLimits:
    """The time limits of one worker's calls; `is_async`: a process's units are tasks."""

    def __init__(self, children: ProcessPool, keeper: LeaseKeeper, *, is_async: bool) -> None:
        self._children = children
        self._keeper = keeper
        self._is_async = is_async

    def look(self) -> None:
        """Makes a late process write its stacks, and kills it soon after; never waits."""
        now = clock.mono_s()
        for pid, child in self._children.running.items():
            if child.is_ending or child.is_asked:
                continue
            late = [call for record in child.records if (call := _overdue(record, now))]
            child.asked = late
            if not late:
                child.dump = None
                continue
            is_new = child.dump is None
            dump = child.dump = child.dump or StackDump(pid, child.stacks)
            dump.want({one.thread: one.native for one in late})
            if not is_new and dump.look(now):
                child.late = late
                kill(pid)

    @property
    def is_waiting(self) -> bool:
        """Returns True between the signal and the kill."""
        return any(child.dump and not child.late for child in self._children.running.values())

    def settle(self, child: ChildProcess) -> bool:
        """Charges the late calls of a killed process, and gives back all else uncharged.

        Returns True if none was charged: if one event loop with several tasks is blocked, the
        cause is unknown.
        """
        all_held = [held for record in child.records if (held := record.held())]
        in_turn = [held for held in all_held if held.has_its_turn]
        is_known = not self._is_async or len(in_turn) == 1
        late = {running.unit: running for running in child.late}
        if not is_known:
            self._log_killed(child, listed([held.what for held in in_turn]), ALONE)
        for held in all_held:
            record = next(record for record in child.records if record.unit == held.unit)
            running = late.get(held.unit)
            # The process may have ended its call and begun another one before the kill.
            if running is None or not is_same(record.running(), running):
                self._keeper.give_back([held])
                continue
            child.records[0].count(timeouts=1)  # a unit's own: a spare one's are not added up
            verdict = _verdict(running, child.dump) if is_known and running.entry_id else None
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
        self, child: ChildProcess, request_id: str, running: Running, verdict: Verdict | None
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
        self, child: ChildProcess, what: str, end: str, fields: dict[str, Any] | None = None
    ) -> None:
        text, extra = too_long(child.late[0].limit_s), {"child_pid": child.pid, **(fields or {})}
        line = "process %d of the worker was killed: %s in %s; %s"
        _log.error(line, child.pid, text, what, end, extra=extra)


def is_same(found: Running | None, running: Running) -> bool:
    """Returns True if what was found on the board is this call, and not another one."""
    return found is not None and found.identity == running.identity


def _overdue(record: LeaseRecord, now: float) -> Running | None:
    running = record.running()
    return running if running is not None and running.until < now else None


def _what(request_id: str, running: Running) -> str:
    index = running.entry_id.partition(b"-")[2].decode()
    return f"sub-request {index} of request {request_id}" if index else f"request {request_id}"


def _verdict(running: Running, dump: StackDump | None) -> Verdict:
    submitted, _, index = running.entry_id.partition(b"-")
    waited = max(0, running.taken_ms - int(submitted))
    delay = retry_delay_ms(running.attempt, *running.backoff_ms)
    head = result_head(index, b"x", running.attempt, waited, int(running.limit_s * 1e6))
    lines = dump.stack(running.thread) if dump is not None else []
    where = "\n".join(["", "Stack (most recent call first):", *lines, ""]) if lines else ""
    return Verdict(running.entry_id, "timeout", delay, head, too_long(running.limit_s) + where)
