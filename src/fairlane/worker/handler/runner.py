"""Runs a handler over a slice: one call for each entry, or one call for all of it."""

from __future__ import annotations

import asyncio
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from fairlane import settings
from fairlane.common import clock
from fairlane.worker import termination
from fairlane.worker.handler.errors import TimedOut
from fairlane.worker.handler.handlers import Context, Shape
from fairlane.worker.handler.outcome import OutcomeBuilder
from fairlane.worker.handler.spans import traced

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterator, Sequence

    from fairlane.model import Entry, Slice
    from fairlane.worker.handler.handlers import Handler
    from fairlane.worker.handler.outcome import Outcome
    from fairlane.worker.journal import Journal
    from fairlane.worker.lease_board import LeaseRecord
    from fairlane.worker.log.failures import Failures
    from fairlane.worker.unit.leases import Lease, LeaseBatch

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
        self._failures = failures
        self._task: asyncio.Task[Any] | None = None  # while it awaits an async handler
        self._is_cancelled = False
        self._journal: Journal | None = None  # while others wait for the outcomes of a batch

    @property
    def is_calling(self) -> bool:
        """Returns True while an async handler is awaited."""
        return self._task is not None

    def cancel_unwanted(self) -> None:
        """Cancels the call of an async handler whose result is not wanted; in its event loop."""
        if self._task is not None and not self._is_cancelled and self.record.is_unwanted:
            self._is_cancelled = True
            self._task.cancel()

    def _end_call(self) -> bool:
        """Notes that a call of an async handler has ended; returns True if it was cancelled."""
        task, self._task = self._task, None
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
            ids = [entry[0] for entry in lease.slice.entries[lease.position :]]
            self._journal.lease(lease.record.unit, lease.record.version, ids)

    def run_slice(self, taken: Slice, position: int) -> Outcome:
        """Calls a sync handler for the slice from `position` on, until it is time to settle."""
        now, limit_s = perf_counter_ns(), self._limit_s(taken)
        tally = OutcomeBuilder(taken, position, now, limit_s, self._failures, self._journal)
        if self.shape.is_batch:
            return self._run_batch(taken, taken.entries[position:], tally)
        call, wants_context = self._call(taken, position), self.shape.wants_context
        for entry in taken.entries[position:]:
            if limit_s:
                self._begin(taken, entry, limit_s)
            before = perf_counter_ns()
            try:
                body = entry[1][1]
                result = call(body, self._context(taken, entry)) if wants_context else call(body)
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
        if limit_s:
            self.record.rest()
        return tally.outcome(now)

    async def run_slice_async(self, taken: Slice, position: int) -> Outcome:
        """Does the same for an async handler."""
        now = perf_counter_ns()
        tally = OutcomeBuilder(taken, position, now, 0.0, self._failures, self._journal)
        if self.shape.is_batch:
            return await self._run_batch_async(taken, taken.entries[position:], tally)
        call, wants_context = self._call(taken, position), self.shape.wants_context
        limit_s, task = self._limit_s(taken), asyncio.current_task()
        for entry in taken.entries[position:]:
            before = perf_counter_ns()
            try:
                body = entry[1][1]
                called = call(body, self._context(taken, entry)) if wants_context else call(body)
                self._task = task
                result = await (self._within(limit_s, taken, entry, called) if limit_s else called)
            except BaseException as error:
                if termination.is_marked:
                    termination.after_call(error)
                was_cancelled, now = self._end_call(), perf_counter_ns()
                if _ends_unit(error, task):
                    raise
                if was_cancelled:
                    tally.is_over = True
                    break
                tally.fail(entry, error)
            else:
                if termination.is_marked:
                    termination.after_call(None)
                self._end_call()
                now = perf_counter_ns()
                tally.add(entry, result, now - before)
            if (self.record.attention and self._must_stop(tally)) or tally.is_time(now):
                break
        return tally.outcome(now)

    def _run_batch(self, taken: Slice, entries: list[Entry], tally: OutcomeBuilder) -> Outcome:
        limit_s, before, error, results = self._limit_s(taken), perf_counter_ns(), None, None
        if limit_s:
            self._begin(taken, entries[0] if len(entries) == 1 else None, limit_s)
        try:
            results = self._call_batch(taken, entries)
        except BaseException as raised:  # noqa: BLE001  the batch's failure, even SystemExit
            error = raised
        if termination.is_marked:
            termination.after_call(error)
        if limit_s:
            self.record.rest()
        error = tally.late(perf_counter_ns() - before, error) or error
        return _batch_outcome(tally, entries, results, error, before)

    async def _run_batch_async(
        self, taken: Slice, entries: list[Entry], tally: OutcomeBuilder
    ) -> Outcome:
        limit_s, before, error, results = self._limit_s(taken), perf_counter_ns(), None, None
        only, task = entries[0] if len(entries) == 1 else None, asyncio.current_task()
        try:
            called = self._call_batch(taken, entries)
            self._task = task
            results = await (self._within(limit_s, taken, only, called) if limit_s else called)
        except BaseException as raised:
            was_cancelled = self._end_call()
            if not termination.is_fork and _ends_unit(raised, task):
                raise
            error = raised
            tally.is_over = was_cancelled
        self._end_call()
        if termination.is_marked:
            termination.after_call(error)
        if tally.is_over:
            return tally.outcome(perf_counter_ns())
        return _batch_outcome(tally, entries, results, error, before)

    def _call_batch(self, taken: Slice, entries: list[Entry]) -> Any:
        bodies = [entry[1][1] for entry in entries]
        call = self._call(taken, len(taken.entries) - len(entries))
        if self.shape.wants_context:
            return call(bodies, self._context(taken, entries[0], entries))
        return call(bodies)

    def _call(self, taken: Slice, position: int) -> Handler:
        entries = taken.entries[position:]
        return traced(self.shape, self._queue, taken, entries, self._limit_s(taken))

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

    # Time limits. Each call is on the board while it runs: the supervisor ends a call that takes
    # too long.

    def _limit_s(self, taken: Slice) -> float:
        """Returns the smaller of the handler's and the request's limits; 0 = there is none."""
        own, asked = self.shape.time_limit_s, taken.time_limit_ms / 1000
        return min(own, asked) if own and asked else own or asked

    def _begin(
        self, taken: Slice, entry: Entry | None, limit_s: float, grace_s: float = 0.0
    ) -> None:
        began = clock.mono_s()
        self.record.begin(
            entry[0] if entry else b"",
            began=began,
            until=began + limit_s + grace_s,
            limit_s=limit_s,
            taken_ms=taken.taken_ms,
            attempt=taken.attempt,
            attempts=taken.attempts,
            backoff_ms=taken.backoff_ms,
        )

    async def _within(
        self, limit_s: float, taken: Slice, entry: Entry | None, called: Awaitable[Any]
    ) -> Any:
        """Awaits a handler call. Raises TimedOut from the error that the cancellation raised.

        If the call goes on regardless, or blocks the loop, its process is killed.
        """
        self._begin(taken, entry, limit_s, GRACE_S)
        task = asyncio.current_task()
        try:
            async with asyncio.timeout(limit_s) as timer:
                result = await called
        except BaseException as error:
            if timer.expired() and not _ends_unit(error, task):
                raise TimedOut(limit_s) from _cancelled(error)
            raise
        finally:
            self.record.rest()
        if timer.expired():  # the handler was cancelled, and returned a result all the same
            raise TimedOut(limit_s)
        return result


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
