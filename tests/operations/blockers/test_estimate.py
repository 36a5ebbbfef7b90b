"""Tests the estimate of a request's start and end from measurements, in round numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fairlane.common.rate import Rate, rate_of
from fairlane.model import Token
from fairlane.operations.estimate import (
    Capacity,
    InLane,
    Neighbours,
    QueueFacts,
    RequestFacts,
    Rival,
    capacity_of,
    estimate,
)
from fairlane.operations.pause import QueuePause
from fairlane.operations.why import causes_of
from fairlane.protocol.request_hash import HeldPermit
from fairlane.records import Cause, FailedAttempt, KeyState, LanePlace, Progress, WorkerState
from tests.support.run.for_each import for_each

NOW = 1_000_000
FOUR = Capacity(units=4, per_s=20.0)  # five a second each
BUSY = FOUR._replace(leases=4)


def facts(
    left: int = 20, limit: int = 4, held: int = 0, rates: tuple[Rate, ...] = (), **given: Any
) -> RequestFacts:
    """Returns the facts of a request of priority 5 of which nothing has started."""
    counts: dict[str, Any] = {"total": left, "left": left}
    progress = Progress(
        id="r1", queue="req", state="active", priority=5, **counts, held=held, limit=limit, **given
    )  # fmt: skip
    return RequestFacts(progress, NOW, left, 0, 0, 0, 0, [], "", [], 0, rates=rates)


def near(*ahead: tuple[int, str], behind: tuple[str, ...] = (), **given: Any) -> Neighbours:
    """Returns a place in lane 5 behind these tokens, each a lane and a request."""
    tokens = [InLane(lane, Token(name, "0", "1")) for lane, name in ahead]
    counts: dict[int, int] = {}
    for lane, _ in ahead:
        counts[lane] = counts.get(lane, 0) + 1
    return Neighbours(LanePlace(counts, len({*ahead}), **given), 5, tokens, list(behind))


def times(*given: Any) -> tuple[float | None, float | None]:
    """Returns when the request starts and ends, in seconds from now."""
    found = estimate(*given)
    return tuple(ms and (ms - NOW) / 1000 for ms in (found.starts_ms, found.ends_ms))  # type: ignore[return-value]


def test_an_idle_queue_starts_it_now_and_works_at_its_pace():
    assert times(facts(20), [], FOUR, near(), {}) == (0.0, 1.0)


def test_its_limit_makes_it_slower():
    assert times(facts(20, limit=1), [], FOUR, near(), {}) == (0.0, 4.0)


def test_its_rate_makes_it_slower():
    slow = facts(20, rates=(rate_of("30/m"),))
    assert times(slow, [], FOUR, near(), {}) == (0.0, 40.0)


def test_busy_units_are_free_when_a_call_ends():
    assert times(facts(20), [], BUSY, near(), {}) == (0.05, 1.05)


def test_more_urgent_work_that_takes_all_units_comes_first():
    rivals = {"a": Rival(limit=4, priority=0, left=100, held=0)}
    assert times(facts(20), [], FOUR, near((0, "a")), rivals) == (5.0, 6.0)


def test_more_urgent_work_that_leaves_a_unit_does_not_hold_it_up():
    rivals = {"a": Rival(limit=3, priority=0, left=100, held=0)}
    assert times(facts(20), [], FOUR, near((0, "a")), rivals) == (0.0, 1.0)


def test_more_urgent_work_that_workers_hold_comes_first_too():
    rivals = {"a": Rival(limit=4, priority=0, left=100, held=4)}
    assert times(facts(20), [], BUSY, near(), rivals) == (5.05, 6.05)


def test_requests_of_its_lane_take_turns_with_it():
    """Workers serve 20 of its own and 20 of the larger one; the smaller one has only 10."""
    rivals = {"a": Rival(9, 5, 100, 0), "b": Rival(9, 5, 10, 0)}
    assert times(facts(20), [], FOUR, near((5, "a"), behind=("b",)), rivals) == (0.05, 2.55)


def test_requests_that_were_not_read_count_as_the_others():
    rivals = {"a": Rival(limit=4, priority=0, left=100, held=0)}
    assert times(facts(20), [], FOUR, near((0, "a"), (0, "b")), rivals) == (10.0, 11.0)


def test_tokens_that_were_not_read_are_at_least_one_sub_request_each():
    beyond = near((0, "a"), is_exact=False)
    beyond = beyond._replace(place=replace(beyond.place, ahead={0: 41}))
    assert times(facts(20), [], FOUR, beyond, {}) == (2.0, 3.0)


def test_a_gate_opens_later_than_the_lanes_are_free():
    delay = Cause("delay", "starts later", NOW + 60_000)
    assert times(facts(20), [delay], FOUR, None, {}) == (60.0, 61.0)


def test_what_runs_has_started():
    found = estimate(facts(20, held=2), [], BUSY, near(), {})
    assert (found.starts_ms, found.ends_ms) == (0, NOW + 1000)


@pytest.mark.parametrize(("age_s", "is_slow"), [(0.9, False), (1.5, True)])
def test_a_call_that_takes_longer_than_those_measured_leaves_no_basis(age_s: float, is_slow: bool):
    """The usual call takes 0.2 s."""
    fence = str(int(NOW * 1000 - age_s * 1e6))
    held = facts(20, held=1)._replace(holders=[HeldPermit("0", fence, "0f", "1", "", "w:1")])
    found = estimate(held, [], FOUR, None, {})
    assert (found.starts_ms, found.ends_ms is None) == (0, is_slow)
    assert ("longer than calls took so far" in (found.why_not or "")) is is_slow


def test_an_open_request_has_no_end():
    found = estimate(facts(20, is_open=True), [], FOUR, near(), {})
    assert (found.starts_ms, found.ends_ms) == (NOW, None)


@for_each(
    "causes, capacity, why_not",
    [
        ([], Capacity(4), "the workers have not finished a sub-request yet that was measured"),
        ([Cause("workers", "")], Capacity(), "a queue without workers has no time to start"),
        ([Cause("task", "", NOW + 9)], FOUR, "what workers gave back has no time to start"),
        ([Cause("paused", "")], FOUR, "a paused request has no time to start"),
        (
            [Cause("queue", "")],
            FOUR,
            "a queue that is paused until it is resumed has no time to start",
        ),
    ],
)
def test_without_a_basis_there_is_no_estimate(
    causes: list[Cause], capacity: Capacity, why_not: str
):
    found = estimate(facts(), causes, capacity, near(), {})
    assert (found.starts_ms, found.ends_ms, found.why_not) == (None, None, why_not)


def test_a_request_that_waits_for_its_turn_has_no_estimate():
    """The one that has the turn may be paused."""
    order = KeyState("k", 1, False, None, 1, 0, 1, None, ("r0",), ("r1",), is_order=True)
    waits = facts()._replace(key=order, key_place=2)
    found = estimate(
        waits, causes_of(waits, QueueFacts("req", QueuePause(0, NOW), 1)), FOUR, None, {}
    )
    assert found.why_not == "a request that waits for its turn has no time to start"


def test_a_request_of_which_workers_give_back_what_they_take_has_no_estimate():
    """The rest of it still waits in its lane."""
    note = FailedAttempt(0, 1, NOW, "no worker has had the task shop:send")
    found = estimate(facts(20, given_back=note)._replace(retries=1), [], FOUR, near(), {})
    assert found.why_not == "what workers gave back has no time to start"
    assert times(facts(20, given_back=note), [], FOUR, near(), {}) == (0.0, 1.0)


def test_what_cannot_start_before_its_deadline_has_no_estimate():
    late = facts(20, deadline_ms=NOW + 60_000)
    delay = Cause("delay", "", NOW + 60_000)
    assert estimate(late, [delay], FOUR, near(), {}).why_not == (
        "its deadline passes before it starts"
    )
    soon = facts(20, deadline_ms=NOW + 500)
    assert times(soon, [], FOUR, near(), {}) == (0.0, 0.5)


def test_a_queue_that_is_paused_for_a_time_has_one():
    pause = Cause("queue", "", NOW + 60_000)
    assert times(facts(20), [pause], FOUR, near(), {}) == (60.0, 61.0)


def test_the_capacity_is_that_of_the_live_workers():
    """A worker without a measurement counts like the others; one of an earlier release does not."""
    workers = [
        worker(units=4, per_s=20.0, leases=3),
        worker(units=4, per_s=0.0, leases=4),
        worker(),
        worker(units=8, per_s=80.0, leases=1, is_alive=False),
    ]
    assert capacity_of(workers) == Capacity(units=8, per_s=40.0, leases=7)
    assert capacity_of([]) == Capacity()


def worker(leases: int = 0, *, is_alive: bool = True, **given: Any) -> WorkerState:
    return WorkerState("w:1", "box", 1, 1, 1, 1, is_alive, leases, (), **given)
