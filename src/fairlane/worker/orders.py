"""Carries out orders: shows the calls that a worker runs, with their stacks, and ends one."""

from __future__ import annotations

import json
import logging
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fairlane.common import clock
from fairlane.common.clock import retry_delay_ms
from fairlane.errors import FairlaneError
from fairlane.model import Verdict, result_head
from fairlane.operations.orders import CALLS_MOST, answer_call, read_call, read_orders, shown_calls
from fairlane.records import RunningCall
from fairlane.worker.board import KILLS
from fairlane.worker.errors import killed_by
from fairlane.worker.log import attempt_fields
from fairlane.worker.pool import kill
from fairlane.worker.stack_dump import StackDump, TaskDump

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fairlane.drivers.sync import SyncDriver
    from fairlane.operations.orders import WorkerOrder
    from fairlane.worker.board import Held, LeaseBoard, LeaseRecord, Running
    from fairlane.worker.handlers import Shape
    from fairlane.worker.lease_keeper import LeaseKeeper
    from fairlane.worker.pool import ChildProcess, ProcessPool


_log = logging.getLogger("fairlane.worker")
_REMEMBERED = 1000  # orders that were carried out
_END_S = 1.2  # how long a cancelled task may take to end before its process is killed
_AGAIN_S = 1.0  # until Redis is asked again after it has not answered
_BLOCKED = "the event loop of its process is blocked here"


@dataclass(frozen=True, slots=True)
class _Call:
    """A call that runs: its process, its lease, and what the board has of it."""

    child: ChildProcess
    record: LeaseRecord
    held: Held
    running: Running

    @property
    def is_still(self) -> bool:
        """Returns True while this call runs, and no other one."""
        found = self.record.running()
        return found is not None and found.identity == self.running.identity


