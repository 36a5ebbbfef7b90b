"""OpenTelemetry: spans around submissions, calls of handlers, and what programs take.

OpenTelemetry is imported here only if other code has imported it, because otherwise no provider is
configured. redis-py may have imported it, so the provider is looked at, too.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import traceback
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import TYPE_CHECKING, Any, Self

from fairlane import settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import TracebackType

    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer

    from fairlane.operations.take import Delivery, Receipt


# ------------------------------------------------------------------ tracer
# Finds the program's tracer, and writes the context of a span as text.


SYSTEM = "fairlane"
_MOST_STATE = 512  # characters of a tracestate that are kept; a longer one is left out
_PARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_PROVIDER_IN_ENV = "OTEL_PYTHON_TRACER_PROVIDER" in os.environ  # then the first look configures it
_FLUSH_S = 5.0  # the end of a process waits so long for an exporter


def find_tracer() -> Tracer | None:
    """Returns the tracer of the provider that this program has configured; None = it has none."""
    api = sys.modules.get("opentelemetry.trace")
    # The attribute is read first, because this is called for each slice of work: the public
    # function takes 20 times as long.
    if api is None or (not _PROVIDER_IN_ENV and getattr(api, "_TRACER_PROVIDER", api) is None):
        return None
    find = getattr(api, "get_tracer_provider", None)
    if find is None:  # another thread is importing it now
        return None
    provider = find()
    return None if isinstance(provider, api.ProxyTracerProvider) else _tracer_of(provider)


@cache
def _tracer_of(provider: Any) -> Tracer:
    tracer: Tracer = provider.get_tracer(SYSTEM, settings.version())
    return tracer


def text_of(span: Span) -> str:
    """Returns the context of a span: its traceparent, and its tracestate after a space, if any."""
    from opentelemetry.trace import set_span_in_context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier, set_span_in_context(span))
    parent, state = carrier.get("traceparent", ""), carrier.get("tracestate", "")
    return f"{parent} {state}" if _may_be_kept(state) else parent


def _may_be_kept(state: str) -> bool:
    """Returns True for a tracestate that is kept beside its traceparent: one short word."""
    is_word = state.isascii() and state.isprintable() and " " not in state
    return bool(state) and is_word and len(state) <= _MOST_STATE


def context_of(text: str) -> Context | None:
    """Returns a context with the span that text_of wrote; None for "" and for text of no span."""
    from opentelemetry.context import Context
    from opentelemetry.trace import get_current_span
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    parent, _, state = text.partition(" ")
    carrier = {"traceparent": parent, **({"tracestate": state} if state else {})}
    context = TraceContextTextMapPropagator().extract(carrier, Context())
    return context if get_current_span(context).get_span_context().is_valid else None


def text_of_headers(parent: str, state: str) -> str:
    """Returns the context in a caller's headers, as text_of writes it; "" if it is not valid.

    A traceparent of a later version is read as this one, as W3C Trace Context requires.
    """
    match = _PARENT.fullmatch(parent)
    if match is None or match[1] == "ff" or (match[1] == "00" and match[5]):
        return ""
    if not (match[2].strip("0") and match[3].strip("0")):
        return ""
    kept = ",".join(filter(None, (one.strip() for one in state.split(","))))
    text = f"00-{match[2]}-{match[3]}-{match[4]}"
    return f"{text} {kept}" if _may_be_kept(kept) else text


def attributes(queue: str, name: str, kind: str) -> dict[str, Any]:
    """Returns the attributes that each span has, by the conventions for messaging."""
    return {
        "messaging.system": SYSTEM,
        "messaging.destination.name": queue,
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
    }


def message_id(request_id: str, index: int) -> str:
    """Returns the id of a sub-request as a message: ID~INDEX."""
    return f"{request_id}~{index}"


def note_error(
    span: Span, error: BaseException, kind: str = "", hide: Callable[[str], str] | None = None
) -> None:
    """Notes an error on a span; `kind` replaces the name of the error's class.

    `hide` removes from the error's message and stack the values that no view may show.
    """
    from opentelemetry.trace import Status, StatusCode

    name = kind or type(error).__qualname__
    span.set_attribute("error.type", name)
    shown = {}
    if hide is not None:
        stack = "".join(traceback.format_exception(error))
        shown = {"exception.message": hide(str(error)), "exception.stacktrace": hide(stack)}
    span.record_exception(error, attributes=shown)
    span.set_status(Status(StatusCode.ERROR, name))


def flush() -> None:
    """Sends the spans that the provider still has, before a process ends without exit hooks.

    It waits a few seconds at most, because an exporter may not reach its server.
    """
    if find_tracer() is None:
        return
    from opentelemetry.trace import get_tracer_provider

    send = getattr(get_tracer_provider(), "force_flush", None)
    if send is not None:
        thread = threading.Thread(target=send, name="fairlane-spans", daemon=True)
        thread.start()
        thread.join(_FLUSH_S)


# ------------------------------------------------------------------ client
# The spans of a program that submits, takes and settles.


class ClientSpan:
    """A call of the API, from here to the end of the block; this class records nothing.

    `trace` is the context of its span as text. The span is not current in the block, because the
    block may be that of a generator, which other code interrupts.
    """

    trace = ""

    def note_sent(self, request_id: str, total: int | None) -> None:
        """Notes what was submitted: one request of `total` sub-requests, None = not known yet."""

    def note_received(self, taken: Sequence[Delivery]) -> None:
        """Notes what was taken."""

    def count(self, messages: int) -> None:
        """Notes how many sub-requests were submitted."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        stack: TracebackType | None,
    ) -> None:
        """Ends the span."""


