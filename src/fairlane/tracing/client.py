"""The spans of a program that submits, takes and settles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from fairlane.tracing import tracer as tracing

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from opentelemetry.trace import Span

    from fairlane.operations.pull.receipt import Receipt
    from fairlane.operations.pull.take import Delivery


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


_NOTHING = ClientSpan()


def sending(queue: str) -> ClientSpan:
    """Returns the span of a submission, whose context its sub-requests carry."""
    return _begin(queue, "send", "send", "PRODUCER")


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
    tracer = tracing.find_tracer()
    if tracer is None:
        return _NOTHING
    from opentelemetry.trace import SpanKind

    made = tracer.start_span(
        f"{name} {queue}",
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
