"""Calls a handler for each sub-request of a slice.

Each call has a copy of the context variables that the start of its process left. So no call reads
what another one has set.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Coroutine
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter, perf_counter_ns
from typing import TYPE_CHECKING, Any

from fairlane import settings, tracing
from fairlane.common import clock
from fairlane.common.awaited import note_awaited_by
from fairlane.common.clock import retry_delay_ms
from fairlane.common.context_variables import run_in
from fairlane.common.text import shortened
from fairlane.errors import FairlaneError, InvalidArgument, type_of
from fairlane.model import Entry, Slice, Verdict, result_head
from fairlane.operations.flow_branches import Fan, Next
from fairlane.worker import termination
from fairlane.worker.board import START_MOST, smaller_limit
from fairlane.worker.error_texts import reason_of, text_of
from fairlane.worker.errors import (
    GiveBack,
    GiveBackTimes,
    Reject,
    Retry,
    TimedOut,
    is_seconds,
    killed_by,
)
from fairlane.worker.handlers import Context, Shape, chosen
from fairlane.worker.stack_dump import stack_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from opentelemetry.trace import Tracer

    from fairlane.protocol.steps import Arg
    from fairlane.worker.board import ChangedLimit, LeaseRecord
    from fairlane.worker.handlers import Handler
    from fairlane.worker.journal import Journal
    from fairlane.worker.log import Failures
    from fairlane.worker.unit import Lease, LeaseBatch


# ------------------------------------------------------------------ outcome
# Collects the outcome of one run of the handler: results, and verdicts for all other entries.


_give_backs = GiveBackTimes()
_FLUSH_NS = int(settings.FLUSH_MS * 1e6)
# Code whose frames mean nothing to the handler's author: before the handler's frames, or above.


@dataclass(slots=True)
class Outcome:
    """The outcome of one run of the handler over a slice or a part of it."""

    position: int  # of the first entry not handled
    seconds: float = 0.0
    ids: list[bytes] = field(default_factory=list)
    results: list[Arg] = field(default_factory=list)  # (head, body) pairs, flat
    verdicts: list[Verdict] = field(default_factory=list)
    is_over: bool = False  # the unit must stop here and give back the rest
    timeouts: int = 0  # calls whose time ran out
    waited_ms: list[int] = field(default_factory=list)  # of each result
    ran_us: list[int] = field(default_factory=list)
    size: int = 0  # bytes of the results
    hold_ms: int = 0  # nothing more of the request starts for so long

    def parts(self) -> Iterator[tuple[list[bytes], list[Arg], list[Verdict]]]:
        """Yields what must be settled, in calls of bounded size; at least one."""
        first = size = 0
        for i in range(len(self.ids)):
            size += len(self.results[2 * i + 1])  # type: ignore[arg-type]
            if size > settings.FLUSH_BYTES:
                yield self.ids[first : i + 1], self.results[2 * first : 2 * i + 2], []
                first, size = i + 1, 0
        yield self.ids[first:], self.results[2 * first :], self.verdicts


class OutcomeBuilder:
    """Collects the outcome of one run, which began at `began` ns of the performance counter.

    `limit_s` is the time limit of a sync handler: its late calls run on. Failed attempts are
    reported to `failures`. Each outcome is noted in the `journal`. `hide` takes the values that no
    view may show out of the text of an error, given the body.
    """

    def __init__(
        self,
        taken: Slice,
        position: int,
        began: int,
        limit_s: float = 0.0,
        failures: Failures | None = None,
        journal: Journal | None = None,
        hide: Callable[[bytes, str], str] | None = None,
        record: LeaseRecord | None = None,
    ) -> None:
        self._taken, self._hide, self._record = taken, hide, record
        self._journal = journal
        self._position = position
        self._began = began
        self._limit_s = limit_s
        self._failures = failures
        self._bytes, self._most = 0, settings.FLUSH_BYTES  # -1: the journal is full
        self._ids: list[bytes] = []
        self._results: list[Any] = []
        self._verdicts: list[Verdict] = []
        self._timeouts = 0
        self._submitted, self._waited = b"", 0  # of the entry before
        self._waited_ms: list[int] = []
        self._ran_us: list[int] = []
        self._hold_ms = 0
        self.is_over = False

    def add(self, entry: Entry, result: Any, ran_ns: int) -> None:
        """Adds a result; a result that can't be stored is a failure of the handler.

        What the flow does not declare, another attempt would hardly choose better: so it is dead.
        """
        if self._limit_s and (late := self.late(ran_ns)):
            self.fail(entry, late)
            return
        try:
            status, body = _stored(result, self._taken.request_id)
        except InvalidArgument as error:
            self._settle(entry, "dead", 0, str(error))
            return
        except (TypeError, ValueError, FairlaneError) as error:
            self._settle(entry, "retry", None, str(error))
            return
        entry_id, taken, size = entry[0], self._taken, len(body)
        submitted, _, index = entry_id.partition(b"-")
        if submitted != self._submitted:  # most entries of a slice came together
            self._submitted, self._waited = submitted, max(0, taken.taken_ms - int(submitted))
        waited, ran_us = self._waited, ran_ns // 1000
        head = result_head(index, status, taken.attempt, waited, ran_us)
        if self._journal is not None and not self._journal.result(b"%b %d\n" % (head, size), body):
            self._most = -1
        self._waited_ms.append(waited)
        self._ran_us.append(ran_us)
        self._ids.append(entry_id)
        self._results += (head, body)
        self._bytes += size
        self._position += 1

    def add_all(self, entries: list[Entry], results: Any, ran_ns: int) -> None:
        """Adds a batch handler's results; if there are not as many as bodies, the batch failed.

        An exception in the list is the failure of its own body.
        """
        try:
            _check_count(results, len(entries))
        except TypeError as error:
            for entry in entries:
                self._settle(entry, "retry", None, str(error))
            return
        each = ran_ns // len(entries)
        for entry, result in zip(entries, results, strict=True):
            if isinstance(result, BaseException):
                self.fail(entry, result)
            else:
                self.add(entry, result, each)

    def late(self, ran_ns: int, error: BaseException | None = None) -> TimedOut | None:
        """Returns the error of a call that ended, but after its time limit; None if in time.

        The supervisor's signal for the stacks interrupts waits in foreign code, which may return.
        """
        if not self._limit_s or ran_ns <= self._limit_s * 1e9:
            return None
        limit_s = self._limit_s
        if self._record is not None and (changed := self._record.changed_limit()):
            limit_s = changed.limit_s
            if not limit_s or ran_ns <= limit_s * 1e9:
                return None
        late = TimedOut(limit_s)
        late.__cause__ = error
        return late

    def fail(self, entry: Entry, error: BaseException, ran_ns: int = 0) -> None:
        """Adds a failure: retried after the backoff or the handler's pause, dead if rejected."""
        error = self.late(ran_ns, error) or error
        if isinstance(error, TimedOut):
            self._timeouts += 1
            self._settle(entry, "timeout", None, text_of(error), int(error.limit_s * 1e6))
        elif isinstance(error, GiveBack):
            key = (self._taken.request_id, entry[0])
            if _give_backs.note(key, error.longest_s, clock.mono_s()):
                self._settle(entry, "dead", 0, error.at_last)
            else:
                self._settle(entry, "release", error.after, error.reason)
        elif isinstance(error, Reject):
            self._settle(entry, "dead", 0, reason_of(error))
        elif isinstance(error, Retry):
            pause = _pause_of(error)
            self._settle(entry, "retry", pause, reason_of(error))
            if pause and getattr(error, "whole_request", False):
                self._hold_ms = max(self._hold_ms, round(pause * 1000) or 1)
                self.is_over = True
        else:
            self._settle(entry, "retry", None, text_of(error))

    def kill(self, entry: Entry, verdict: str, error: BaseException, ran_ns: int) -> None:
        """Adds a call that a person has ended; the error has where it was."""
        after_s = 0.0 if verdict == "release" else None
        text = f"{killed_by('')}\n{text_of(error)}"
        self._settle(entry, verdict, after_s, text, ran_ns // 1000)

    def fail_all(self, entries: list[Entry], error: BaseException) -> None:
        """Adds the failure of a batch. Its cause is unknown, so each entry comes back alone.

        If the time ran out, the number of entries alone may be the cause: so none is charged.
        """
        if isinstance(error, TimedOut) and len(entries) > 1:
            self._timeouts += 1
            for entry in entries:
                self._settle(entry, "release", 0, "")
            return
        for entry in entries:
            self.fail(entry, error)

    def _settle(
        self, entry: Entry, verdict: str, after_s: float | None, text: str, ran_us: int = 0
    ) -> None:
        """Adds a verdict; `after_s` is the pause before another attempt, None for the backoff."""
        taken = self._taken
        submitted, _, index = entry[0].partition(b"-")
        waited = max(0, taken.taken_ms - int(submitted))
        delay = retry_delay_ms(taken.attempt, *taken.backoff_ms)
        if after_s is not None:
            delay = round(after_s * 1000)
        status = b"g" if verdict == "release" else b"x"
        head = result_head(index, status, taken.attempt, waited, ran_us)
        if self._hide is not None:  # before anything is stored, sent or logged
            text = self._hide(entry[1][1], text)
        text = shortened(text, settings.MAX_ERROR)
        self._verdicts.append(Verdict(entry[0], verdict, delay, head, text))
        if self._journal is not None:
            self._journal.verdict(self._verdicts[-1])
            if self._journal.is_full:
                self._most = -1
        if self._failures is not None and verdict != "release":
            is_dead = verdict in {"dead", "killed"} or taken.attempt >= taken.attempts
            is_rejected = verdict == "dead"
            self._failures.report(
                taken, int(index), delay, text, entry[1][1], is_dead=is_dead,
                is_rejected=is_rejected,
            )  # fmt: skip
        self._position += 1

    def is_time(self, now: int) -> bool:
        """Returns True if the run must stop, or took long or grew big: it is settled now."""
        return self.is_over or self._bytes > self._most or now - self._began > _FLUSH_NS

    def outcome(self, now: int) -> Outcome:
        """Returns the outcome of the whole run."""
        return Outcome(
            self._position,
            (now - self._began) / 1e9,
            self._ids,
            self._results,
            self._verdicts,
            self.is_over,
            self._timeouts,
            self._waited_ms,
            self._ran_us,
            self._bytes,
            self._hold_ms,
        )


# ------------------------------------------------------------------ results


def _stored(result: Any, request_id: str) -> tuple[bytes, bytes]:
    """Returns a handler's result as (status, bytes).

    Raises TypeError or ValueError with a text, and what `chosen` raises.
    """
    if type(result) is bytes:
        status, body = b"d", result
    elif isinstance(result, str):
        status, body = b"d", _encoded(result)
    elif result is None:
        return b"n", b""
    elif isinstance(result, (bytes, bytearray, memoryview)):
        status, body = b"d", bytes(result)
    elif isinstance(result, (Next, Fan)):
        return chosen(result, request_id)
    else:
        _refuse_awaitable(result)
        hint = "raise it instead" if isinstance(result, BaseException) else _EXPECTED
        raise TypeError(f"the handler returned {type_of(result)}: {hint}")
    if len(body) > settings.MAX_BODY:
        raise ValueError(f"the result has {len(body):,} bytes: the most is {settings.MAX_BODY:,}")
    return status, body


_EXPECTED = "bytes, str or None is expected"


def _refuse_awaitable(result: Any) -> None:
    """Raises TypeError for a coroutine (which it closes) or another awaitable."""
    if not isinstance(result, Awaitable):
        return
    if isinstance(result, Coroutine):
        with suppress(Exception):  # one that has begun may raise whatever it likes
            result.close()
    raise TypeError(
        f"the handler returned {type_of(result)}, which is never awaited: "
        "make the handler an async def and await it there"
    )


def _check_count(results: Any, expected: int) -> None:
    """Raises TypeError unless there are as many results as bodies."""
    _refuse_awaitable(results)
    if not isinstance(results, (list, tuple)) or len(results) != expected:
        count = len(results) if isinstance(results, (list, tuple)) else type(results).__name__
        raise TypeError(f"the batch handler returned {count} results for {expected} bodies")


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"the handler returned a str that is not valid UTF-8: {error}") from None


