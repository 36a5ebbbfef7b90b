"""Tests the verdicts on failed sub-requests: retried, rejected, timed out; and their texts."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any

import pytest

from fairlane import Reject, Retry, settings
from fairlane.common.fingerprint import read_failure
from fairlane.errors import InvalidArgument
from fairlane.worker import batch_handler
from fairlane.worker.calls import Runner, _cancelled
from fairlane.worker.handlers import shape_of, time_limit
from tests.support.run.for_each import for_each
from tests.worker.parts import Run, failed, indexes, pairs, record_of_its_own, slice_of

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.usefixtures("still_clock")


def boom(body: bytes) -> bytes:
    """Fails at every body."""
    raise ValueError(f"bad {body.decode()}")


# ------------------------------------------------------------------ failures


def test_an_exception_is_a_retry_with_its_traceback(run: Run):
    """The text leads to the line that raised; the others of the slice are done."""
    outcome = run(lambda body: boom(body) if body == b"1" else body, slice_of(b"0", b"1", b"2"))
    assert indexes(outcome.ids) == [0, 2]
    (verdict,) = outcome.verdicts
    assert (verdict.verdict, failed(outcome)) == ("retry", [1])
    assert verdict.head == b"1:x:1:500:0"
    assert verdict.error.startswith("Traceback (most recent call last):\n")
    assert 'fairlane/worker/calls.py"' not in verdict.error
    assert "test_verdicts.py" in verdict.error
    assert ", in boom\n" in verdict.error
    assert verdict.error.endswith("ValueError: bad 1\n")
    assert outcome.position == 3


@for_each("attempt, low, high", [(1, 1000, 2000), (3, 2000, 4000), (40, 4500, 9000)])
def test_the_pause_before_the_next_attempt_doubles_up_to_the_longest(
    run: Run, attempt: int, low: int, high: int
):
    """Jitter is between half and the whole of it."""
    outcome = run(boom, slice_of(b"x", attempt=attempt, backoff_ms=(1_000, 9_000)))
    assert low <= outcome.verdicts[0].delay_ms <= high


def test_a_pause_for_the_whole_request_stops_the_slice(run: Run):
    """The rest of it is released, not begun."""

    def busy(body: bytes) -> bytes:
        if body == b"1":
            raise Retry(after=30, reason="429", whole_request=True)
        return body

    outcome = run(busy, slice_of(b"0", b"1", b"2"))
    assert (indexes(outcome.ids), outcome.position, outcome.is_over) == ([0], 2, True)
    assert (outcome.hold_ms, outcome.verdicts[0].delay_ms) == (30_000, 30_000)


def test_a_pause_for_one_sub_request_holds_no_other(run: Run):
    def busy(body: bytes) -> bytes:
        raise Retry(after=30)

    assert run(busy, slice_of(b"0", b"1")).hold_ms == 0


@pytest.mark.parametrize("after", [None, 0])
def test_a_pause_for_the_whole_request_needs_a_time(after: float | None):
    with pytest.raises(InvalidArgument, match="needs a pause: give after"):
        Retry(after=after, whole_request=True)


@for_each("length", [10_000, 10_000_000])
def test_a_long_traceback_keeps_its_beginning_and_its_end(run: Run, length: int):
    """It keeps 4,000 bytes: where it was raised, and the end of the exception's text."""

    def verbose(body: bytes) -> bytes:
        raise ValueError("x" * length + " the end")

    (verdict,) = run(verbose, slice_of(b"x")).verdicts
    assert len(verdict.error) == settings.MAX_ERROR
    assert verdict.error.startswith("Traceback (most recent call last):\n")
    assert "\n[...]\n" in verdict.error
    assert verdict.error.endswith("x the end\n")


def test_an_exceptions_text_can_always_be_sent(run: Run):
    """A lone surrogate in it is written as an escape."""

    def strange(body: bytes) -> bytes:
        raise ValueError("no file \udcff")

    (verdict,) = run(strange, slice_of(b"x")).verdicts
    assert verdict.error.encode().endswith(b"ValueError: no file \\udcff\n")


