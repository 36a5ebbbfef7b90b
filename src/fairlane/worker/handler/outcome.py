"""Collects the outcome of one run of the handler: results, and verdicts for all other entries."""

from __future__ import annotations

import traceback
from collections.abc import Awaitable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fairlane import settings
from fairlane.common import clock
from fairlane.common.backoff import retry_delay_ms
from fairlane.common.fingerprint import CAUSE
from fairlane.common.text import shortened
from fairlane.errors import type_of
from fairlane.model import RESULT_HEAD, Entry, Slice, Verdict, result_head
from fairlane.worker.handler.errors import (
    GiveBack,
    GivenBack,
    Reject,
    Retry,
    TimedOut,
    is_seconds,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from fairlane.protocol.steps import Arg
    from fairlane.worker.journal import Journal
    from fairlane.worker.log.failures import Failures

_NOTED_RESULT = RESULT_HEAD + b" %d\n%b"
_given_back = GivenBack()
_FLUSH_NS = int(settings.FLUSH_MS * 1e6)
# Code whose frames mean nothing to the handler's author: before the handler's frames, or above.
_RUNNER, _RAISED = f"{__package__}.runner", f"{__package__}.errors"


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
    reported to `failures`. Each outcome is noted in the `journal`.
    """

    def __init__(
        self,
        taken: Slice,
        position: int,
        began: int,
        limit_s: float = 0.0,
        failures: Failures | None = None,
        journal: Journal | None = None,
    ) -> None:
        self._taken = taken
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
        self._waited_ms: list[int] = []
        self._ran_us: list[int] = []
        self._hold_ms = 0
        self.is_over = False

    def add(self, entry: Entry, result: Any, ran_ns: int) -> None:
        """Adds a result; a result that can't be stored is a failure of the handler."""
        if self._limit_s and (late := self.late(ran_ns)):
            self.fail(entry, late)
            return
        try:
            status, body = _stored(result)
        except (TypeError, ValueError) as error:
            self._settle(entry, "retry", None, str(error))
            return
        entry_id = entry[0]
        submitted, _, index = entry_id.partition(b"-")
        waited = max(0, self._taken.taken_ms - int(submitted))
        ran_us = ran_ns // 1000
        journal, attempt = self._journal, self._taken.attempt
        if journal is None:
            head = result_head(index, status, attempt, waited, ran_us)
        else:  # the same head, and what the journal wants to know of the body
            parts = (index, status, attempt, waited, ran_us, len(body), body)
            noted = _NOTED_RESULT % parts
            head = noted[: noted.index(b" ")]
            journal.result(noted)
            if journal.is_full:
                self._most = -1
        self._waited_ms.append(waited)
        self._ran_us.append(ran_us)
        self._ids.append(entry_id)
        self._results += (head, body)
        self._bytes += len(body)
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
        late = TimedOut(self._limit_s)
        late.__cause__ = error
        return late

    def fail(self, entry: Entry, error: BaseException, ran_ns: int = 0) -> None:
        """Adds a failure: retried after the backoff or the handler's pause, dead if rejected."""
        error = self.late(ran_ns, error) or error
        if isinstance(error, TimedOut):
            self._timeouts += 1
            self._settle(entry, "timeout", None, _text_of(error), int(error.limit_s * 1e6))
        elif isinstance(error, GiveBack):
            key = (self._taken.request_id, entry[0])
            if _given_back.is_over(key, error.longest_s, clock.mono_s()):
                self._settle(entry, "dead", 0, error.at_last)
            else:
                self._settle(entry, "release", error.after, error.reason)
        elif isinstance(error, Reject):
            self._settle(entry, "dead", 0, _reason_of(error))
        elif isinstance(error, Retry):
            pause = _pause_of(error)
            self._settle(entry, "retry", pause, _reason_of(error))
            if pause and getattr(error, "whole_request", False):
                self._hold_ms = max(self._hold_ms, round(pause * 1000) or 1)
                self.is_over = True
        else:
            self._settle(entry, "retry", None, _text_of(error))

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
        text = shortened(text, settings.MAX_ERROR)
        self._verdicts.append(Verdict(entry[0], verdict, delay, head, text))
        if self._journal is not None:
            self._journal.verdict(self._verdicts[-1])
            if self._journal.is_full:
                self._most = -1
        if self._failures is not None and verdict != "release":
            is_dead = verdict == "dead" or taken.attempt >= taken.attempts
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


def _stored(result: Any) -> tuple[bytes, bytes]:
    """Returns a handler's result as (status, bytes). Raises TypeError or ValueError with a text."""
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


# ------------------------------------------------------------------ errors


def _reason_of(error: Retry | Reject) -> str:
    """Returns the error's reason, and the exception that it was raised from, or while handling."""
    try:
        text = str(error)
    except BaseException:  # noqa: BLE001  a subclass may raise anything
        text = type(error).__name__
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return text if cause is None else f"{text}\n{CAUSE}\n{_text_of(cause)}"


def _pause_of(error: Retry) -> float | None:
    """Returns the pause in seconds; None for the backoff, also if a subclass has no valid pause."""
    after: Any = getattr(error, "after", None)
    return float(after) if is_seconds(after) else None


def _text_of(error: BaseException) -> str:
    """Returns the traceback, from the handler's own first frame on."""
    if isinstance(error, TimedOut):  # its cause has the place where the handler was
        cause = error.__cause__
        return str(error) if cause is None else f"{error}\n{_text_of(cause)}"
    trace: TracebackType | None = error.__traceback__
    while trace is not None and _is_caller(trace.tb_frame.f_globals):
        trace = trace.tb_next
    try:
        report = traceback.TracebackException(type(error), error, trace, compact=True)
        report.stack = traceback.StackSummary.from_list(_others(trace, report.stack))
        return "".join(report.format())
    except BaseException:  # noqa: BLE001  methods of the handler's own classes run here
        return f"{type(error).__name__}, which has no text\n"


def _is_caller(module: dict[str, Any]) -> bool:
    """Returns True for a module that only calls the handler, or its tasks."""
    return module.get("__name__") == _RUNNER or "__fairlane_caller__" in module


def _others(
    trace: TracebackType | None, frames: list[traceback.FrameSummary]
) -> list[traceback.FrameSummary]:
    """Returns the frames without those of this package's exceptions, which refuse bad arguments."""
    modules = [frame.f_globals.get("__name__") for frame, _ in traceback.walk_tb(trace)]
    if len(modules) != len(frames):
        return frames
    return [one for one, module in zip(frames, modules, strict=True) if module != _RAISED]
