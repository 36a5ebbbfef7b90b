"""Tests the hand-over of finished results to the next step: once, despite crashes and repeats."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from fairlane import Change, settings
from fairlane.errors import FairlaneError, InvalidArgument, RequestEnded, RequestLost
from fairlane.operations import flow_hand_over as hand_overs
from fairlane.operations import request_checks, workers
from fairlane.operations.completion import parse_results
from fairlane.operations.doctor import Walk
from fairlane.operations.flow_hand_over import hand_over
from fairlane.operations.flows import Flow, flow_state, submit_flow
from fairlane.protocol import keys
from fairlane.protocol.steps import Command
from tests.operations.flows.parts import (
    FIRST,
    SECOND,
    THIRD,
    bodies_of,
    counts,
    drain,
    kept,
    lose_what_was_not_sent,
    put_cursor_ahead,
    rest_of,
    set_back,
    start,
    work,
    work_off,
)
from tests.support.operations.lost_replies import settle, take
from tests.support.operations.stepping import cut_off
from tests.support.processes.workers import broken
from tests.support.run.for_each import for_each
from tests.support.scripts.requests import HOUR, numbered
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from fairlane.operations.check_result import Finding
    from fairlane.queue import Queue

TWO_STEPS = Flow("access").step("check", limit=2, attempts=1).step("notify", limit=2)


def test_results_become_the_bodies_of_the_next_step_while_the_first_one_runs(plain: Any):
    start(plain, TWO_STEPS)
    work(plain, "", "")
    assert plain.run(hand_over(SECOND)) == (2, False)
    assert counts(plain)[1] == ("notify", "active", 2, 0, 0)
    assert bodies_of(plain, SECOND) == [b"result", b"result"]


def test_the_next_step_is_sealed_after_the_last_result(plain: Any, queue: Queue):
    start(plain, TWO_STEPS)
    work(plain, *[""] * 4)
    assert plain.run(hand_over(SECOND)) == (4, True)
    assert not queue.request(SECOND).progress().is_open
    work_off(plain)
    assert counts(plain) == [("check", "done", 4, 4, 0), ("notify", "done", 4, 4, 0)]


def test_what_is_handed_over_twice_is_there_once(plain: Any):
    start(plain, TWO_STEPS)
    work(plain, "", "")
    assert plain.run(hand_over(SECOND)).bodies == 2
    assert plain.run(hand_over(SECOND)).bodies == 0
    assert counts(plain)[1][2] == 2


def test_two_leaders_hand_over_what_is_there_once(plain: Any):
    """The second leader reads, the first one hands over everything, then the second continues."""
    start(plain, TWO_STEPS)
    work(plain, *[""] * 4)
    late = hand_over(SECOND)
    step = late.send(None)
    for _ in range(3):  # the states of both, and the results
        step = late.send(plain.do(step))
    assert plain.run(hand_over(SECOND)).is_over
    assert plain.run(rest_of(late, step)) == (0, True)
    work_off(plain)
    assert counts(plain)[1] == ("notify", "done", 4, 4, 0)


@pytest.mark.slow
def test_a_hand_over_cut_off_at_any_step_is_finished_by_the_next_one(plain: Any, queue: Queue):
    for steps in range(1, 30):
        plain.client.flushall()
        start(plain, TWO_STEPS)
        work(plain, *[""] * 4)
        is_over = cut_off(queue.driver, hand_over(SECOND), steps)
        assert broken(queue, SECOND) == []
        lose_what_was_not_sent(plain)
        work_off(plain)
        assert counts(plain)[1] == ("notify", "done", 4, 4, 0)
        if is_over:
            return
    raise AssertionError("it does not end")


@pytest.mark.slow
def test_a_submission_cut_off_at_any_step_is_finished_by_a_repeat(plain: Any, queue: Queue):
    for steps in range(1, 30):
        plain.client.flushall()
        planned = TWO_STEPS.plan("req", "r", {})
        is_over = cut_off(queue.driver, fed(submit_flow(planned), [numbered(3)]), steps)
        plain.run(submit_flow(planned), iter([numbered(3)]))
        lose_what_was_not_sent(plain)
        work_off(plain)
        assert counts(plain) == [("check", "done", 3, 3, 0), ("notify", "done", 3, 3, 0)]
        if is_over:
            return
    raise AssertionError("it does not end")


def fed(operation: Any, chunks: list[list[bytes]]) -> Any:
    """Runs the same operation, with these chunks as its caller's."""
    waiting = iter(chunks)
    reply: Any = None
    while True:
        try:
            step = operation.send(reply)
        except StopIteration as end:
            return end.value
        reply = next(waiting, None) if type(step).__name__ == "NextChunk" else (yield step)


