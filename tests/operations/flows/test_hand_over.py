"""A step is fed with what the one before it has finished, once, whatever is cut off or repeated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane.operations.control import change
from fairlane.operations.control.completion import parse_results
from fairlane.operations.flows.flow import Flow
from fairlane.operations.flows.hand_over import hand_over
from fairlane.operations.flows.runs import flow_progress, flow_state
from fairlane.operations.flows.submit import submit_flow
from fairlane.operations.maintenance import registry
from fairlane.protocol import keys
from tests.support.lost_replies import settle, slice_of_a_token, take
from tests.support.requests import numbered, once
from tests.support.stepping import cut_off
from tests.support.workers import broken

if TYPE_CHECKING:
    from fairlane.drivers.sync.driver import SyncDriver
    from fairlane.queue import Queue

TWO_STEPS = Flow("access").step("check", limit=2, attempts=1).step("notify", limit=2)
FIRST, SECOND, THIRD = "r.1", "r.2", "r.3"


class Plain:
    """The driver as scenarios want it: it also does single steps."""

    def __init__(self, driver: SyncDriver, client: Any) -> None:
        self.run, self.client = driver.run, client

    def do(self, step: Any) -> Any:
        return self.run(once(step))


@pytest.fixture
def plain(driver: SyncDriver, redis_client: Any) -> Any:
    return Plain(driver, redis_client)


def start(driver: Any, flow: Flow = TWO_STEPS, count: int = 4) -> None:
    steps = flow.plan("req", "r", {"user_id": 5})
    driver.run(submit_flow(steps), iter([numbered(count)]))


def work(driver: Any, *verdicts: str) -> None:
    """Settles one sub-request for each verdict: "" = it is done."""
    for verdict in verdicts:
        settle(driver, take(driver), verdict=verdict)


def work_off(driver: Any, request_id: str = "r") -> None:
    """Hands over and works until nothing waits."""
    for _ in range(20):
        while (held := slice_of_a_token(driver, 1000)) is not None:
            settle(driver, held)
        if driver.run(flow_state(request_id)) != "active":
            return
        for name in (SECOND, THIRD):
            driver.run(hand_over(name))
    raise AssertionError("it does not end")


def counts(driver: Any) -> list[tuple[str, str, int, int, int]]:
    return [
        (one.step, one.progress.state, one.progress.total, one.progress.done, one.progress.dead)
        for one in driver.run(flow_progress("r")).steps
    ]


def bodies_of(driver: Any, request_id: str) -> list[bytes]:
    stream = keys.request_keys(request_id)[0]
    return [fields[b"b"] for _, fields in driver.client.xrange(stream)]


def test_results_become_the_bodies_of_the_next_step_while_the_first_one_runs(plain: Any):
    start(plain)
    work(plain, "", "")
    assert plain.run(hand_over(SECOND)) == (2, False)
    assert counts(plain)[1] == ("notify", "active", 2, 0, 0)
    assert bodies_of(plain, SECOND) == [b"result", b"result"]


def test_the_next_step_is_sealed_after_the_last_result(plain: Any, queue: Queue):
    start(plain)
    work(plain, *[""] * 4)
    assert plain.run(hand_over(SECOND)) == (4, True)
    assert not queue.request(SECOND).progress().is_open
    work_off(plain)
    assert counts(plain) == [("check", "done", 4, 4, 0), ("notify", "done", 4, 4, 0)]


def test_what_is_handed_over_twice_is_there_once(plain: Any):
    start(plain)
    work(plain, "", "")
    assert plain.run(hand_over(SECOND)).bodies == 2
    assert plain.run(hand_over(SECOND)).bodies == 0
    assert counts(plain)[1][2] == 2


def test_two_leaders_hand_over_what_is_there_once(plain: Any):
    """The second one reads, then the first one does all of it, then the second one goes on."""
    start(plain)
    work(plain, *[""] * 4)
    late = hand_over(SECOND)
    step = next(late)
    for _ in range(3):  # the state of both, and the results
        step = late.send(plain.do(step))
    assert plain.run(hand_over(SECOND)).is_over
    assert plain.run(rest_of(late, step)) == (0, True)
    work_off(plain)
    assert counts(plain)[1] == ("notify", "done", 4, 4, 0)


def rest_of(operation: Any, step: Any) -> Any:
    """Runs an operation that has yielded this step."""
    while True:
        reply = yield step
        try:
            step = operation.send(reply)
        except StopIteration as end:
            return end.value


@pytest.mark.slow
def test_a_hand_over_cut_off_at_any_step_is_finished_by_the_next_one(plain: Any, queue: Queue):
    for steps in range(1, 30):
        plain.client.flushall()
        start(plain)
        work(plain, *[""] * 4)
        is_over = cut_off(queue.driver, hand_over(SECOND), steps)
        assert broken(queue, SECOND) == []
        lose_what_was_not_sent(plain)
        work_off(plain)
        assert counts(plain)[1] == ("notify", "done", 4, 4, 0)
        if is_over:
            return
    raise AssertionError("it does not end")


def lose_what_was_not_sent(driver: Any) -> None:
    """What maintenance does about tokens that were minted, and not inserted."""
    for one in (SECOND, THIRD):
        if driver.client.exists(keys.request_hash(one)):
            driver.run(change.pause(one)) if is_unfinished(driver, one) else None
            driver.run(change.resume(one)) if is_unfinished(driver, one) else None


def is_unfinished(driver: Any, request_id: str) -> bool:
    state = driver.client.hget(keys.request_hash(request_id), "state")
    return state not in {b"done", b"cancelled", None}


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
    """The same operation, with these chunks as its caller's."""
    waiting = iter(chunks)
    reply: Any = None
    while True:
        try:
            step = operation.send(reply)
        except StopIteration as end:
            return end.value
        reply = next(waiting, None) if type(step).__name__ == "NextChunk" else (yield step)


