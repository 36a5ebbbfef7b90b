"""Runs a handler over a slice: one call an entry, or one call for all of it."""

from __future__ import annotations

import traceback
from collections.abc import Awaitable, Coroutine
from contextlib import suppress
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from .. import settings
from ..model import Entry, Slice, Verdict, result_head
from ..retry import retry_delay_ms
from .handlers import Context, Shape
from .loop import Outcome

if TYPE_CHECKING:
    from .board import Record

_FLUSH_NS = int(settings.FLUSH_MS * 1e6)
_ERROR_TEXT = 4096  # characters of a traceback that are kept


class Runner:
    """The handler of one unit."""

    def __init__(self, shape: Shape, record: Record) -> None:
        self.shape = shape
        self.record = record

    def run(self, taken: Slice, position: int) -> Outcome:
        """A sync handler over the slice from `position` on, until it is time to settle."""
        if self.shape.is_batch:
            return self._run_batch(taken, position)
        tally = _Tally(taken, position)
        call, wants_context = self.shape.call, self.shape.wants_context
        for entry in taken.entries[position:]:
            before = perf_counter_ns()
            try:
                body = entry[1][1]
                result = call(body, self._context(taken, entry)) if wants_context else call(body)
            except BaseException as error:  # noqa: BLE001  even SystemExit is the sub-request's failure
                tally.fail(entry, error)
            else:
                tally.add(entry, result, perf_counter_ns() - before)
            if tally.is_time() or (self.record.attention and self._must_stop(tally)):
                break
        return tally.outcome()

    async def run_async(self, taken: Slice, position: int) -> Outcome:
        """The same for an async handler."""
        if self.shape.is_batch:
            return await self._run_batch_async(taken, position)
        tally = _Tally(taken, position)
        call, wants_context = self.shape.call, self.shape.wants_context
        for entry in taken.entries[position:]:
            before = perf_counter_ns()
            try:
                body = entry[1][1]
                result = await (
                    call(body, self._context(taken, entry)) if wants_context else call(body)
                )
            except BaseException as error:
                if _ends_unit(error):
                    raise
                tally.fail(entry, error)
            else:
                tally.add(entry, result, perf_counter_ns() - before)
            if tally.is_time() or (self.record.attention and self._must_stop(tally)):
                break
        return tally.outcome()

    def _run_batch(self, taken: Slice, position: int) -> Outcome:
        tally = _Tally(taken, position)
        entries = taken.entries[position:]
        try:
            tally.add_all(entries, self._call_batch(taken, entries))
        except BaseException as error:  # noqa: BLE001  the batch's failure, even SystemExit
            tally.fail_all(entries, error)
        return tally.outcome()

    async def _run_batch_async(self, taken: Slice, position: int) -> Outcome:
        tally = _Tally(taken, position)
        entries = taken.entries[position:]
        try:
            tally.add_all(entries, await self._call_batch(taken, entries))
        except BaseException as error:
            if _ends_unit(error):
                raise
            tally.fail_all(entries, error)
        return tally.outcome()

    def _call_batch(self, taken: Slice, entries: list[Entry]) -> Any:
        bodies = [entry[1][1] for entry in entries]
        if self.shape.wants_context:
            return self.shape.call(bodies, self._context(taken, entries[0]))
        return self.shape.call(bodies)

    def _context(self, taken: Slice, entry: Entry) -> Context:
        index = int(entry[0].partition(b"-")[2])
        return Context(taken.request_id, index, taken.attempt, int(taken.fence), self.record)

    def _must_stop(self, tally: _Tally) -> bool:
        """True when what the supervisor said is about this lease."""
        self.record.heard()  # before the look: what is said from now on calls for attention again
        tally.is_over = self.record.is_draining or self.record.is_stopped
        return tally.is_over


def _ends_unit(error: BaseException) -> bool:
    """True when an async unit itself is being ended, and not just what its handler awaited."""
    from asyncio import CancelledError, current_task

    if isinstance(error, CancelledError):
        task = current_task()
        return task is not None and task.cancelling() > 0
    return isinstance(error, GeneratorExit)


