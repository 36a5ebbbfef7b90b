"""The runner: one call an entry, or one for the whole slice, and what becomes of each result."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any

import pytest

from fairlane import settings
from fairlane.worker import Context, batch_handler
from fairlane.worker import runner as runner_module
from fairlane.worker.handlers import shape_of
from fairlane.worker.runner import Runner
from tests.worker.parts import OP, record_of_its_own, slice_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlane.model import Slice
    from fairlane.worker.board import Record
    from fairlane.worker.loop import Outcome

pytestmark = pytest.mark.usefixtures("still_clock")

Run = Any  # what the fixture `run` is: a function that returns an Outcome


@pytest.fixture(params=["sync", "async"])
def run(request: pytest.FixtureRequest) -> Callable[..., Outcome]:
    """Runs a handler over a slice, as itself and as an `async def` of the same body."""

    def go(
        handler: Callable[..., Any], taken: Slice, position: int = 0, record: Record | None = None
    ) -> Outcome:
        record = record or record_of_its_own()
        if request.param == "sync":
            return Runner(shape_of(handler), record).run(taken, position)
        runner = Runner(shape_of(made_async(handler)), record)
        return asyncio.run(runner.run_async(taken, position))

    return go


def made_async(handler: Callable[..., Any]) -> Callable[..., Any]:
    """The same handler as an `async def`, with the same shape."""
    shape = shape_of(handler)

    async def alone(body: Any) -> Any:
        await asyncio.sleep(0)
        return handler(body)

    async def informed(body: Any, context: Context) -> Any:
        await asyncio.sleep(0)
        return handler(body, context)

    made = informed if shape.wants_context else alone
    return batch_handler(made) if shape.is_batch else made


def pairs(outcome: Outcome) -> list[tuple[bytes, Any]]:
    """(head without its times, body) of each result."""
    heads, bodies = outcome.results[::2], outcome.results[1::2]
    return [
        (b":".join(bytes(head).split(b":")[:4]), body)  # type: ignore[arg-type]
        for head, body in zip(heads, bodies, strict=True)
    ]


def indexes(ids: list[bytes]) -> list[int]:
    """The places in the input that these entries have."""
    return [int(entry_id.partition(b"-")[2]) for entry_id in ids]


def failed(outcome: Outcome) -> list[int]:
    """The places of the sub-requests that failed."""
    return indexes([verdict.entry_id for verdict in outcome.verdicts])


def boom(body: bytes) -> bytes:
    """A handler that fails."""
    raise ValueError(f"bad {body.decode()}")


# ------------------------------------------------------------------ results


@pytest.mark.parametrize(
    ("result", "head", "body"),
    [
        (b"bytes", b"0:d:1:500", b"bytes"),
        ("tëxt", b"0:d:1:500", "tëxt".encode()),
        (b"", b"0:d:1:500", b""),
        ("", b"0:d:1:500", b""),
        (None, b"0:n:1:500", b""),
        (bytearray(b"array"), b"0:d:1:500", b"array"),
        (memoryview(b"a-view")[::2], b"0:d:1:500", b"ave"),
        (type("Bytes", (bytes,), {})(b"derived"), b"0:d:1:500", b"derived"),
    ],
    ids=["bytes", "str", "no bytes", "no text", "None", "bytearray", "memoryview", "subclass"],
)
def test_a_result_is_bytes_text_or_nothing(run: Run, result: Any, head: bytes, body: bytes):
    """What may be returned goes out as plain bytes; None and nothing stay apart."""
    outcome = run(lambda _: result, slice_of(b"x"))
    assert pairs(outcome) == [(head, body)]
    assert type(outcome.results[1]) is bytes
    assert (outcome.position, outcome.verdicts, outcome.is_over) == (1, [], False)


@pytest.mark.parametrize("result", [3, {}, [b"x"], object(), True], ids=repr)
def test_a_result_of_another_type_is_a_failure_with_a_sentence(run: Run, result: Any):
    """It names the type and says what is expected."""
    outcome = run(lambda _: result, slice_of(b"x"))
    (verdict,) = outcome.verdicts
    assert verdict.verdict == "retry"
    expected = f"the handler returned a {type(result).__name__}: bytes, str or None is expected"
    assert verdict.error == expected
    assert (outcome.ids, outcome.results, outcome.position) == ([], [], 1)


def test_a_result_of_a_mebibyte_passes_and_one_more_byte_fails(run: Run):
    """The sentence says how long it is and what the most is."""
    outcome = run(lambda body: b"x" * int(body), slice_of(b"1048576", b"1048577"))
    assert indexes(outcome.ids) == [0]
    (verdict,) = outcome.verdicts
    assert verdict.error == "the result has 1,048,577 bytes: the most is 1,048,576"


def test_text_that_has_no_utf_8_is_a_failure_of_its_sub_request(run: Run):
    """A lone surrogate, as in some file names, does not end the process."""
    outcome = run(lambda body: "\udcff" if body == b"1" else body, slice_of(b"0", b"1", b"2"))
    assert indexes(outcome.ids) == [0, 2]
    assert failed(outcome) == [1]
    said = outcome.verdicts[0].error
    assert said.startswith("the handler returned a str that is not valid UTF-8: 'utf-8' codec")


def test_each_entry_has_its_own_result(run: Run):
    """In the slice's order, one call each, with the attempt and the wait of the slice."""
    outcome = run(lambda body: body * 2, slice_of(b"a", b"b", b"c", attempt=3))
    assert pairs(outcome) == [
        (b"%d:d:3:500" % i, two) for i, two in enumerate([b"aa", b"bb", b"cc"])
    ]
    assert indexes(outcome.ids) == [0, 1, 2]
    assert outcome.position == 3
    assert outcome.seconds > 0


