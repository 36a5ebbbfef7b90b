"""Tests flows on workers: each result is handed over once, also if workers are killed."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from fairlane.operations.flows import Flow, flow_progress, flow_state, submit_flow
from fairlane.protocol import keys
from fairlane.protocol.steps import Command
from tests.support.processes.workers import check_settled_once
from tests.support.scripts.requests import numbered, once
from tests.support.wait import PATIENCE_S, wait_until
from tests.worker.parts import ON_SINGLE

if TYPE_CHECKING:
    from fairlane.queue import Queue
    from tests.support.processes.workers import Workers

THREE_STEPS = Flow("access").step("one", limit=4).step("two", limit=4).step("three", limit=4)


def start(queue: Queue, flow: Flow, count: int) -> None:
    queue.driver.run(submit_flow(flow.plan("req", "f", {})), iter([numbered(count)]))


def test_results_go_on_to_the_next_step_while_the_first_one_runs(queue: Queue, workers: Workers):
    start(queue, Flow("f").step("one").step("two", priority=0), 3)
    queue.request("f.1").set_limit(1)
    workers.start("echo")
    wait_until(lambda: queue.driver.run(flow_state("f")) == "done")
    steps = queue.driver.run(flow_progress("f")).steps
    assert [one.progress.done for one in steps] == [3, 3]
    assert sorted(one.body or b"" for one in queue.request("f.2").results()) == numbered(3)


@pytest.mark.rest
@ON_SINGLE
@pytest.mark.slow
def test_a_flow_of_three_steps_is_whole_though_workers_are_killed(queue: Queue, workers: Workers):
    start(queue, THREE_STEPS, 1_000)
    for least in (50, 500, 1_500):
        worker = workers.start("echo_noted")
        wait_settled(queue, least)
        worker.send(signal.SIGKILL)
        worker.process.wait()
    workers.start("echo_noted")
    wait_until(lambda: queue.driver.run(flow_state("f")) == "done", 2 * PATIENCE_S)
    for one in queue.driver.run(flow_progress("f")).steps:
        assert (one.progress.total, one.progress.done) == (1_000, 1_000)
        check_settled_once(queue.request(one.progress.id))
    found = sorted(one.body or b"" for one in queue.request("f.3").results())
    assert found == sorted(numbered(1_000))


def wait_settled(queue: Queue, least: int) -> None:
    wait_until(lambda: settled(queue) >= least)


def settled(queue: Queue) -> int:
    return sum(one.progress.done for one in queue.driver.run(flow_progress("f")).steps)


WITH_CHILDREN = Flow("f").step("one", limit=4).children("a", "b", limit=4).step("end", limit=4)


def test_children_are_joined_while_workers_run(queue: Queue, workers: Workers):
    start(queue, WITH_CHILDREN, 3)
    workers.start("echo")
    wait_until(lambda: queue.driver.run(flow_state("f")) == "done")
    found = sorted(one.body or b"" for one in queue.request("f.4").results())
    assert found == [b'["%b","%b"]' % (body, body) for body in numbered(3)]


@pytest.mark.rest
@ON_SINGLE
@pytest.mark.slow
def test_each_result_is_joined_once_though_workers_are_killed(queue: Queue, workers: Workers):
    start(queue, WITH_CHILDREN, 1_000)
    for least in (100, 900, 2_000, 3_000):
        worker = workers.start("echo_noted")
        wait_settled(queue, least)
        worker.send(signal.SIGKILL)
        worker.process.wait()
    workers.start("echo_noted")
    wait_until(lambda: queue.driver.run(flow_state("f")) == "done", 2 * PATIENCE_S)
    for one in queue.driver.run(flow_progress("f")).steps:
        assert (one.progress.total, one.progress.done) == (1_000, 1_000)
        check_settled_once(queue.request(one.progress.id))
    found = sorted(one.body or b"" for one in queue.request("f.4").results())
    assert found == sorted(b'["%b","%b"]' % (body, body) for body in numbered(1_000))
    assert not queue.driver.run(once(Command(b"EXISTS", keys.of_flow("f.4"))))


@pytest.mark.rest
@ON_SINGLE
@pytest.mark.parametrize(
    ("handler", "expected"),
    [("share", {"f.one": 3, "f.a": 3, "f.b": 3, "f.end": 3}), ("share_async", {"calls": 12})],
)
def test_handlers_share_a_state(
    queue: Queue, workers: Workers, handler: str, expected: dict[str, int]
):
    start(queue, WITH_CHILDREN, 3)
    workers.start(handler)
    wait_until(lambda: queue.driver.run(flow_state("f")) == "done")
    assert queue.flows.run("f").shared.all() == expected


@ON_SINGLE
def test_a_request_that_is_no_step_shares_nothing(queue: Queue, workers: Workers):
    queue.submit_request(["a"], id="alone", attempts=1)
    queue.submit_request(["a"], id="alone.1", attempts=1)
    workers.run("share")
    for name in ("alone", "alone.1"):
        (dead,) = queue.request(name).dead()
        assert f"request {name} is no step of a flow" in dead.error


ROUTED = Flow("f").step("route").branches("even", "odd").step("end")
CHOSEN = Flow("f").step("fan").children("a", "b", chosen=3).step("end")


def totals(queue: Queue) -> list[int]:
    return [one.progress.total for one in queue.driver.run(flow_progress("f")).steps]


@pytest.mark.parametrize("handler", ["choose", "choose_async", "choose_batch"])
def test_results_choose_branches_and_children(queue: Queue, workers: Workers, handler: str):
    start(queue, ROUTED, 5)
    queue.driver.run(submit_flow(CHOSEN.plan("req", "g", {})), iter([numbered(4)]))
    workers.start(handler)
    wait_until(lambda: queue.driver.run(flow_state("f")) == "done")
    wait_until(lambda: queue.driver.run(flow_state("g")) == "done")
    assert totals(queue) == [5, 3, 2, 5]
    assert sorted(one.body or b"" for one in queue.request("f.4").results()) == numbered(5)
    found = sorted((one.body or b"" for one in queue.request("g.4").results()), key=len)
    wanted = [b"[]", b'["b1.0"]', b'["b2.0","b2.1"]', b'["b3.0","b3.1","b3.2"]']
    assert found == wanted


@pytest.mark.rest
@ON_SINGLE
@pytest.mark.slow
@pytest.mark.parametrize(
    ("flow", "wanted"), [(ROUTED, [1_000, 500, 500, 1_000]), (CHOSEN, [1_000, 1_000, 500, 1_000])]
)
def test_what_results_choose_is_there_once_though_workers_are_killed(
    queue: Queue, workers: Workers, flow: Flow, wanted: list[int]
):
    start(queue, flow, 1_000)
    for least in (100, 900, 1_500, 2_200):
        worker = workers.start("choose_noted")
        wait_settled(queue, least)
        worker.send(signal.SIGKILL)
        worker.process.wait()
    workers.start("choose_noted")
    wait_until(lambda: queue.driver.run(flow_state("f")) == "done", 2 * PATIENCE_S)
    assert totals(queue) == wanted
    for one in queue.driver.run(flow_progress("f")).steps:
        check_settled_once(queue.request(one.progress.id))


@ON_SINGLE
@pytest.mark.parametrize(
    ("flow", "body", "sentence"),
    [
        (
            ROUTED,
            "eve",
            (
                "step route of flow f returned Next('eve'), and its branches are even, odd: "
                "did you mean even?"
            ),
        ),
        (
            ROUTED,
            "x",
            (
                "step route of flow f returned Next('x'), and its branches are even, odd: "
                "name one of these"
            ),
        ),
        (
            ROUTED,
            "fan",
            (
                "step route of flow f returned Fan of 1 child, and has branches: "
                "return Next('even', body)"
            ),
        ),
        (ROUTED, "number", "Next has a body that is an int: bytes, str or None is expected"),
        (ROUTED, "large", "the body of Next has 1,048,577 bytes: the most is 1,048,576"),
        (
            THREE_STEPS,
            "two",
            (
                "step one of flow access returned Next('two'), and has no branches: "
                "declare them with branches(...)"
            ),
        ),
        (
            CHOSEN,
            "a",
            (
                "step fan of flow f returned Next('a'), and has children: "
                "return Fan([Next('a', body)])"
            ),
        ),
        (
            CHOSEN,
            "101",
            (
                "step fan of flow f returned Fan of more than 100 children, and the most "
                "are 3: choose fewer"
            ),
        ),
        (
            CHOSEN,
            "10001",
            (
                "step fan of flow f returned Fan of more than 100 children, and the most "
                "are 3: choose fewer"
            ),
        ),
        (
            CHOSEN,
            "alone",
            (
                "step fan of flow f returned Fan of 2 children with a body alone, and its "
                "children are a, b: write Next('a', body)"
            ),
        ),
        (
            CHOSEN,
            "other child",
            (
                "step fan of flow f returned Fan of 1 child with Next('other'), and "
                "its children are a, b: name one of these"
            ),
        ),
    ],
)
def test_a_choice_that_the_flow_does_not_declare_is_dead_with_one_sentence(
    queue: Queue, workers: Workers, flow: Flow, body: str, sentence: str
):
    steps = flow.plan("req", "f", {})
    queue.driver.run(submit_flow(steps), iter([[body.encode()]]))
    workers.start("choose_wrongly")
    wait_until(lambda: queue.driver.run(flow_state("f")) == "done")
    (dead,) = queue.request("f.1").dead()
    assert (dead.error, dead.attempt) == (sentence, 1)
    assert totals(queue)[1:] == [0] * (len(steps) - 1)


@ON_SINGLE
def test_a_choice_outside_of_a_flow_is_dead_with_one_sentence(queue: Queue, workers: Workers):
    queue.submit_request(["even", "fan"], id="alone")
    workers.run("choose_wrongly")
    end = "and request alone is no step of a flow: return bytes, str or None"
    assert {one.error for one in queue.request("alone").dead()} == {
        f"the handler returned Next('even'), {end}",
        f"the handler returned Fan of 1, {end}",
    }
