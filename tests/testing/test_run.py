"""Tests run_tasks: the calls of an app run in the test's own process."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from fairlane import App, Context, InvalidArgument, Reject, Retry, TaskError, chain
from fairlane.testing import run_tasks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlane import TaskCall


def test_calls_run_in_this_process_until_none_is_left(app: App):
    pids = []

    @app.task
    def resize(n: int) -> int:
        pids.append(os.getpid())
        if n:
            resize.submit(n - 1)
        return n

    first = resize.submit(2)
    assert run_tasks(app) == 3
    assert first.result(timeout=0) == 2
    assert pids == [os.getpid()] * 3
    assert run_tasks(app) == 0


def test_a_chain_runs_to_its_end(app: App):
    @app.task
    def grow(n: int) -> int:
        return n + 1

    run = chain(grow.s(1), grow.s(), grow.s()).submit()
    assert run_tasks(app) == 3
    assert run.result(timeout=0) == 4


def test_an_async_task_runs_too(app: App):
    @app.task
    async def resize(ctx: Context, n: int) -> list[int]:
        return [n, ctx.index, ctx.attempt]

    batch = resize.map(range(3))
    assert run_tasks(app) == 3
    assert list(batch) == [[0, 0, 1], [1, 1, 1], [2, 2, 1]]


def test_the_most_urgent_request_runs_first(app: App):
    order = []

    @app.task
    def note(name: str) -> None:
        order.append(name)

    note.with_options(priority=9).submit("later")
    note.with_options(priority=1).submit("sooner")
    run_tasks(app)
    assert order == ["sooner", "later"]


def test_pauses_between_attempts_are_skipped(app: App):
    attempts = []

    @app.task(attempts=3, backoff="1h..2h")
    def flaky(ctx: Context, n: int) -> int:
        attempts.append(ctx.attempt)
        if ctx.attempt == 2:
            raise Retry(after=7_200)
        if ctx.attempt < 3:
            raise ValueError("not yet")
        return n

    call = flaky.submit(4)
    assert run_tasks(app) == 3
    assert (attempts, call.result(timeout=0)) == ([1, 2, 3], 4)


def test_a_dead_call_has_its_error(app: App):
    dead = []

    @app.task(attempts=2, backoff="1h")
    def fail(n: int) -> int:
        raise (Reject("never") if n else ValueError("bad"))

    app.on_dead(lambda call, error: dead.append((call.arguments, str(error))))
    batch = fail.map([0, 1])
    assert run_tasks(app) == 3
    errors = sorted(batch.errors(), key=lambda error: error.index)
    assert [(error.attempts, error.message) for error in errors] == [(2, "bad"), (1, "never")]
    assert sorted(dead, key=str) == [({"n": 0}, "bad"), ({"n": 1}, "never")]
    assert "test_run.py" in errors[0].traceback


def test_the_first_error_can_be_raised_with_its_own_frames(app: App):
    @app.task(attempts=1)
    def fail(n: int) -> int:
        raise KeyError(n)

    call = fail.submit(3)
    with pytest.raises(KeyError) as raised:
        run_tasks(app, raises=True)
    assert raised.traceback[-1].name == "fail"
    with pytest.raises(TaskError):
        call.result(timeout=0)


def test_time_can_be_moved_past_a_deadline(app: App):
    @app.task(deadline="1h")
    def resize(n: int) -> int:
        return n

    one = resize.submit(1)
    assert run_tasks(app, skip="2h") == 0
    with pytest.raises(TaskError, match="deadline"):
        one.result(timeout=0)
    two = resize.submit(2)
    assert run_tasks(app) == 1, "the next run is in the present again"
    assert two.result(timeout=0) == 2


def test_the_hooks_of_a_process_run_around_the_calls(app: App):
    order: list[str] = []

    @app.task
    def resize(n: int) -> int:
        order.append(f"call {n}")
        return n

    @app.middleware
    def around(call: TaskCall) -> Iterator[None]:
        order.append(f"before {call.task}")
        yield

    app.on_startup(lambda: order.append("start"))
    app.on_shutdown(lambda: order.append("stop"))
    resize.submit(1)
    run_tasks(app)
    assert order == ["start", "before resize", "call 1", "stop"]


@pytest.mark.rest
def test_a_task_that_is_not_here_keeps_waiting(app: App):
    newer = App("images", app.url)
    call = newer.task(name="rotate")(lambda n: n).submit(1)
    app.task(name="resize")(lambda n: n)
    assert run_tasks(app) == 0
    assert app.queue.request(call.id).state() == "active"
    assert run_tasks(newer) == 1
    newer.close()


def test_apps_that_submit_to_each_other_run_together(app: App):
    mail = App("mail", app.url)

    @mail.task
    def send(n: int) -> int:
        if n:
            resize.submit(n - 1)
        return n

    @app.task
    def resize(n: int) -> Any:
        return send.submit(n).id

    resize.submit(1)
    assert run_tasks(app, mail) == 4
    mail.close()


@pytest.mark.parametrize("skip", [-1, "soon", True, None])
def test_a_wrong_time_is_refused(app: App, skip: Any):
    app.task(name="resize")(lambda n: n)
    with pytest.raises(InvalidArgument):
        run_tasks(app, skip=skip)


def test_it_needs_an_app_with_tasks(app: App):
    with pytest.raises(InvalidArgument, match="no app is named"):
        run_tasks()
    with pytest.raises(InvalidArgument, match="app images has no task"):
        run_tasks(app)


@pytest.mark.rest
def test_a_call_that_waits_for_another_worker_does_not_move_the_clock(app: App):
    newer = App("images", app.url)
    newer.task(name="rotate")(lambda n: n).submit(1)

    @app.task(deadline="5m")
    def resize(n: int) -> int:
        return n

    run_tasks(app)
    call = resize.submit(1)
    assert run_tasks(app) == 1
    assert call.result(timeout=0) == 1
    newer.close()


@pytest.mark.parametrize("raised", [KeyboardInterrupt, pytest.fail.Exception])
def test_what_is_no_outcome_of_a_call_ends_the_run(app: App, raised: type[BaseException]):
    @app.task
    def stop() -> None:
        raise raised("now")

    stop.submit()
    with pytest.raises(raised):
        run_tasks(app)
