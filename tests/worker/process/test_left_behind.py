"""Tests what a worker's process does not share with its parent, and what calls leave behind."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import time
from contextvars import ContextVar
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from fairlane import App
from fairlane.errors import HandlerNotFound
from fairlane.tasks.serve import TaskCalls
from fairlane.worker import Worker, termination
from fairlane.worker.handlers import load_object
from tests.support.wait import PATIENCE_S
from tests.worker.parts import ON_SINGLE

if TYPE_CHECKING:
    from pathlib import Path

    from fairlane.queue import Queue

SIDE: ContextVar[str] = ContextVar("side", default="unset")


@ON_SINGLE
def test_a_timer_that_a_call_leaves_behind_ends_with_the_call(queue: Queue):
    """Its signal would end another call, or the process."""

    def handler(body: bytes) -> str:
        if body == b"leaves":
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            return "left"
        before = time.monotonic()
        while time.monotonic() - before < 0.1:
            pass
        return str(signal.getitimer(signal.ITIMER_REAL)[0])

    request = queue.submit_request([b"leaves", b"innocent"], attempts=1, limit=1)
    Worker(queue, handler).run(until_idle=True)
    assert [result.body for result in request.results()] == [b"left", b"0.0"]


@ON_SINGLE
def test_exit_hooks_and_buffers_of_a_handler_are_run_and_written(queue: Queue, tmp_path: Path):
    files = []

    def handler(body: bytes) -> None:
        file = (tmp_path / "buffer").open("w")
        file.write("text")
        files.append(file)
        atexit.register((tmp_path / "hook").write_bytes, body)

    queue.submit_request([b"ran"])

    def parent() -> None:
        (tmp_path / f"parent{os.getpid()}").touch()

    atexit.register(parent)
    try:
        Worker(queue, handler).run(until_idle=True)
    finally:
        atexit.unregister(parent)
    assert (tmp_path / "buffer").read_text() == "text"
    assert (tmp_path / "hook").read_bytes() == b"ran"
    assert not [*tmp_path.glob("parent*")], "a hook of the program that runs the worker"


@ON_SINGLE
def test_an_exit_hook_that_hangs_is_cut_off(queue: Queue, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(termination, "_HOOKS_S", 0.1)

    def handler(_: bytes) -> None:
        atexit.register(signal.pause)

    queue.submit_request([b""])
    assert Worker(queue, handler).run(until_idle=True) == 0


@ON_SINGLE
def test_each_process_draws_its_own_random_numbers(queue: Queue, monkeypatch: pytest.MonkeyPatch):
    """Libraries other than Python's own do not draw others after a fork."""
    seeds: list[int] = []
    library = SimpleNamespace(seed=lambda: seeds.append(os.getpid()))
    monkeypatch.setitem(sys.modules, "numpy.random", library)
    request = queue.submit_request([b""])
    Worker(queue, lambda _: str(len(seeds))).run(until_idle=True)
    assert [result.body for result in request.results()] == [b"1"]
    assert seeds == []


@pytest.mark.rest
@pytest.mark.parametrize("is_mixed", [True, False], ids=["sync too", "all async"])
@pytest.mark.parametrize("concurrency", [1, 3])
@ON_SINGLE
def test_what_an_async_start_sets_reaches_each_call(queue: Queue, concurrency: int, is_mixed: bool):
    app = App(queue.name, queue.driver.url)

    @app.on_startup
    async def start() -> None:
        SIDE.set("set")

    @app.task
    async def reads() -> str:
        return SIDE.get()

    if is_mixed:

        @app.task
        def reads_too() -> str:
            return SIDE.get()

    runs = [task.submit() for task in app.tasks.values()]
    Worker(queue, TaskCalls([app]).handler(), concurrency=concurrency).run(until_idle=True)
    assert {run.result(timeout=PATIENCE_S) for run in runs} == {"set"}


def test_threads_and_exit_hooks_of_an_imported_module_are_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    source = """
import atexit, threading
over = threading.Event()
threading.Thread(target=over.wait, name="poller", daemon=True).start()
def bye(): ...
atexit.register(bye)
def work(body): ...
"""
    (tmp_path / "begins.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(termination, "_imported", [])
    work = load_object("handler", "begins:work", "function")
    module = sys.modules["begins"]
    assert work is module.work
    assert [hook[0] for hook in termination._imported] == [module.bye]
    assert "(poller): they do not run in a worker's processes" in caplog.text
    module.over.set()
    atexit.unregister(module.bye)


@pytest.mark.parametrize(
    ("handler", "remedy"),
    [
        ("jobs:work", "rq-worker --handler jobs:work"),
        (App("named"), "rq-worker --app MODULE:APP"),
    ],
    ids=["text", "app"],
)
@ON_SINGLE
def test_what_is_no_handler_is_refused_with_the_right_option(
    queue: Queue, handler: object, remedy: str
):
    with pytest.raises(HandlerNotFound, match=remedy):
        Worker(queue, handler)  # type: ignore[arg-type]