def test_a_dead_sub_request_is_left_out(plain: Any):
    start(plain, TWO_STEPS)
    work(plain, "dead", "", "", "")
    assert plain.run(hand_over(SECOND)) == (3, True)


def test_a_dead_sub_request_cancels_a_flow_that_stops(plain: Any, queue: Queue):
    flow = Flow("access").step("check", limit=2, on_dead="stop").step("notify").step("end")
    start(plain, flow)
    work(plain, "", "dead")
    assert plain.run(hand_over(SECOND)).is_over
    assert plain.run(flow_state("r")) == "cancelled"
    for name in (FIRST, SECOND, THIRD):
        assert queue.request(name).progress().reason == "flow: request r.1 has dead sub-requests"


HELD = Flow("access").step("check", limit=2, on_dead="hold").step("notify")


def test_a_step_that_is_held_gets_the_repaired_results(plain: Any, queue: Queue):
    start(plain, HELD)
    work(plain, "dead", "", "dead", "")
    assert queue.request(FIRST).state() == "done"
    assert [plain.run(hand_over(SECOND)) for _ in range(2)] == [(2, False), (0, False)]
    assert queue.request(FIRST).requeue_dead(indexes=[0]) == 1
    assert plain.run(hand_over(SECOND)) == (0, False)
    drain(plain)
    assert plain.run(hand_over(SECOND)) == (1, False)
    queue.request(FIRST).requeue_dead()
    work_off(plain)
    assert counts(plain) == [("check", "done", 4, 4, 0), ("notify", "done", 4, 4, 0)]


def test_a_step_that_is_held_goes_on_without_what_is_dropped(plain: Any, queue: Queue):
    start(plain, HELD)
    work(plain, "dead", "", "", "")
    assert plain.run(hand_over(SECOND)) == (3, False)
    assert queue.request(FIRST).drop_dead() == 1
    assert plain.run(hand_over(SECOND)).is_over
    work_off(plain)
    assert counts(plain)[1] == ("notify", "done", 3, 3, 0)


def test_a_step_is_not_sealed_if_its_source_was_repaired_since_it_was_read(
    plain: Any, queue: Queue
):
    """The source is opened again, and ends, while the leader reads its results."""
    start(plain, HELD)
    work(plain, "dead", "", "", "")
    operation = hand_over(SECOND)
    step = operation.send(None)
    for _ in range(2):
        step = operation.send(plain.do(step))
    queue.request(FIRST).requeue_dead()  # it has read that the source has ended
    drain(plain)
    assert queue.request(FIRST).progress().outcome == "repaired"
    assert not plain.run(rest_of(operation, step)).is_over
    work_off(plain)
    assert counts(plain)[1] == ("notify", "done", 4, 4, 0)


@for_each(
    "flow, problem",
    [
        (lambda: Flow("f").step("a", on_dead="hold"), "no step follows it"),
        (lambda: Flow("f").step("a", on_dead="hold").step("b", gathers=2), "into one body"),
        (
            lambda: Flow("f").step("a").children("b", "c", on_dead="hold").step("d"),
            "into one body",
        ),
    ],
)
def test_hold_is_refused_where_nothing_could_be_repaired(flow: Any, problem: str):
    with pytest.raises(InvalidArgument, match=problem):
        flow().plan("req", "r", {})


