"""Tests the trace context of callers of `fairlane serve`: requests and spans continue it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import trace
from opentelemetry.trace import SpanKind
from starlette.testclient import TestClient

from fairlane.tracing import text_of_headers
from fairlane.web import asgi
from tests.support.run.for_each import for_each
from tests.support.scripts.requests import stored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import redis

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE_ID}-{SPAN_ID}-01"
HEADERS = {"traceparent": PARENT, "tracestate": "vendor=a, other=b"}
CARRIED = f"{PARENT} vendor=a,other=b"


@pytest.fixture
def client(redis_url: str) -> Iterator[TestClient]:
    with TestClient(asgi(url=redis_url, tokens=None)) as running:
        yield running


def submit(client: TestClient, way: str, headers: dict[str, str]) -> None:
    if way == "json":
        given: dict[str, Any] = {"json": {"bodies": ["a"], "id": "r1"}}
    else:
        given = {"content": b"a\n", "params": {"id": "r1"}}
        headers = {"Content-Type": "application/x-ndjson", **headers}
    assert client.post("/v1/requests", headers=headers, **given).status_code == 201


@pytest.mark.parametrize("way", ["json", "lines"])
def test_without_a_tracer_the_request_carries_the_context_of_the_caller(
    way: str, client: TestClient, redis_client: redis.Redis
):
    submit(client, way, HEADERS)
    assert stored(redis_client, "r1")["trace"] == CARRIED


def test_the_next_call_has_nothing_of_it(client: TestClient, redis_client: redis.Redis):
    submit(client, "json", HEADERS)
    assert client.post("/v1/requests", json={"bodies": ["a"], "id": "r2"}).status_code == 201
    assert "trace" not in stored(redis_client, "r2")


@pytest.mark.parametrize("way", ["json", "lines"])
def test_with_a_tracer_the_span_of_the_submission_is_in_the_trace_of_the_caller(
    way: str, client: TestClient, spans: Callable[[], list[Any]], redis_client: redis.Redis
):
    submit(client, way, HEADERS)
    (sent,) = spans()
    assert (sent.name, sent.kind) == ("send req", SpanKind.PRODUCER)
    assert f"{sent.context.trace_id:032x}" == TRACE_ID
    assert f"{sent.parent.span_id:016x}" == SPAN_ID
    own = f"00-{TRACE_ID}-{sent.context.span_id:016x}-01 vendor=a,other=b"
    assert stored(redis_client, "r1")["trace"] == own


def test_a_span_that_an_instrumentation_of_the_server_made_goes_before_the_header(
    redis_url: str, spans: Callable[[], list[Any]]
):
    app = asgi(url=redis_url, tokens=None)

    async def instrumented(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        with trace.get_tracer("asgi").start_as_current_span("POST"):
            await app(scope, receive, send)

    with TestClient(instrumented) as client:
        submit(client, "json", HEADERS)
    sent, server = spans()
    assert (sent.name, server.name) == ("send req", "POST")
    assert sent.parent.span_id == server.context.span_id


def test_what_is_taken_names_the_trace_of_its_producer(client: TestClient):
    submit(client, "json", HEADERS)
    (taken,) = client.post("/v1/take", json={}).json()["taken"]
    assert (taken["traceparent"], taken["tracestate"]) == (PARENT, "vendor=a,other=b")
    assert client.post(f"/v1/taken/{taken['receipt']}/done", json={}).status_code == 204
    client.post("/v1/requests", json={"bodies": ["a"]})
    (taken,) = client.post("/v1/take", json={}).json()["taken"]
    assert not {"traceparent", "tracestate"} & taken.keys()


def test_a_worker_that_calls_by_http_has_its_spans_in_its_own_trace_linked_to_the_producer(
    client: TestClient, spans: Callable[[], list[Any]]
):
    submit(client, "json", HEADERS)
    (sent,) = spans()
    other = {"traceparent": f"00-{'1' * 32}-{'2' * 16}-01"}
    (found,) = client.post("/v1/take", json={}, headers=other).json()["taken"]
    client.post(f"/v1/taken/{found['receipt']}/done", json={}, headers=other)
    taken, done = spans()
    assert {f"{one.context.trace_id:032x}" for one in (taken, done)} == {"1" * 32}
    assert [one.context.span_id for one in taken.links] == [sent.context.span_id]


@for_each(
    "parent, state, text",
    [
        (PARENT, "", PARENT),
        (PARENT, " a=1 ,, b=2,", f"{PARENT} a=1,b=2"),
        (PARENT, "a=1 2", PARENT),
        (PARENT, "a=é", PARENT),
        (PARENT, "a=" + "x" * 511, PARENT),
        (f"01{PARENT[2:]}-more", "", PARENT),
        (f"{PARENT}-more", "", ""),
        (f"ff{PARENT[2:]}", "", ""),
        (PARENT.upper(), "", ""),
        (PARENT[:-1], "", ""),
        (f"00-{'0' * 32}-{SPAN_ID}-01", "", ""),
        (f"00-{TRACE_ID}-{'0' * 16}-01", "", ""),
        ("", "a=1", ""),
        ("\n", "", ""),
    ],
)
def test_only_a_valid_header_is_a_context(parent: str, state: str, text: str):
    assert text_of_headers(parent, state) == text


def test_a_header_that_is_not_valid_or_there_twice_is_left_out(
    client: TestClient, redis_client: redis.Redis
):
    submit(client, "json", {"traceparent": "nonsense"})
    assert "trace" not in stored(redis_client, "r1")
    twice = [("traceparent", PARENT), ("traceparent", PARENT)]
    client.post("/v1/requests", json={"bodies": ["a"], "id": "r2"}, headers=twice)
    assert "trace" not in stored(redis_client, "r2")
