"""Tests the API of flows: submit, find, follow and cancel a run; and bad input."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane import (
    Branch,
    Child,
    Flow,
    InvalidArgument,
    RequestExists,
    RequestNotFound,
    WaitTimeout,
)
from fairlane.operations.flow_hand_over import hand_over
from tests.support.both_faces import both_faces
from tests.support.run.for_each import for_each
from tests.support.scripts.requests import work_off

if TYPE_CHECKING:
    from fairlane.queue import Queue

ACCESS = Flow("access").step("check", limit=8).step("notify", priority=1)


def finish(queue: Queue, run: str, last: int = 2) -> None:
    """Works and hands over until the steps of this number have got everything."""
    work_off(queue.driver, queue.name)
    for number in range(2, last + 1):
        queue.driver.run(hand_over(f"{run}.{number}"))
        work_off(queue.driver, queue.name)


@both_faces
def test_a_run_is_followed_to_its_end(queue: Queue):
    run = queue.submit_flow(ACCESS, ["a", "b"], id="x")
    assert run.state() == "active"
    first, second = run.progress().steps
    assert (first.step, first.sources, first.progress.limit, first.progress.total) == (
        *("check", (), 8, 2),
    )
    assert (second.step, second.sources, second.progress.priority) == ("notify", ("check",), 1)
    with pytest.raises(WaitTimeout, match=r"x\.1"):
        run.wait(timeout=0)
    work_off(queue.driver)
    with pytest.raises(WaitTimeout, match=r"x\.2 had not ended after 0\.002 s; it goes on"):
        run.wait(timeout=0.002)  # the whole of it is named, not what the first step has left
    finish(queue, "x")
    assert run.wait(timeout=0) == "done"
    assert [result.index for result in run.results()] == [0, 1]
    assert run.step("notify").id == "x.2"


@both_faces
def test_a_flow_is_found_by_its_properties(queue: Queue):
    queue.submit_flow(ACCESS, ["a"], id="x", properties={"user_id": 5, "day": "monday"})
    queue.submit_flow(ACCESS, ["a"], id="y", properties={"user_id": 6})
    queue.submit_flow(Flow("other").step("one"), ["a"], id="z", properties={"user_id": 5})
    queue.submit_request(["a"], id="r.1", tags=["user_id:5"])

    def found(*args: Any, **properties: Any) -> set[str]:
        return {run.id for run in queue.flows.find(*args, **properties)}

    assert found(user_id=5) == {"x", "z"}
    assert found("access", user_id=5) == {"x"}
    assert found(user_id=5, day="monday") == {"x"}
    assert found() == {"x", "y", "z"}
    assert found(user_id=7) == set()
    assert len(queue.flows.find(most=2)) == 2
    with pytest.raises(InvalidArgument, match="most 0 is not valid"):
        queue.flows.find(most=0)
    work_off(queue.driver)
    assert found(user_id=5) == {"x", "z"}


def test_a_repeat_with_the_id_finds_the_run(queue: Queue):
    queue.submit_flow(ACCESS, ["a"], id="x")
    finish(queue, "x")
    assert queue.submit_flow(ACCESS, ["a"], id="x").state() == "done"
    with pytest.raises(RequestExists):
        queue.submit_flow(ACCESS, ["b"], id="x")
    with pytest.raises(RequestExists):
        queue.submit_flow(ACCESS.step("more"), ["a"], id="x")
    with pytest.raises(RequestNotFound):  # nothing of the other flow is left
        queue.request("x.3").progress()


@both_faces
def test_a_run_is_cancelled_as_a_whole(queue: Queue):
    run = queue.submit_flow(ACCESS, ["a"], id="x")
    run.cancel("enough")
    assert run.state() == "cancelled"
    assert {one.progress.reason for one in run.progress().steps} == {"enough"}


def test_nothing_is_left_of_a_flow_whose_bodies_fail(queue: Queue, redis_client: Any):
    def bodies() -> Any:
        yield "a"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        queue.submit_flow(ACCESS, bodies(), id="x")
    assert [run.id for run in queue.flows.find()] == []
    with pytest.raises(RequestNotFound):
        queue.flows.run("x").state()
    queue.submit_flow(ACCESS, ["a"], id="x")


def test_steps_have_queues_of_their_own(queue: Queue):
    flow = Flow("access").step("check").step("notify", queue="mail")
    run = queue.submit_flow(flow, ["a"])
    assert [one.progress.queue for one in run.progress().steps] == ["req", "mail"]


def test_a_flow_is_shown_by_its_steps():
    assert repr(ACCESS) == "<Flow access: check, notify>"
    assert repr(Flow("none")) == "<Flow none: no step>"


def test_an_unknown_run_is_not_found(queue: Queue):
    queue.submit_request(["a"], id="r.1")
    for name in ("nothing", "r"):
        with pytest.raises(RequestNotFound, match=f"there is no flow {name} "):
            queue.flows.run(name).progress()


def test_an_unknown_step_of_a_run_is_refused(queue: Queue):
    run = queue.submit_flow(ACCESS, ["a"], id="x")
    with pytest.raises(InvalidArgument, match="flow x has no step end: its steps are check, not"):
        run.step("end")


def flow() -> Flow:
    return Flow("f")


@for_each(
    "make, sentence",
    [
        (lambda: Flow("a b"), "flow 'a b' is not valid"),
        (lambda: Flow("a" * 101), r"flow 'a{60}'... \(101 characters\) .* 1 to 100 letters"),
        (lambda: flow().step(""), "step '' is not valid: use 1 to 100 letters"),
        (lambda: flow().step("a").step("a"), "step a of flow f is there already"),
        (lambda: flow().step("stop"), "a name with a meaning in on_dead"),
        (lambda: flow().step("a", limit=0), "step a of flow f: limit 0 is not valid"),
        (lambda: flow().step("a", priority=100), "step a of flow f: priority 100 is not valid"),
        (lambda: flow().step("a", queue="a b"), "step a of flow f: queue 'a b' is not valid"),
        (lambda: flow().step("a", after=["r1"]), "has the option after, which no step has"),  # type: ignore[call-arg]
        (lambda: flow().step("a", durable=1), "has the option durable, which no step has"),  # type: ignore[call-arg]
        (lambda: flow().step("a", distinct=True), "has the option distinct, which no step has"),  # type: ignore[call-arg]
        (lambda: flow().step("a").step("b").step("a"), "a flow has no cycle"),
        (lambda: flow().children("a"), "child a of flow f has no parent: add a step before it"),
        (lambda: flow().step("a").children(), "children of flow f are none: name at least one"),
        (lambda: flow().step("a").children("a"), "step a of flow f is there already"),
        (lambda: flow().step("a").children("b", "b"), "step b of flow f is there already"),
        (lambda: flow().step("a").children("b").children("c"), "child c of flow f follows child"),
        (lambda: flow().step("a").children(5), "child is an int: give its name"),  # type: ignore[arg-type]
        (lambda: flow().step("a").children("b", limit=0), "step b of flow f: limit 0 is not"),
        (lambda: flow().step("a").children(Child("b", after=["r"])), "step b .* option after"),  # type: ignore[call-arg]
        (lambda: flow().step("a").children(*"bcdefghijklmnopqrstuv"), "are 21: the most are 20"),
        (lambda: flow().step("a").step("b", gathers=101), "gathers 101 is not valid"),
        (lambda: flow().step("a", gathers=2), "gathers 2 results, and follows no single step"),
        (lambda: flow().step("a").children("b").step("c", gathers=2), "follows no single step"),
        (lambda: flow().branches("a"), "branch a of flow f has no step before it: add a step"),
        (lambda: flow().step("a").branches(), "branches of flow f are none: name at least one"),
        (lambda: flow().step("a").branches("b", "b"), "step b of flow f is there already"),
        (lambda: flow().step("a").branches("a"), "step a of flow f is there already"),
        (lambda: flow().step("a").branches("b", "c").branches("d"), "d of flow f follows branches"),
        (lambda: flow().step("a").branches("b", "c").children("d"), "follows branches: add a step"),
        (lambda: flow().step("a").children("b").branches("d"), "branch d of flow f follows child"),
        (lambda: flow().step("a").branches(5), "branch is an int: give its name, or Branch"),  # type: ignore[arg-type]
        (lambda: flow().step("a").branches("b", limit=0), "step b of flow f: limit 0 is not"),
        (lambda: flow().step("a").branches(*"bcdefghijklmnopqrstuv"), "are 21: the most are 20"),
        (lambda: flow().step("a").branches("check", default="chek"), "did you mean check"),
        (
            lambda: flow().step("a").branches("b", default="x"),
            "is none of its branches b: nam",
        ),
        (lambda: flow().step("a").branches("b", "c").step("d", gathers=2), "no single step"),
        (
            lambda: flow().step("a").branches(Branch("b").children("x"), "c").step("d"),
            "step d of flow f merges branches, and one ends with child x: add a step to that",
        ),
        (lambda: flow().step("a").branches(Branch("b").step("a")), "step a of flow f is there al"),
        (lambda: flow().step("a").children("b", chosen=101), "children of flow f: chosen 101 is"),
        (lambda: flow().step("a").children("b", chosen=-1), "children of flow f: chosen -1 is"),
        (lambda: flow().step("a").children("b", chosen=10_001), "chosen 10001 is not valid"),
    ],
)
def test_a_step_that_is_not_valid_is_refused(make: Any, sentence: str):
    with pytest.raises(InvalidArgument, match=sentence):
        make()


def test_a_wrong_option_of_a_step_is_a_type_error():
    with pytest.raises(TypeError, match="did you mean priority"):
        flow().step("a", priorty=1)  # type: ignore[call-arg]


def test_a_flow_has_at_most_fifty_steps():
    made = flow()
    for number in range(50):
        made = made.step(f"s{number}")
    with pytest.raises(InvalidArgument, match="the most are 50 steps"):
        made.step("more")


@for_each(
    "made, given, sentence",
    [
        (flow(), {}, "flow f has no step"),
        ("f", {}, "flow is a str: a Flow is expected"),
        (flow().step("a", queue="other"), {}, "flow f begins in queue other: submit it to that"),
        (flow().step("a", on_dead="undo"), {}, "on_dead 'undo', which is no compensating step: a"),
        (flow().step("a", on_dead="stopp"), {}, "did you mean stop"),
        (flow().step("a").compensate("undo"), {}, "step undo of flow f compensates no step"),
        (
            flow().step("a", on_dead="u").step("b", on_dead="u").compensate("u"),
            *({}, "step u of flow f compensates two steps"),
        ),
        (flow().compensate("u"), {}, "flow f has no step"),
        (flow().step("a").step("b", on_dead="stop"), {}, "on_dead 'stop', and no step follows"),
        (
            flow().step("a").children("b", "c", on_dead="stop"),
            *({}, "step b of flow f has on_dead 'stop', and no step follows"),
        ),
        (
            flow().step("a", retain=60).step("b"),
            *(
                {},
                "step a of flow f has retain 60 s, and another step reads its results: give",
            ),
        ),
        (
            flow().step("a").children("b", on_dead="undo"),
            *({}, "step b of flow f has on_dead 'undo', which is no compensating step"),
        ),
        (
            flow().step("a").children("b", "c", chosen=5),
            *(
                {},
                "step b of flow f is a child that results of step a choose, and no step",
            ),
        ),
        (
            flow().step("a").branches("b", on_dead="stop"),
            *({}, "step b of flow f has on_dead 'stop', and no step follows"),
        ),
        (
            flow().step("a", retain=60).branches("b"),
            *({}, "step a of flow f has retain 60 s, and another step reads its results: give"),
        ),
        (ACCESS, {"id": "a b"}, "flow id 'a b' is not valid"),
        (ACCESS, {"properties": {"user": "a b"}}, "property 'user:a b' is not valid"),
        (ACCESS, {"properties": "user"}, "a dict is expected"),
        (ACCESS, {"properties": {f"p{i}": i for i in range(19)}}, "the most is 18"),
    ],
)
def test_a_flow_that_is_not_valid_is_refused_and_nothing_is_written(
    queue: Queue, redis_client: Any, made: Any, given: Any, sentence: str
):
    with pytest.raises(InvalidArgument, match=sentence):
        queue.submit_flow(made, ["a"], **given)
    assert redis_client.dbsize() == 0


def test_branches_have_defaults_and_their_own_options(queue: Queue):
    audit = Branch("audit", limit=2, queue="own").step("file", limit=5)
    made = flow().step("a").branches("b", audit, limit=7, queue="all").step("d")
    found = queue.submit_flow(made, ["x"]).progress().steps
    assert [(one.step, one.sources, one.progress.queue, one.progress.limit) for one in found] == [
        *(("a", (), "req", 3), ("b", ("a",), "all", 7), ("audit", ("a",), "own", 2)),
        *(("file", ("audit",), "req", 5), ("d", ("b", "file"), "req", 3)),
    ]
    assert repr(audit) == "<Branch audit>"


def test_a_branch_is_a_value():
    """Each method returns another branch, so a branch may be used in several flows."""
    short = Branch("b")
    longer = short.step("c")
    assert [one.name for one in flow().step("a").branches(short).steps] == ["a", "b"]
    assert [one.name for one in flow().step("a").branches(longer).steps] == ["a", "b", "c"]


def test_children_have_defaults_and_their_own_options(queue: Queue):
    made = flow().step("a").children("b", Child("c", limit=2, queue="own"), limit=7, queue="all")
    found = queue.submit_flow(made.step("d"), ["x"]).progress().steps
    assert [(one.step, one.sources, one.progress.queue, one.progress.limit) for one in found] == [
        *(("a", (), "req", 3), ("b", ("a",), "all", 7), ("c", ("a",), "own", 2)),
        ("d", ("b", "c"), "req", 3),
    ]


def test_results_are_those_of_the_last_step_and_children_have_their_own(queue: Queue):
    run = queue.submit_flow(flow().step("a").children("b", "c"), ["x"], id="x")
    with pytest.raises(InvalidArgument, match=r"flow x ends with the steps b, c: read the resu"):
        list(run.results())
    finish(queue, "x", 3)
    assert [one.index for one in run.step("c").results()] == [0]
