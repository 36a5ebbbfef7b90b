"""Tests the runner: one call for each entry, or one for the whole slice, and the results."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import pytest

from fairlane import settings
from fairlane.worker import Context, batch_handler
from fairlane.worker import calls as outcome_module
from fairlane.worker import calls as runner_module
from tests.support.run.for_each import for_each
from tests.worker.parts import (
    OP,
    Run,
    failed,
    indexes,
    pairs,
    record_of_its_own,
    slice_of,
)

if TYPE_CHECKING:
    from fairlane.worker.board import LeaseRecord

pytestmark = pytest.mark.usefixtures("still_clock")

# ------------------------------------------------------------------ results


@for_each(
    "result, head, body",
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
)
def test_a_result_is_bytes_text_or_nothing(run: Run, result: Any, head: bytes, body: bytes):
    """What may be returned is sent as plain bytes; None and nothing stay distinct."""
    outcome = run(lambda _: result, slice_of(b"x"))
    assert pairs(outcome) == [(head, body)]
    assert type(outcome.results[1]) is bytes
    assert (outcome.position, outcome.verdicts, outcome.is_over) == (1, [], False)


@for_each(
    "result, named",
    [
        (3, "an int"),
        ({}, "a dict"),
        ([b"x"], "a list"),
        (object(), "an object"),
        (True, "a bool"),
    ],
)
def test_a_result_of_another_type_is_a_failure_with_a_sentence(run: Run, result: Any, named: str):
    """The error names the type and what is expected."""
    outcome = run(lambda _: result, slice_of(b"x"))
    (verdict,) = outcome.verdicts
    assert verdict.verdict == "retry"
    expected = f"the handler returned {named}: bytes, str or None is expected"
    assert verdict.error == expected
    assert (outcome.ids, outcome.results, outcome.position) == ([], [], 1)


def test_a_result_of_a_mebibyte_passes_and_one_more_byte_fails(run: Run):
    """The error names its length and the maximum."""
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
    """The order is the slice's, with one call each, and the attempt and wait of the slice."""
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


# ------------------------------------------------------------------ context


SIDE: ContextVar[str] = ContextVar("side", default="clean")


def reads(body: bytes) -> str:
    found = SIDE.get()
    SIDE.set("left behind")
    return found


@batch_handler
def reads_batch(bodies: list[bytes]) -> list[str]:
    return [reads(body) for body in bodies]


def test_no_call_reads_a_context_variable_that_another_one_has_set(run: Run):
    outcome = run(reads, slice_of(b"1", b"2"))
    assert [body for _, body in pairs(outcome)] == [b"clean", b"clean"]
    assert SIDE.get() == "clean"


def test_a_batch_leaves_no_context_variable_behind(run: Run):
    for _ in range(2):
        outcome = run(reads_batch, slice_of(b"1", b"2"))
        assert [body for _, body in pairs(outcome)] == [b"clean", b"left behind"]


def test_a_handler_may_ask_for_a_context(run: Run):
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
    """Each result is reported separately."""
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