def test_a_run_begins_where_the_last_one_ended(run: Run):
    """What was settled in a part is not handled again."""
    outcome = run(lambda body: body, slice_of(b"a", b"b", b"c"), position=2)
    assert pairs(outcome) == [(b"2:d:1:500", b"c")]
    assert outcome.position == 3


def test_a_clock_that_went_back_makes_no_negative_wait(run: Run):
    """The wait is never below zero."""
    outcome = run(lambda body: body, slice_of(b"a", taken_ms=1))
    assert pairs(outcome) == [(b"0:d:1:0", b"a")]


# ------------------------------------------------------------------ failures


def test_an_exception_is_a_retry_with_its_traceback(run: Run):
    """The text leads to the line that raised; the others of the slice are done."""
    outcome = run(lambda body: boom(body) if body == b"1" else body, slice_of(b"0", b"1", b"2"))
    assert indexes(outcome.ids) == [0, 2]
    (verdict,) = outcome.verdicts
    assert (verdict.verdict, failed(outcome)) == ("retry", [1])
    assert verdict.head == b"1:x:1:500:0"
    assert verdict.error.startswith("Traceback (most recent call last):\n")
    assert 'fairlane/worker/runner.py"' not in verdict.error
    assert "test_runner.py" in verdict.error
    assert ", in boom\n" in verdict.error
    assert verdict.error.endswith("ValueError: bad 1\n")
    assert outcome.position == 3


@pytest.mark.parametrize(
    ("attempt", "low", "high"), [(1, 500, 1000), (3, 2000, 4000), (40, 4500, 9000)]
)
def test_the_pause_before_the_next_attempt_doubles_up_to_the_longest(
    run: Run, attempt: int, low: int, high: int
):
    """With jitter between half and the whole of it."""
    outcome = run(boom, slice_of(b"x", attempt=attempt, backoff_ms=(1_000, 9_000)))
    assert low <= outcome.verdicts[0].delay_ms <= high


def test_a_long_traceback_keeps_its_end(run: Run):
    """The last 4,096 characters, where the exception stands."""

    def verbose(body: bytes) -> bytes:
        raise ValueError("x" * 10_000 + " the end")

    (verdict,) = run(verbose, slice_of(b"x")).verdicts
    assert len(verdict.error) == 4096
    assert verdict.error.endswith("x the end\n")


def test_an_exceptions_text_can_always_be_sent(run: Run):
    """A lone surrogate in it is written as an escape."""

    def strange(body: bytes) -> bytes:
        raise ValueError("no file \udcff")

    (verdict,) = run(strange, slice_of(b"x")).verdicts
    assert verdict.error.encode().endswith(b"ValueError: no file \\udcff\n")


@pytest.mark.parametrize(
    "error",
    [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), MemoryError(), RecursionError()],
    ids=repr,
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
    """When the unit itself is ended, the handler's failure is not invented."""

    async def scene() -> None:
        entered = asyncio.Event()

        async def forever(body: bytes) -> bytes:
            entered.set()
            await asyncio.get_running_loop().create_future()
            return body

        runner = Runner(shape_of(forever), record_of_its_own())
        task = asyncio.create_task(runner.run_async(slice_of(b"x"), 0))
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scene())