@for_each(
    "error",
    [
        SystemExit(3),
        KeyboardInterrupt(),
        asyncio.CancelledError(),
        GeneratorExit(),
        type("OfItsOwn", (BaseException,), {})(),
        BaseExceptionGroup("two", [SystemExit(1), ValueError("x")]),
        MemoryError(),
        RecursionError(),
    ],
)
def test_what_would_end_a_process_fails_only_its_sub_request(run: Run, error: BaseException):
    """sys.exit() in a handler, or a cancelled task it waited for, is that sub-request's failure."""

    def leave(body: bytes) -> bytes:
        if body == b"1":
            raise error
        return body

    outcome = run(leave, slice_of(b"0", b"1", b"2"))
    assert indexes(outcome.ids) == [0, 2]
    assert failed(outcome) == [1]
    assert type(error).__name__ in outcome.verdicts[0].error


def test_an_async_unit_can_still_be_cancelled():
    """If the unit itself is ended, no failure of the handler is invented."""

    async def scene() -> None:
        entered = asyncio.Event()

        async def forever(body: bytes) -> bytes:
            entered.set()
            await asyncio.get_running_loop().create_future()
            return body

        runner = Runner(shape_of(forever), record_of_its_own())
        task = asyncio.create_task(runner.run_slice_async(slice_of(b"x"), 0))
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scene())


def test_an_exception_outside_of_python_code_is_its_text():
    """A built-in has no frame of its own, and ours do not help."""
    outcome = Runner(shape_of(bytes.fromhex), record_of_its_own()).run_slice(slice_of(b"x"), 0)
    assert outcome.verdicts[0].error.startswith("TypeError: fromhex() argument must be str")


@pytest.mark.parametrize("marker", [lambda one: one, batch_handler], ids=["one", "batch"])
def test_a_coroutine_from_a_sync_handler_is_a_failure(marker: Callable[..., Any]):
    """A decorator may hide an `async def`; the coroutine is not left waiting."""

    async def hidden(body: Any) -> Any:
        return body

    made = []

    @marker
    def handler(body: Any) -> Any:
        made.append(hidden(body))
        return made[-1]

    outcome = Runner(shape_of(handler), record_of_its_own()).run_slice(slice_of(b"x"), 0)
    said = outcome.verdicts[0].error
    assert said.startswith("the handler returned a coroutine, which is never awaited: make the")
    assert inspect.getcoroutinestate(made[0]) == inspect.CORO_CLOSED


def test_an_awaitable_that_is_no_coroutine_is_a_failure():

    class Later:
        def __await__(self) -> Any:
            yield

    outcome = Runner(shape_of(lambda _: Later()), record_of_its_own()).run_slice(slice_of(b"x"), 0)
    assert "returned a Later, which is never awaited" in outcome.verdicts[0].error


def test_an_async_unit_that_is_closed_ends():
    """A closed coroutine that waits reports no failure instead."""

    async def forever(body: bytes) -> bytes:
        await asyncio.get_running_loop().create_future()
        return body

    async def begin() -> Any:
        running = Runner(shape_of(forever), record_of_its_own()).run_slice_async(slice_of(b"x"), 0)
        running.send(None)
        return running

    running = asyncio.run(begin())
    running.close()
    assert inspect.getcoroutinestate(running) == inspect.CORO_CLOSED


class Unspeakable(Exception):
    """An exception that can't be printed."""

    def __str__(self) -> str:
        raise ValueError("no words")


class Unreadable(Exception):
    """An exception whose parts can't even be read."""

    @property
    def __notes__(self) -> Any:  # type: ignore[override]
        raise SystemExit(4)


@for_each("error", [Unspeakable(), Unreadable()])
def test_an_exception_without_text_is_a_failure(run: Run, error: Exception):

    def leak(body: bytes) -> bytes:
        raise error

    outcome = run(leak, slice_of(b"0", b"1"))
    assert failed(outcome) == [0, 1]
    assert type(error).__name__ in outcome.verdicts[0].error


# ------------------------------------------------------------------ Retry, Reject


def raising(error: BaseException) -> Callable[[bytes], bytes]:
    """Returns a handler that raises this for the body 1."""

    def handler(body: bytes) -> bytes:
        if body == b"1":
            raise error
        return body

    return handler


@for_each("after, delay", [(0, 0), (2.5, 2500), (86_400, 86_400_000)])
def test_a_handler_chooses_the_time_of_its_retry(run: Run, after: float, delay: int):
    """It is in ms; the text is its own, without a traceback; the others of the slice are done."""
    error = Retry(after=after, reason="the shop is closed")
    outcome = run(raising(error), slice_of(b"0", b"1", b"2"))
    assert indexes(outcome.ids) == [0, 2]
    (verdict,) = outcome.verdicts
    assert (verdict.verdict, verdict.delay_ms) == ("retry", delay)
    assert verdict.error == "the shop is closed"


