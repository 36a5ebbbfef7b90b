"""Tests one call of a task in a worker: hooks, results, and invalid bodies."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from fairlane import App, Context, InvalidArgument, Reject, Retry, TaskCall
from fairlane.common import clock
from fairlane.tasks.serve import TaskCalls
from fairlane.worker import calls
from fairlane.worker.calls import Runner
from fairlane.worker.errors import GiveBack, GiveBackTimes
from fairlane.worker.handlers import shape_of
from tests.tasks.parts import body_of, call, context_of
from tests.worker.parts import record_of_its_own, slice_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from fairlane.worker.handlers import Lifespan


@pytest.fixture(params=["sync", "async", "mixed"])
def kind(request: pytest.FixtureRequest) -> str:
    """Returns of which kind the task `run` is; `mixed` also has a task of the other kind."""
    found: str = request.param
    return found


@pytest.fixture
def app(kind: str) -> App:
    """Makes an app with the task `run`."""
    made = App("images")
    body: Callable[[int], Any] = some

    async def run(n: int) -> Any:
        await asyncio.sleep(0)
        return body(n)

    made.task(name="run")(body if kind == "sync" else run)
    if kind == "mixed":
        made.task(name="other")(some)
    return made


def some(n: int) -> Any:
    endless: list[Any] = []
    endless.append(endless)
    values: list[Any] = [None, 1, object(), endless, "x" * 2**20]
    if n >= len(values):
        raise [ValueError("bad"), Retry(after=3), Reject("never")][n - len(values)]
    return values[n]


def test_a_result_is_encoded_and_none_has_no_body(app: App):
    assert call(app, body_of(app, "run", n=0)) is None
    assert call(app, body_of(app, "run", n=1)) == b"1"


@pytest.mark.parametrize(
    ("n", "reason"),
    [
        (2, "task run returned an object, which cannot be encoded: Encoding objects of type"),
        (3, "task run returned a list, which cannot be encoded: it contains itself"),
        (4, "task run returned a str of 1,048,578 bytes: the most is 1,048,576"),
    ],
    ids=["type", "recursion", "large"],
)
def test_a_result_that_cannot_be_encoded_is_rejected_by_name(app: App, n: int, reason: str):
    with pytest.raises(Reject) as refused:
        call(app, body_of(app, "run", n=n))
    assert reason in str(refused.value)


@pytest.mark.parametrize(
    "body",
    [b"", b"hello", b"[1]", b'[1,"run"]', b'["1","run",{}]', b"\x93\x01\xa3run"],
    ids=["empty", "text", "short", "no_arguments", "version", "msgpack"],
)
def test_a_body_that_is_no_call_is_rejected(app: App, body: bytes):
    with pytest.raises(Reject, match="the body is no call of a task") as refused:
        call(app, body)
    assert str(refused.value).endswith(": submit it with a task")
    assert (" (" in str(refused.value)) is (body[:1] in {b"[", b"\x93"})


def test_calls_of_several_tasks_and_encodings_may_alternate():
    app, packed = App("images"), App("images", encoding="msgpack")
    app.task(name="one")(lambda n: n)
    app.task(name="two")(lambda n=0, *more: [n, *more])
    handler, context = TaskCalls([app]).handler(), context_of()
    for _ in range(2):
        assert handler(body_of(app, "one", n=1), context) == b"1"
        assert handler(body_of(app, "two", n=1), context) == b"[1]"
        assert handler(body_of(packed, "two", n=0, more=[2]), context) == b"\x92\x00\x02"
        assert handler(body_of(packed, "one", n=3), context) == b"\x03"


def test_an_unknown_task_is_given_back_and_named(app: App, caplog: pytest.LogCaptureFixture):
    with pytest.raises(GiveBack, match="no worker has had the task walk: it waits for a worker"):
        call(app, body_of(app, "walk"))
    assert "queue images: no worker has had the task walk" in caplog.text
    with pytest.raises(GiveBack, match="no worker can read format 2 of the call of task run"):
        call(app, b'[2,"run",{"n":1}]')


def test_a_call_that_no_worker_can_make_is_dead_after_three_days(
    app: App, monkeypatch: pytest.MonkeyPatch
):
    now = 0.0
    monkeypatch.setattr(clock, "mono_s", lambda: now)
    monkeypatch.setattr(calls, "_give_backs", GiveBackTimes())
    found: list[tuple[str, str]] = []
    entry = (b"5-0", (b"body", body_of(app, "run", n=1, width=2)))
    for now in (*range(0, 3 * 86_400, 1_800), 3 * 86_400):  # noqa: B007  read by the clock
        with pytest.raises(GiveBack) as raised:
            call(app, entry[1][1])
        built = calls.OutcomeBuilder(slice_of(b""), 0, 0)
        built.fail(entry, raised.value)
        (verdict,) = built.outcome(0).verdicts
        found.append((verdict.verdict, verdict.error))
    assert {word for word, _ in found[:-1]} == {"release"}
    word, reason = found[-1]
    assert word == "dead"
    assert reason == (
        "workers gave it back for 3 days, because task run cannot take its arguments: "
        "unknown argument `width`: submit it with arguments that it takes"
    )


def test_what_another_worker_had_meanwhile_counts_from_its_return():
    given, key = GiveBackTimes(), ("r", b"5-0")
    assert not any(given.note(key, 4_000, now_s) for now_s in (0, 4_000, 7_500))
    assert given.note(key, 4_000, 8_000)


@pytest.mark.parametrize(
    "body",
    [
        b'[2,{"task":"run"}]',
        b"[3]",
        msgspec.msgpack.encode([2, {"task": "run"}]),
        b"\x83\x01crun\xa1an\x01",
    ],
    ids=["other parts", "one part", "msgpack", "another encoding"],
)
def test_a_call_in_a_later_format_is_given_back(app: App, body: bytes):
    """Its parts may be others, and its encoding unknown here."""
    with pytest.raises(GiveBack, match="no worker can read the format of this call: it waits"):
        call(app, body)


@pytest.mark.parametrize(
    "body", [b"a line", b"[1]", b'["run"]', b"{}", b"", "größer".encode(), b"[true]", b"\x91\x01"]
)
def test_a_body_that_is_no_call_in_any_format_is_dead(app: App, body: bytes):
    with pytest.raises(Reject, match="the body is no call of a task"):
        call(app, body)


def test_a_call_that_does_not_fit_is_logged_once(app: App, caplog: pytest.LogCaptureFixture):
    shape = shape_of(TaskCalls([app]).handler(is_async=False))
    body, context = body_of(app, "run", n=1, width=2), [context_of()] if shape.wants_context else []
    for _ in range(3):
        with pytest.raises(GiveBack, match=r"unknown argument `width`.*it waits for a worker"):
            shape.call(body, *context)
    assert caplog.text.count("unknown argument") == 1


def test_an_unknown_task_is_dead_if_every_app_of_the_queue_wants_that():
    strict, patient = App("images", unknown_tasks="dead"), App("images")
    strict.task(some)
    patient.task(name="other")(some)
    with pytest.raises(Reject, match="no worker has had the task walk: start a worker that has it"):
        call(strict, body_of(strict, "walk"))
    with pytest.raises(GiveBack):
        call([strict, patient], body_of(strict, "walk"))


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_middleware_runs_around_each_call_the_first_one_outermost(app: App, is_async: bool):
    seen: list[Any] = []

    @app.middleware
    def outer(made: TaskCall) -> Iterator[None]:
        seen.append((made.task, made.arguments, made.context.index))
        try:
            yield
        except ValueError as error:
            seen.append(str(error))
            raise

    if is_async:

        @app.middleware
        async def inner_async(made: TaskCall) -> AsyncIterator[None]:
            seen.append("inner")
            await asyncio.sleep(0)
            yield
            seen.append("after")

    else:

        @app.middleware
        def inner(made: TaskCall) -> Iterator[None]:
            seen.append("inner")
            yield
            seen.append("after")

    assert call(app, body_of(app, "run", n=1)) == b"1"
    assert seen == [("run", {"n": 1}, 4), "inner", "after"]
    with pytest.raises(ValueError, match="bad"):
        call(app, body_of(app, "run", n=5))
    assert seen[3:] == [("run", {"n": 5}, 4), "inner", "bad"]


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_what_a_middleware_sets_reaches_its_call_and_no_other(is_async: bool, kind: str):
    """Whether the middleware and the task are of one kind or of two."""
    app = App("images")
    side: ContextVar[str] = ContextVar("side", default="unset")

    def sync_around(made: TaskCall) -> Iterator[None]:
        token = side.set("set")
        yield
        side.reset(token)

    async def async_around(made: TaskCall) -> AsyncIterator[None]:
        token = side.set("set")
        await asyncio.sleep(0)
        yield
        side.reset(token)

    def reads() -> str:
        found = side.get()
        side.set("left behind")
        return found

    async def reads_async() -> str:
        return reads()

    app.middleware(async_around if is_async else sync_around)
    app.task(name="run")(reads if kind == "sync" else reads_async)
    if kind == "mixed":
        app.task(name="other")(reads)

    assert call(app, body_of(app, "run")) == b'"set"'
    assert side.get() == "unset"


@pytest.mark.parametrize(
    ("n", "attempt", "error"),
    [
        (5, 2, None),
        (5, 3, "bad"),
        (6, 2, None),
        (6, 3, "asked"),
        (7, 1, "never"),
        (2, 1, "which cannot be encoded"),
    ],
    ids=["again", "last", "retry", "last_retry", "reject", "result"],
)
def test_a_dead_call_is_reported_with_its_last_error(
    app: App, n: int, attempt: int, error: str | None
):
    seen: list[tuple[TaskCall, BaseException]] = []
    app.on_dead(lambda *given: seen.append(given))
    with pytest.raises((ValueError, Retry, Reject)):
        call(app, body_of(app, "run", n=n), context_of(attempt))
    if error is None:
        assert seen == []
    else:
        ((made, raised),) = seen
        assert (made.task, made.context.attempt) == ("run", attempt)
        assert error in str(raised)


def test_a_hook_that_raises_hides_no_error(app: App, caplog: pytest.LogCaptureFixture):
    @app.on_dead
    async def fail(made: TaskCall, error: BaseException) -> None:
        raise RuntimeError("in the hook")

    with pytest.raises(Reject, match="never"):
        call(app, body_of(app, "run", n=7))
    assert "in the hook" in caplog.text


def test_a_process_starts_and_ends_each_app_once_in_opposite_orders(app: App):
    seen: list[str] = []

    @app.on_startup
    async def connect() -> None:
        await asyncio.sleep(0)
        seen.append("connect")

    app.on_startup(lambda: seen.append("second"))
    app.on_shutdown(lambda: seen.append("first"))

    @app.on_shutdown
    async def close() -> None:
        await asyncio.sleep(0)
        seen.append("close")

    shape = shape_of(TaskCalls([app]).handler())
    assert shape.lifespan is not None
    if shape.is_async:
        asyncio.run(both(shape.lifespan))
    else:
        shape.lifespan.start()
        shape.lifespan.stop()
    assert seen == ["connect", "second", "close", "first"]


async def both(lifespan: Lifespan) -> None:
    await lifespan.astart()
    await lifespan.astop()


def test_only_async_tasks_make_an_async_handler():
    app = App("images")

    @app.task
    async def wait() -> None: ...

    assert shape_of(TaskCalls([app]).handler()).is_async
    app.task(some)
    assert not shape_of(TaskCalls([app]).handler()).is_async


def test_a_call_of_an_async_task_beside_sync_ones_is_cancelled_when_it_is_unwanted():
    app, context = App("images"), context_of()
    app.task(some)

    @app.task
    async def wait() -> None:
        context._record.is_stopped = True
        await asyncio.Event().wait()

    with pytest.raises(asyncio.CancelledError):
        call(app, body_of(app, "wait"), context)


def test_a_call_that_is_given_back_is_released_with_a_pause_and_a_reason(app: App):
    taken = slice_of(body_of(app, "run", n=1), body_of(app, "walk"))
    runner = Runner(shape_of(TaskCalls([app]).handler()), record_of_its_own())
    if runner.shape.is_async:
        outcome = asyncio.run(runner.run_slice_async(taken, 0))
    else:
        outcome = runner.run_slice(taken, 0)
    (verdict,) = outcome.verdicts
    assert (len(outcome.ids), verdict.verdict, verdict.delay_ms) == (1, "release", 10_000)
    assert "no worker has had the task walk" in verdict.error


def test_a_call_reports_its_progress_to_the_board():
    app, context = App("images"), context_of()

    @app.task
    def long(ctx: Context) -> None:
        ctx.progress(30, 100)

    call(app, body_of(app, "long"), context)
    assert context._record.reports == [(4, 30, 100)]
    long()  # keeps nothing
    for done in (-1, True, "3", 2**63):
        with pytest.raises(InvalidArgument, match="parts is not valid: write 0 or more"):
            context.progress(done, 100)  # type: ignore[arg-type]
