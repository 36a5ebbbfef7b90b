"""Tests the executor: futures behave as in concurrent.futures, and calls run on workers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import (
    ALL_COMPLETED,
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Future,
    as_completed,
    wait,
)
from typing import TYPE_CHECKING, Any

import pytest

from fairlane import (
    App,
    ArgumentsRefused,
    Executor,
    InvalidArgument,
    QueueFull,
    RedisUnreachable,
    TaskCancelled,
    TaskError,
    request,
    settings,
)
from fairlane.protocol import keys
from fairlane.protocol.request_hash import read
from fairlane.protocol.steps import Command
from fairlane.tasks import executor as call_stream
from fairlane.tasks.executor import EndedPace
from fairlane.testing import run_tasks
from tests.support.run.for_each import for_each
from tests.support.scripts.requests import once
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.cli.program import Program

CODE = b"""
import time
from pathlib import Path
from fairlane import App, Context
app = App("images")

@app.task
def double(n: int) -> int:
    return n * 2

@app.task
def fail(n: int) -> int:
    raise ValueError(f"bad {n}")

@app.task
def slow(n: int, ctx: Context) -> str:
    Path(f"running-{n}").touch()
    while not Path("go").exists():
        time.sleep(0.01)
    return f"{ctx.id}/{ctx.index}"