def test_a_retry_without_a_time_takes_the_backoff(run: Run):
    (verdict,) = run(raising(Retry()), slice_of(b"1", attempt=3)).verdicts
    assert 2000 <= verdict.delay_ms <= 4000
    assert verdict.error == "the handler asked to be called again"


def test_a_rejected_sub_request_is_dead_immediately(run: Run):
    """This happens at its first attempt, with the reason as its error."""
    outcome = run(raising(Reject("no such customer")), slice_of(b"0", b"1"))
    (verdict,) = outcome.verdicts
    assert (failed(outcome), verdict.verdict, verdict.head) == ([1], "dead", b"1:x:1:500:0")
    assert verdict.error == "no such customer"


@for_each("made", [lambda: Retry(after=-5), lambda: Reject("")])
def test_a_wrong_wish_is_reported_with_the_handlers_own_lines(run: Run, made: Callable[[], Any]):
    """The lines of the class that refuses it are left out."""

    def handler(_: bytes) -> None:
        raise made()

    (verdict,) = run(handler, slice_of(b"1")).verdicts
    assert "in handler" in verdict.error
    assert "InvalidArgument: Re" in verdict.error
    assert "fairlane/worker" not in verdict.error


@for_each("error", [Reject("not possible"), Retry(after=1, reason="not possible")])
def test_a_wish_includes_its_cause(run: Run, error: Exception):
    """`raise Reject("...") from error` keeps the traceback."""

    def handler(body: bytes) -> bytes:
        try:
            return boom(body)
        except ValueError as cause:
            raise error from cause

    (verdict,) = run(handler, slice_of(b"x")).verdicts
    first, _, rest = verdict.error.partition("\n")
    assert first == "not possible"
    assert rest.startswith("Its cause:\nTraceback (most recent call last):\n")
    assert rest.endswith("ValueError: bad x\n")


@for_each(
    "wish, given, sentence",
    [
        (Retry, {"after": -1}, r"Retry\(after=-1\) is not valid: seconds from 0 to 86,400"),
        (Retry, {"after": 86_401}, "seconds from 0 to 86,400 are expected"),
        (Retry, {"after": float("nan")}, "seconds from 0 to 86,400 are expected"),
        (Retry, {"after": True}, "seconds from 0 to 86,400 are expected"),
        (Retry, {"after": "later"}, "seconds from 0 to 86,400 are expected"),
        (Retry, {"reason": b"later"}, "is not valid: text is expected"),
        (Reject, {"reason": ""}, "a reason is expected, as text"),
        (Reject, {"reason": "  "}, "a reason is expected, as text"),
        (Reject, {"reason": ValueError("x")}, "a reason is expected, as text"),
    ],
)
def test_a_wish_that_makes_no_sense_is_the_handlers_mistake(
    wish: Any, given: dict[str, Any], sentence: str
):
    """It is refused where it is made; the sub-request then fails like any other."""
    with pytest.raises(InvalidArgument, match=sentence):
        wish(**given)


class Odd(Retry):
    """A subclass that lacks the attributes of Retry."""

    after = "soon"  # type: ignore[assignment]

    def __init__(self) -> None:
        pass

    def __str__(self) -> str:
        raise ValueError("no words")


def test_a_wish_of_a_strange_subclass_is_a_retry_after_the_backoff(run: Run):
    (verdict,) = run(raising(Odd()), slice_of(b"1")).verdicts
    assert (verdict.verdict, verdict.error) == ("retry", "Odd")
    assert 1000 <= verdict.delay_ms <= 2000


@for_each("error", [Reject("x"), ValueError("x")])
def test_a_returned_exception_is_a_failure_whose_text_names_raise(run: Run, error: Exception):
    """Only a batch handler may return one."""
    (verdict,) = run(lambda _: error, slice_of(b"x")).verdicts
    name = type(error).__name__
    assert verdict.verdict == "retry"
    assert verdict.error == f"the handler returned a {name}: raise it instead"


# ------------------------------------------------------------------ Retry, Reject in batches