class Orders:
    """The orders of one worker. It reads them when the queue's count of orders has changed."""

    def __init__(
        self, driver: SyncDriver, queue: str, worker: str, board: LeaseBoard,
        children: ProcessPool, keeper: LeaseKeeper, shape: Shape,
    ) -> None:  # fmt: skip
        self._driver, self._queue, self._worker = driver, queue, worker
        self._board, self._children, self._keeper, self._shape = board, children, keeper, shape
        self._count = 0
        self._is_due = False
        self._again = 0.0
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._looks: list[_Look] = []
        self._kills: list[_Kill] = []
        self._answers: dict[str, str] = {}  # that are not sent yet

    def note(self, count: int) -> None:
        """Notes how many orders the workers of the queue have had; another number is a new one."""
        if count != self._count:
            self._count, self._is_due = count, True

    @property
    def is_working(self) -> bool:
        """Returns True while an order is carried out."""
        return bool(self._is_due or self._looks or self._kills or self._answers)

    def look(self) -> None:
        """Goes on with the orders; never waits for long. Raises no error of Redis."""
        now = clock.mono_s()
        if self._is_due and now >= self._again:
            self._read()
        self._looks = [look for look in self._looks if not self._show(look, now)]
        self._kills = [one for one in self._kills if not self._go_on(one, now)]
        if self._answers and now >= self._again:
            self._send()

    def _read(self) -> None:
        try:
            found = self._driver.run(read_orders(self._queue, self._worker))
        except FairlaneError:
            self._again = clock.mono_s() + _AGAIN_S
            return
        self._is_due = False
        for name, order in found.items():
            if name in self._seen:
                continue
            self._seen[name] = None
            if len(self._seen) > _REMEMBERED:
                self._seen.popitem(last=False)
            if order is None or order.kind not in {"calls", "stacks", "kill"}:
                self._answer(name, {"problem": "this worker is of an earlier release"})
            elif order.kind == "kill":
                self._begin_kill(name, order)
            else:
                calls = list(self._calls(order.request_id))[: CALLS_MOST + 1]
                self._looks.append(_Look(name, order, calls, self._shape.is_async))

    def _answer(self, name: str, found: dict[str, object]) -> None:
        self._answers[name] = json.dumps(found)

    def _send(self) -> None:
        for name, text in list(self._answers.items()):
            try:
                self._driver.run(_sent(answer_call(self._queue, self._worker, name, text)))
            except FairlaneError as error:
                _log.warning("could not answer an order: %s", error)
                self._again = clock.mono_s() + _AGAIN_S
                return
            del self._answers[name]

    # What runs.

    def _calls(self, request_id: str = "") -> Iterable[_Call]:
        for child in self._children.running.values():
            for record in child.records:
                running, held = record.running(), record.held()
                if running is None or held is None or held.version != running.version:
                    continue
                if not request_id or held.request_id == request_id:
                    yield _Call(child, record, held, running)

    def _show(self, look: _Look, now: float) -> bool:
        """Answers when the stacks are written; returns True then."""
        if not look.is_done(now):
            return False
        beside: dict[int, int] = {}
        for call in self._calls():
            beside[call.child.pid] = beside.get(call.child.pid, 0) + 1
        rows = [self._row(look, call, beside.get(call.child.pid, 1) - 1) for call in look.calls]
        self._answers[look.name] = shown_calls(row for row in rows if row is not None)
        return True

    def _row(self, look: _Look, call: _Call, beside: int) -> RunningCall | None:
        if not call.is_still:
            return None
        held, running = call.held, call.running
        lines, problem = look.lines(call)
        task, words = self._task(call)
        return RunningCall(
            worker=self._worker, id=held.request_id, index=running.index,
            count=1 if running.entry_id else held.count, task=task or None,
            call=words or None,
            permit=int(held.k), fence=held.fence, attempt=running.attempt,
            attempts=running.attempts,
            ran_ms=max(0, int((clock.mono_s() - running.began) * 1000)),
            limit_ms=int(running.limit_s * 1000) or None,
            process=call.child.pid, thread=running.native or None, beside=max(0, beside),
            lines=tuple(lines), problem=problem or None,
        )  # fmt: skip

    def _task(self, call: _Call) -> tuple[str, str]:
        """Returns the task that is called, and the call; "" if its body is gone or calls none."""
        if self._shape.task_of is None or not call.running.entry_id:
            return "", ""
        try:
            return self._driver.run(read_call(call.held.request_id, call.running.entry_id))
        except FairlaneError:
            return "", ""

    # Ends one.

    def _begin_kill(self, name: str, order: WorkerOrder) -> None:
        """Finds the call that is meant; its permit, fence and attempt must match."""
        held = [call for call in self._calls(order.request_id) if _is_of(call.held, order)]
        found = [call for call in held if call.running.index == order.index]
        if not found or found[0].running.attempt != order.attempt:
            others = [call.running.index for call in held if call.running.index is not None]
            text = _has_ended(order)
            if others:
                text += f", and index {others[0]} runs in its slice"
            self._answer(name, {"problem": text})
            return
        if found[0].child.is_ending:
            self._answer(name, {"problem": "its process is being ended already"})
            return
        self._kills.append(_Kill(name, order, found[0], clock.mono_s()))

    def _go_on(self, one: _Kill, now: float) -> bool:
        """Goes on with a kill; returns True when it is over."""
        call, child = one.call, one.call.child
        if child.killed is one:
            return False  # its process is being collected: see settle
        if one.is_settled:
            return True
        if not call.is_still or child.pid not in self._children.running:
            self._end(one)
            return True
        if self._shape.is_async and not one.is_cancelled:
            one.is_cancelled = True
            call.record.kill(call.running, KILLS[one.order.verdict])
        if self._shape.is_async and now - one.began < _END_S:
            return False
        if one.dump is None:
            if not child.is_asked:
                child.is_asked = True
                one.dump = StackDump(child.pid, child.stacks)
                one.dump.want({call.running.thread: call.running.native})
            return False
        if one.dump.look(now) and not child.is_ending:
            child.is_asked = False
            child.killed = one
            kill(child.pid)
        return False

    def _end(self, one: _Kill) -> None:
        """Answers for a call that has ended before its process was killed for it."""
        if one.call.record.was_killed(one.call.running):
            self._log(one, "the call was cancelled")
            self._answer(one.name, one.answer(others=0, ended_process=False))
        else:
            self._answer(one.name, {"problem": _has_ended(one.order)})
        if one.dump is not None:
            one.call.child.is_asked = False

    def settle(self, child: ChildProcess) -> bool:
        """Settles the call for which a process was killed, and gives back all else uncharged."""
        one: _Kill = child.killed
        all_held = [held for record in child.records if (held := record.held())]
        others = sum(held.has_its_turn for held in all_held) - 1
        is_meant = False
        for held in all_held:
            record = self._board.records[held.unit]
            if record is one.call.record and one.call.is_still:
                is_meant = True
                running = one.call.running
                verdict = one.settling()
                if verdict.verdict != "release":
                    is_last = verdict.verdict == "killed"
                    attempt = running.attempts if is_last else running.attempt
                    child.records[0].count_failed(attempt, running.attempts)
                self._keeper.give_back([held], [verdict])
            else:
                self._keeper.give_back([held])
        one.is_settled = True
        if is_meant:
            self._log(one, f"process {child.pid} of the worker was killed")
            self._answer(one.name, one.answer(others=max(0, others), ended_process=True))
        else:
            self._answer(one.name, {"problem": _has_ended(one.order)})
        child.killed = None
        return False

    def _log(self, one: _Kill, what: str) -> None:
        order, running = one.order, one.call.running
        words = {
            "charge": f"attempt {running.attempt} of {running.attempts} is charged",
            "free": "no attempt is charged",
            "dead": "it is dead",
        }
        error = killed_by(order.by)
        fields = attempt_fields(
            order.request_id, order.index, running.attempt, running.attempts, None, error
        )
        line = "%s: sub-request %d of request %s was %s; %s"
        _log.warning(
            line, what, order.index, order.request_id, error, words[order.verdict], extra=fields
        )


