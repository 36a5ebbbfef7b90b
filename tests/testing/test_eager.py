"""Tests the eager mode: no Redis, and the same results and errors as those of a worker."""

from __future__ import annotations

import asyncio
import threading
import weakref
from contextvars import ContextVar
from typing import Any

import pytest

from fairlane import (
    App,
    ArgumentsRefused,
    Context,
    Executor,
    InvalidArgument,
    Reject,
    RequestNotFound,
    Retry,
    TaskError,
    chain,
    group,
)
from fairlane.testing import eager
from tests.tasks.parts import Size


@pytest.fixture
def app() -> App:
    """Makes an app without a Redis."""
    return App("images", "redis://127.0.0.1:1")


def test_an_async_iterator_keeps_no_result_that_it_has_yielded(app: App):
    @app.task
    def made(n: int) -> Size:
        return Size(n, n)

    async def run() -> None:
        with eager(app):
            async for size in await made.amap([1, 2, 3]):
                kept = weakref.ref(size)
                del size
                assert kept() is None

    asyncio.run(run())


def test_the_traceback_of_an_error_begins_in_the_task(app: App):
    @app.task(attempts=1)
    def fails() -> None:
        raise ValueError("bad")

    with eager(app), pytest.raises(TaskError) as raised:
        fails.submit().result()
    assert raised.value.traceback.count("  File ") == 1


def test_each_call_has_the_context_variables_of_the_start(app: App):
    """Also those of asyncio, which run in threads; and the test keeps its own."""
    side: ContextVar[str] = ContextVar("side", default="unset")

    @app.on_startup
    async def start() -> None:
        side.set("set")

    @app.task
    def reads() -> str:
        return side.get()

    async def run() -> list[str]:
        with eager(app):
            return [await (await reads.asubmit()).result() for _ in range(2)]

    assert asyncio.run(run()) == ["set", "set"]
    with eager(app):
        assert reads.submit().result() == "set"
    assert side.get() == "unset"


def test_a_submitted_call_has_ended_with_a_typed_value(app: App):
    @app.task
    def resize(path: str, width: int = 200) -> Size:
        return Size(width, len(path))

    with eager(app):
        call = resize.submit("a.png", width=100)
        assert (call.result(), call.wait()) == (Size(100, 5), "done")
        batch = resize.map(["a", "bb"])
        assert list(batch) == [Size(200, 1), Size(200, 2)]
        assert (batch.progress().done, batch.cancel()) == (2, True)
        with pytest.raises(ArgumentsRefused):
            resize.submit("a.png", height=3)  # type: ignore[call-arg]


def test_a_call_may_name_every_option(app: App):
    @app.task(max_wait="10s", deadline="5m", backoff="1s..5m", tags=["a"])
    def made(n: int) -> int:
        return n

    with eager(app):
        assert made.with_options(max_wait=3, id="mine").submit(1).result() == 1


def test_errors_are_those_of_a_worker(app: App):
    attempts = []

    @app.task(attempts=3, backoff="1h")
    def fail(n: int, ctx: Context) -> int:
        attempts.append((ctx.id, n, ctx.attempt))
        if n == 2:
            raise Reject("never")
        if n == 1 or ctx.attempt == 2:
            return n
        raise ValueError("bad")

    with eager(app):
        batch = fail.with_options(id="m").map(range(3))
        assert list(batch.outcomes())[:2] == [0, 1]
        (error,) = batch.errors()
        assert (error.index, error.attempts, error.message) == (2, 1, "never")
        assert attempts == [("m", 0, 1), ("m", 0, 2), ("m", 1, 1), ("m", 2, 1)]

        @app.task(attempts=1)
        def broken() -> None:
            raise KeyError("k")

        with pytest.raises(TaskError, match="KeyError: 'k'") as dead:
            broken.submit().result()
        assert "test_eager.py" in dead.value.traceback


def test_asyncio_has_the_same(app: App):
    @app.task
    async def publish(n: int) -> int:
        await asyncio.sleep(0)
        return n * 2

    async def main() -> list[Any]:
        one = await publish.asubmit(4)
        batch = await publish.amap([1, 2])
        again = publish.abatch(batch.id)
        return [await one, [n async for n in batch], await again.wait(), await again.cancel()]

    with eager(app):
        assert asyncio.run(main()) == [8, [2, 4], "done", True]