def test_a_dead_sub_request_is_left_out(plain: Any):
    start(plain)
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


def test_a_step_is_cancelled_if_the_one_before_it_was(plain: Any, queue: Queue):
    start(plain)
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
    start(plain, count=0)
    work_off(plain)
    assert counts(plain) == [("check", "done", 0, 0, 0), ("notify", "done", 0, 0, 0)]


def test_a_step_whose_producer_died_before_the_first_one_gets_nothing(plain: Any, queue: Queue):
    start(plain)
    plain.client.delete(*keys.request_keys(FIRST))
    before = plain.client.hgetall(keys.request_hash(SECOND))
    assert plain.run(hand_over(SECOND)) == (0, False)
    assert plain.client.hgetall(keys.request_hash(SECOND)) == before


def test_a_step_that_waits_is_not_given_up(plain: Any):
    start(plain)
    name = keys.request_hash(SECOND)
    plain.client.hset(name, "open_until", 5)
    plain.run(hand_over(SECOND))
    assert int(plain.client.hget(name, "open_until")) > 5


def test_a_request_that_is_no_step_is_fed_with_nothing(plain: Any, queue: Queue):
    queue.submit_request(["a"], id="r1")
    assert plain.run(hand_over("r1")) == (0, True)


def test_the_leader_finds_the_steps_that_are_fed(plain: Any):
    start(plain)
    plain.client.zadd(keys.active("req"), {FIRST: 1.5, SECOND: 1.5})
    found: list[str] = []
    plain.run(registry.look_after("req", fed=found))
    assert found == [SECOND]


def test_the_leader_looks_at_a_new_step_immediately(plain: Any):
    start(plain)
    now = int(plain.client.time()[0])
    assert plain.client.zscore(keys.active("req"), SECOND) <= 1000 * (now + 1)


def test_results_keep_what_was_handed_over(plain: Any):
    """The last step's results are those of its own handler, one for each sub-request."""
    start(plain)
    work_off(plain)
    entries = plain.client.xrange(keys.results(SECOND))
    found = [
        one
        for _, fields in entries
        for one in parse_results([part for pair in fields.items() for part in pair])
    ]
    assert len(found) == 4