def test_a_step_is_cancelled_if_the_one_before_it_was(plain: Any, queue: Queue):
    start(plain, TWO_STEPS)
    work(plain, "")
    queue.request(FIRST).cancel("enough")
    plain.run(hand_over(SECOND))
    assert queue.request(SECOND).progress().reason == "flow: request r.1 was cancelled"


def test_a_compensating_step_gets_the_dead_bodies_after_the_end(plain: Any):
    flow = Flow("order").step("pay", on_dead="refund", limit=2).step("ship").compensate("refund")
    start(plain, flow)
    work(plain, "dead")
    assert plain.run(hand_over(THIRD)) == (0, False)
    work(plain, "", "dead", "")
    assert plain.run(hand_over(THIRD)) == (2, True)
    assert plain.run(hand_over(SECOND)) == (2, True)
    bodies = bodies_of(plain, THIRD)
    assert len(bodies) == 2
    assert set(bodies) <= set(numbered(4))
    work_off(plain)
    assert [one[:4] for one in counts(plain)] == [
        ("pay", "done", 4, 2), ("ship", "done", 2, 2), ("refund", "done", 2, 2)
    ]  # fmt: skip


def test_a_cancelled_flow_still_compensates(plain: Any, queue: Queue):
    flow = Flow("order").step("pay", on_dead="refund", limit=2).step("ship").compensate("refund")
    start(plain, flow)
    work(plain, "dead")
    queue.request(FIRST).cancel("enough")
    plain.run(hand_over(SECOND))
    assert queue.request(SECOND).state() == "cancelled"
    assert plain.run(hand_over(THIRD)) == (1, True)


def test_a_flow_without_sub_requests_ends(plain: Any):
    start(plain, TWO_STEPS, 0)
    work_off(plain)
    assert counts(plain) == [("check", "done", 0, 0, 0), ("notify", "done", 0, 0, 0)]


def begin_only(plain: Any) -> None:
    """Submits a flow as a producer that dies before it sends the first step."""
    start(plain, TWO_STEPS)
    plain.client.delete(*keys.request_keys(FIRST))
    plain.client.hdel(keys.request_hash(SECOND), "handed")


def test_a_step_whose_producer_died_before_the_first_one_gets_nothing(plain: Any, queue: Queue):
    begin_only(plain)
    before = plain.client.hgetall(keys.request_hash(SECOND))
    assert plain.run(hand_over(SECOND)) == (0, False)
    assert plain.client.hgetall(keys.request_hash(SECOND)) == before


def test_a_step_whose_flow_was_never_submitted_is_given_up_after_an_hour(
    plain: Any, queue: Queue, monkeypatch: pytest.MonkeyPatch
):
    begin_only(plain)
    born = queue.request(SECOND).progress().submitted_ms
    monkeypatch.setattr(hand_overs, "time_ms", lambda _: born + 3_590_000)
    plain.run(hand_over(SECOND))
    assert int(plain.client.hget(keys.request_hash(SECOND), "open_until")) > born + DAY_MS
    monkeypatch.setattr(hand_overs, "time_ms", lambda _: born + 3_610_000)
    plain.run(hand_over(SECOND))
    plain.client.zadd(keys.active("req"), {SECOND: 1.5})
    wait_until(lambda: _looked(plain) and queue.request(SECOND).state() == "cancelled")


def test_a_first_step_that_is_lost_before_any_look_cancels_the_others(plain: Any, queue: Queue):
    start(plain, TWO_STEPS)
    plain.client.delete(*keys.request_keys(FIRST))
    assert plain.run(hand_over(SECOND)).is_over
    progress = queue.request(SECOND).progress()
    reason = "flow: request r.1 is gone before all of it was handed over"
    assert (progress.state, progress.reason) == ("cancelled", reason)