def test_an_iteration_goes_on_after_an_error(app: App):
    @app.task(attempts=1)
    def half(n: int) -> int:
        return 2 // n

    async def main() -> list[int]:
        values = aiter(await half.amap([1, 0, 2]))
        first = await anext(values)
        with pytest.raises(TaskError, match="ZeroDivisionError"):
            await anext(values)
        return [first, await anext(values)]

    with eager(app):
        values = iter(half.map([1, 0, 2]))
        assert next(values) == 2
        with pytest.raises(TaskError, match="ZeroDivisionError"):
            next(values)
        assert list(values) == [1]
        assert asyncio.run(main()) == [2, 1]


def test_an_id_names_one_request(app: App):
    calls = []

    @app.task
    def note(n: int) -> int:
        calls.append(n)
        return n

    with eager(app):
        for _ in range(2):
            note.with_options(id="monday").map([1, 2])
        assert calls == [1, 2]
        assert list(note.batch("monday")) == [1, 2]
        for use in ("wait", "progress", "cancel"):
            with pytest.raises(RequestNotFound, match="tuesday was not submitted"):
                getattr(note.batch("tuesday"), use)()
        with pytest.raises(RequestNotFound):
            list(note.batch("tuesday"))


def test_hooks_run_as_in_a_worker(app: App):
    order: list[str] = []

    @app.task
    def note(n: int) -> None:
        order.append(f"call {n}")

    app.on_startup(lambda: order.append("start"))
    app.on_shutdown(lambda: order.append("stop"))
    with eager(app):
        note.submit(1)
        note.submit(2)
    assert order == ["start", "call 1", "call 2", "stop"]


def test_after_the_block_the_app_submits_to_its_redis_again(app: App):
    task = app.task(name="note")(lambda n: n)
    with eager(app):
        task.submit(1)
    assert app.stand_in is None
    assert app.queue.driver.url == "redis://127.0.0.1:1"
    app.close()


def test_an_executor_has_no_eager_mode(app: App):
    task = app.task(name="note")(lambda n: n)
    with eager(app):
        future = Executor(app).submit(task, 1)
        with pytest.raises(InvalidArgument, match="use run_tasks for this test"):
            future.result(20)
    with pytest.raises(InvalidArgument, match="no app is named"), eager():
        pass


def test_an_async_task_may_submit_another_one(app: App):
    @app.task
    async def inner(n: int) -> int:
        return n + 1

    @app.task
    async def outer(n: int) -> int:
        return inner.submit(n).result()

    before = set(threading.enumerate())
    with eager(app):
        assert outer.submit(1).result() == 2
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize("raised", [KeyboardInterrupt, pytest.fail.Exception])
def test_what_is_no_outcome_of_a_call_is_raised(app: App, raised: type[BaseException]):
    @app.task
    def stop() -> None:
        raise raised("now")

    with eager(app), pytest.raises(raised):
        stop.submit()


def test_a_group_runs_and_a_chain_is_refused(app: App):
    @app.task
    def grow(n: int) -> int:
        return n + 1

    with eager(app):
        assert group(grow.s(1), grow.s(2)).submit().results() == [2, 3]
        with pytest.raises(InvalidArgument, match="eager mode, which has no Redis: use run_tasks"):
            chain(grow.s(1), grow.s()).submit()


@pytest.mark.parametrize("raised", [Retry(reason="bank closed"), Reject("bank closed")])
@pytest.mark.parametrize("is_explicit", [True, False])
def test_a_reason_is_shown_with_its_cause(app: App, raised: Exception, *, is_explicit: bool):
    @app.task(attempts=1)
    def pay(n: int) -> int:
        try:
            return n // 0
        except ZeroDivisionError as error:
            if is_explicit:
                raise raised from error
            raise raised  # noqa: B904  both are tried

    with eager(app), pytest.raises(TaskError) as dead:
        pay.submit(1).result()
    assert "bank closed: ZeroDivisionError: " in str(dead.value)
    assert dead.value.error_type == "ZeroDivisionError"
    assert dead.value.message.startswith("bank closed: ")
    assert "in pay" in dead.value.traceback