def _pause_of(error: Retry) -> float | None:
    """Returns the pause in seconds; None for the backoff, also if a subclass has no valid pause."""
    after: Any = getattr(error, "after", None)
    return float(after) if is_seconds(after) else None


# ------------------------------------------------------------------ spans
# The span around each call of a handler, if the program has configured a tracer.


__fairlane_caller__ = True  # its frames are left out of a handler's traceback: see error_texts.py


def traced(
    tracer: Tracer, shape: Shape, queue: str, taken: Slice, entries: Sequence[Entry], limit_s: float
) -> Callable[..., Any]:
    """Returns the handler for these entries, with a span around each call of it.

    It must be called for the entries in their order, or, if it is a batch handler, once.
    """
    calls = _Calls(tracer, shape, queue, taken, entries, limit_s)
    return calls.acall if shape.is_async else calls.call


class _Calls:
    """The calls of a handler for the entries of a slice."""

    def __init__(
        self, tracer: Tracer, shape: Shape, queue: str, taken: Slice, entries: Sequence[Entry],
        limit_s: float,
    ) -> None:  # fmt: skip
        self._tracer, self._shape, self._queue, self._taken = tracer, shape, queue, taken
        self._calls = iter([entries] if shape.is_batch else [[entry] for entry in entries])
        self._limit_s = limit_s

    def call(self, *args: Any) -> Any:
        """Calls a sync handler."""
        with self._span(perf_counter()):
            return self._shape.call(*args)

    def acall(self, *args: Any) -> Coroutine[Any, Any, Any]:
        """Calls an async handler.

        Its time begins here: the timer of its limit starts before the call's first step.
        """
        return self._acall(perf_counter(), args)

    async def _acall(self, began: float, args: tuple[Any, ...]) -> Any:
        with self._span(began):
            return await self._shape.call(*args)

    @contextlib.contextmanager
    def _span(self, began: float) -> Iterator[None]:
        entries = next(self._calls)
        with self._begin(entries) as span:
            try:
                yield
            except GiveBack:
                span.set_attribute("fairlane.outcome", "released")
                raise
            except BaseException as error:
                outcome = self._outcome(error, perf_counter() - began)
                span.set_attribute("fairlane.outcome", outcome)
                kind = outcome if outcome in {"cancelled", "timeout"} else ""
                hide = self._shape.hide and partial(self._shape.hide, entries[0][1][1])
                tracing.note_error(span, error, kind, hide)
                raise
            is_late = self._is_late(perf_counter() - began)
            span.set_attribute("fairlane.outcome", "timeout" if is_late else "done")

    def _begin(self, entries: Sequence[Entry]) -> Any:
        """Returns the block of a new span, which continues the trace of its call or its request.

        A batch may be part of many traces one day, so its span is only linked to its request's.
        """
        from opentelemetry.trace import Link, SpanKind, get_current_span

        trace, links = self._taken.trace, []
        if self._shape.trace_of is not None:
            trace = self._shape.trace_of(entries[0][1][1]) or trace
        parent = tracing.context_of(trace) if trace else None
        if self._shape.is_batch and parent is not None:
            links, parent = [Link(get_current_span(parent).get_span_context())], None
        return self._tracer.start_as_current_span(
            f"process {self._queue}",
            context=parent,
            kind=SpanKind.CONSUMER,
            links=links,
            attributes=self._attributes(entries),
            record_exception=False,
            set_status_on_exception=False,
        )

    def _attributes(self, entries: Sequence[Entry]) -> dict[str, Any]:
        taken, first = self._taken, entries[0]
        submitted, _, index = first[0].partition(b"-")
        found = tracing.attributes(self._queue, "process", "process")
        found["fairlane.request.id"] = taken.request_id
        found["fairlane.attempt"] = taken.attempt
        found["fairlane.priority"] = taken.priority
        if self._shape.is_batch:
            found["messaging.batch.message_count"] = len(entries)
            return found
        found["messaging.message.id"] = tracing.message_id(taken.request_id, int(index))
        found["fairlane.waited_ms"] = max(0, taken.taken_ms - int(submitted))
        if self._shape.task_of is not None:
            found["fairlane.task"] = self._shape.task_of(first[1][1])
        return found

    def _outcome(self, error: BaseException, seconds: float) -> str:
        if self._is_late(seconds):
            return "timeout"
        if isinstance(error, asyncio.CancelledError):
            return "cancelled"
        is_last = self._taken.attempt >= self._taken.attempts
        return "dead" if is_last or isinstance(error, Reject) else "retry"

    def _is_late(self, seconds: float) -> bool:
        return 0 < self._limit_s < seconds


