"""Tests a sync call that ends after its time limit, before the supervisor kills it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane.worker import Reject, batch_handler
from fairlane.worker.calls import Runner
from fairlane.worker.handlers import shape_of
from tests.worker.parts import indexes, record_of_its_own, slice_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlane.worker.calls import Outcome

LIMIT_S = 2.0


@pytest.fixture
def take(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Outcome]:
    """Runs a handler over bodies; each call takes as many seconds as its body names."""
    now = [10**9]
    monkeypatch.setattr("fairlane.worker.calls.perf_counter_ns", lambda: now[0])
    monkeypatch.setattr("fairlane.worker.calls._FLUSH_NS", 10**15)

    def go(handler: Callable[..., Any], *bodies: bytes, limit_s: float = LIMIT_S) -> Outcome:
        def called(given: Any) -> Any:
            seconds = sum(map(float, given)) if isinstance(given, list) else float(given)
            now[0] += int(seconds * 1e9)
            return handler(given)

        made = batch_handler(called) if hasattr(handler, "batch") else called
        shape = shape_of(made)
        taken = slice_of(*bodies, time_limit_ms=int(limit_s * 1000))
        return Runner(shape, record_of_its_own()).run_slice(taken, 0)

    return go


def echo(given: Any) -> Any:
    """Returns the body."""
    return given


def echo_all(given: list[bytes]) -> list[bytes]:
    """Does the same for a batch."""
    return given


echo_all.batch = True  # type: ignore[attr-defined]


def reject(_: bytes) -> None:
    """Raises what would make it dead."""
    raise Reject("never")


def verdicts(outcome: Outcome) -> list[str]:
    """Returns the verdicts of the sub-requests without a result."""
    return [one.verdict for one in outcome.verdicts]


def test_a_late_result_is_a_timeout(take: Callable[..., Outcome]):
    """Only its own call is one: the others are done, also one that took exactly its time."""
    outcome = take(echo, b"1", b"2.1", b"2")
    assert indexes(outcome.ids) == [0, 2]
    assert (verdicts(outcome), outcome.timeouts) == (["timeout"], 1)
    assert outcome.verdicts[0].error == "the handler took longer than its time limit of 2 s"


def test_what_is_raised_late_is_a_timeout_with_the_traceback(take: Callable[..., Outcome]):
    """An async handler's is, too."""
    outcome = take(reject, b"2.1")
    assert (verdicts(outcome), outcome.timeouts) == (["timeout"], 1)
    assert "in reject" in outcome.verdicts[0].error


def test_without_a_limit_nothing_is_late(take: Callable[..., Outcome]):
    """Its time does not matter."""
    assert take(echo, b"900", limit_s=0).timeouts == 0
    assert verdicts(take(reject, b"900", limit_s=0)) == ["dead"]


@pytest.mark.parametrize(
    ("bodies", "found", "done"),
    [
        ([b"2.1"], ["timeout"], []),
        ([b"1", b"1.1"], ["release", "release"], []),
        ([b"1", b"1"], [], [0, 1]),
    ],
    ids=["one", "several", "in time"],
)
def test_a_late_batch_has_no_results(
    bodies: list[bytes], found: list[str], done: list[int], take: Callable[..., Outcome]
):
    """One alone is charged; several come back alone, uncharged."""
    outcome = take(echo_all, *bodies)
    assert (verdicts(outcome), indexes(outcome.ids)) == (found, done)
    assert outcome.timeouts == int(bool(found))