@for_each(
    "results, said",
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
    """No result can be matched with its body: every entry is retried."""
    outcome = run(batch_handler(lambda bodies: results), slice_of(b"a", b"b", b"c"))
    assert (outcome.ids, failed(outcome), outcome.position) == ([], [0, 1, 2], 3)
    sentence = f"the batch handler returned {said} results for 3 bodies"
    assert all(sentence == verdict.error for verdict in outcome.verdicts)


@for_each("error", [ValueError("all of it"), SystemExit(1), asyncio.CancelledError()])
def test_a_batch_that_raises_retries_every_entry(run: Run, error: BaseException):
    """Each with the traceback."""

    @batch_handler
    def fails(bodies: list[bytes]) -> list[bytes]:
        raise error

    outcome = run(fails, slice_of(b"a", b"b", b"c"))
    assert (outcome.ids, failed(outcome), outcome.position) == ([], [0, 1, 2], 3)
    assert all(type(error).__name__ in verdict.error for verdict in outcome.verdicts)


@for_each("wrong", [3, "\udcff", b"x" * (settings.MAX_BODY + 1)])
def test_one_wrong_result_of_a_batch_fails_alone(run: Run, wrong: Any):
    """No entry is both done and failed."""
    outcome = run(batch_handler(lambda bodies: [b"0", wrong, b"2"]), slice_of(b"a", b"b", b"c"))
    assert indexes(outcome.ids) == [0, 2]
    assert failed(outcome) == [1]
    assert outcome.position == 3


# ------------------------------------------------------------------ when to stop


def held_record() -> LeaseRecord:
    """Returns a record with a lease on it."""
    record = record_of_its_own()
    record.hold("r1", "0", 7, OP, 100.0, 30.0)
    return record


@for_each("is_drain", [False, True])
def test_a_stop_or_a_drain_ends_the_slice_after_the_call(run: Run, *, is_drain: bool):
    """What has run is settled, and the rest is not begun."""
    record = held_record()
    held = record.held()
    assert held is not None

    def handler(body: bytes) -> bytes:
        if body == b"1" and is_drain:
            record._worker.is_draining = True
        elif body == b"1":
            record.stop(held)
        return body

    outcome = run(handler, slice_of(b"0", b"1", b"2", b"3"), record=record)
    assert (indexes(outcome.ids), outcome.position, outcome.is_over) == ([0, 1], 2, True)


def test_a_split_ends_the_slice_even_if_it_is_time_to_settle(
    run: Run, monkeypatch: pytest.MonkeyPatch
):
    """The supervisor gives the rest back, so the unit must not go on with it."""
    monkeypatch.setattr(outcome_module, "_FLUSH_NS", -1)
    record = held_record()
    held = record.held()
    assert held is not None

    def handler(body: bytes) -> bytes:
        record.split(held)
        return body

    outcome = run(handler, slice_of(b"0", b"1", b"2"), record=record)
    assert (indexes(outcome.ids), outcome.position, outcome.is_over) == ([0], 1, True)


def test_a_stop_of_an_earlier_lease_changes_nothing(run: Run):
    """The slice continues, and the byte that calls for attention is cleared."""
    record = held_record()
    earlier = record.held()
    assert earlier is not None
    record.release()
    record.hold("r2", "0", 7, OP, 100.0, 30.0)
    record.stop(earlier)
    outcome = run(lambda body: body, slice_of(b"0", b"1"), record=record)
    assert (outcome.position, outcome.is_over) == (2, False)
    assert not record.attention


def test_a_stop_that_is_written_during_the_check_is_not_lost(
    monkeypatch: pytest.MonkeyPatch, run: Run
):
    """Whatever is written after the check calls for attention again."""
    record = held_record()
    held = record.held()
    assert held is not None
    stopped = type(record).is_stopped.fget  # type: ignore[attr-defined]
    looks = []

    def look(self: LeaseRecord) -> bool:
        found = stopped(self)
        looks.append(found)
        if len(looks) == 1:
            record.stop(held)
        return bool(found)

    record._fields.attention = True  # an earlier call for attention
    monkeypatch.setattr(type(record), "is_stopped", property(look))
    outcome = run(lambda body: body, slice_of(b"0", b"1", b"2"), record=record)
    assert looks == [False, True]
    assert (outcome.position, outcome.is_over) == (2, True)


def test_a_long_slice_is_settled_in_parts(monkeypatch: pytest.MonkeyPatch, run: Run):
    """After a quarter of a second the results so far are settled, and the lease continues."""
    now = [0]

    def handler(body: bytes) -> bytes:
        now[0] += 100_000_000
        return body

    monkeypatch.setattr(runner_module, "perf_counter_ns", lambda: now[0])
    outcome = run(handler, slice_of(*[b"x"] * 10))
    assert (outcome.position, outcome.is_over) == (3, False)
    assert outcome.seconds == pytest.approx(0.3)


def test_big_results_are_settled_in_parts(run: Run):
    """More than a mebibyte is not kept for one call."""
    outcome = run(lambda body: b"x" * 400_000, slice_of(*[b"x"] * 10))
    assert (outcome.position, outcome.is_over) == (3, False)