def _text_of(error: BaseException) -> str:
    """The traceback, from the handler's own first frame on."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals is globals():
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace))


def _refuse_awaitable(result: Any) -> None:
    """Raises TypeError for a coroutine (which is closed) or anything else to be awaited."""
    if not isinstance(result, Awaitable):
        return
    if isinstance(result, Coroutine):
        with suppress(Exception):  # one that has begun may raise whatever it likes
            result.close()
    raise TypeError(
        f"the handler returned a {type(result).__name__}, which nobody awaits: "
        "make the handler an async def and await it there"
    )


def _stored(result: Any) -> tuple[bytes, bytes]:
    """What a handler returned as (status, bytes). Raises TypeError, ValueError with a sentence."""
    if type(result) is bytes:
        status, body = b"d", result
    elif isinstance(result, str):
        status, body = b"d", _encoded(result)
    elif result is None:
        return b"n", b""
    elif isinstance(result, (bytes, bytearray, memoryview)):
        status, body = b"d", bytes(result)
    else:
        _refuse_awaitable(result)
        kind = type(result).__name__
        raise TypeError(f"the handler returned a {kind}: bytes, str or None is expected")
    if len(body) > settings.MAX_BODY:
        raise ValueError(f"the result has {len(body):,} bytes: the most is {settings.MAX_BODY:,}")
    return status, body


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


class _Tally:
    """Collects the outcome of one run."""

    def __init__(self, taken: Slice, position: int) -> None:
        self._taken = taken
        self._position = position
        self._began = perf_counter_ns()
        self._bytes = 0
        self._ids: list[bytes] = []
        self._results: list[Any] = []
        self._verdicts: list[Verdict] = []
        self.is_over = False

    def add(self, entry: Entry, result: Any, ran_ns: int) -> None:
        """A result; one that can't be stored is the handler's mistake."""
        try:
            status, body = _stored(result)
        except (TypeError, ValueError) as error:
            self._retry(entry, str(error))
            return
        entry_id = entry[0]
        submitted, _, index = entry_id.partition(b"-")
        waited = max(0, self._taken.taken_ms - int(submitted))
        head = result_head(index, status, self._taken.attempt, waited, ran_ns // 1000)
        self._ids.append(entry_id)
        self._results += (head, body)
        self._bytes += len(body)
        self._position += 1

    def add_all(self, entries: list[Entry], results: Any) -> None:
        """A batch handler's results: as many as there were bodies, or the whole batch failed."""
        try:
            _check_count(results, len(entries))
        except TypeError as error:
            for entry in entries:
                self._retry(entry, str(error))
            return
        ran = perf_counter_ns() - self._began
        for entry, result in zip(entries, results, strict=True):
            self.add(entry, result, ran // len(entries))

    def fail(self, entry: Entry, error: BaseException) -> None:
        """The handler raised."""
        self._retry(entry, _text_of(error)[-_ERROR_TEXT:])

    def _retry(self, entry: Entry, text: str) -> None:
        """The sub-request failed: again after the backoff, unless this was its last attempt."""
        taken = self._taken
        submitted, _, index = entry[0].partition(b"-")
        waited = max(0, taken.taken_ms - int(submitted))
        delay = retry_delay_ms(taken.attempt, *taken.backoff_ms)
        text = text.encode(errors="backslashreplace").decode()  # a lone surrogate can't be sent
        head = result_head(index, b"x", taken.attempt, waited, 0)
        self._verdicts.append(Verdict(entry[0], "retry", delay, head, text))
        self._position += 1

    def fail_all(self, entries: list[Entry], error: BaseException) -> None:
        """A batch failed: nobody knows through which of them, so each comes back alone."""
        for entry in entries:
            self.fail(entry, error)

    def is_time(self) -> bool:
        """It took long or grew big: what is done so far should be settled."""
        return self._bytes > settings.FLUSH_BYTES or perf_counter_ns() - self._began > _FLUSH_NS

    def outcome(self) -> Outcome:
        """All of it."""
        seconds = (perf_counter_ns() - self._began) / 1e9
        return Outcome(
            self._position, seconds, self._ids, self._results, self._verdicts, self.is_over
        )
