"""The span around each call of a handler, if the program has configured a tracer."""

from __future__ import annotations

import asyncio
import contextlib
from time import perf_counter
from typing import TYPE_CHECKING, Any

from fairlane.tracing import tracer as tracing
from fairlane.worker.handler.errors import GiveBack, Reject

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence

    from opentelemetry.trace import Tracer

    from fairlane.model import Entry, Slice
    from fairlane.worker.handler.handlers import Shape

__fairlane_caller__ = True  # its frames are left out of a handler's traceback: see outcome.py


def traced(
    shape: Shape, queue: str, taken: Slice, entries: Sequence[Entry], limit_s: float
) -> Callable[..., Any]:
    """Returns the handler for these entries; with a tracer, each call of it is in a span.

    It must be called for the entries in their order, or, if it is a batch handler, once.
    """
    tracer = tracing.find_tracer()
    if tracer is None:
        return shape.call
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
                tracing.note_error(span, error, kind)
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