@pytest.mark.parametrize("how", ["expired", "deleted"])
def test_a_flow_submitted_again_runs_no_step_that_is_no_longer_kept(
    plain: Any, queue: Queue, how: str
):
    start(plain, TWO_STEPS)
    work_off(plain)
    if how == "deleted":
        queue.change(queue.select(Change.delete(), [SECOND]))
    else:
        plain.client.delete(keys.request_hash(SECOND))
    assert plain.run(flow_state("r")) == "unknown"
    start(plain, TWO_STEPS)
    assert plain.client.hget(keys.request_hash(SECOND), "feed") is None
    assert [one[:2] for one in counts(plain)] == [("check", "done")]


@pytest.mark.parametrize("state", ["", "lost"])
def test_a_flow_is_refused_if_a_step_is_gone_whose_end_the_log_does_not_show(
    plain: Any, state: str
):
    start(plain, TWO_STEPS)
    work_off(plain)
    for key in (keys.request_hash(SECOND), keys.completed("req")):
        plain.client.delete(key)
    if state:
        plain.client.xadd(keys.completed("req"), {"id": SECOND, "state": state})
    with pytest.raises(RequestLost, match=f"step {SECOND} is gone, and the completion log of"):
        start(plain, TWO_STEPS)
    assert not plain.client.exists(keys.request_hash(SECOND))


def test_nothing_of_what_a_cancelled_step_was_fed_with_stays(plain: Any, queue: Queue):
    start(plain, TWO_STEPS)
    work(plain, "")
    assert plain.run(hand_over(SECOND)).bodies == 1
    queue.request(FIRST).cancel("enough")
    plain.run(hand_over(SECOND))
    assert queue.request(SECOND).state() == "cancelled"
    assert not plain.client.exists(keys.fed(SECOND))


@pytest.mark.parametrize("end", ["abandoned", "cancelled", "gone"])
def test_a_step_that_ended_while_the_producer_was_slow_is_no_success(
    plain: Any, queue: Queue, end: str
):
    def slow() -> Any:
        yield numbered(2)
        if end == "gone":
            plain.client.delete(*keys.request_keys(SECOND))
        elif end == "cancelled":
            queue.request(SECOND).cancel("enough")
        else:
            plain.client.hset(keys.request_hash(SECOND), "open_until", 5)
            wait_until(lambda: _looked(plain) and queue.request(SECOND).state() == "cancelled")

    with pytest.raises(
        RequestEnded, match=r"step r\.2 was (gone|cancelled \(.*\)) before its flow"
    ):
        plain.run(submit_flow(TWO_STEPS.plan("req", "r", {})), slow())
    assert queue.request(FIRST).state() == "cancelled"


def test_a_flow_that_a_result_has_stopped_was_submitted(plain: Any, queue: Queue):
    """A worker may be so quick that the flow is over when the producer checks it."""

    def slow() -> Any:
        yield numbered(2)
        queue.request(SECOND).cancel("flow: request r.1 has dead sub-requests")

    assert plain.run(submit_flow(TWO_STEPS.plan("req", "r", {})), slow()) == 2


def _looked(plain: Any) -> bool:
    plain.client.zadd(keys.active("req"), {SECOND: 1.5}, xx=True)
    plain.run(workers.look_after("req", fed=[]))
    return True


def test_a_step_without_a_worker_for_a_day_is_not_given_up(plain: Any, queue: Queue):
    start(plain, TWO_STEPS)
    until = int(plain.client.hget(keys.request_hash(SECOND), "open_until"))
    assert until > int(queue.request(SECOND).progress().submitted_ms) + 30 * 86_400_000


DAY_MS = 86_400_000


def test_results_that_another_step_reads_are_kept_for_four_days(plain: Any):
    flow = Flow("f").step("pay", on_dead="undo").step("keep", retain=7200).step("last")
    kept = [one.policy.retain_ms for one in flow.compensate("undo").plan("req", "r", {})]
    assert kept == [4 * DAY_MS, 7_200_000, DAY_MS, DAY_MS]
    alone = Flow("f").step("pay", on_dead="undo").compensate("undo").plan("req", "r", {})
    assert [one.policy.retain_ms for one in alone] == [4 * DAY_MS, DAY_MS]
    start(plain, TWO_STEPS)
    work(plain, *[""] * 4)
    assert plain.client.pttl(keys.results(FIRST)) > 3 * DAY_MS