def test_an_exception_outside_of_python_code_is_just_told():
    """A built-in has no frame of its own, and ours say nothing."""
    outcome = Runner(shape_of(bytes.fromhex), record_of_its_own()).run(slice_of(b"x"), 0)
    assert outcome.verdicts[0].error.startswith("TypeError: fromhex() argument must be str")


@pytest.mark.parametrize("marker", [lambda one: one, batch_handler], ids=["one", "batch"])
def test_a_coroutine_from_a_sync_handler_is_a_failure(marker: Callable[..., Any]):
    """A decorator that hides an `async def` is told so, and the coroutine is not left waiting."""

    async def hidden(body: Any) -> Any:
        return body

    made = []

    @marker
    def handler(body: Any) -> Any:
        made.append(hidden(body))
        return made[-1]

    outcome = Runner(shape_of(handler), record_of_its_own()).run(slice_of(b"x"), 0)
    said = outcome.verdicts[0].error
    assert said.startswith("the handler returned a coroutine, which nobody awaits: make the")
    assert inspect.getcoroutinestate(made[0]) == inspect.CORO_CLOSED


def test_an_awaitable_that_is_no_coroutine_is_a_failure():
    """A future, for one."""

    class Later:
        def __await__(self) -> Any:
            yield

    outcome = Runner(shape_of(lambda _: Later()), record_of_its_own()).run(slice_of(b"x"), 0)
    assert "returned a Later, which nobody awaits" in outcome.verdicts[0].error


# ------------------------------------------------------------------ context


def test_a_handler_that_asks_is_told_what_it_works_on(run: Run):
    """The request, the place in the input, the attempt, the fence and the deadline."""
    record = record_of_its_own()
    record.hold("r1", "0", 7, OP, 100.0, 30.0)
    seen = []

    def curious(body: bytes, context: Context) -> None:
        seen.append((context.id, context.index, context.attempt, context.fence, context.deadline))

    run(curious, slice_of(b"a", b"b", attempt=2), record=record)
    assert seen == [("r1", 0, 2, 7, 130.0), ("r1", 1, 2, 7, 130.0)]


# ------------------------------------------------------------------ batches


def test_a_batch_handler_gets_the_whole_slice_in_one_call(run: Run):
    """And its results are told one by one."""
    calls = []

    @batch_handler
    def double(bodies: list[bytes]) -> list[bytes]:
        calls.append(bodies)
        return [body * 2 for body in bodies]

    outcome = run(double, slice_of(b"a", b"b"))
    assert calls == [[b"a", b"b"]]
    assert pairs(outcome) == [(b"0:d:1:500", b"aa"), (b"1:d:1:500", b"bb")]
    assert outcome.position == 2


def test_a_batch_handlers_context_is_that_of_the_first(run: Run):
    """One call has one context."""
    seen = []

    @batch_handler
    def curious(bodies: list[bytes], context: Context) -> tuple[None, ...]:
        seen.append((context.index, len(bodies)))
        return (None,) * len(bodies)

    run(curious, slice_of(b"a", b"b", b"c"), position=1)
    assert seen == [(1, 2)]


@pytest.mark.parametrize(
    ("results", "said"),
    [
        ([b"one"], "1"),
        ([b"1", b"2", b"3", b"4"], "4"),
        ([], "0"),
        (None, "NoneType"),
        ("abc", "str"),
        (iter(()), "tuple_iterator"),
    ],
)
def test_a_batch_of_the_wrong_length_fails_as_a_whole(run: Run, results: Any, said: str):
    """Nobody knows which result belongs to which body: every entry comes back."""
    outcome = run(batch_handler(lambda bodies: results), slice_of(b"a", b"b", b"c"))
    assert (outcome.ids, failed(outcome), outcome.position) == ([], [0, 1, 2], 3)
    sentence = f"the batch handler returned {said} results for 3 bodies"
    assert all(sentence == verdict.error for verdict in outcome.verdicts)


