"""Tests the span of each call of a handler."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode

from fairlane import App, tracing
from fairlane.tasks.serve import TaskCalls
from fairlane.worker import Reject, Retry, batch_handler
from fairlane.worker.calls import Runner, traced
from fairlane.worker.errors import GiveBack
from fairlane.worker.handlers import shape_of
from tests.tasks.parts import body_of
from tests.worker.parts import SUBMITTED_MS, TAKEN_MS, record_of_its_own, slice_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlane.model import Slice
    from fairlane.worker.calls import Outcome

TRACE_ID, SPAN_ID = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331
TRACE = f"00-{TRACE_ID:032x}-{SPAN_ID:016x}-01 vendor=a"
KINDS = pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])


def run(handler: Callable[..., Any], taken: Slice, *, is_async: bool = False) -> Outcome:
    """Runs a handler; if `is_async`, an async one that calls it."""

    async def acall(body: Any) -> Any:
        await asyncio.sleep(0)
        return handler(body)

    if getattr(handler, "fairlane_batch", False):
        batch_handler(acall)
    runner = Runner(shape_of(acall if is_async else handler), record_of_its_own(), queue="req")
    if is_async:
        return asyncio.run(runner.run_slice_async(taken, 0))
    return runner.run_slice(taken, 0)


@KINDS
def test_each_call_is_a_span_in_the_trace_of_its_request(
    spans: Callable[[], list[Any]], *, is_async: bool
):
    current: list[Any] = []

    def handler(body: bytes) -> bytes:
        current.append(trace.get_current_span().get_span_context().span_id)
        return body

    outcome = run(handler, slice_of(b"a", b"b", trace=TRACE, attempt=2), is_async=is_async)
    assert outcome.results[1::2] == [b"a", b"b"]
    found = spans()
    assert [span.context.span_id for span in found] == current
    for index, span in enumerate(found):
        assert (span.name, span.kind, span.status.status_code) == (
            *("process req", SpanKind.CONSUMER),
            StatusCode.UNSET,
        )
        assert (span.context.trace_id, span.parent.span_id) == (TRACE_ID, SPAN_ID)
        assert span.context.trace_state.to_header() == "vendor=a"
        assert dict(span.attributes) == {
            "messaging.system": "fairlane",
            "messaging.destination.name": "req",
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.message.id": f"r1~{index}",
            "fairlane.request.id": "r1",
            "fairlane.attempt": 2,
            "fairlane.priority": 5,
            "fairlane.waited_ms": TAKEN_MS - SUBMITTED_MS,
            "fairlane.outcome": "done",
        }
    assert not trace.get_current_span().get_span_context().is_valid


@KINDS
def test_a_batch_is_one_span_with_a_link(spans: Callable[[], list[Any]], *, is_async: bool):
    @batch_handler
    def handler(bodies: Any) -> Any:
        return bodies

    run(handler, slice_of(b"a", b"b", b"c", trace=TRACE), is_async=is_async)
    (span,) = spans()
    assert (span.parent, span.attributes["messaging.batch.message_count"]) == (None, 3)
    assert [link.context.span_id for link in span.links] == [SPAN_ID]


def test_a_request_without_a_trace_begins_one(spans: Callable[[], list[Any]]):
    run(lambda body: body, slice_of(b"a"))
    (span,) = spans()
    assert (span.parent, span.links) == (None, ())


@KINDS
@pytest.mark.parametrize(
    ("error", "attempt", "outcome", "kind"),
    [
        (lambda: KeyError("x"), 1, "retry", "KeyError"),
        (lambda: KeyError("x"), 5, "dead", "KeyError"),
        (lambda: Retry(after=1), 1, "retry", "Retry"),
        (lambda: Reject("bad"), 1, "dead", "Reject"),
        (lambda: SystemExit(3), 1, "retry", "SystemExit"),
        (lambda: GiveBack("later", 5), 1, "released", None),
    ],
    ids=["error", "last", "retry", "reject", "exit", "give-back"],
)
def test_what_a_call_raised_is_noted(
    error: Callable[[], BaseException], attempt: int, outcome: str, kind: str | None,
    spans: Callable[[], list[Any]], *, is_async: bool,
):  # fmt: skip
    def handler(_: Any) -> None:
        raise error()

    settled = run(handler, slice_of(b"a", attempt=attempt), is_async=is_async)
    assert len(settled.verdicts) == 1
    assert "spans.py" not in settled.verdicts[0].error
    (span,) = spans()
    assert span.attributes["fairlane.outcome"] == outcome
    assert span.attributes.get("error.type") == kind
    failed = kind is not None
    assert span.status.status_code == (StatusCode.ERROR if failed else StatusCode.UNSET)
    assert [event.name for event in span.events] == (["exception"] if failed else [])


def test_a_late_async_call_has_the_outcome_timeout(spans: Callable[[], list[Any]]):
    async def handler(_: bytes) -> None:
        await asyncio.Event().wait()

    runner = Runner(shape_of(handler), record_of_its_own(), queue="req")
    outcome = asyncio.run(runner.run_slice_async(slice_of(b"a", time_limit_ms=20), 0))
    assert outcome.timeouts == 1
    (span,) = spans()
    assert span.attributes["fairlane.outcome"] == span.attributes["error.type"] == "timeout"


def test_the_time_of_an_async_call_begins_before_its_first_step(
    spans: Callable[[], list[Any]], monkeypatch: pytest.MonkeyPatch
):
    """The timer of its limit starts then, too; on a busy machine the first step comes later."""

    async def handler(_: bytes) -> None:
        raise asyncio.CancelledError

    taken = slice_of(b"a")
    times = [1.0]
    monkeypatch.setattr("fairlane.worker.calls.perf_counter", lambda: times[-1])
    tracer = tracing.find_tracer()
    assert tracer is not None
    called = traced(tracer, shape_of(handler), "req", taken, taken.entries, 2.0)(b"a")
    times.append(9.0)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(called)
    (span,) = spans()
    assert span.attributes["fairlane.outcome"] == "timeout"


def test_a_late_sync_call_has_the_outcome_timeout(
    spans: Callable[[], list[Any]], monkeypatch: pytest.MonkeyPatch
):
    times = iter([1.0, 9.0])
    monkeypatch.setattr("fairlane.worker.calls.perf_counter", lambda: next(times))
    run(lambda body: body, slice_of(b"a", time_limit_ms=2_000))
    (span,) = spans()
    assert span.attributes["fairlane.outcome"] == "timeout"


def test_a_cancelled_async_call_has_the_outcome_cancelled(spans: Callable[[], list[Any]]):
    record = record_of_its_own()
    record.hold("r1", "0", 7, b"0" * 32, 0.0, 30.0)

    async def handler(_: bytes) -> None:
        asyncio.get_running_loop().call_soon(runner._task.cancel)  # type: ignore[union-attr]
        await asyncio.Event().wait()

    runner = Runner(shape_of(handler), record, queue="req")

    async def main() -> Any:
        task = asyncio.create_task(runner.run_slice_async(slice_of(b"a"), 0))
        await asyncio.wait([task])

    asyncio.run(main())
    (span,) = spans()
    assert span.attributes["fairlane.outcome"] == span.attributes["error.type"] == "cancelled"


def test_the_span_of_a_task_names_it(spans: Callable[[], list[Any]]):
    app = App("images", "redis://127.0.0.1:1")

    @app.task
    def resize(n: int) -> int:
        return n

    @app.task
    async def crop(n: int) -> int:
        return n if trace.get_current_span().get_span_context().is_valid else -1

    bodies = [body_of(app, "resize", n=1), body_of(app, "crop", n=2)]
    runner = Runner(shape_of(TaskCalls([app]).handler()), record_of_its_own(), queue="images")
    outcome = runner.run_slice(slice_of(*bodies), 0)
    assert outcome.results[1::2] == [b"1", b"2"]  # an async task has the context, too
    assert [span.attributes["fairlane.task"] for span in spans()] == ["resize", "crop"]
    app.close()


@KINDS
def test_a_span_loses_what_the_request_hides(spans: Callable[[], list[Any]], *, is_async: bool):
    """Of a batch, the values of all its bodies."""

    @batch_handler
    def handler(bodies: Any) -> Any:
        raise ValueError(f"no {bodies!r}")

    taken = slice_of(b'{"pin": "4711"}', b'{"pin": "0815"}', redact=("pin",))
    run(handler, taken, is_async=is_async)
    (span,) = spans()
    shown = repr([(dict(event.attributes), event.name) for event in span.events])
    shown += repr((dict(span.attributes), span.status.description, span.name))
    assert "[hidden]" in shown
    assert "4711" not in shown
    assert "0815" not in shown
