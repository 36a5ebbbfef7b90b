"""The spans of a program that submits, takes and settles."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Self

from fairlane.tracing import tracer as tracing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import TracebackType

    from opentelemetry.trace import Span

    from fairlane.operations.receipt import Receipt
    from fairlane.operations.take import Delivery


class ClientSpan:
    """The span of one call of the API; it begins here and ends with the block.

    `trace` is its context as text. The span is not current in the block, because the block may be
    that of a generator, which other code interrupts.
    """

    trace = ""

    def sent(self, request_id: str, total: int | None) -> None:
        """Notes what was submitted: one request of `total` sub-requests, None = not known yet."""

    def received(self, taken: Sequence[Delivery]) -> None:
        """Notes what was taken."""

    def count(self, messages: int) -> None:
        """Notes how many sub-requests were submitted."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Ends the span."""


class _Recorded(ClientSpan):
    """A span that a tracer made."""

    def __init__(self, span: Span) -> None:
        self._span, self.trace = span, tracing.text_of(span)

    def sent(self, request_id: str, total: int | None) -> None:
        self._span.set_attribute("fairlane.request.id", request_id)
        if total == 1:
            self._span.set_attribute("messaging.message.id", tracing.message_id(request_id, 0))
        elif total is not None:
            self.count(total)

    def count(self, messages: int) -> None:
        self._span.set_attribute("messaging.batch.message_count", messages)

    def received(self, taken: Sequence[Delivery]) -> None:
        self.count(len(taken))
        for one in taken:
            _link(self._span, one.trace, {"messaging.message.id": _id_of(one.receipt)})

    def sends(self, request_id: str, first: int, traces: Sequence[str]) -> None:
        """Notes which messages are sent, each with the trace of its creation."""
        self._span.set_attribute("fairlane.request.id", request_id)
        self.count(len(traces))
        for index, trace in enumerate(traces, first):
            name = tracing.message_id(request_id, index)
            _link(self._span, trace, {"messaging.message.id": name})

    def settles(self, receipt: Receipt, trace: str) -> None:
        """Notes what is settled."""
        self._span.set_attribute("messaging.message.id", _id_of(receipt))
        self._span.set_attribute("fairlane.attempt", receipt.attempt)
        _link(self._span, trace)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None and not isinstance(error, GeneratorExit):
            tracing.note_error(self._span, error)
        self._span.end()


class _Continued(ClientSpan):
    """No span: what is submitted carries the context of the caller of this program."""

    def __init__(self, trace: str) -> None:
        self.trace = trace


_NOTHING = ClientSpan()
_caller: ContextVar[str] = ContextVar("caller", default="")


@contextmanager
def continued(trace: str) -> Iterator[None]:
    """Lets the calls of the API in the block continue the trace of a program that called this one.

    `trace` is its context as text, "" = it has none. A span that is current goes before it.
    """
    token = _caller.set(trace)
    try:
        yield
    finally:
        _caller.reset(token)


def sending(queue: str) -> ClientSpan:
    """Returns the span of a submission, whose context its sub-requests carry."""
    return _begin(queue, "send", "send", "PRODUCER")


def creating(queue: str) -> ClientSpan:
    """Returns the span of a message that is sent later, with others; it carries this context."""
    return _begin(queue, "create", "create", "PRODUCER")


def sending_created(queue: str, request_id: str, first: int, traces: Sequence[str]) -> ClientSpan:
    """Returns the span of sending messages, with a link to the creation of each.

    The messages are the sub-requests of a request from the index `first` on.
    """
    found = _begin(queue, "send", "send", "CLIENT") if any(traces) else _NOTHING
    if isinstance(found, _Recorded):
        found.sends(request_id, first, traces)
    return found


def receiving(queue: str) -> ClientSpan:
    """Returns the span of a take."""
    return _begin(queue, "take", "receive", "CLIENT")


def settling(verb: str, receipt: Receipt, trace: str) -> ClientSpan:
    """Returns the span of a call that settles or extends; `trace` is that of its sub-request."""
    found = _begin(receipt.queue, verb, "settle", "CLIENT")
    if isinstance(found, _Recorded):
        found.settles(receipt, trace)
    return found


def _begin(queue: str, name: str, kind: str, span_kind: str) -> ClientSpan:
    tracer, caller = tracing.find_tracer(), _caller.get()
    if tracer is None:
        return _Continued(caller) if caller else _NOTHING
    from opentelemetry.trace import SpanKind, get_current_span

    is_root = not get_current_span().get_span_context().is_valid

    made = tracer.start_span(
        f"{name} {queue}",
        context=tracing.context_of(caller) if caller and is_root else None,
        kind=SpanKind[span_kind],
        attributes=tracing.attributes(queue, name, kind),
    )
    return _Recorded(made)


def _id_of(receipt: Receipt) -> str:
    return tracing.message_id(receipt.request_id, receipt.index)


def _link(span: Span, trace: str, attributes: dict[str, Any] | None = None) -> None:
    from opentelemetry.trace import get_current_span

    if trace and (context := tracing.context_of(trace)) is not None:
        span.add_link(get_current_span(context).get_span_context(), attributes)