# ------------------------------------------------------------------ runner
# Runs a handler over a slice: one call for each entry, or one call for all of it.


GRACE_S = 1.5  # so long after a task was cancelled, its process is killed


class Runner:
    """The handler of one unit. `queue` is named in its spans."""

    def __init__(
        self,
        shape: Shape,
        record: LeaseRecord,
        failures: Failures | None = None,
        queue: str = "",
    ) -> None:
        self.shape, self._queue = shape, queue
        self.record = record
        self._start_most = START_MOST if shape.task_of is not None else 0  # bytes that are noted
        self._failures = failures
        self._task: asyncio.Task[Any] | None = None  # while it awaits an async handler
        self._called: Any = None  # the coroutine of that handler
        self._timer: asyncio.Timeout | None = None  # of its time limit
        # It has passed a limit that it did not have when it began; the last call had, too.
        self._is_late = self._was_late = False
        self._is_cancelled = False
        self._journal: Journal | None = None  # while others wait for the outcomes of a batch

    @property
    def is_calling(self) -> bool:
        """Returns True while an async handler is awaited."""
        return self._task is not None

    def cancel_unwanted(self) -> None:
        """Cancels the call of an async handler whose result is not wanted; in its event loop."""
        if self._task is None or self._is_cancelled:
            return
        record = self.record
        if (changed := record.changed_limit()) is not None:
            self._heed_limit(changed)
        if record.is_unwanted or record.kill_verdict or self._is_late:
            self._is_cancelled = True
            self._task.cancel()

    def _heed_limit(self, changed: ChangedLimit) -> None:
        """Moves the end of the call to that of its new limit; without a timer it ends here."""
        until = changed.until(self.record.call.began_ns / 1e9)
        if self._timer is not None and not self._timer.expired():
            self._timer.reschedule(None if until == math.inf else until)
        elif self._timer is None:
            self._is_late = clock.mono_s() > until

    def show_task(self) -> str:
        """Returns the stack of the call that is awaited; "" if none is. In its event loop."""
        if self._task is None or self._called is None:
            return ""
        return f"Task {self.record.owner}\n{stack_text(self._called, self._task)}\n"

    def _end_call(self) -> bool:
        """Notes that a call of an async handler has ended; returns True if it was cancelled."""
        task, self._task, self._called, self._timer = self._task, None, None, None
        self._was_late, self._is_late = self._is_late and not self.record.is_unwanted, False
        was_cancelled, self._is_cancelled = self._is_cancelled, False
        if was_cancelled and task is not None:
            task.uncancel()
        return was_cancelled

    def run(self, batch: LeaseBatch) -> list[Lease]:
        """Calls a sync handler for leases in turn, until it is time to settle.

        Returns the leases that had their turn and were not settled meanwhile.
        """
        for lease in self._turns(batch):
            lease.note(self.run_slice(lease.slice, lease.position))
        return batch.take_done()

    async def run_async(self, batch: LeaseBatch) -> list[Lease]:
        """Does the same for an async handler."""
        for lease in self._turns(batch):
            lease.note(await self.run_slice_async(lease.slice, lease.position))
        return batch.take_done()

    def _turns(self, batch: LeaseBatch) -> Iterator[Lease]:
        """Yields each lease when its turn comes, while its record is ours, until it is time.

        The only lease of a unit keeps its turn until it is settled, so that a death is charged.
        """
        own, is_alone = self.record, batch.is_alone
        is_time = None if is_alone else _Time(batch.slice_s, own.journal)
        is_noted = not is_alone or any(lease.left > 1 for lease in batch.waiting)
        if is_noted and own.journal is not None:
            own.journal.begin()
            self._journal = own.journal
            own.begin_batch()
        try:
            while (is_alone or not own.is_draining) and (lease := batch.take()):
                self.record = lease.record
                if lease.record.take_turn():
                    self._note(lease)
                    yield lease
                if not is_alone:
                    lease.record.end_turn()
                batch.done.append(lease)  # from here on its record may be another lease's
                if is_time is None or is_time.after(lease):
                    break
        finally:
            self.record = own
            if termination.is_child:
                termination.clear_timer()
            if self._journal is not None:
                self._journal = None
                own.end_batch()

    def _note(self, lease: Lease) -> None:
        """Notes in the journal which entries the next outcomes belong to."""
        if self._journal is not None:
            entries, record = lease.slice.entries, lease.record
            if len(entries) == 1:  # most often where a unit has many leases
                ids = entries[0][0]
            else:
                ids = b" ".join([entry[0] for entry in entries[lease.position :]])
            self._journal.lease(record.unit, record.version, ids)

    def run_slice(self, taken: Slice, position: int) -> Outcome:
        """Calls a sync handler for the slice from `position` on, until it is time to settle."""
        note_awaited_by(self.record.note_awaited)
        now, limit_s = perf_counter_ns(), self._limit_s(taken)
        tally = OutcomeBuilder(
            *(taken, position, now, limit_s, self._failures, self._journal),
            *(self.shape.hide, self.record),
        )
        if self.shape.is_batch:
            return self._run_batch(taken, taken.entries[position:], tally)
        call, wants_context = self._call(taken, position, limit_s), self.shape.wants_context
        noted, most = self.record.call, self._start_most
        for entry in taken.entries[position:] if position else taken.entries:
            noted.entry_id = entry[0]
            noted.start = entry[1][1][:most]
            noted.began_ns = before = perf_counter_ns()
            try:
                body = entry[1][1]
                args = (body, self._context(taken, entry)) if wants_context else (body,)
                result = copy_context().run(call, *args)
            except BaseException as error:  # noqa: BLE001  even SystemExit is the sub-request's failure
                if termination.is_marked:
                    termination.after_call(error)
                now = perf_counter_ns()
                tally.fail(entry, error, now - before)
            else:
                if termination.is_marked:
                    termination.after_call(None)
                now = perf_counter_ns()
                tally.add(entry, result, now - before)
            if (self.record.attention and self._must_stop(tally)) or tally.is_time(now):
                break
        self.record.rest()
        return tally.outcome(now)

    async def run_slice_async(self, taken: Slice, position: int) -> Outcome:
        """Does the same for an async handler."""
        note_awaited_by(self.record.note_awaited)
        now = perf_counter_ns()
        tally = OutcomeBuilder(
            taken, position, now, 0.0, self._failures, self._journal, self.shape.hide
        )
        if self.shape.is_batch:
            return await self._run_batch_async(taken, taken.entries[position:], tally)
        limit_s, task = self._limit_s(taken), asyncio.current_task()
        call, wants_context = self._call(taken, position, limit_s), self.shape.wants_context
        noted, most = self.record.call, self._start_most
        for entry in taken.entries[position:] if position else taken.entries:
            noted.entry_id = entry[0]
            noted.start = entry[1][1][:most]
            noted.began_ns = before = perf_counter_ns()
            try:
                body = entry[1][1]
                called = call(body, self._context(taken, entry)) if wants_context else call(body)
                self._called = called
                called = run_in(copy_context(), called)
                self._task = task
                result = await (self._within(limit_s, called) if limit_s else called)
            except BaseException as error:
                if termination.is_marked:
                    termination.after_call(error)
                was_cancelled, now = self._end_call(), perf_counter_ns()
                if _ends_unit(error, task):
                    raise
                if not self._note_failure(
                    tally, entry, error, now - before, was_cancelled=was_cancelled
                ):
                    break
            else:
                if termination.is_marked:
                    termination.after_call(None)
                self._end_call()
                now = perf_counter_ns()
                tally.add(entry, result, now - before)
            if (self.record.attention and self._must_stop(tally)) or tally.is_time(now):
                break
        self.record.rest()
        return tally.outcome(now)

    def _note_failure(
        self, tally: OutcomeBuilder, entry: Entry, error: BaseException, ran_ns: int, *,
        was_cancelled: bool,
    ) -> bool:  # fmt: skip
        """Notes how a call of an async handler failed; returns False if the run is over."""
        if was_cancelled and self._was_late:
            tally.fail(entry, self._timed_out(error))
        elif not was_cancelled:
            tally.fail(entry, error)
        elif not self._note_killed(tally, entry, error, ran_ns):
            tally.is_over = True
        return not tally.is_over

    def _note_killed(
        self, tally: OutcomeBuilder, entry: Entry, error: BaseException, ran_ns: int
    ) -> bool:
        """Settles a call that was cancelled because a person ended it; False: another cause."""
        verdict = self.record.kill_verdict
        if not verdict or self.record.is_unwanted:
            return False
        tally.kill(entry, verdict, error, ran_ns)
        self.record.note_killed()
        return True

    def _run_batch(self, taken: Slice, entries: list[Entry], tally: OutcomeBuilder) -> Outcome:
        limit_s, before, error, results = self._limit_s(taken), perf_counter_ns(), None, None
        self._begin_batch(entries, before)
        try:
            results = copy_context().run(self._call_batch, taken, entries, limit_s)
        except BaseException as raised:  # noqa: BLE001  the batch's failure, even SystemExit
            error = raised
        if termination.is_marked:
            termination.after_call(error)
        self.record.rest()
        error = tally.late(perf_counter_ns() - before, error) or error
        return _batch_outcome(tally, entries, results, error, before)

    async def _run_batch_async(
        self, taken: Slice, entries: list[Entry], tally: OutcomeBuilder
    ) -> Outcome:
        limit_s, before, error, results = self._limit_s(taken), perf_counter_ns(), None, None
        task = asyncio.current_task()
        self._begin_batch(entries, before)
        try:
            self._called = self._call_batch(taken, entries, limit_s)
            called = run_in(copy_context(), self._called)
            self._task = task
            results = await (self._within(limit_s, called) if limit_s else called)
        except BaseException as raised:
            was_cancelled = self._end_call()
            if not termination.is_fork and _ends_unit(raised, task):
                raise
            error = raised
            is_killed = was_cancelled and self._note_killed(
                tally, entries[0], raised, perf_counter_ns() - before
            )
            if is_killed:
                self.record.rest()
                return tally.outcome(perf_counter_ns())
            if was_cancelled and self._was_late:
                error = self._timed_out(raised)
            else:
                tally.is_over = was_cancelled
        self._end_call()
        self.record.rest()
        if termination.is_marked:
            termination.after_call(error)
        if tally.is_over:
            return tally.outcome(perf_counter_ns())
        return _batch_outcome(tally, entries, results, error, before)

    def _call_batch(self, taken: Slice, entries: list[Entry], limit_s: float) -> Any:
        bodies = [entry[1][1] for entry in entries]
        call = self._call(taken, len(taken.entries) - len(entries), limit_s)
        if self.shape.wants_context:
            return call(bodies, self._context(taken, entries[0], entries))
        return call(bodies)

    def _call(self, taken: Slice, position: int, limit_s: float) -> Handler:
        tracer = tracing.find_tracer()
        if tracer is None:
            return self.shape.call
        return traced(tracer, self.shape, self._queue, taken, taken.entries[position:], limit_s)

    def _context(self, taken: Slice, entry: Entry, entries: Sequence[Entry] = ()) -> Context:
        index, fence = int(entry[0].partition(b"-")[2]), int(taken.fence)
        return Context(
            taken.request_id, index, taken.attempt, fence, self.record, entries, taken.attempts
        )

    def _must_stop(self, tally: OutcomeBuilder) -> bool:
        """Returns True if the supervisor stopped or split this lease, or drains the worker."""
        self.record.clear_attention()  # before the reads: a later stop sets it again
        record = self.record
        tally.is_over = record.is_draining or record.is_split or record.is_stopped
        return tally.is_over

    def _limit_s(self, taken: Slice) -> float:
        """Returns the smaller of the handler's and the request's limits; 0 = there is none."""
        return smaller_limit(self.shape.time_limit_s, taken.time_limit_ms / 1000)

    def _timed_out(self, error: BaseException) -> TimedOut:
        """Returns the error of a call that was cancelled because its limit was changed."""
        late = TimedOut(self._limit_now(0.0))
        late.__cause__ = error
        return late

    def _limit_now(self, limit_s: float) -> float:
        """Returns the limit of the call that runs, which may have been changed since it began."""
        changed = self.record.changed_limit()
        return changed.limit_s if changed else limit_s

    async def _within(self, limit_s: float, called: Awaitable[Any]) -> Any:
        """Awaits a handler call. Raises TimedOut from the error that the cancellation raised.

        If the call goes on regardless, or blocks the loop, its process is killed.
        """
        task = asyncio.current_task()
        try:
            async with asyncio.timeout(limit_s) as timer:
                self._timer = timer
                result = await called
        except BaseException as error:
            if timer.expired() and not _ends_unit(error, task):
                raise TimedOut(self._limit_now(limit_s)) from _cancelled(error)
            raise
        if timer.expired():  # the handler was cancelled, and returned a result all the same
            raise TimedOut(self._limit_now(limit_s))
        return result

    def _begin_batch(self, entries: list[Entry], began_ns: int) -> None:
        """Notes on the board the call of a batch handler; of several entries it names none."""
        self.record.call.entry_id = entries[0][0] if len(entries) == 1 else b""
        self.record.call.began_ns = began_ns