@for_each(
    "error, expected",
    [(Retry(after=3, reason="later"), ("retry", 3000, "later")), (Reject("no"), ("dead", 0, "no"))],
)
def test_a_wish_raised_by_a_batch_is_for_all_of_it(
    run: Run, error: Exception, expected: tuple[str, int, str]
):

    @batch_handler
    def handler(bodies: list[bytes]) -> list[bytes]:
        raise error

    outcome = run(handler, slice_of(b"a", b"b"))
    assert (failed(outcome), outcome.position) == ([0, 1], 2)
    for verdict in outcome.verdicts:
        assert (verdict.verdict, verdict.delay_ms, verdict.error) == expected


def test_an_exception_in_a_batchs_results_is_what_became_of_its_body(run: Run):
    answers = [b"0", Reject("no"), Retry(after=3, reason="later"), ValueError("bad"), None]
    outcome = run(batch_handler(lambda bodies: answers), slice_of(*[b"x"] * 5))
    assert pairs(outcome) == [(b"0:d:1:500", b"0"), (b"4:n:1:500", b"")]
    verdicts = [(verdict.verdict, verdict.error) for verdict in outcome.verdicts]
    assert (failed(outcome), outcome.position) == ([1, 2, 3], 5)
    assert verdicts == [("dead", "no"), ("retry", "later"), ("retry", "ValueError: bad\n")]
    assert outcome.verdicts[1].delay_ms == 3000


# ------------------------------------------------------------------ time limits


async def sleepy(body: bytes) -> bytes:
    """Waits for ever."""
    if body == b"1":
        await asyncio.get_running_loop().create_future()
    return body


def limited(handler: Callable[..., Any], seconds: float = 0.01) -> Runner:
    """Returns the handler with a time limit."""
    return Runner(shape_of(time_limit(seconds)(handler)), record_of_its_own())


def test_an_async_handler_is_cancelled_when_its_time_is_over():
    """The others of the slice are done; the text names where it waited."""
    outcome = asyncio.run(limited(sleepy).run_slice_async(slice_of(b"0", b"1", b"2"), 0))
    assert indexes(outcome.ids) == [0, 2]
    (verdict,) = outcome.verdicts
    assert (failed(outcome), verdict.verdict, outcome.timeouts) == ([1], "timeout", 1)
    assert verdict.head == b"1:x:1:500:10000"
    assert 1000 <= verdict.delay_ms <= 2000
    first, _, rest = verdict.error.partition("\n")
    assert first == "the handler took longer than its time limit of 0.01 s"
    assert ", in sleepy\n" in rest
    assert "runner.py" not in rest


def test_what_was_cancelled_is_found_behind_either_kind_of_time_out():
    """Python 3.11.2 raises TimeoutError in the place of what it caught, 3.11.7 from it."""
    inner = asyncio.CancelledError()
    raised_from, in_its_place = TimeoutError(), TimeoutError()
    raised_from.__cause__ = in_its_place.__context__ = inner
    assert _cancelled(raised_from) is inner
    assert _cancelled(in_its_place) is inner
    own = TimeoutError("the handler's own")
    assert _cancelled(own) is own


@for_each(
    "own, asked, expected",
    [(0.01, 5_000, 0.01), (5.0, 10, 0.01), (None, 10, 0.01), (0.01, 0, 0.01)],
)
def test_the_smallest_time_limit_applies(own: float | None, asked: int, expected: float):
    shape = shape_of(sleepy).limited(own)
    runner = Runner(shape, record_of_its_own())
    outcome = asyncio.run(runner.run_slice_async(slice_of(b"1", time_limit_ms=asked), 0))
    assert f"time limit of {expected:g} s\n" in outcome.verdicts[0].error


async def answers_late(body: bytes) -> bytes:
    """Ignores the cancellation."""
    try:
        return await sleepy(body)
    except asyncio.CancelledError:
        return b"late"


async def fails_late(body: bytes) -> bytes:
    """Fails while it is cancelled."""
    try:
        return await sleepy(body)
    except asyncio.CancelledError:
        raise LookupError("no way to clean up") from None