async def _sent(call: object) -> None:
    await call  # type: ignore[misc]


def _has_ended(order: WorkerOrder) -> str:
    what = f"sub-request {order.index} of request {order.request_id}"
    return f"{what} has just ended: nothing was done"


def _is_of(held: Held, order: WorkerOrder) -> bool:
    return held.k == order.k and str(held.fence) == order.fence


class _Look:
    """An order to show calls, and the stacks that processes write for it."""

    def __init__(self, name: str, order: WorkerOrder, calls: list[_Call], is_async: bool) -> None:
        self.name, self.calls = name, calls
        self._is_async = is_async
        self._left: dict[int, ChildProcess] = {}
        self._dumps: dict[int, StackDump | TaskDump] = {}
        self._blocked: set[int] = set()
        if order.kind == "stacks":
            self._left = {call.child.pid: call.child for call in calls}

    def is_done(self, now: float) -> bool:
        """Asks the processes for their stacks; returns True when all have answered."""
        for pid, child in list(self._left.items()):
            dump = self._dumps.get(pid)
            if child.is_ending or (dump is None and child.dump is not None):
                del self._left[pid]  # it is being ended
            elif dump is None:
                if not child.is_asked:  # by another order
                    child.is_asked = True
                    self._dumps[pid] = self._asked(child, blocked=False)
            elif dump.look(now):
                if isinstance(dump, TaskDump) and not dump.is_answered:
                    self._blocked.add(pid)
                    self._dumps[pid] = self._asked(child, blocked=True)
                    continue
                child.is_asked = False
                del self._left[pid]
        return not self._left

    def _asked(self, child: ChildProcess, *, blocked: bool) -> StackDump | TaskDump:
        if self._is_async and not blocked:
            return TaskDump(child.pid, child.stacks)
        dump = StackDump(child.pid, child.stacks)
        running = [call.running for call in self.calls if call.child is child]
        dump.want({one.thread: one.native for one in running})
        return dump

    def lines(self, call: _Call) -> tuple[list[str], str]:
        """Returns the user's lines of a call, the innermost first, and what is to be known."""
        dump = self._dumps.get(call.child.pid)
        if dump is None:
            return [], ""
        if isinstance(dump, TaskDump):
            return dump.stack(call.record.owner), ""
        lines = dump.stack(call.running.thread)
        return lines, _BLOCKED if call.child.pid in self._blocked and lines else ""


@dataclass(slots=True)
class _Kill:
    """An order to end a call, and how far that is."""

    name: str
    order: WorkerOrder
    call: _Call
    began: float
    is_cancelled: bool = False
    dump: StackDump | None = None
    is_settled: bool = False

    def answer(self, *, others: int, ended_process: bool) -> dict[str, object]:
        """Returns what the asker gets."""
        ran_ms = int((clock.mono_s() - self.call.running.began) * 1000)
        return {"ran_ms": ran_ms, "others": others, "ended_process": ended_process}

    def settling(self) -> Verdict:
        """Returns the verdict on the call, with its stack."""
        running = self.call.running
        submitted, _, index = running.entry_id.partition(b"-")
        waited = max(0, running.taken_ms - int(submitted))
        name = KILLS[self.order.verdict]
        is_free = name == "release"
        delay = 0 if is_free else retry_delay_ms(running.attempt, *running.backoff_ms)
        ran_us = int((clock.mono_s() - running.began) * 1e6)
        head = result_head(index, b"g" if is_free else b"x", running.attempt, waited, ran_us)
        lines = self.dump.stack(running.thread) if self.dump is not None else []
        where = "\n".join(["", "Stack (most recent call first):", *lines, ""]) if lines else ""
        return Verdict(running.entry_id, name, delay, head, killed_by(self.order.by) + where)