def test_a_source_that_vanished_later_cancels_the_flow_with_its_name(plain: Any, queue: Queue):
    start(plain, TWO_STEPS)
    work(plain, "")
    assert plain.run(hand_over(SECOND)).bodies == 1
    plain.client.delete(*keys.request_keys(FIRST))
    assert plain.run(hand_over(SECOND)) == (0, True)
    reason = "flow: request r.1 is gone before all of it was handed over"
    assert queue.request(SECOND).progress().reason == reason


def test_a_source_that_expires_during_a_hand_over_is_no_end_of_the_step(plain: Any, queue: Queue):
    start(plain, TWO_STEPS)
    work(plain, *[""] * 4)
    late = hand_over(SECOND)
    step = late.send(plain.do(late.send(None)))  # it has read that the source has ended
    reply = plain.do(step)
    plain.client.delete(*keys.request_keys(FIRST))
    assert plain.run(rest_of(late, late.send(reply))).is_over
    reason = "flow: request r.1 is gone before all of it was handed over"
    assert queue.request(SECOND).progress().reason == reason


def test_a_compensating_step_whose_source_vanished_is_cancelled(plain: Any, queue: Queue):
    flow = Flow("order").step("pay", on_dead="refund", limit=2, attempts=1).compensate("refund")
    start(plain, flow, 2)
    work(plain, "dead", "dead")
    late = hand_over(SECOND)
    step = late.send(None)
    while not bodies_of(plain, SECOND):
        step = late.send(plain.do(step))
    plain.client.delete(*keys.request_keys(FIRST))
    assert not plain.run(rest_of(late, step)).is_over
    assert plain.run(hand_over(SECOND)).is_over
    reason = "flow: request r.1 is gone before all of it was handed over"
    assert queue.request(SECOND).progress().reason == reason


def test_a_step_that_waits_is_not_given_up(plain: Any):
    start(plain, TWO_STEPS)
    name = keys.request_hash(SECOND)
    plain.client.hset(name, "open_until", 5)
    plain.run(hand_over(SECOND))
    assert int(plain.client.hget(name, "open_until")) > 5


def test_a_request_that_is_no_step_is_fed_with_nothing(plain: Any, queue: Queue):
    queue.submit_request(["a"], id="r1")
    assert plain.run(hand_over("r1")) == (0, True)


def test_the_leader_finds_the_steps_that_are_fed(plain: Any):
    start(plain, TWO_STEPS)
    plain.client.zadd(keys.active("req"), {FIRST: 1.5, SECOND: 1.5})
    found: list[str] = []
    plain.run(workers.look_after("req", fed=found))
    assert found == [SECOND]


def test_the_leader_looks_at_a_new_step_immediately(plain: Any):
    start(plain, TWO_STEPS)
    now = int(plain.client.time()[0])
    assert plain.client.zscore(keys.active("req"), SECOND) <= 1000 * (now + 1)


def test_results_keep_what_was_handed_over(plain: Any):
    """The last step's results are those of its own handler, one for each sub-request."""
    start(plain, TWO_STEPS)
    work_off(plain)
    entries = plain.client.xrange(keys.results(SECOND))
    found = [
        one
        for _, fields in entries
        for one in parse_results([part for pair in fields.items() for part in pair])
    ]
    assert len(found) == 4


@pytest.mark.parametrize("is_behind", [False, True], ids=["later", "earlier"])
def test_a_step_that_a_failover_set_back_is_handed_over_once(plain: Any, is_behind: bool):
    """Its sub-requests run again; the new results stand after those that are lost, or before."""
    start(plain, TWO_STEPS)
    work(plain, "")
    before = kept(plain, FIRST)
    work(plain, "")
    plain.run(hand_over(SECOND))
    set_back(plain, FIRST, before)
    if is_behind:
        put_cursor_ahead(plain, SECOND)
    lose_what_was_not_sent(plain)
    work_off(plain)
    assert counts(plain) == [("check", "done", 4, 4, 0), ("notify", "done", 4, 4, 0)]


