"""Tests the spans of real workers: from a hook, from before the fork, and without a server."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import trace

from fairlane import App, tracing
from fairlane.tracing import flush
from tests.cli.program import Program

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from fairlane.queue import Queue

PROVIDER = """
import os
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

def configure():
    provider = TracerProvider()
    name = os.environ.get("SPANS", "spans.jsonl")
    exporter = ConsoleSpanExporter(
        out=open(name, "a"), formatter=lambda span: span.to_json(indent=None) + "\\n"
    )
    provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
"""
IN_A_HOOK = """
from fairlane import App
from provider import configure
app = App("images")
app.on_startup(configure)

@app.task
def resize(n: int) -> int:
    return n * 2

@app.task
async def crop(n: int) -> int:
    return n * 3
"""
BEFORE_THE_FORK = """
from provider import configure
configure()

def shout(body):
    return body.upper()

async def ashout(body):
    return body.upper()
"""
UNREACHABLE = """
import socket, sys
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

class Nowhere(SpanExporter):
    def export(self, spans):
        try:
            socket.create_connection(("127.0.0.1", 1), 1)
        except OSError as error:
            print(len(spans), "spans are lost:", error, file=sys.stderr)
        return SpanExportResult.FAILURE

provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(Nowhere()))
trace.set_tracer_provider(provider)

def shout(body):
    return body.upper()
"""


@pytest.fixture
def program(redis_url: str, tmp_path: Path) -> Iterator[Program]:
    made = Program(tmp_path, redis_url)
    made.file(PROVIDER.encode(), "provider.py")
    yield made
    made.close()


def spans_in(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "spans.jsonl").read_text().splitlines()]


def test_an_app_configures_each_process_in_a_hook(
    program: Program, redis_url: str, spans: Callable[[], list[Any]]
):
    program.file(IN_A_HOOK.encode(), "mine.py")
    app = App("images", redis_url)
    resize = app.task(name="resize")(lambda n: n)
    crop = app.task(name="crop")(lambda n: n)
    batches = [resize.map(range(20)), crop.map(range(20))]
    sent = {f"0x{span.context.trace_id:032x}" for span in spans()}
    ended = program("worker", "--app", "mine:app", "--processes", "2", "--until-idle")
    assert ended.code == 0, ended.err
    assert [sum(batch) for batch in batches] == [380, 570]
    found = spans_in(program.folder)
    assert len(found) == 40
    assert {span["context"]["trace_id"] for span in found} == sent
    assert {span["attributes"]["fairlane.task"] for span in found} == {"resize", "crop"}
    assert {span["kind"] for span in found} == {"SpanKind.CONSUMER"}
    app.close()


@pytest.mark.rest
@pytest.mark.parametrize("handler", ["shout", "ashout"])
def test_a_provider_from_before_the_fork_works_in_each_process(
    handler: str, program: Program, queue: Queue
):
    program.file(BEFORE_THE_FORK.encode(), "mine.py")
    request = queue.submit_request(["a"] * 20)
    ended = program("worker", "--handler", f"mine:{handler}", "--processes", "2", "--until-idle")
    assert (ended.code, request.state()) == (0, "done"), ended.err
    found = spans_in(program.folder)
    names = {span["attributes"]["messaging.message.id"] for span in found}
    assert names == {f"{request.id}~{index}" for index in range(20)}


@pytest.mark.rest
def test_an_exporter_without_a_server_changes_nothing(program: Program, queue: Queue):
    program.file(UNREACHABLE.encode(), "mine.py")
    request = queue.submit_request(["a", "b"])
    ended = program("worker", "--handler", "mine:shout", "--until-idle")
    assert (ended.code, request.state()) == (0, "done")
    assert [one.body for one in request.results()] == [b"A", b"B"]
    assert "2 spans are lost: " in ended.err


def test_the_end_of_a_process_does_not_wait_long_for_an_exporter(
    exporter: object, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tracing, "_FLUSH_S", 0.01)
    hangs = threading.Event()
    called = threading.Event()

    def force_flush() -> None:
        called.set()
        hangs.wait()

    monkeypatch.setattr(trace.get_tracer_provider(), "force_flush", force_flush)
    flush()
    assert called.is_set()
    hangs.set()