class _Recorded(ClientSpan):
    """A call of the API that a tracer records."""

    def __init__(self, span: Span) -> None:
        self._span, self.trace = span, text_of(span)

    def note_sent(self, request_id: str, total: int | None) -> None:
        self._span.set_attribute("fairlane.request.id", request_id)
        if total == 1:
            self._span.set_attribute("messaging.message.id", message_id(request_id, 0))
        elif total is not None:
            self.count(total)

    def count(self, messages: int) -> None:
        self._span.set_attribute("messaging.batch.message_count", messages)

    def note_received(self, taken: Sequence[Delivery]) -> None:
        self.count(len(taken))
        for one in taken:
            _link(self._span, one.trace, {"messaging.message.id": _id_of(one.receipt)})

    def note_sending(self, request_id: str, first: int, traces: Sequence[str]) -> None:
        """Notes which messages are sent, each with the trace of its creation."""
        self._span.set_attribute("fairlane.request.id", request_id)
        self.count(len(traces))
        for index, trace in enumerate(traces, first):
            name = message_id(request_id, index)
            _link(self._span, trace, {"messaging.message.id": name})

    def note_settled(self, receipt: Receipt, trace: str) -> None:
        """Notes what is settled."""
        self._span.set_attribute("messaging.message.id", _id_of(receipt))
        self._span.set_attribute("fairlane.attempt", receipt.attempt)
        _link(self._span, trace)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        stack: TracebackType | None,
    ) -> None:
        if error is not None and not isinstance(error, GeneratorExit):
            note_error(self._span, error)
        self._span.end()


class _Continued(ClientSpan):
    """Has no span: the submission carries the context of the program that called this one."""

    def __init__(self, trace: str) -> None:
        self.trace = trace


_NOTHING = ClientSpan()
_caller: ContextVar[str] = ContextVar("caller", default="")


@contextmanager
def continued(trace: str) -> Iterator[None]:
    """Lets the calls of the API in the block continue the trace of a program that called this one.

    `trace` is the context of that program as text, "" = it has none. A current span takes
    precedence over it.
    """
    token = _caller.set(trace)
    try:
        yield
    finally:
        _caller.reset(token)


def sending(queue: str) -> ClientSpan:
    """Returns the span of a submission; the sub-requests carry the context of the span."""
    return _begin(queue, "send", "send", "PRODUCER")


def creating(queue: str) -> ClientSpan:
    """Returns the span of a message that is sent later; the message carries its context."""
    return _begin(queue, "create", "create", "PRODUCER")


def sending_created(queue: str, request_id: str, first: int, traces: Sequence[str]) -> ClientSpan:
    """Returns the span of sending messages, with a link to the creation of each.

    The messages are the sub-requests of a request from the index `first` on.
    """
    found = _begin(queue, "send", "send", "CLIENT") if any(traces) else _NOTHING
    if isinstance(found, _Recorded):
        found.note_sending(request_id, first, traces)
    return found


def receiving(queue: str) -> ClientSpan:
    """Returns the span of a take."""
    return _begin(queue, "take", "receive", "CLIENT")


def settling(verb: str, receipt: Receipt, trace: str) -> ClientSpan:
    """Returns the span of a call that settles or extends; `trace` is that of its sub-request."""
    found = _begin(receipt.queue, verb, "settle", "CLIENT")
    if isinstance(found, _Recorded):
        found.note_settled(receipt, trace)
    return found


def _begin(queue: str, name: str, kind: str, span_kind: str) -> ClientSpan:
    tracer, caller = find_tracer(), _caller.get()
    if tracer is None:
        return _Continued(caller) if caller else _NOTHING
    from opentelemetry.trace import SpanKind, get_current_span

    is_root = not get_current_span().get_span_context().is_valid

    made = tracer.start_span(
        f"{name} {queue}",
        context=context_of(caller) if caller and is_root else None,
        kind=SpanKind[span_kind],
        attributes=attributes(queue, name, kind),
    )
    return _Recorded(made)


def _id_of(receipt: Receipt) -> str:
    return message_id(receipt.request_id, receipt.index)


def _link(span: Span, trace: str, attributes: dict[str, Any] | None = None) -> None:
    from opentelemetry.trace import get_current_span

    if trace and (context := context_of(trace)) is not None:
        span.add_link(get_current_span(context).get_span_context(), attributes)