def work_by_index(plain: Any, *dead: int, count: int) -> None:
    """Settles so many sub-requests of the first step; these indexes are dead."""
    while count:
        held = take(plain)
        is_first, index = held.request_id == FIRST, int(held.entries[0][0].partition(b"-")[2])
        settle(plain, held, verdict="dead" if is_first and index in dead else "")
        count -= is_first


def play_again(plain: Any, before: dict[bytes, bytes], fed: str) -> None:
    """Takes back all of the first step, in a failover to a clock that is behind."""
    set_back(plain, FIRST, before)
    put_cursor_ahead(plain, fed)
    lose_what_was_not_sent(plain)


def test_a_result_is_not_missed_because_another_one_died_after_its_hand_over(plain: Any):
    """Then as many are here as are done."""
    start(plain, TWO_STEPS)
    before = kept(plain, FIRST)
    work_by_index(plain, count=3)
    plain.run(hand_over(SECOND))
    play_again(plain, before, SECOND)
    work_by_index(plain, 0, count=4)
    work_off(plain)
    assert counts(plain) == [("check", "done", 4, 3, 1), ("notify", "done", 4, 4, 0)]


def test_a_dead_body_is_not_missed_because_another_one_is_done_after_its_hand_over(
    plain: Any, queue: Queue
):
    """A compensating step has the one that was dead, and lacks the one that is."""
    flow = Flow("order").step("pay", on_dead="refund", limit=2).step("ship").compensate("refund")
    start(plain, flow, 2)
    before = kept(plain, FIRST)
    work_by_index(plain, 0, count=2)
    for steps in range(1, 20):
        cut_off(queue.driver, hand_over(THIRD), steps)
        if queue.request(THIRD).progress().total:
            break
    play_again(plain, before, THIRD)
    work_by_index(plain, 1, count=2)
    work_off(plain)
    assert counts(plain)[2] == ("refund", "done", 2, 2, 0)


def test_dead_bodies_before_the_cursor_are_compensated_too(plain: Any):
    """A failover set the step back, and the clock of its new primary is behind."""
    flow = Flow("order").step("pay", on_dead="refund", limit=2).step("ship").compensate("refund")
    start(plain, flow)
    work(plain, "dead", "dead", "", "dead")
    put_cursor_ahead(plain, THIRD)
    work_off(plain)
    assert counts(plain)[2][:4] == ("refund", "done", 3, 3)


def test_a_step_whose_results_are_missing_cancels_the_flow_with_the_reason(
    plain: Any, queue: Queue
):
    start(plain, TWO_STEPS)
    work(plain, "", "", "", "")
    plain.client.delete(keys.results(FIRST))
    assert plain.run(hand_over(SECOND)).is_over
    progress = queue.request(SECOND).progress()
    reason = "flow: results of request r.1 are missing: 0 of 4 could be handed over"
    assert (progress.state, progress.reason) == ("cancelled", reason)


# ------------------------------------------------------------------ doctor


def unfed(plain: Any, *, repair: bool = False) -> list[Finding]:
    """Returns what a walk finds of steps that get nothing."""
    made = Walk("req")
    found: list[Finding] = []
    while not made.is_over:
        found += [one for one in plain.run(made.page()) if one.check == "unfed"]
    for one in found if repair else ():
        plain.run(one.apply())
    return found