@pytest.mark.parametrize(
    ("handler", "said"),
    [(answers_late, ""), (fails_late, "LookupError: no way to clean up\n")],
    ids=["answer", "exception"],
)
def test_what_a_cancelled_handler_still_returns_does_not_count(handler: Any, said: str):
    """Its time is over nevertheless; an exception is kept as text."""
    outcome = asyncio.run(limited(handler).run_slice_async(slice_of(b"0", b"1"), 0))
    assert indexes(outcome.ids) == [0]
    assert outcome.verdicts[0].verdict == "timeout"
    assert outcome.verdicts[0].error.endswith(said)


def test_a_handlers_own_timeout_is_a_failure_like_any_other():
    """Neither limit of ours was reached."""

    async def impatient(body: bytes) -> bytes:
        async with asyncio.timeout(0.001):
            return await sleepy(body)

    outcome = asyncio.run(limited(impatient, 60).run_slice_async(slice_of(b"1"), 0))
    assert (outcome.verdicts[0].verdict, outcome.timeouts) == ("retry", 0)
    assert outcome.verdicts[0].error.endswith("TimeoutError\n")


def test_a_unit_can_be_ended_while_its_handlers_time_runs():
    """The cancellation is the unit's, and no time was over."""

    async def scene() -> None:
        runner = limited(sleepy, 60)
        task = asyncio.create_task(runner.run_slice_async(slice_of(b"1"), 0))
        while runner.record.running() is None and not task.done():
            runner.record.hold("r1", "0", 7, b"o" * 32, 100.0, 30.0)
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("bodies", "verdict"), [([b"1"], "timeout"), ([b"1", b"2"], "release")], ids=["one", "two"]
)
def test_a_batch_of_several_that_takes_too_long_is_not_charged(bodies: list[bytes], verdict: str):
    """Their number alone may be the cause: each is retried alone, where its time does count."""

    @batch_handler
    async def handler(bodies: list[bytes]) -> list[bytes]:
        return [await sleepy(body) for body in bodies]

    outcome = asyncio.run(limited(handler).run_slice_async(slice_of(*bodies), 0))
    assert {one.verdict for one in outcome.verdicts} == {verdict}
    assert (len(outcome.verdicts), outcome.position) == (len(bodies), len(bodies))
    assert outcome.timeouts == 1


@for_each("seconds", [0, -1, 86_401, True, "1", None, float("nan")])
def test_a_time_limit_that_is_none_is_refused(seconds: Any):
    """The error names what is expected."""
    with pytest.raises(InvalidArgument, match="more than 0 and at most 86,400"):
        time_limit(seconds)


def test_each_call_is_on_the_board_while_it_runs(run: Run):
    """So a supervisor can name it, and say since when it runs."""
    record = record_of_its_own()
    record.hold("r1", "0", 7, b"o" * 32, 100.0, 30.0)
    seen: list[Any] = []

    def handler(body: bytes) -> bytes:
        seen.append(record.running())
        return body

    run(handler, slice_of(b"x"), record=record)
    run(handler, slice_of(b"x", b"y", time_limit_ms=2_000), record=record)
    assert record.running() is None
    assert [call.index for call in seen] == [0, 0, 1]
    assert seen[0].began_ns < seen[1].began_ns < seen[2].began_ns


@for_each("bodies, index", [([b"x"], 0), ([b"x", b"y"], None)])
def test_a_batch_names_its_entry_when_it_is_the_only_one(
    run: Run, bodies: list[bytes], index: int | None
):
    """Of several, none could be charged."""
    record = record_of_its_own()
    record.hold("r1", "0", 7, b"o" * 32, 100.0, 30.0)
    seen: list[Any] = []

    @batch_handler
    def handler(bodies: list[bytes]) -> list[bytes]:
        seen.append(record.running())
        return bodies

    run(handler, slice_of(*bodies), record=record)
    assert record.running() is None
    assert seen[0].index == index


def test_a_long_message_keeps_its_type_and_its_place(run: Run):
    def fail() -> None:
        raise ValueError("a" * 9_000 + "z")

    def handler(body: bytes) -> None:
        try:
            fail()
        except ValueError as error:
            if body == b"plain":
                raise
            raise Reject("b" * 9_000) from error

    for verdict in run(handler, slice_of(b"plain", b"cause")).verdicts:
        found = read_failure(verdict.error)
        assert (found.type, found.function) == ("ValueError", "fail")
        assert "aaaa" in found.message
        assert verdict.error.rstrip().endswith("z")
        assert len(verdict.error) <= settings.MAX_ERROR
    assert found.message.startswith("bbbb")
