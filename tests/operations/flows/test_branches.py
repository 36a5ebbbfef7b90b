"""Tests a step whose results name the next one: each goes to one branch, once, or ends there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane import settings
from fairlane.errors import InvalidArgument
from fairlane.operations import change, dead_letters
from fairlane.operations import flow_hand_over as hand_overs
from fairlane.operations.flow_branches import Fan, Next, packed
from fairlane.operations.flow_hand_over import hand_over
from fairlane.operations.flows import Branch, Flow, flow_progress, last_step
from fairlane.protocol import keys
from tests.operations.flows.parts import (
    FIRST,
    FOURTH,
    SECOND,
    THIRD,
    Dead,
    bodies_of,
    counts,
    feed_all,
    kept,
    lose_what_was_not_sent,
    put_cursor_ahead,
    rest_of,
    set_back,
    start_digits,
    work_by,
    work_off_by,
)
from tests.support.operations.stepping import cut_off
from tests.support.processes.workers import broken

if TYPE_CHECKING:
    from fairlane.queue import Queue

ROUTES = Flow("access").step("route", attempts=1).branches("check", "reject", attempts=1)
MERGED = ROUTES.step("end")


def by_parity(step: str, body: bytes) -> Any:
    """Sends even numbers to one branch, and odd ones to the other."""
    if step != "route":
        return step.encode() + b" " + body
    return Next("reject" if int(body) % 2 else "check", b"user " + body)


def test_each_result_goes_to_the_branch_that_it_names(plain: Any):
    start_digits(plain, ROUTES, 5)
    assert work_off_by(plain, by_parity) == "done"
    assert counts(plain) == [
        *(("route", "done", 5, 5, 0), ("check", "done", 3, 3, 0), ("reject", "done", 2, 2, 0)),
    ]


def test_a_branch_gets_the_bodies_while_the_step_runs(plain: Any):
    start_digits(plain, ROUTES, 4)
    work_by(plain, by_parity, 3)
    plain.run(hand_over(SECOND))
    plain.run(hand_over(THIRD))
    assert bodies_of(plain, SECOND) == [b"user 0", b"user 2"]
    assert bodies_of(plain, THIRD) == [b"user 1"]
    assert counts(plain)[1][1] == "active"


def test_a_step_after_the_branches_merges_them(plain: Any, queue: Queue):
    start_digits(plain, MERGED, 5)
    work_off_by(plain, by_parity)
    assert counts(plain)[3] == ("end", "done", 5, 5, 0)
    found = {one.body for one in queue.request(FOURTH).results()}
    assert found == {
        *(b"end check user 0", b"end check user 2", b"end check user 4"),
        *(b"end reject user 1", b"end reject user 3"),
    }


def test_a_merge_gets_what_is_there_while_the_branches_run(plain: Any):
    start_digits(plain, MERGED, 2)
    work_by(plain, by_parity)
    plain.run(hand_over(THIRD))
    work_by(plain, by_parity)
    plain.run(hand_over(FOURTH))
    assert bodies_of(plain, FOURTH) == [b"reject user 1"]


def test_a_plain_result_ends_at_the_step(plain: Any, queue: Queue):
    def some(step: str, body: bytes) -> Any:
        return Next("check", body) if step == "route" and body == b"1" else body

    start_digits(plain, MERGED, 3)
    assert work_off_by(plain, some) == "done"
    assert [one[2] for one in counts(plain)] == [3, 1, 0, 1]
    assert [one.body for one in queue.request(FIRST).results()] == [b"0", b"1", b"2"]


def test_a_plain_result_goes_to_the_default(plain: Any):
    flow = Flow("f").step("route").branches("check", "reject", default="reject")

    def some(step: str, body: bytes) -> Any:
        if step != "route":
            return body
        return {b"0": Next("check", "zero"), b"1": None}.get(body, body)

    start_digits(plain, flow, 3)
    work_by(plain, some)
    feed_all(plain)
    assert bodies_of(plain, SECOND) == [b"zero"]
    assert bodies_of(plain, THIRD) == [b"", b"2"]


def test_a_branch_goes_on_with_steps_of_its_own(plain: Any, queue: Queue):
    later = Branch("audit", limit=2).step("file").step("mail")
    flow = Flow("f").step("route").branches("check", later, attempts=1).step("end")

    def route(step: str, body: bytes) -> Any:
        if step != "route":
            return body + b" " + step.encode()
        return Next("audit" if body == b"1" else "check", body)

    start_digits(plain, flow, 3)
    assert work_off_by(plain, route) == "done"
    assert [one[:1] + one[2:3] for one in counts(plain)] == [
        *(("route", 3), ("check", 2), ("audit", 1), ("file", 1), ("mail", 1), ("end", 3)),
    ]
    found = {one.body for one in queue.flows.run("r").results()}
    assert found == {b"0 check end", b"2 check end", b"1 audit file mail end"}


def test_a_branch_may_have_children_and_branches(plain: Any):
    inner = Branch("a").children("x", "y").step("z")
    nested = Branch("b").branches("c", "d")
    flow = Flow("f").step("route").branches(inner, nested).step("end")

    def route(step: str, body: bytes) -> Any:
        if step == "route":
            return Next("a" if body == b"0" else "b", body)
        return Next("d", body) if step == "b" else body

    start_digits(plain, flow, 2)
    assert work_off_by(plain, route) == "done"
    assert {one[0]: one[2] for one in counts(plain)} == {
        **dict.fromkeys(("a", "x", "y", "z", "b", "d"), 1),
        "route": 2,
        "c": 0,
        "end": 2,
    }


def test_a_dead_sub_request_goes_to_no_branch(plain: Any):
    def some(step: str, body: bytes) -> Any:
        if body == b"1":
            raise Dead
        return by_parity(step, body)

    start_digits(plain, ROUTES, 3)
    assert work_off_by(plain, some) == "done"
    assert [one[2:] for one in counts(plain)] == [(3, 2, 1), (2, 2, 0), (0, 0, 0)]


def test_a_dead_sub_request_of_a_branch_stops_or_is_compensated(plain: Any, queue: Queue):
    branch = Branch("check", on_dead="undo", attempts=1)
    flow = Flow("f").step("route").branches(branch, Branch("reject", on_dead="stop", attempts=1))
    flow = flow.step("end").compensate("undo")

    def some(step: str, body: bytes) -> Any:
        if step == "check":
            raise Dead
        return by_parity(step, body) if step == "route" else body

    start_digits(plain, flow, 2)
    assert work_off_by(plain, some) == "done"
    assert counts(plain)[4] == ("undo", "done", 1, 1, 0)

    def worse(step: str, body: bytes) -> Any:
        if step == "reject":
            raise Dead
        return by_parity(step, body) if step == "route" else body

    plain.client.flushall()
    start_digits(plain, flow, 2)
    assert work_off_by(plain, worse) == "cancelled"
    assert queue.request(FOURTH).progress().reason == "flow: request r.3 has dead sub-requests"


def test_an_empty_flow_with_branches_ends(plain: Any):
    start_digits(plain, MERGED, 0)
    assert work_off_by(plain, by_parity) == "done"


def test_what_is_handed_over_twice_is_in_its_branch_once(plain: Any):
    start_digits(plain, ROUTES, 4)
    work_by(plain, by_parity)
    assert plain.run(hand_over(SECOND)).is_over
    assert plain.run(hand_over(SECOND)).bodies == 0
    assert counts(plain)[1][2] == 2
    assert not plain.client.exists(keys.fed(SECOND))


def test_two_leaders_hand_over_to_a_branch_once(plain: Any):
    start_digits(plain, ROUTES, 4)
    work_by(plain, by_parity)
    late = hand_over(SECOND)
    step = late.send(None)
    for _ in range(2):  # the states and the results
        step = late.send(plain.do(step))
    assert plain.run(hand_over(SECOND)).is_over
    assert plain.run(rest_of(late, step)).is_over
    assert counts(plain)[1][2] == 2


@pytest.mark.slow
def test_a_hand_over_to_a_branch_cut_off_at_any_step_is_finished_by_the_next_one(
    plain: Any, queue: Queue
):
    for steps in range(1, 40):
        plain.client.flushall()
        start_digits(plain, MERGED, 4)
        work_by(plain, by_parity)
        is_over = cut_off(queue.driver, hand_over(THIRD), steps)
        assert broken(queue, THIRD) == []
        lose_what_was_not_sent(plain)
        assert work_off_by(plain, by_parity) == "done"
        assert [one[2] for one in counts(plain)] == [4, 2, 2, 4]
        if is_over:
            return
    raise AssertionError("it does not end")


@pytest.mark.parametrize("is_behind", [False, True])
def test_branches_that_a_failover_set_back_get_each_result_once(plain: Any, is_behind: bool):
    start_digits(plain, MERGED, 6)
    work_by(plain, by_parity, 2)
    before = kept(plain, FIRST)
    work_by(plain, by_parity, 2)
    feed_all(plain)
    set_back(plain, FIRST, before)
    if is_behind:
        for one in (SECOND, THIRD):
            put_cursor_ahead(plain, one)
    assert work_off_by(plain, by_parity) == "done"
    assert [one[2] for one in counts(plain)] == [6, 3, 3, 6]


@pytest.mark.parametrize("is_behind", [False, True])
def test_a_result_that_chose_another_branch_when_it_ran_again_is_not_lost(
    plain: Any, is_behind: bool
):
    """Its first choice was passed by the branch that it names now, and seen by no other one."""
    start_digits(plain, ROUTES, 3)
    before = kept(plain, FIRST)
    work_by(plain, lambda _, body: Next("check", body), 2)
    plain.run(hand_over(THIRD))  # it passes both
    set_back(plain, FIRST, before)
    work_by(plain, lambda step, body: Next("reject", body) if step == "route" else body)
    if is_behind:
        put_cursor_ahead(plain, THIRD)
    assert work_off_by(plain, by_parity) == "done"
    assert [one[2] for one in counts(plain)] == [3, 0, 3]


def test_a_branch_reads_on_after_a_failover_while_the_step_runs(plain: Any):
    """It reads all again once, and then goes on behind what it has read."""
    start_digits(plain, ROUTES, 6)
    work_by(plain, by_parity, 2)
    before = kept(plain, FIRST)
    work_by(plain, by_parity, 2)
    plain.run(hand_over(SECOND))
    set_back(plain, FIRST, before)
    work_by(plain, lambda step, body: by_parity(step, body) if step == "route" else body, 3)
    plain.run(hand_over(SECOND))
    handed = plain.client.hget(keys.request_hash(SECOND), "handed")
    last = plain.client.xrevrange(keys.results(FIRST), count=1)[0][0]
    assert handed == last
    assert work_off_by(plain, by_parity) == "done"
    assert [one[2] for one in counts(plain)] == [6, 3, 3]


def test_a_requeued_dead_sub_request_goes_to_its_branch(plain: Any):
    def some(step: str, body: bytes) -> Any:
        if body == b"1":
            raise Dead
        return by_parity(step, body)

    start_digits(plain, ROUTES, 3)
    work_by(plain, some, 2)
    feed_all(plain)
    plain.run(dead_letters.requeue_dead(FIRST))
    assert work_off_by(plain, by_parity) == "done"
    assert [one[2:] for one in counts(plain)] == [(3, 3, 0), (2, 2, 0), (1, 1, 0)]


def test_results_that_are_missing_cancel_the_flow(plain: Any, queue: Queue):
    start_digits(plain, ROUTES, 3)
    work_by(plain, by_parity)
    plain.client.delete(keys.results(FIRST))
    plain.run(hand_over(SECOND))
    reason = "flow: results of request r.1 are missing: 0 of 3 could be handed over"
    assert queue.request(SECOND).progress().reason == reason


def test_results_of_branches_that_are_missing_cancel_the_flow(plain: Any, queue: Queue):
    start_digits(plain, MERGED, 2)
    work_by(plain, by_parity)
    for one in (SECOND, THIRD):
        plain.run(hand_over(one))
    work_by(plain, by_parity)
    plain.client.delete(keys.results(SECOND))
    plain.run(hand_over(FOURTH))
    reason = "flow: results of requests r.2, r.3 are missing: 1 of 2 could be handed over"
    assert queue.request(FOURTH).progress().reason == reason


def test_a_cancelled_branch_cancels_what_merges_it(plain: Any, queue: Queue):
    start_digits(plain, MERGED, 2)
    queue.request(SECOND).cancel("enough")
    plain.run(hand_over(FOURTH))
    assert queue.request(FOURTH).progress().reason == "flow: request r.2 was cancelled"


def test_a_choice_that_the_flow_does_not_declare_stops_it_at_the_hand_over(
    plain: Any, queue: Queue, monkeypatch: pytest.MonkeyPatch
):
    """A worker has stored it, because it had read another declaration."""
    start_digits(plain, ROUTES, 1)
    monkeypatch.setattr("fairlane.operations.flow_branches.Choices.check", lambda *_: None)
    work_by(plain, lambda _, body: Next("other", body))
    plain.run(hand_over(SECOND))
    reason = "flow: result 0 of request r.1 names step other, and the branches are check, reject"
    assert queue.request(SECOND).progress().reason == reason


def test_children_that_are_not_declared_stop_the_flow_at_the_hand_over(
    plain: Any, queue: Queue, monkeypatch: pytest.MonkeyPatch
):
    start_digits(plain, ROUTES, 1)
    monkeypatch.setattr("fairlane.operations.flow_branches.Choices.check", lambda *_: None)
    work_by(plain, lambda _, body: Fan([body]))
    plain.run(hand_over(SECOND))
    reason = "flow: result 0 of request r.1 does not choose among the branches check, reject"
    assert queue.request(SECOND).progress().reason == reason


def test_a_name_for_a_step_without_branches_stops_the_flow_at_the_hand_over(
    plain: Any, queue: Queue, monkeypatch: pytest.MonkeyPatch
):
    start_digits(plain, Flow("f").step("one").step("two"), 1)
    monkeypatch.setattr("fairlane.operations.flow_branches.Choices.check", lambda *_: None)
    monkeypatch.setattr("tests.operations.flows.parts.packed", lambda one, _: packed(one, ["two"]))
    work_by(plain, lambda _, body: Next("two", body))
    plain.run(hand_over(SECOND))
    reason = "flow: result 0 of request r.1 names the next step, and the flow declares none"
    assert queue.request(SECOND).progress().reason == reason


def test_long_entries_are_handed_over_in_several_calls(plain: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(settings, "CHUNK_ENTRIES", 2)
    monkeypatch.setattr(hand_overs, "PAGE", 2)
    start_digits(plain, MERGED, 9)
    assert work_off_by(plain, by_parity) == "done"
    assert [one[2] for one in counts(plain)] == [9, 5, 4, 9]


def test_a_flow_that_ends_with_branches_has_no_last_step(plain: Any):
    start_digits(plain, ROUTES, 1)
    with pytest.raises(InvalidArgument, match="ends with the steps check, reject"):
        plain.run(last_step("r"))


def test_progress_says_what_each_step_gets(plain: Any):
    start_digits(plain, MERGED, 1)
    found = [(one.step, one.gets, one.sources) for one in plain.run(flow_progress("r")).steps]
    assert found == [
        *(("route", "input", ()), ("check", "branch", ("route",))),
        *(("reject", "branch", ("route",)), ("end", "merge", ("check", "reject"))),
    ]


def test_a_cancelled_run_leaves_nothing_of_its_hand_overs(plain: Any, queue: Queue):
    start_digits(plain, ROUTES, 4)
    work_by(plain, by_parity, 2)
    feed_all(plain)
    assert plain.client.exists(keys.fed(SECOND))
    queue.flows.run("r").cancel()
    assert not any(plain.client.exists(keys.fed(one)) for one in (SECOND, THIRD))


def test_a_paused_branch_gets_its_bodies_and_goes_on_later(plain: Any):
    start_digits(plain, ROUTES, 4)
    work_by(plain, by_parity)
    plain.run(change.pause(SECOND))
    feed_all(plain)
    assert counts(plain)[1][1:3] == ("paused", 2)
    plain.run(change.resume(SECOND))
    assert work_off_by(plain, by_parity) == "done"


def test_a_reader_of_the_results_gets_the_bodies_that_were_chosen(plain: Any, queue: Queue):
    def some(_: str, body: bytes) -> Any:
        return Next("check", b"user " + body) if body == b"0" else Next("reject", None)

    start_digits(plain, ROUTES, 2)
    work_by(plain, some)
    found = [(one.status, one.body) for one in queue.request(FIRST).results()]
    assert found == [("done", b"user 0"), ("done", None)]


def test_an_ended_branch_is_kept_while_another_one_works(plain: Any):
    """Else the step that merges them would find it gone, and cancel the flow."""
    flow = Flow("f").step("route").branches("check", Branch("reject", retain="1h")).step("end")
    start_digits(plain, flow, 4)
    work_by(plain, by_parity)
    plain.run(hand_over(THIRD))
    work_by(plain, by_parity)
    plain.run(hand_over(FOURTH))
    for name in (keys.request_hash(THIRD), keys.results(THIRD)):
        plain.client.pexpire(name, 60_000)
    plain.run(hand_over(FOURTH))
    for name in (keys.request_hash(THIRD), keys.results(THIRD)):
        assert 3_590_000 < plain.client.pttl(name) <= 3_600_000
    assert work_off_by(plain, by_parity) == "done"


def test_branches_with_more_results_than_bits_cancel_what_merges_them(
    plain: Any, queue: Queue, monkeypatch: pytest.MonkeyPatch
):
    start_digits(plain, MERGED, 6)
    work_by(plain, by_parity)
    plain.run(hand_over(SECOND))
    work_by(plain, by_parity)
    monkeypatch.setattr(hand_overs, "MOST_BITS", 4)
    plain.run(hand_over(FOURTH))
    reason = (
        "flow: request r.2 has more results than this step can note, which are 2: "
        "submit several flows"
    )
    assert queue.request(FOURTH).progress().reason == reason
