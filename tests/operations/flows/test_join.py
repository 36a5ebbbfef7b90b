"""Tests a step's children and their join: one body for each result of the parent."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from fairlane import settings
from fairlane.operations import change, dead_letters
from fairlane.operations import flow_hand_over as pages
from fairlane.operations.flow_branches import as_json
from fairlane.operations.flow_hand_over import hand_over
from fairlane.operations.flows import Child, Flow, flow_state
from fairlane.protocol import keys
from tests.operations.flows.parts import (
    FIRST,
    FOURTH,
    SECOND,
    THIRD,
    bodies_of,
    counts,
    drain,
    feed_all,
    kept,
    lose_what_was_not_sent,
    put_cursor_ahead,
    rest_of,
    set_back,
    start,
    work_off,
)
from tests.support.operations.lost_replies import settle, slice_of_a_token
from tests.support.operations.stepping import cut_off
from tests.support.processes.workers import broken
from tests.support.run.for_each import for_each

if TYPE_CHECKING:
    from fairlane.queue import Queue

CHILDREN = Flow("access").step("check", attempts=1).children("a", "b", attempts=1).step("end")
JOINED = b'["result","result"]'


def work_some(driver: Any, *names: str, verdict: str = "", most: int = 1000) -> None:
    """Settles up to so many sub-requests of these requests, one by one; others keep theirs."""
    paused = [one for one in (FIRST, SECOND, THIRD, FOURTH) if one not in names]
    for one in paused:
        if driver.client.hget(keys.request_hash(one), "state") == b"active":
            driver.run(change.pause(one))
    for _ in range(most):
        held = slice_of_a_token(driver, 1)
        if held is None:
            break
        settle(driver, held, verdict=verdict)
    for one in paused:
        if driver.client.hget(keys.request_hash(one), "state") == b"paused":
            driver.run(change.resume(one))


def reach_children(driver: Any, flow: Flow = CHILDREN, count: int = 3) -> None:
    """Hands the results of the first step over to both children."""
    start(driver, flow, count)
    drain(driver)
    for name in (SECOND, THIRD):
        driver.run(hand_over(name))


def test_each_result_goes_to_every_child_and_is_joined_once(plain: Any):
    start(plain, CHILDREN, 4)
    work_off(plain)
    assert counts(plain) == [
        *(("check", "done", 4, 4, 0), ("a", "done", 4, 4, 0)),
        *(("b", "done", 4, 4, 0), ("end", "done", 4, 4, 0)),
    ]


def test_a_body_is_joined_as_soon_as_its_own_children_are_done(plain: Any):
    reach_children(plain)
    work_some(plain, SECOND, most=2)
    plain.run(hand_over(FOURTH))
    assert bodies_of(plain, FOURTH) == []
    work_some(plain, THIRD, most=1)
    plain.run(hand_over(FOURTH))
    assert bodies_of(plain, FOURTH) == [JOINED]
    assert counts(plain)[3][1:3] == ("active", 1)


def test_what_is_handed_over_twice_is_joined_once(plain: Any):
    reach_children(plain)
    drain(plain)
    assert plain.run(hand_over(FOURTH)).is_over
    assert plain.run(hand_over(FOURTH)).bodies == 0
    assert counts(plain)[3][2] == 3
    assert not plain.client.exists(keys.of_flow(FOURTH))


def test_a_dead_child_is_null_in_the_body(plain: Any):
    reach_children(plain)
    work_some(plain, SECOND, verdict="dead", most=1)
    drain(plain)
    plain.run(hand_over(FOURTH))
    found = sorted(bodies_of(plain, FOURTH))
    assert found == [JOINED, JOINED, b'[null,"result"]']
    work_off(plain)
    assert counts(plain)[1] == ("a", "done", 3, 2, 1)
    assert counts(plain)[3] == ("end", "done", 3, 3, 0)


def test_a_body_of_which_every_child_is_dead_is_there_too(plain: Any):
    reach_children(plain, count=1)
    work_some(plain, SECOND, THIRD, verdict="dead")
    plain.run(hand_over(FOURTH))
    assert bodies_of(plain, FOURTH) == [b"[null,null]"]


def test_a_dead_child_that_ran_again_is_not_joined_a_second_time(plain: Any):
    reach_children(plain)
    work_some(plain, SECOND, verdict="dead", most=1)
    work_some(plain, THIRD)
    plain.run(hand_over(FOURTH))
    plain.run(dead_letters.requeue_dead(SECOND))
    work_off(plain)
    assert counts(plain)[1] == ("a", "done", 3, 3, 0)
    assert counts(plain)[3] == ("end", "done", 3, 3, 0)


def test_a_dead_child_cancels_a_flow_that_stops(plain: Any, queue: Queue):
    flow = Flow("f").step("one").children("a", "b", attempts=1, on_dead="stop").step("end")
    reach_children(plain, flow)
    work_some(plain, THIRD, verdict="dead", most=1)
    assert plain.run(hand_over(FOURTH)).is_over
    assert plain.run(flow_state("r")) == "cancelled"
    for name in (SECOND, THIRD, FOURTH):
        assert queue.request(name).progress().reason == "flow: request r.3 has dead sub-requests"
    assert not plain.client.exists(keys.of_flow(FOURTH))


def test_a_cancelled_child_cancels_the_flow(plain: Any, queue: Queue):
    reach_children(plain)
    queue.request(SECOND).cancel("enough")
    plain.run(hand_over(FOURTH))
    assert queue.request(FOURTH).progress().reason == "flow: request r.2 was cancelled"


def test_a_dead_child_is_compensated_and_null_in_the_join(plain: Any):
    children = Flow("f").step("one").children(Child("a", on_dead="undo", attempts=1), "b")
    flow = children.step("end")
    reach_children(plain, flow.compensate("undo"))
    work_some(plain, SECOND, verdict="dead", most=1)
    work_off(plain)
    assert counts(plain)[3:] == [("end", "done", 3, 3, 0), ("undo", "done", 1, 1, 0)]


def test_a_flow_may_end_with_children(plain: Any):
    start(plain, Flow("f").step("one").children("a", "b"), 2)
    work_off(plain)
    assert [one[2] for one in counts(plain)] == [2, 2, 2]


def test_an_empty_flow_with_children_ends(plain: Any):
    start(plain, CHILDREN, 0)
    work_off(plain)
    assert [one[1] for one in counts(plain)] == ["done"] * 4


def test_children_are_not_fed_far_ahead_of_their_join(plain: Any, monkeypatch: pytest.MonkeyPatch):
    """So what waits for other children is bounded, however slow one of them is."""
    monkeypatch.setattr(settings, "JOIN_WINDOW", 10)
    monkeypatch.setattr(pages, "PAGE", 2)
    start(plain, CHILDREN, 40)
    work_some(plain, FIRST)
    feed_all(plain)
    assert [one[2] for one in counts(plain)[1:3]] == [10, 10]
    work_some(plain, SECOND)
    feed_all(plain)
    assert counts(plain)[1][2] == 10
    assert plain.client.hlen(keys.of_flow(FOURTH)) == 10
    work_off(plain)
    assert [one[2:] for one in counts(plain)] == [(40, 40, 0)] * 4


def test_children_go_on_if_the_join_is_gone(plain: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(settings, "JOIN_WINDOW", 1)
    start(plain, CHILDREN, 5)
    plain.run(change.cancel(FOURTH, "enough"))
    drain(plain)
    plain.run(hand_over(SECOND))
    assert counts(plain)[1][2] == 5


def test_a_flow_whose_results_are_missing_is_cancelled_and_not_ended(plain: Any, queue: Queue):
    reach_children(plain)
    drain(plain)
    plain.client.delete(keys.results(SECOND))
    plain.run(hand_over(FOURTH))
    reason = "flow: results of request r.2 are missing: 0 of 3 could be handed over"
    assert queue.request(FOURTH).progress().reason == reason


@pytest.mark.parametrize("is_behind", [False, True], ids=["later", "earlier"])
def test_children_that_a_failover_set_back_are_joined_once(
    plain: Any, queue: Queue, is_behind: bool
):
    """Their sub-requests run again; the new results stand after those that are lost, or before."""
    reach_children(plain)
    before = [kept(plain, one) for one in (SECOND, THIRD)]
    work_some(plain, SECOND, THIRD, most=4)
    plain.run(hand_over(FOURTH))
    for one, rows in zip((SECOND, THIRD), before, strict=True):
        set_back(plain, one, rows)
    if is_behind:
        put_cursor_ahead(plain, FOURTH, 2)
    lose_what_was_not_sent(plain)
    work_off(plain)
    assert counts(plain)[-1] == ("end", "done", 3, 3, 0)
    assert queue.request(FOURTH).progress().reason is None


def test_two_leaders_join_what_is_there_once(plain: Any):
    """The second leader reads, the first one joins everything, then the second one continues."""
    reach_children(plain)
    drain(plain)
    late = hand_over(FOURTH)
    step = late.send(None)
    for _ in range(3):  # the states and the results
        step = late.send(plain.do(step))
    assert plain.run(hand_over(FOURTH)).is_over
    assert plain.run(rest_of(late, step)) == (0, True)
    work_off(plain)
    assert counts(plain)[3] == ("end", "done", 3, 3, 0)


@pytest.mark.slow
def test_a_join_cut_off_at_any_step_is_finished_by_the_next_one(plain: Any, queue: Queue):
    for steps in range(1, 40):
        plain.client.flushall()
        reach_children(plain)
        work_some(plain, SECOND, verdict="dead", most=1)
        drain(plain)
        is_over = cut_off(queue.driver, hand_over(FOURTH), steps)
        assert broken(queue, FOURTH) == []
        lose_what_was_not_sent(plain)
        work_off(plain)
        assert counts(plain)[3] == ("end", "done", 3, 3, 0)
        if is_over:
            return
    raise AssertionError("it does not end")


def test_all_results_of_a_step_are_gathered_into_one_body(plain: Any):
    start(plain, Flow("f").step("one").step("end", gathers=4), 4)
    work_off(plain)
    assert [one[2:] for one in counts(plain)] == [(4, 4, 0), (1, 1, 0)]


def test_a_joined_body_may_be_larger_than_a_submitted_one(
    plain: Any, monkeypatch: pytest.MonkeyPatch
):
    reach_children(plain)
    drain(plain)
    monkeypatch.setattr(settings, "MAX_BODY", len(JOINED) - 1)
    plain.run(hand_over(FOURTH))
    assert bodies_of(plain, FOURTH) == [JOINED] * 3


def test_more_results_than_are_gathered_make_more_bodies(plain: Any):
    start(plain, Flow("f").step("one").step("end", gathers=2), 6)
    work_off(plain)
    assert [one[2:] for one in counts(plain)] == [(6, 6, 0), (3, 3, 0)]


def test_results_that_are_left_over_cancel_a_flow_that_gathers(plain: Any, queue: Queue):
    start(plain, Flow("f").step("one").step("end", gathers=2), 3)
    work_off(plain)
    reason = "flow: request r.1 has 3 results, and 2 of them make one body"
    assert queue.request(SECOND).progress().reason == reason


@for_each(
    "body, value",
    [
        (b'a "word"', 'a "word"'),
        ("é\n".encode(), "é\n"),
        (b"", ""),
        (b"\xff\x00", {"base64": "/wA="}),
    ],
)
def test_a_result_is_text_or_base64_in_the_array(body: bytes, value: Any):
    assert json.loads(as_json(body)) == value