"""


def double(n: int) -> int:
    """Replaces a function of another module."""
    return n * 2


@pytest.fixture
def tasks(app: App) -> dict[str, Any]:
    """The tasks of CODE, as another program has them."""

    def fail(n: int) -> int:
        return n

    async def slow(n: int) -> str:
        return str(n)

    return {task.__name__: app.task(task) for task in (double, fail, slow)}


@pytest.fixture
def worker(app: App, program: Program) -> Iterator[Callable[[], None]]:
    """A worker of CODE; calling it opens the gate of `slow`."""
    program.file(CODE, "thecode.py")
    running = program.run("worker", "--app", "thecode:app", "--concurrency", "4")
    wait_until(lambda: app.queue.status().workers)
    yield (program.folder / "go").touch
    (program.folder / "go").touch()
    running.process.send_signal(signal.SIGTERM)
    ended = running.finish()
    assert ended.code == 0, ended.err


def test_calls_run_on_a_worker_and_each_future_has_its_result(
    app: App, tasks: dict[str, Any], worker: object
):
    with Executor(app, max_workers=8, priority=5, attempts=2, backoff="1ms") as executor:
        futures = {executor.submit(tasks["double"], n): n for n in range(2_500)}
        assert [future.result(20) for future in futures] == [2 * n for n in range(2_500)]
        assert executor.submit(double, n=4).result(20) == 8  # the function of the task
        failing = executor.submit(tasks["fail"], 7)
        with pytest.raises(TaskError, match="bad 7") as dead:
            failing.result(20)
        assert (dead.value.error_type, dead.value.attempts) == ("ValueError", 2)
    assert all(future.done() for future in futures)


@pytest.mark.rest
@pytest.mark.parametrize("way", ["as_completed", "wait", "wrap_future"])
def test_the_standard_functions_wait_for_its_futures(
    app: App, tasks: dict[str, Any], worker: object, way: str
):
    with Executor(app) as executor:
        futures = [executor.submit(tasks["double"], n) for n in range(20)]
        if way == "as_completed":
            found = [future.result() for future in as_completed(futures, 20)]
        elif way == "wait":
            assert wait(futures, 20, FIRST_COMPLETED).done
            done, left = wait(futures, 20, ALL_COMPLETED)
            assert not left
            found = [future.result() for future in done]
        else:

            async def gather() -> list[int]:
                return [await asyncio.wrap_future(future) for future in futures]

            found = asyncio.run(gather())
    assert sorted(found) == [2 * n for n in range(20)]


@pytest.mark.rest
def test_no_more_workers_than_the_limit_run_its_calls(
    app: App, tasks: dict[str, Any], worker: Callable[[], None], program: Program
):
    with Executor(app, max_workers=2) as executor:
        futures = [executor.submit(tasks["slow"], n) for n in range(3)]
        wait_until(lambda: len(list(program.folder.glob("running-*"))) == 2)
        (request,) = app.queue.status().requests
        progress = app.queue.request(request.id).progress()
        assert (progress.held, progress.limit, progress.total) == (2, 2, 3)
        worker()
        ids = [future.result(20).split("/") for future in futures]
    assert {name for name, _ in ids} == {progress.id}
    assert [index for _, index in ids] == ["0", "1", "2"]


def test_a_call_that_is_not_sent_can_be_cancelled(app: App, tasks: dict[str, Any]):
    """Nothing runs here, so only twice the limit is sent."""
    executor = Executor(app, max_workers=2)
    futures = [executor.submit(tasks["double"], n) for n in range(9)]
    wait_until(futures[3].running)
    assert [future.running() for future in futures] == [True] * 4 + [False] * 5
    assert not futures[0].cancel()
    assert futures[8].cancel()
    executor.shutdown(wait=False)
    assert [future.cancelled() for future in futures] == [False] * 8 + [True]
    with pytest.raises(CancelledError):
        futures[8].result(0)
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(tasks["double"], 1)
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.map(tasks["double"], [1])
    run_until_done(app, futures[7])
    executor.shutdown()
    assert [future.result(0) for future in futures[:8]] == [2 * n for n in range(8)]


@pytest.mark.parametrize("way", ["submit", "map"])
def test_a_shutdown_takes_back_the_calls_that_are_sent(app: App, tasks: dict[str, Any], way: str):
    """No worker has begun them."""
    executor = Executor(app, max_workers=2)
    if way == "map":
        executor.map(tasks["double"], range(9))
        wait_until(lambda: app.queue.status().requests)
    else:
        futures = [executor.submit(tasks["double"], n) for n in range(9)]
        wait_until(futures[3].running)
    executor.shutdown(cancel_futures=True)
    if way == "submit":
        assert all(future.cancelled() for future in futures)
        assert wait(futures, 0).not_done == set()
    (ending,) = app.queue.completions("0", follow=False)
    assert (ending.state, ending.done) == ("cancelled", 0)
    assert run_tasks(app) == 0


@pytest.mark.rest
def test_a_shutdown_lets_the_calls_end_that_a_worker_has_begun(
    app: App, tasks: dict[str, Any], worker: Callable[[], None], program: Program
):
    executor = Executor(app, max_workers=1)
    futures = [executor.submit(tasks["slow"], n) for n in range(3)]
    wait_until((program.folder / "running-0").exists)
    executor.shutdown(wait=False, cancel_futures=True)
    wait_until(lambda: app.queue.status().requests[0].state == "paused")
    worker()
    executor.shutdown()
    assert [future.cancelled() for future in futures] == [False, True, True]
    assert futures[0].result(0).endswith("/0")


def test_a_request_is_sealed_when_nothing_is_left_to_do(
    app: App, tasks: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(call_stream, "_IDLE_S", 0.01)
    executor = Executor(app)
    for number in range(2):
        future = executor.submit(tasks["double"], number)
        run_until_done(app, future)
        assert future.result(20) == 2 * number
        wait_until(lambda: app.queue.status().requests == ())
    assert len(list(app.queue.completions("0", follow=False))) == 2
    wait_until(lambda: threads() == [])


def run_until_done(app: App, future: Future[Any]) -> None:
    """Runs a worker each time calls were sent, because an idle one ends between two sendings."""

    def ran() -> bool:
        run_tasks(app)
        return future.done()

    wait_until(ran)


def threads() -> list[str]:
    names = ("fairlane-exec", "fairlane-results")
    return [one.name for one in threading.enumerate() if one.name.startswith(names)]


@pytest.mark.rest
def test_no_thread_outlives_a_shutdown(app: App, tasks: dict[str, Any], worker: object):
    for _ in range(3):
        executor = Executor(app)
        assert executor.submit(tasks["double"], 1).result(20) == 2
        assert len(threads()) == 2
        executor.shutdown()
        assert threads() == []


@pytest.mark.rest
def test_a_submit_and_a_map_share_the_limit(
    app: App, tasks: dict[str, Any], worker: Callable[[], None], program: Program
):
    with Executor(app, max_workers=2) as executor:
        values = executor.map(tasks["slow"], [0, 1])
        futures = [executor.submit(tasks["slow"], n) for n in (2, 3)]
        wait_until(lambda: len(list(program.folder.glob("running-*"))) == 2)
        (request,) = app.queue.status().requests
        progress = app.queue.request(request.id).progress()
        assert (progress.held, progress.limit, progress.total) == (2, 2, 4)
        worker()
        assert {one.split("/")[0] for one in values} == {progress.id}
        assert {future.result(20).split("/")[0] for future in futures} == {progress.id}


@pytest.mark.rest
def test_a_request_with_very_many_calls_is_followed_by_another(
    app: App, tasks: dict[str, Any], monkeypatch: pytest.MonkeyPatch, worker: object
):
    monkeypatch.setattr(call_stream, "_MOST_CALLS", 10)
    with Executor(app, max_workers=3) as executor:
        futures = [executor.submit(tasks["double"], n) for n in range(40)]
        assert [future.result(20) for future in futures] == [2 * n for n in range(40)]
    endings = list(app.queue.completions("0", follow=False))
    assert len(endings) > 1
    assert sum(ending.total for ending in endings) == 40


def test_calls_of_an_executor_have_a_deadline_each_and_one_rate(
    app: App, tasks: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    """A call that comes late begins a request, whose deadline begins and whose rate goes on."""
    monkeypatch.setattr(call_stream, "_CALLS_PART", 0.0)
    with Executor(app, deadline="1h", rate="1000/s") as executor:
        futures = []
        for n in range(2):
            futures.append(executor.submit(tasks["double"], n))
            run_until_done(app, futures[-1])
        assert [future.result(20) for future in futures] == [0, 2]
    ids = [ending.id for ending in app.queue.completions("0", follow=False)]
    ids.append(app.queue.submit_request(["x"], rate="1000/s").id)
    first, second, of_its_own = (app.queue.driver.run(read(one, "rates"))[0] for one in ids)
    assert first == second != of_its_own


def test_a_cancelled_request_ends_its_futures(app: App, tasks: dict[str, Any]):
    executor = Executor(app)
    future = executor.submit(tasks["double"], 1)
    wait_until(lambda: app.queue.status().requests)
    (request,) = app.queue.status().requests
    app.queue.request(request.id).cancel("by a test")
    with pytest.raises(TaskCancelled):
        future.result(20)
    again = executor.submit(tasks["double"], 2)  # the executor continues
    run_until_done(app, again)
    executor.shutdown()
    assert again.result(20) == 4


def test_calls_without_room_are_refused_and_later_ones_run(app: App, tasks: dict[str, Any]):
    app.queue.set_max_waiting(2)
    executor = Executor(app, max_workers=9)
    futures = [executor.submit(tasks["double"], n) for n in range(2)]
    wait_until(futures[1].running)
    wait_until(lambda: app.queue.status().requests)
    full = executor.submit(tasks["double"], 3)
    with pytest.raises(QueueFull):
        full.result(20)
    run_until_done(app, futures[1])
    app.queue.set_max_waiting(0)
    again = executor.submit(tasks["double"], 4)
    run_until_done(app, again)
    executor.shutdown()
    assert [future.result(20) for future in (*futures, again)] == [0, 2, 8]


def test_a_request_stays_open_while_long_calls_run(
    app: App, tasks: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(settings, "OPEN_MS", 200)
    executor = Executor(app, max_workers=1)
    future = executor.submit(tasks["double"], 1)
    wait_until(lambda: app.queue.status().requests)
    (request,) = app.queue.status().requests
    key = keys.request_hash(request.id)

    def chunks() -> int:
        return int(app.queue.driver.run(once(Command(b"HGET", key, b"chunks"))) or 1)

    wait_until(lambda: chunks() >= 4)  # empty ones
    run_until_done(app, future)
    executor.shutdown()
    assert future.result(0) == 2


@pytest.mark.rest
def test_shutdown_returns_after_the_callbacks_and_cannot_be_called_in_one(
    app: App, tasks: dict[str, Any], worker: object
):
    seen: list[str] = []
    executor = Executor(app)
    future = executor.submit(tasks["double"], 1)

    def callback(_: Future[int]) -> None:
        with pytest.raises(RuntimeError, match="wait=False"):
            executor.shutdown()
        ended.wait(0.05)
        seen.append("called")

    ended = threading.Event()
    future.add_done_callback(callback)
    executor.shutdown()
    assert seen == ["called"]


def test_a_process_that_was_forked_has_an_executor_of_its_own(
    app: App, tasks: dict[str, Any], worker: object
):
    executor = Executor(app)
    assert executor.submit(tasks["double"], 1).result(20) == 2
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            os.write(theirs, b"%d" % executor.submit(tasks["double"], 21).result(20))
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(ours, 9) == b"42"
    executor.shutdown()


@pytest.mark.rest
def test_a_program_that_ends_waits_for_its_calls_and_callbacks(
    app: App, program: Program, worker: Callable[[], None]
):
    """It never shuts the executor down, as with other executors."""
    program.file(
        b"import os\nfrom thecode import app, double\nfrom fairlane import Executor\n"
        b"for n in range(30):\n"
        b"    future = Executor(app).submit(double, n)\n"
        b"    future.add_done_callback(lambda one: os.write(1, b'%d ' % one.result()))\n",
        "main.py",
    )
    words = [sys.executable, "main.py"]
    ended = subprocess.run(
        words, cwd=program.folder, env=program.env, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert sorted(map(int, ended.stdout.split())) == [2 * n for n in range(30)]


def test_an_error_of_reading_breaks_the_executor(
    app: App, tasks: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    def broken(*_: Any, **__: Any) -> Iterator[Any]:
        raise RedisUnreachable("not readable")

    monkeypatch.setattr(request.Request, "results", broken)
    executor = Executor(app)
    future = executor.submit(tasks["double"], 1)
    with pytest.raises(RedisUnreachable, match="not readable"):
        future.result(20)
    with pytest.raises(BrokenExecutor):
        executor.submit(tasks["double"], 1)
    executor.shutdown()


@pytest.mark.rest
def test_a_shutdown_waits_for_the_calls_of_a_map(app: App, tasks: dict[str, Any], worker: object):
    executor = Executor(app, max_workers=1)
    values = executor.map(tasks["double"], range(300))
    executor.shutdown()
    (ending,) = app.queue.completions("0", follow=False)
    assert (ending.state, ending.done) == ("done", 300)
    assert next(values) == 0


def test_without_redis_every_future_has_the_error():
    app = App("images", "redis://127.0.0.1:1")
    app.task(double)
    executor = Executor(app)
    app.queue.driver.patience_s = 0.05
    future: Future[int] = executor.submit(double, 1)
    with pytest.raises(RedisUnreachable):
        future.result(20)
    with pytest.raises(BrokenExecutor, match="executor is broken"):
        executor.submit(double, 2)
    executor.shutdown()


def test_the_results_of_a_map_come_in_order(app: App, tasks: dict[str, Any], worker: object):
    with Executor(app, max_workers=4, attempts=1) as executor:
        found = executor.map(tasks["double"], range(1_000), chunksize=50)
        assert list(found) == [2 * n for n in range(1_000)]
        assert list(executor.map(double, [])) == []
        values = executor.map(tasks["fail"], [1, 2])
        with pytest.raises(TaskError, match="bad 1"):
            next(values)


def test_a_map_that_cannot_be_called_sends_nothing(app: App, tasks: dict[str, Any]):
    executor = Executor(app)
    with pytest.raises(ArgumentsRefused, match="argument n of call 2 cannot be"):
        executor.map(tasks["double"], [1, 2, object()])
    executor.shutdown()
    assert app.queue.status().requests == ()


def test_a_map_has_a_timeout_and_cancels_what_is_not_sent(app: App, tasks: dict[str, Any]):
    executor = Executor(app, max_workers=2)
    values = executor.map(tasks["double"], range(9), timeout=0)
    wait_until(lambda: app.queue.status().requests)
    with pytest.raises(TimeoutError):
        next(values)
    executor.shutdown(wait=False)
    wait_until(lambda: run_tasks(app) == 0 and threads() == [])
    (ending,) = app.queue.completions("0", follow=False)
    assert (ending.state, ending.done) == ("done", ending.total)
    assert ending.total <= 4


@pytest.mark.parametrize("way", ["submit", "map"])
def test_only_tasks_of_the_app_can_be_called(app: App, tasks: dict[str, Any], way: str):
    other = App("mail").task(lambda n: n)
    executor = Executor(app)
    for called, why in [
        (len, "len is no task of app images: register it with @app.task"),
        (lambda n: n, "<lambda> is no task of app images"),
        ("double", "a str is no task of app images"),
        (other, "task <lambda> belongs to app mail: use an executor of that app"),
    ]:
        with pytest.raises(TypeError, match=why.replace("[", r"\[")):
            getattr(executor, way)(called, [1])
    with pytest.raises(
        ArgumentsRefused, match=r"unexpected keyword argument .m.; its arguments are n"
    ):
        executor.submit(tasks["double"], m=1)
    with pytest.raises(InvalidArgument, match="chunksize 0"):
        executor.map(tasks["double"], [1], chunksize=0)
    with pytest.raises(InvalidArgument, match="timeout 'x'"):
        executor.map(tasks["double"], [1], timeout="x")  # type: ignore[arg-type]
    assert app.queue.status().requests == ()


def wrongly(**options: Any) -> Any:
    """Returns options that a type checker refuses."""
    return options


def test_wrong_options_are_refused(app: App):
    with pytest.raises(ArgumentsRefused, match="option workers is not valid"):
        Executor(app, workers=3)  # type: ignore[call-arg]
    for wrong, why in [
        (0, "max_workers must be greater than 0: 0 is not valid"),
        (10_001, "max_workers 10001"),
        ("3", "max_workers '3' is not valid"),
        (True, "max_workers True is not valid"),
    ]:
        with pytest.raises(InvalidArgument, match=f"executor: {why}"):
            Executor(app, max_workers=wrong)  # type: ignore[arg-type]
    for name in ("limit", "batch_limit"):
        with pytest.raises(ArgumentsRefused, match=f"executor: option {name} is not one"):
            Executor(app, **wrongly(**{name: 3}))
    assert (
        repr(Executor(app, 3))
        == repr(Executor(app, max_workers=3))
        == "<Executor of app images, max_workers 3>"
    )
    with pytest.raises(InvalidArgument, match="executor: option delay is not valid, because only"):
        Executor(app, delay=2)
    for option in ({"order_key": "k"}, {"order_on_dead": "stop"}):
        with pytest.raises(InvalidArgument, match="executor: option order_key is not valid"):
            Executor(app, **wrongly(**option))


def test_a_task_with_an_order_is_not_called_without_it():
    app = App("images")

    def step(n: int) -> int:
        return n

    task = app.task(order_key="k")(step)
    for called in (task, step):
        with pytest.raises(ArgumentsRefused, match="task step has an order key"):
            Executor(app).submit(called, 1)


def test_a_pace_counts_what_ended_within_a_second():
    pace = EndedPace()
    for now in (0.1, 0.2, 0.9, 1.1):
        pace.add(now)
    assert (pace.count(1.1), pace.count(1.5), pace.count(2.5)) == (1 + 2, 1 + 1, 0)
    assert pace.count(9.0) == 0


@for_each(
    "option, value", [("attempts", 1), ("time_limit", "5s"), ("deadline", "1h"), ("rate", "5/s")]
)
def test_an_option_that_protects_a_task_is_not_dropped(option: str, value: Any):
    app = App("images")

    def fragile(n: int) -> int:
        return n

    task = app.task(**{option: value})(fragile)
    said = rf"task fragile has its own {option}.* as Executor\(app, {option}=\.\.\.\)"
    with Executor(app) as executor:
        for act in (
            lambda: executor.submit(task, 1),
            lambda: executor.submit(fragile, 1),
            lambda: executor.map(task, [1]),
        ):
            with pytest.raises(ArgumentsRefused, match=said):
                act()
    named = Executor(app, **{option: value})
    assert named._task_of(task) is task
    named.shutdown()