class _Time:
    """Decides when leases that were handled should be settled; starts now."""

    def __init__(self, slice_s: float, journal: Journal | None) -> None:
        self._until = perf_counter_ns() + int(slice_s * 1e9)
        self._bytes, self._journal = 0, journal

    def after(self, lease: Lease) -> bool:
        """Returns True if it took long or grew big, or if this lease must go on or stop."""
        outcome = lease.outcome
        if outcome is not None:
            self._bytes += outcome.size
            if outcome.position < len(lease.slice.entries):
                return True
        if self._journal is not None and not self._journal.has_room:
            return True
        return self._bytes > settings.FLUSH_BYTES or perf_counter_ns() > self._until


def _batch_outcome(
    tally: OutcomeBuilder,
    entries: list[Entry],
    results: Any,
    error: BaseException | None,
    before: int,
) -> Outcome:
    now = perf_counter_ns()
    if error is None:
        tally.add_all(entries, results, now - before)
    else:
        tally.fail_all(entries, error)
    return tally.outcome(now)


def _cancelled(error: BaseException) -> BaseException:
    """Returns the CancelledError behind asyncio's TimeoutError: it shows where the handler was."""
    if not isinstance(error, TimeoutError):
        return error
    behind = error.__cause__ or error.__context__  # Python 3.11.2 raises it without `from`
    return behind if isinstance(behind, asyncio.CancelledError) else error


def _ends_unit(error: BaseException, task: asyncio.Task[Any] | None) -> bool:
    """Returns True if the async unit itself is being ended, not only what its handler awaited."""
    if isinstance(error, asyncio.CancelledError):
        return task is not None and task.cancelling() > 0
    if not isinstance(error, GeneratorExit):
        return False
    try:  # another task closes a coroutine that waits, or no task at all
        return asyncio.current_task() is not task
    except RuntimeError:
        return True
