"""Tests tasks on a server: submitted, run by a worker, and read as typed values."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from fairlane import (
    App,
    ArgumentsRefused,
    Context,
    Executor,
    Retry,
    TaskCancelled,
    TaskError,
    WaitTimeout,
    chain,
    group,
)
from fairlane.tasks.serve import workers_of
from tests.support.wait import PATIENCE_S, wait_until
from tests.tasks.parts import Size

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    import redis

    from fairlane.tasks.task import Task
    from tests.cli.program import Program

Resize = Any


@pytest.fixture(params=["sync", "async"])
def resize(app: App, request: pytest.FixtureRequest) -> Task[..., Size, Any]:
    def resize(path: str, width: int = 200) -> Size:
        return resized(path, width)

    async def wait(path: str, width: int = 200) -> Size:
        await asyncio.sleep(0)
        return resized(path, width)

    function = resize if request.param == "sync" else wait
    return app.task(name="resize", attempts=2, backoff="1ms")(function)


def resized(path: str, width: int) -> Size:
    if path == "bad":
        raise ValueError("bad path")
    return Size(width, len(path))


def test_a_submitted_call_returns_a_typed_value(resize: Resize, work: Callable[[], int]):
    one, other = resize.submit("a.png", width=100), resize.submit("b")
    with pytest.raises(WaitTimeout):
        one.result(timeout=0)
    work()
    assert one.result(timeout=PATIENCE_S) == one.result() == Size(100, 5)
    assert other.wait() == "done"
    assert other.result() == Size(200, 1)


def test_a_map_is_one_request_and_yields_in_input_order(
    app: App, resize: Resize, work: Callable[[], int]
):
    batch = resize.map((f"{n:05}" for n in range(2_500)), width=7)
    assert batch.request.total == 2_500
    assert len(app.queue.status().requests) == 1
    work()
    assert list(batch) == [Size(7, 5)] * 2_500
    assert batch.progress().done == 2_500
    assert resize.starmap([("a", 3), ("bb",)]).request.total == 2
    work()


def test_a_dead_call_raises_the_error_of_its_worker(resize: Resize, work: Callable[[], int]):
    one, batch = resize.submit("bad"), resize.map(["a", "bad", "ccc"])
    work()
    with pytest.raises(TaskError) as dead:
        one.result()
    error = dead.value
    assert (error.task, error.request_id, error.index, error.attempts) == ("resize", one.id, 0, 2)
    assert (error.error_type, error.message) == ("ValueError", "bad path")
    assert 'raise ValueError("bad path")' in error.traceback
    assert "fairlane/tasks" not in error.traceback
    assert error.__notes__ == [f"The error in the worker:\n{error.traceback.rstrip()}"]
    first, second, third = batch.outcomes()
    assert (first, third) == (Size(200, 1), Size(200, 3))
    assert (second.index, second.message) == (1, "bad path")
    assert [found.index for found in batch.errors()] == [1]
    with pytest.raises(TaskError, match="sub-request 1 of request"):
        list(batch)


def test_a_cancelled_call_is_its_own_error(resize: Resize):
    one, batch = resize.submit("a"), resize.map(["a", "b"])
    assert one.cancel()
    assert batch.cancel()
    with pytest.raises(TaskCancelled, match="task resize: sub-request 0 of request"):
        one.result()
    assert [error.index for error in batch.outcomes()] == [0, 1]


@pytest.mark.rest
def test_a_request_is_found_again_by_its_id(resize: Resize, work: Callable[[], int]):
    named = resize.with_options(id="monday")
    named.map(["a", "bad"])
    assert named.map(["a", "bad"]).id == "monday"  # adds nothing
    work()
    assert [type(found) for found in resize.batch("monday").outcomes()] == [Size, TaskError]


def test_a_bad_argument_writes_nothing(resize: Resize, redis_client: redis.Redis):
    for submit in (
        lambda: resize.submit(object()),
        lambda: resize.map([object()]),
        lambda: resize.map(["a"], widht=3),
        lambda: resize.starmap([("a",), "b"]),
        lambda: resize.starmap([("a", 1, 2)]),
        lambda: resize.map("abc"),
        lambda: resize.map(3),
    ):
        with pytest.raises(ArgumentsRefused):
            submit()
    assert list(redis_client.scan_iter("*images*")) == []


def test_an_argument_of_a_late_element_cancels_the_request(app: App, resize: Resize):
    with pytest.raises(ArgumentsRefused, match="argument path of sub-request 1500 cannot"):
        resize.map(object() if n == 1_500 else "a" for n in range(2_000))
    assert app.queue.status().requests == ()


def test_a_result_of_another_type_is_named(app: App, work: Callable[[], int]):
    @app.task
    def odd(value: Any) -> int:
        return value  # type: ignore[no-any-return]

    batch = odd.map(["text", None, 3])
    work()
    first, second, third = batch.outcomes()
    assert "task odd returned a str: its result is not valid: Expected `int`, got `str`" in str(
        first
    )
    assert "Expected `int`, got `null`" in str(second)
    assert third == 3


def test_a_task_may_retry_and_read_its_context(app: App, work: Callable[[], int]):
    @app.task
    def again(ctx: Context) -> list[int]:
        if ctx.attempt < 2:
            raise Retry(after=0)
        return [ctx.index, ctx.attempt, ctx.attempts]

    one = again.submit()
    work()
    assert one.result() == [0, 2, 5]


@pytest.mark.rest
def test_the_asyncio_face_does_the_same(resize: Resize, app: App, work: Callable[[], int]):
    async def submit() -> Any:
        one = await resize.asubmit("a.png", width=100)
        some = await resize.amap(["a", "bad"], width=1)
        lazy = await resize.amap(later("b", "cc"))
        star = await resize.astarmap([("d", 2)])
        both = await resize.astarmap(later(("e", 3)))
        gone = await resize.asubmit("z")
        assert await gone.cancel()
        with pytest.raises(TaskCancelled):
            await gone
        with pytest.raises(ArgumentsRefused):
            await resize.asubmit(object())
        return [one, some, lazy, star, both]

    async def read(found: Any) -> None:
        one, some, lazy, star, both = found
        again = await resize.asubmit("a")  # the queue of this loop
        assert await again.cancel()
        queue = app.aio_queue
        for each in found:
            each.request.queue = queue
        assert await one.result(timeout=PATIENCE_S) == await one == Size(100, 5)
        outcomes = [outcome async for outcome in some.outcomes()]
        assert outcomes[0] == Size(1, 1)
        assert isinstance(outcomes[1], TaskError)
        assert [error.index async for error in some.errors()] == [1]
        assert [size async for size in lazy] == [Size(200, 1), Size(200, 2)]
        assert [size async for size in star] == [Size(2, 1)]
        assert [size async for size in resize.abatch(both.id)] == [Size(3, 1)]
        assert (await both.wait(), (await both.progress()).done) == ("done", 1)

    async def closing(called: Any) -> Any:
        try:
            return await called
        finally:
            await app.aclose()

    found = asyncio.run(closing(submit()))
    work()
    asyncio.run(closing(read(found)))


async def later(*values: Any) -> AsyncIterator[Any]:
    for value in values:
        await asyncio.sleep(0)
        yield value


def test_tasks_may_submit_to_their_own_app(app: App, work: Callable[[], int]):
    @app.task
    def leaf(n: int) -> int:
        return n + 1

    @app.task
    def root(n: int) -> str:
        return leaf.submit(n).id

    one = root.submit(1)
    work()
    assert leaf.batch(one.result()).wait(timeout=PATIENCE_S) == "done"


def test_messages_in_messagepack_keep_bytes(redis_url: str):
    packed = App("images", redis_url, encoding="msgpack")

    @packed.task
    def turn(data: bytes, more: Any) -> Any:
        return [data[::-1], more]

    one = turn.submit(b"\xff\x00", {1: b"x"})
    workers_of([packed])[0].run(until_idle=True)
    assert one.result() == [b"\x00\xff", {1: b"x"}]
    packed.close()


def test_an_async_app_starts_and_ends_in_each_process(redis_url: str, tmp_path: Path):
    app, pool = App("images", redis_url), []

    @app.on_startup
    async def connect() -> None:
        await asyncio.sleep(0)
        pool.append(asyncio.get_running_loop())

    @app.on_shutdown
    async def close() -> None:
        (tmp_path / "closed").write_text(str(len(pool)))

    @app.task
    async def ask() -> bool:
        return pool == [asyncio.get_running_loop()]

    batch = ask.starmap(() for _ in range(3))
    workers_of([app])[0].run(until_idle=True)
    assert list(batch) == [True] * 3
    assert (tmp_path / "closed").read_text() == "1"
    app.close()


def test_a_process_whose_start_fails_starts_again(
    redis_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    app, mark = App("images", redis_url), tmp_path / "tried"

    @app.on_startup
    def connect() -> None:
        if not mark.exists():
            mark.touch()
            raise RuntimeError("no database")

    @app.task
    def ask() -> int:
        return 1

    one = ask.submit()
    workers_of([app])[0].run(until_idle=True)
    assert one.result() == 1
    assert "ended by exit 1" in caplog.text
    app.close()


def test_a_request_names_the_task_of_its_calls(app: App):
    """Also a schedule's, a group's and a chain's, and one whose first calls an executor sends."""

    @app.cron("0 7 * * *")
    @app.task
    def report() -> None:
        pass

    @app.task(priority=7)
    def send_mail(to: str) -> str:
        return to

    @app.task(priority=7)
    def resize(path: str) -> str:
        return path

    one = send_mail.submit("ann")
    many = send_mail.map(["ann", "bob"])
    several = group(send_mail.s("ann"), resize.s("b.png"), resize.s("c.png")).submit()
    run = chain(send_mail.s("ann"), resize.s(), group(send_mail.s(), resize.s())).submit()
    named = {
        one.id: {"send_mail": 1},
        many.id: {"send_mail": 2},
        several.id: {"resize": 2, "send_mail": 1},
    }
    for name, tasks in named.items():
        assert app.queue.request(name).progress().tasks == tasks
    steps = [[*step.progress.tasks] for step in run.run.progress().steps]
    assert steps == [["send_mail"], ["resize"], ["send_mail"], ["resize"]]
    assert app.schedules["report"].policy("images").task == "report"
    with Executor(app) as executor:
        assert app.queue.driver is not None
        future = executor.submit(resize, "a.png")
        (request,) = wait_until(lambda: [
            row for row in app.queue.list_requests(tasks="resize", newer_s=60).requests
            if row.tasks == {"resize": None}
        ])  # fmt: skip
        app.queue.request(request.id).cancel()
        assert future.cancelled() or future.exception() is not None