def test_a_step_whose_source_ended_is_fed_by_doctor(plain: Any, monkeypatch: pytest.MonkeyPatch):
    start(plain, TWO_STEPS)
    work(plain, *[""] * 4)
    assert unfed(plain) == []  # a leader has time for it still
    monkeypatch.setattr(request_checks, "GRACE_MS", -HOUR)
    (found,) = unfed(plain)
    what = "gets nothing: request r.1 has ended, and no leader hands it over"
    assert (found.subject, found.what, found.severity) == (SECOND, what, "warn")
    assert bodies_of(plain, SECOND) == []
    (found,) = unfed(plain, repair=True)
    assert (found.is_fixed, len(bodies_of(plain, SECOND))) == (True, 4)
    assert unfed(plain) == []
    work_off(plain)
    assert [one[1:4] for one in counts(plain)] == [("done", 4, 4)] * 2


def test_a_repair_goes_on_while_the_cursor_moves_over_what_has_no_body(
    plain: Any, queue: Queue, monkeypatch: pytest.MonkeyPatch
):
    """A hand-over ends after some pages, and dead sub-requests that a step skips add nothing."""
    start(plain, TWO_STEPS)
    cursors = ["5", "9"]

    async def skipping(name: str) -> Any:
        if not cursors:
            return SimpleNamespace(bodies=0, is_over=True)
        await Command(b"HSET", keys.request_hash(name), b"handed", cursors.pop(0))
        return SimpleNamespace(bodies=0, is_over=False)

    monkeypatch.setattr(request_checks, "hand_over", skipping)
    queue.driver.run(request_checks._feed("req", SECOND))
    assert cursors == []
    monkeypatch.setattr(request_checks, "hand_over", lambda name: stuck())
    with pytest.raises(FairlaneError, match="nothing could be handed over"):
        queue.driver.run(request_checks._feed("req", SECOND))


async def stuck() -> Any:
    await Command(b"EXISTS", keys.request_hash(SECOND))
    return SimpleNamespace(bodies=0, is_over=False)


def test_a_step_whose_source_is_gone_is_cancelled_by_doctor(
    plain: Any, queue: Queue, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(request_checks, "GRACE_MS", -HOUR)
    start(plain, TWO_STEPS)
    plain.client.delete(*keys.request_keys(FIRST))
    assert [one.what for one in unfed(plain)] == ["gets nothing: request r.1 is not there"]
    (found,) = unfed(plain, repair=True)
    assert found.is_fixed
    reason = "flow: request r.1 is gone before all of it was handed over"
    assert queue.request(SECOND).progress().reason == reason
    assert unfed(plain) == []


@pytest.mark.parametrize("is_late", [False, True])
def test_a_step_whose_flow_was_never_submitted_is_given_up_by_doctor_after_an_hour(
    plain: Any, queue: Queue, monkeypatch: pytest.MonkeyPatch, *, is_late: bool
):
    monkeypatch.setattr(request_checks, "_LONG_MS", -HOUR)
    begin_only(plain)
    if is_late:
        monkeypatch.setattr(settings, "UNFED_OPEN_MS", -HOUR)
    (found,) = unfed(plain, repair=True)
    assert found.is_fixed is is_late
    assert queue.request(SECOND).state() == ("cancelled" if is_late else "active")


def test_a_step_that_waits_for_the_one_that_joins_it_is_not_reported(
    plain: Any, monkeypatch: pytest.MonkeyPatch
):
    """It may be far ahead of that one, and is fed when that has caught up."""
    monkeypatch.setattr(request_checks, "GRACE_MS", -HOUR)
    flow = Flow("f").step("a", limit=2).children("b", "c").step("d")
    start(plain, flow)
    work(plain, *[""] * 4)
    assert [one.subject for one in unfed(plain)] == []


def test_what_doctor_cannot_feed_is_left_with_the_reason(
    plain: Any, monkeypatch: pytest.MonkeyPatch
):
    start(plain, TWO_STEPS)
    work(plain, *[""] * 4)
    monkeypatch.setattr(request_checks, "GRACE_MS", -HOUR)
    (found,) = unfed(plain)
    plain.client.hset(keys.request_hash(SECOND), "feed", "done r.1 x")
    plain.run(found.apply())
    assert (found.is_fixed, "is damaged" in found.remedy) == (False, True)
