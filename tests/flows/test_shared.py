"""Tests the state that the steps of a run share, by the blocking and the asyncio API."""

from __future__ import annotations

import threading
from signal import Signals
from typing import TYPE_CHECKING, Any

import pytest

from fairlane import Change, Flow, InvalidArgument, RequestNotFound
from fairlane.worker.handlers import Context
from tests.support.both_faces import both_faces
from tests.support.scripts.requests import work_off

if TYPE_CHECKING:
    from fairlane.flows import SharedState
    from fairlane.queue import Queue

ACCESS = Flow("access").step("check").step("notify")


@pytest.fixture
def shared(queue: Queue) -> SharedState:
    return queue.submit_flow(ACCESS, ["a"], id="x").shared


@pytest.mark.parametrize("value", [True, 5, -1.5, "é\x00", [1, [None]], {"b": {"a": 1}}])
def test_a_value_comes_back_as_it_was_set(shared: SharedState, value: Any):
    shared["key"] = value
    assert shared["key"] == value
    assert "key" in shared
    assert shared.all() == {"key": value}
    del shared["key"]
    assert "key" not in shared
    assert shared.get("key", "none") == "none"
    with pytest.raises(KeyError):
        shared["key"]


@both_faces
def test_a_value_is_swapped_if_it_is_the_expected_one(shared: SharedState):
    assert shared.swap("user", None, {"b": 1, "a": 2})
    assert not shared.swap("user", None, 5)
    assert shared.swap("user", {"a": 2, "b": 1}, 5)
    assert (shared.get("user"), shared.get("nothing", 1)) == (5, 1)


@both_faces
def test_values_are_set_added_to_and_deleted(shared: SharedState):
    shared.set("user", {"id": 5})
    assert [shared.incr("n"), shared.incr("n", 3)] == [1, 4]
    assert shared.all() == {"user": {"id": 5}, "n": 4}
    shared.delete("user")
    assert shared.all() == {"n": 4}


def test_threads_add_to_one_number(shared: SharedState):
    threads = [
        threading.Thread(target=lambda: [shared.incr("n") for _ in range(25)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert shared.incr("n", -100) == 0


def test_it_goes_with_a_flow_of_one_step(queue: Queue, redis_client: Any):
    run = queue.submit_flow(Flow("one").step("check"), ["a"], id="x")
    run.shared["key"] = 1
    work_off(queue.driver, queue.name)
    assert run.shared["key"] == 1
    of_run = [key for key in redis_client.scan_iter() if b"{x." in key]
    assert {redis_client.pttl(key) // 86_400_000 for key in of_run} == {0}  # a day is kept


@pytest.mark.parametrize("flow", [Flow("one").step("check", retain=0), ACCESS])
def test_it_is_freed_when_the_first_step_is_deleted(queue: Queue, redis_client: Any, flow: Flow):
    run = queue.submit_flow(flow, ["a"], id="x")
    run.shared["key"] = "of the flow"
    work_off(queue.driver, queue.name)
    queue.change(queue.select(Change.delete(), ["x.1"]))
    assert run.shared.all() == {}
    assert b"of the flow" not in b"".join(
        redis_client.dump(key) for key in redis_client.scan_iter(match=b"*{x.1}*")
    )


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda shared: shared.set("", 1), "name '' of a shared value is not valid"),
        (lambda shared: shared.set("a\n", 1), "of a shared value is not valid"),
        (lambda shared: shared.set("a" * 129, 1), "of a shared value is not valid"),
        (lambda shared: shared.get(5), "name '5' of a shared value is not valid"),
        (lambda shared: shared.set("a", None), "value of 'a' is None: delete it instead"),
        (lambda shared: shared.set("a", b"x"), "value of 'a' is a bytes, which JSON has not"),
        (lambda shared: shared.set("a", {1: 2, "a": 3}), "value of 'a' has a dict .*: keys are te"),
        (lambda shared: shared.set("a", {(1, 2): 3}), "keys are text"),
        (lambda shared: shared.set("a", {1: 2}), "value of 'a' has a dict .*: keys are text"),
        (lambda shared: shared.set("a", [{"b": {True: 1}}]), "keys are text"),
        (lambda shared: shared.set("a", (1, 2)), "value of 'a' has a tuple, which would come back"),
        (
            lambda shared: shared.set("a", {"b": [Signals.SIGINT]}),
            "has a Signals, which would come",
        ),
        (lambda shared: shared.swap("a", None, [(1,)]), "value of 'a' has a tuple"),
        (lambda shared: shared.set("a", ["\ud800"]), "value of 'a' has half of a surrogate pair"),
        (lambda shared: shared.swap("a", "\ud800", 1), "value of 'a' has half of a surrogate"),
        (lambda shared: shared.set("\ud800", 1), r"name '\\ud800' of a shared value is not valid"),
        (lambda shared: shared.get("\ud800"), "of a shared value is not valid"),
        (lambda shared: shared.set("a", float("nan")), "which JSON has not"),
        (lambda shared: shared.set("a", "x" * 65_536), "has 65,538 bytes: the most is 65,536"),
        (lambda shared: shared.incr("a", 1.5), "addition of 1.5 is not valid"),
        (lambda shared: shared.incr("text"), "value of 'text' is \"b\": only a whole number"),
    ],
)
def test_what_is_not_valid_is_refused(shared: SharedState, make: Any, sentence: str):
    shared["text"] = "b"
    with pytest.raises(InvalidArgument, match=sentence):
        make(shared)
    assert shared.all() == {"text": "b"}


def test_it_is_bounded(shared: SharedState):
    for number in range(3):
        shared[f"n{number}"] = "x" * 65_000
    shared["n3"] = "x" * 65_000
    with pytest.raises(InvalidArgument, match="shared state of flow x is full: at most 1,000"):
        shared["n4"] = "x" * 65_000


def test_a_run_that_is_not_there_shares_nothing(queue: Queue):
    queue.submit_request(["a"], id="plain.1")
    for name in ("nothing", "plain"):
        shared = queue.flows.run(name).shared
        assert shared.all() == {}
        with pytest.raises(RequestNotFound, match=f"there is no flow {name}, whose steps could"):
            shared["a"] = 1


def test_a_call_outside_of_a_worker_shares_nothing():
    with pytest.raises(InvalidArgument, match="a call outside of a worker is no step of a flow"):
        Context.local().flow.shared.get("a")