def test_the_task_of_a_call_shows_in_its_status_with_its_arguments(app: App, program: Program):
    @app.task
    def send_mail(to: str, tries: int = 3) -> None:
        pass

    name = send_mail.submit("ann@example.com").id
    words = 'send_mail(to="ann@example.com")'
    for command in ("status", "why"):
        assert f"task      {words}\n" in program(command, name).out.decode()
        found = json.loads(program(command, name, "--json").out)
        assert found.get("request", found)["call"] == words
    listed = program("list", "--queue", "images", "--task", "send_mail").out.decode()
    assert [line.split()[-1] for line in listed.splitlines()] == ["TASK", words]
    assert words in program("status", "--queue", "images").out.decode()
    unknown = program("list", "--queue", "images", "--task", "resize")
    assert (unknown.code, unknown.out) == (0, b"")
    assert "no request of queue images is listed" in unknown.err


def test_statistics_are_by_task_whatever_request_the_calls_are_of(app: App, program: Program):
    @app.task(attempts=1)
    def send_mail(to: str) -> None:
        if to == "bad":
            raise ValueError(to)

    @app.task(attempts=1)
    def resize(path: str) -> None:
        pass

    send_mail.map(["ann", "bad", "bob"])
    group(resize.s("a.png"), send_mail.s("cid"), resize.s("b.png")).submit()
    workers_of([app])[0].run(until_idle=True)
    found = json.loads(program("stats", "--queue", "images", "--json").out)["tasks"]
    assert {name: (one["done"], one["failed"]) for name, one in found.items()} == {
        "send_mail": (3, 1),
        "resize": (2, 0),
    }
    table = program("stats", "--queue", "images").out.decode().split("\n\n")[1]
    assert [line.split()[:3] for line in table.splitlines()] == [
        ["TASK", "DONE", "FAILED"], ["send_mail", "3", "1"], ["resize", "2", "0"],
    ]  # fmt: skip
