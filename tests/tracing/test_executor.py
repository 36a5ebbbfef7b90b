"""Tests the spans of an executor's calls: the creation, the submission, the handlers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode

from fairlane import App, ArgumentsRefused, Executor, QueueFull
from fairlane.tasks.codec import JSON, MSGPACK
from fairlane.testing import run_tasks
from tests.support.wait import PATIENCE_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from fairlane.queue import Queue


def double(n: int) -> int:
    return n * 2


@pytest.fixture(params=["json", "msgpack"])
def app(redis_url: str, request: Any) -> Iterator[App]:
    made = App("req", redis_url, encoding=request.param)
    made.task(double)
    yield made
    made.close()


def ids(spans: list[Any]) -> list[tuple[int, int]]:
    return [(one.context.trace_id, one.context.span_id) for one in spans]


def test_each_call_continues_the_trace_of_its_caller(app: App, spans: Callable[[], list[Any]]):
    with trace.get_tracer("shop").start_as_current_span("order") as order, Executor(app) as calls:
        futures = [calls.submit(double, n) for n in range(3)]
        wait_until(lambda: run_tasks(app) is None or all(one.done() for one in futures))
        assert [future.result(timeout=PATIENCE_S) for future in futures] == [0, 2, 4]
    found = spans()
    own = order.get_span_context()
    created = [one for one in found if one.name == "create req"]
    sent = [one for one in found if one.name == "send req"]
    handled = [one for one in found if one.name == "process req"]
    assert {one.kind for one in created} == {SpanKind.PRODUCER}
    assert [(one.context.trace_id, one.parent.span_id) for one in created] == 3 * [
        (own.trace_id, own.span_id)
    ]
    assert dict(created[0].attributes) == {
        "messaging.system": "fairlane",
        "messaging.destination.name": "req",
        "messaging.operation.name": "create",
        "messaging.operation.type": "create",
    }
    assert sorted((one.context.trace_id, one.parent.span_id) for one in handled) == sorted(
        ids(created)
    )
    links = [link for one in sent for link in one.links]
    assert [(one.context.trace_id, one.context.span_id) for one in links] == ids(created)
    messages = [link.attributes["messaging.message.id"] for link in links]
    assert sorted(one.attributes["messaging.message.id"] for one in handled) == sorted(messages)
    for one in sent:
        assert (one.kind, one.parent) == (SpanKind.CLIENT, None)
        assert one.attributes["messaging.batch.message_count"] == len(one.links)
        assert one.attributes["messaging.operation.type"] == "send"
        assert messages[0].startswith(one.attributes["fairlane.request.id"] + "~")


def test_a_call_that_is_refused_ends_its_span_with_the_error(
    app: App, spans: Callable[[], list[Any]]
):
    with Executor(app) as calls, pytest.raises(ArgumentsRefused):
        calls.submit(app.tasks["double"], nothing=1)
    (span,) = spans()
    assert (span.name, span.attributes["error.type"]) == ("create req", "ArgumentsRefused")


def test_a_queue_without_room_is_an_error_of_the_sending(
    app: App, queue: Queue, spans: Callable[[], list[Any]]
):
    queue.set_max_waiting(1)
    queue.submit_request(["a"])
    spans()
    with Executor(app) as calls, pytest.raises(QueueFull):
        calls.submit(double, 1).result(timeout=PATIENCE_S)
    created, sent = spans()
    assert created.status.status_code is StatusCode.UNSET
    assert (sent.name, sent.attributes["error.type"]) == ("send req", "QueueFull")
    queue.set_max_waiting(0)


def test_without_a_tracer_a_body_has_no_trace(app: App):
    task = app.tasks["double"]
    for codec in (JSON, MSGPACK):
        plain = task.signature.encode(codec, {"n": 1})
        assert codec.decode_body(plain).trace == ""
        assert len(codec.decoder(list)(plain)) == 3


def test_the_trace_of_a_call_is_no_part_of_its_arguments(app: App, exporter: InMemorySpanExporter):
    """A worker of an app without a tracer reads the same body."""
    task = app.tasks["double"]
    body = task.signature.encode(app.codec, {"n": 3}, trace="00-ab-cd-01")
    assert task.signature.decoders[app.codec.name](body).arguments.n == 3
    assert exporter.get_finished_spans() == ()