@pytest.mark.parametrize(
    "error", [ValueError("all of it"), SystemExit(1), asyncio.CancelledError()], ids=repr
)
def test_a_batch_that_raises_retries_every_entry(run: Run, error: BaseException):
    """Each with the traceback."""

    @batch_handler
    def fails(bodies: list[bytes]) -> list[bytes]:
        raise error

    outcome = run(fails, slice_of(b"a", b"b", b"c"))
    assert (outcome.ids, failed(outcome), outcome.position) == ([], [0, 1, 2], 3)
    assert all(type(error).__name__ in verdict.error for verdict in outcome.verdicts)


@pytest.mark.parametrize(
    "wrong", [3, "\udcff", b"x" * (settings.MAX_BODY + 1)], ids=["int", "surrogate", "too long"]
)
def test_one_wrong_result_of_a_batch_fails_alone(run: Run, wrong: Any):
    """No entry is both done and failed."""
    outcome = run(batch_handler(lambda bodies: [b"0", wrong, b"2"]), slice_of(b"a", b"b", b"c"))
    assert indexes(outcome.ids) == [0, 2]
    assert failed(outcome) == [1]
    assert outcome.position == 3


# ------------------------------------------------------------------ when to stop


def held_record() -> Record:
    """A record with a lease on it."""
    record = record_of_its_own()
    record.hold("r1", "0", 7, OP, 100.0, 30.0)
    return record


def test_a_stop_ends_the_slice_after_the_call(run: Run):
    """The lease is lost or the request cancelled: the rest is not begun."""
    record = held_record()

    def handler(body: bytes) -> bytes:
        held = record.held()
        assert held is not None
        if body == b"1":
            record.stop(held)
        return body

    outcome = run(handler, slice_of(b"0", b"1", b"2", b"3"), record=record)
    assert (indexes(outcome.ids), outcome.position, outcome.is_over) == ([0, 1], 2, True)


def test_draining_ends_the_slice_after_the_call(run: Run):
    """The worker is to leave: what has run is settled, the rest is given back."""
    record = held_record()

    def handler(body: bytes) -> bytes:
        if body == b"1":
            record._page[0] = 1
        return body

    outcome = run(handler, slice_of(b"0", b"1", b"2", b"3"), record=record)
    assert (indexes(outcome.ids), outcome.position, outcome.is_over) == ([0, 1], 2, True)


def test_a_stop_of_an_earlier_lease_is_heard_and_passed_over(run: Run):
    """The slice goes on, and the byte that calls for attention is cleared."""
    record = held_record()
    earlier = record.held()
    assert earlier is not None
    record.release()
    record.hold("r2", "0", 7, OP, 100.0, 30.0)
    record.stop(earlier)
    outcome = run(lambda body: body, slice_of(b"0", b"1"), record=record)
    assert (outcome.position, outcome.is_over) == (2, False)
    assert not record.attention


def test_a_stop_said_while_the_runner_listens_is_not_lost(
    monkeypatch: pytest.MonkeyPatch, run: Run
):
    """Whatever is said after the look calls for attention again."""
    record = held_record()
    held = record.held()
    assert held is not None
    stopped = type(record).is_stopped.fget  # type: ignore[attr-defined]
    looks = []

    def look(self: Record) -> bool:
        found = stopped(self)
        looks.append(found)
        if len(looks) == 1:
            record.stop(held)
        return bool(found)

    record._page[record._at + 256] = 1  # an old call for attention
    monkeypatch.setattr(type(record), "is_stopped", property(look))
    outcome = run(lambda body: body, slice_of(b"0", b"1", b"2"), record=record)
    assert looks == [False, True]
    assert (outcome.position, outcome.is_over) == (2, True)


def test_a_long_slice_is_told_in_parts(monkeypatch: pytest.MonkeyPatch, run: Run):
    """After a quarter of a second what is done so far is settled, and the lease goes on."""
    now = [0]

    def handler(body: bytes) -> bytes:
        now[0] += 100_000_000
        return body

    monkeypatch.setattr(runner_module, "perf_counter_ns", lambda: now[0])
    outcome = run(handler, slice_of(*[b"x"] * 10))
    assert (outcome.position, outcome.is_over) == (3, False)
    assert outcome.seconds == pytest.approx(0.3)


def test_big_results_are_told_in_parts(run: Run):
    """More than a mebibyte is not kept for one call."""
    outcome = run(lambda body: b"x" * 400_000, slice_of(*[b"x"] * 10))
    assert (outcome.position, outcome.is_over) == (3, False)
