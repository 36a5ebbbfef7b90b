"""Finds the program's tracer, and writes the context of a span as text.

OpenTelemetry is never imported first here. If no other code has imported it, no provider is
configured, so there is nothing to do. redis-py imports it where it is installed.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from functools import cache
from typing import TYPE_CHECKING, Any

from fairlane import settings

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer

SYSTEM = "fairlane"
_MOST_STATE = 512  # characters of a tracestate that are kept; a longer one is left out
_PARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_IS_NAMED = "OTEL_PYTHON_TRACER_PROVIDER" in os.environ  # then the first look configures it
_FLUSH_S = 5.0  # the end of a process waits so long for an exporter


def find_tracer() -> Tracer | None:
    """Returns the tracer of the provider that this program has configured; None = it has none."""
    api = sys.modules.get("opentelemetry.trace")
    # The attribute is read first, because this is called for each slice of work: the public
    # function takes 20 times as long.
    if api is None or (not _IS_NAMED and getattr(api, "_TRACER_PROVIDER", api) is None):
        return None
    find = getattr(api, "get_tracer_provider", None)
    if find is None:  # another thread is importing it now
        return None
    provider = find()
    return None if isinstance(provider, api.ProxyTracerProvider) else _tracer_of(provider)


@cache
def _tracer_of(provider: Any) -> Tracer:
    tracer: Tracer = provider.get_tracer(SYSTEM, settings.release())
    return tracer


def text_of(span: Span) -> str:
    """Returns the context of a span: its traceparent, and its tracestate after a space, if any."""
    from opentelemetry.trace import set_span_in_context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier, set_span_in_context(span))
    parent, state = carrier.get("traceparent", ""), carrier.get("tracestate", "")
    is_short = state.isascii() and " " not in state and len(state) <= _MOST_STATE
    return f"{parent} {state}" if state and is_short else parent


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
    is_fit = kept.isascii() and kept.isprintable() and " " not in kept and len(kept) <= _MOST_STATE
    text = f"00-{match[2]}-{match[3]}-{match[4]}"
    return f"{text} {kept}" if kept and is_fit else text


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


def note_error(span: Span, error: BaseException, kind: str = "") -> None:
    """Notes an error on a span; `kind` replaces the name of the error's class."""
    from opentelemetry.trace import Status, StatusCode

    name = kind or type(error).__qualname__
    span.set_attribute("error.type", name)
    span.record_exception(error)
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
