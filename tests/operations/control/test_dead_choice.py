"""Tests that dead sub-requests are chosen by task, error and time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from fairlane import Change
from fairlane.common.task_names import START
from fairlane.errors import InvalidArgument
from fairlane.model import DeadChoice
from fairlane.operations.dead_letters import list_dead, queue_dead
from tests.operations.find.test_failures import fail
from tests.support.run.for_each import for_each
from tests.support.scripts.requests import work_off

if TYPE_CHECKING:
    from fairlane.queue import Queue

HOUR = timedelta(hours=1)


def body(task: str, **arguments: Any) -> bytes:
    return msgspec.json.encode((1, task, arguments))


@pytest.fixture
def dead(queue: Queue) -> Queue:
    """A queue with dead calls of two tasks in `both`, of one in `mail`, and a line in `none`."""
    bodies = [body("send_mail", to="ann"), body("resize"), body("send_mail", to="bob")]
    queue.submit_request(bodies, id="both", limit=1, task={"send_mail": 2, "resize": 1})
    fail(queue, [("dead", f"ValueError: {one}") for one in ("full", "too large", "no such box")])
    queue.submit_request([body("send_mail", to="cid")], id="mail", task="send_mail")
    fail(queue, [("dead", "TimeoutError: Mail server")])
    queue.submit_request(["a line"], id="none")
    fail(queue, [("dead", "TimeoutError: line")])
    return queue


@for_each(
    "wanted, found",
    [
        ({}, {"both": 3, "mail": 1, "none": 1}),
        ({"task": "send_mail"}, {"both": 2, "mail": 1}),
        ({"task": ["resize", "never"]}, {"both": 1}),
        ({"error": "timeout"}, {"mail": 1, "none": 1}),
        ({"error": "MAIL", "task": "send_mail"}, {"mail": 1}),
        ({"since": "10m"}, {"both": 3, "mail": 1, "none": 1}),
        ({"until": HOUR}, {}),
        ({"since": HOUR, "until": "2999-01-01T00:00Z"}, {"both": 3, "mail": 1, "none": 1}),
        ({"task": "never_seen"}, {}),
        ({"task": [f"t{number}" for number in range(10_000)]}, {}),
    ],
)
def test_a_choice_is_the_same_in_every_list_and_count(dead: Queue, wanted: Any, found: Any):
    choice = DeadChoice.of(**wanted)
    assert {one.id: one.kept for one in dead.errors(**wanted).requests} == found
    assert sum(group.count for group in dead.errors(**wanted).groups) == sum(found.values())
    listed = dead.driver.run(queue_dead("req", choice))["requests"]
    assert {one["id"]: one["kept"] for one in listed} == found
    selected = dead.select(Change.requeue_dead(**wanted), everything=True)
    assert (set(selected.ids), selected.dead) == ({*found}, sum(found.values()))
    for name in ("both", "mail", "none"):
        groups = dead.request(name).errors(**wanted).groups
        assert sum(group.count for group in groups) == found.get(name, 0)


def test_what_was_requeued_is_gone_and_the_others_stay(dead: Queue):
    chosen = dead.select(Change.requeue_dead(task="send_mail"), everything=True)
    assert dead.change(chosen).dead == 3
    assert {one.id: one.kept for one in dead.errors().requests} == {"both": 1, "none": 1}
    assert len(work_off(dead.driver)) == 3
    dropped = dead.select(Change.drop_dead(error="too large"), everything=True)
    assert dead.change(dropped).dead == 1
    assert {one.id: one.kept for one in dead.errors().requests} == {"none": 1}


def test_a_request_requeues_and_drops_by_task(dead: Queue):
    both = dead.request("both")
    assert both.drop_dead(task="resize") == 1
    assert both.requeue_dead(task="send_mail", error="full") == 1
    assert [one.error for one in both.dead()] == ["ValueError: no such box"]
    assert work_off(dead.driver) == [body("send_mail", to="ann")]
    assert both.progress().tasks == {"send_mail": 2, "resize": 1}


def test_a_group_names_its_tasks_and_its_first_call(dead: Queue):
    dead.submit_request([body("resize"), body("send_mail")], id="same", limit=1)
    fail(dead, [("dead", "KeyError: x"), ("dead", "KeyError: x")])
    group = next(one for one in dead.errors().groups if one.headline == "KeyError: x")
    assert (group.tasks, group.call) == ({"resize": 1, "send_mail": 1}, "resize()")
    (line,) = dead.request("none").errors().groups
    assert (line.tasks, line.call) == ({}, None)


def test_the_page_of_a_list_has_the_beginnings_of_bodies(queue: Queue):
    queue.submit_request([b"x" * START, b"y" * (START + 1)], id="r1", limit=1)
    fail(queue, [("dead", "why")] * 2)
    one, other = queue.driver.run(list_dead("r1", b""))
    assert (one.start, one.is_whole) == (b"x" * START, True)
    assert (other.start, other.is_whole) == (b"y" * START, False)


@for_each(
    "wanted, sentence",
    [
        ({"task": "a\nb"}, "task name 'a.*' is not valid"),
        ({"error": ""}, "error '' is not valid: 1 to 500 characters"),
        ({"error": "x" * 501}, "error 'xx"),
        ({"since": "yesterday"}, "since .*'yesterday' is not valid"),
        ({"since": datetime(2026, 1, 1)}, "a time with a zone is expected"),  # noqa: DTZ001
        (
            {"since": datetime(2026, 1, 2, tzinfo=UTC), "until": datetime(2026, 1, 1, tzinfo=UTC)},
            "since is not before until",
        ),
        ({"indexes": [1], "task": "t"}, "indexes are given with another choice"),
        ({"fingerprint": "x"}, "fingerprint 'x' is not valid"),
    ],
)
def test_a_choice_that_is_none_is_refused_by_a_sentence(wanted: Any, sentence: str):
    with pytest.raises(InvalidArgument, match=sentence):
        DeadChoice.of(**wanted)


def test_an_unknown_filter_is_a_type_error():
    with pytest.raises(TypeError, match="option taks is not valid: did you mean task"):
        DeadChoice.of(taks="t")  # type: ignore[call-arg]
