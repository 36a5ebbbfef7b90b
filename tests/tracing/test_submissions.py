"""Tests the span of a submission, and the context that its requests carry."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import trace
from opentelemetry.trace import SpanContext, SpanKind, StatusCode, TraceFlags, TraceState

from fairlane import Flow, aio
from fairlane.errors import InvalidArgument, RequestExists
from fairlane.operations.create import Digest, NewRequest, submit_call
from fairlane.options import Policy, policy_of
from fairlane.tracing import context_of, text_of
from tests.support.run.for_each import for_each
from tests.support.scripts.requests import stored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import redis

    from fairlane.queue import Queue

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TENANTS = "vendor=a,other=b"


def text(span: Any) -> str:
    own = span.context
    return f"00-{own.trace_id:032x}-{own.span_id:016x}-{own.trace_flags:02x}"


def carried(client: redis.Redis, request_id: str) -> str:
    return stored(client, request_id).get("trace", "")


@pytest.fixture
def submit(queue: Queue, redis_url: str) -> Callable[..., Any]:
    """Submits by one of the two APIs: each of these makes the request `r1`."""
    ways: dict[str, Callable[[], Any]] = {
        "submit_request": lambda: queue.submit_request(["a", "b"], id="r1"),
        "submit_chunks": lambda: queue.submit_chunks([["a"], ["b"]], id="r1"),
        "submit_many": lambda: queue.submit_many([["a"], ["b"]], ids=["r1", "r2"]),
        "open": lambda: queue.open(id="r1").seal(),
        "submit_flow": lambda: queue.submit_flow(Flow("f").step("one"), ["a", "b"], id="r1"),
    }

    async def awaited(name: str) -> None:
        async with aio.Queue.from_url(redis_url) as other:
            if name == "open":
                async with other.open(id="r1"):
                    return
            calls: dict[str, Callable[[], Any]] = {
                "submit_request": lambda: other.submit_request(["a", "b"], id="r1"),
                "submit_chunks": lambda: other.submit_chunks([["a"], ["b"]], id="r1"),
                "submit_many": lambda: other.submit_many([["a"], ["b"]], ids=["r1", "r2"]),
                "submit_flow": lambda: other.submit_flow(
                    Flow("f").step("one"), ["a", "b"], id="r1"
                ),
            }
            await calls[name]()

    return lambda name, api: ways[name]() if api == "sync" else asyncio.run(awaited(name))


@pytest.mark.parametrize("api", ["sync", "async"])
@pytest.mark.parametrize(
    "way", ["submit_request", "submit_chunks", "submit_many", "open", "submit_flow"]
)
def test_a_submission_is_a_span_whose_context_the_request_carries(
    way: str, api: str, submit: Callable[..., Any], spans: Callable[[], list[Any]],
    redis_client: redis.Redis,
):  # fmt: skip
    submit(way, api)
    (span,) = spans()
    assert (span.name, span.kind, span.status.status_code) == (
        *("send req", SpanKind.PRODUCER),
        StatusCode.UNSET,
    )
    common = {
        "messaging.system": "fairlane",
        "messaging.destination.name": "req",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
    }
    assert common.items() <= span.attributes.items()
    assert span.attributes.get("messaging.batch.message_count") == (None if way == "open" else 2)
    names = ["r1", "r2"] if way == "submit_many" else ["r1.1"] if way == "submit_flow" else ["r1"]
    assert [carried(redis_client, name) for name in names] == [text(span)] * len(names)


def test_one_sub_request_is_a_message_with_an_id(queue: Queue, spans: Callable[[], list[Any]]):
    queue.post("a", id="r1")
    (span,) = spans()
    assert span.attributes["messaging.message.id"] == "r1~0"
    assert "messaging.batch.message_count" not in span.attributes


def test_a_submission_is_part_of_the_trace_that_is_current(
    queue: Queue, spans: Callable[[], list[Any]]
):
    with trace.get_tracer("test").start_as_current_span("order"):
        queue.post("a")
    sent, order = spans()
    assert sent.parent.span_id == order.context.span_id


def test_each_step_of_a_flow_carries_the_trace_of_the_submission(
    queue: Queue, spans: Callable[[], list[Any]], redis_client: redis.Redis
):
    queue.submit_flow(Flow("f").step("one").step("two"), ["a"], id="r1")
    (span,) = spans()
    assert [carried(redis_client, name) for name in ("r1.1", "r1.2")] == [text(span)] * 2


def test_a_repeat_in_another_trace_finds_the_request_of_the_first(
    queue: Queue, spans: Callable[[], list[Any]], redis_client: redis.Redis
):
    for _ in range(2):
        queue.submit_request(["a"], id="r1")
    first, second = spans()
    assert first.context.trace_id != second.context.trace_id
    assert carried(redis_client, "r1") == text(first)


def test_an_error_is_noted(queue: Queue, spans: Callable[[], list[Any]]):
    queue.post("a", id="r1")
    with pytest.raises(RequestExists):
        queue.post("b", id="r1")
    with pytest.raises(InvalidArgument):
        queue.submit_many([["a"], 5])  # type: ignore[list-item]
    _, other, wrong = spans()
    assert other.attributes["error.type"] == "RequestExists"
    assert (other.status.status_code, other.events[0].name) == (StatusCode.ERROR, "exception")
    assert wrong.attributes["error.type"] == "InvalidArgument"


def test_dead_sub_requests_that_run_again_carry_the_same_trace(
    queue: Queue, spans: Callable[[], list[Any]], redis_client: redis.Redis
):
    request = queue.submit_request(["a"], id="r1")
    (span,) = spans()
    (taken,) = queue.take()
    taken.dead("no reason")
    request.requeue_dead()
    (again,) = queue.take()
    assert (again.index, carried(redis_client, "r1")) == (0, text(span))


# ------------------------------------------------------------------ without a provider


def test_without_a_provider_nothing_is_added(queue: Queue, redis_client: redis.Redis):
    queue.post("a", id="r1")
    assert "trace" not in stored(redis_client, "r1")
    (taken,) = queue.take()
    assert taken.trace == ""


def test_without_a_provider_the_commands_are_the_same_but_for_the_trace():
    def words(policy: Policy) -> list[Any]:
        digest = Digest(policy)
        digest.add([b"a"])
        return list(submit_call([NewRequest("r1", policy, digest, [b"a"])]).args)

    plain, traced = policy_of("req"), policy_of("req", trace=PARENT)
    assert replace(traced, trace="") == plain
    pairs = [pair for pair in zip(words(plain), words(traced), strict=True) if pair[0] != pair[1]]
    assert pairs == [(b"", b"trace=" + PARENT.encode())]


@pytest.mark.rest
def test_the_product_works_where_opentelemetry_is_not_installed():
    code = (
        "import sys\n"
        "sys.modules['opentelemetry'] = None  # each import of it raises ImportError\n"
        "import fairlane, fairlane.aio, fairlane.worker.child\n"
        "from fairlane import tracing\n"
        "assert tracing.find_tracer() is None and tracing.sending('q').trace == ''\n"
        "tracing.flush()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=200)


def test_with_the_api_alone_there_is_no_tracer():
    code = (
        "import opentelemetry.trace\n"
        "from fairlane import tracing\n"
        "assert tracing.find_tracer() is None"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=200)


# ------------------------------------------------------------------ the text


def span_with(state: Iterable[tuple[str, str]] = ()) -> Any:
    context = SpanContext(
        0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331, is_remote=False,
        trace_flags=TraceFlags(1), trace_state=TraceState(list(state)),
    )  # fmt: skip
    return trace.NonRecordingSpan(context)


def test_the_text_has_the_tracestate():
    written = text_of(span_with([("vendor", "a"), ("other", "b")]))
    assert written == f"{PARENT} {TENANTS}"
    found = trace.get_current_span(context_of(written)).get_span_context()
    assert (found.trace_id, found.is_remote) == (0x0AF7651916CD43DD8448EB211C80319C, True)
    assert found.trace_state.to_header() == TENANTS


@pytest.mark.parametrize("state", [[("v", "x" * 200)] * 1 + [("w", "y" * 250), ("z", "z" * 99)]])
def test_a_tracestate_that_is_too_long_is_left_out(state: list[tuple[str, str]]):
    assert text_of(span_with(state)) == PARENT


def test_a_span_without_a_context_is_no_text():
    assert text_of(trace.INVALID_SPAN) == ""


@for_each("wrong", ["", "x", "00-1-2-01", PARENT.replace("0af", "xyz")])
def test_text_of_no_span_is_no_context(wrong: str):
    assert context_of(wrong) is None


@pytest.mark.parametrize("wrong", ["x", f"{PARENT}\nparent=r1", "00-a-b-01 é"])
def test_a_trace_that_is_none_is_refused(wrong: str):
    with pytest.raises(InvalidArgument, match=r"trace .* is not valid"):
        policy_of("req", trace=wrong)
