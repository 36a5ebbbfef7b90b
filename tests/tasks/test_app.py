"""Tests what an app registers and refuses, and the options of its tasks."""

from __future__ import annotations

from typing import Any

import pytest

from fairlane import App, ArgumentsRefused, Executor, InvalidArgument
from fairlane.tasks.app import merged_tasks
from fairlane.tasks.serve import TaskCalls
from fairlane.testing import eager, run_tasks
from fairlane.topics import AsyncTopic, Topic
from tests.support.run.for_each import for_each


def nothing() -> None: ...


def some(n: int) -> int:
    return n


@for_each(
    "options, submitted",
    [
        ({"priority": 0, "attempts": 3}, {"priority": 0, "attempts": 3}),
        ({"batch_limit": 10}, {"limit": 10}),
        ({"backoff": "1s..1m"}, {"backoff": (1.0, 60.0)}),
        ({"time_limit": 30}, {"time_limit": 30.0}),
        ({"deadline": "2h", "retain": "7d"}, {"deadline": 7200.0, "retain": 604800.0}),
        ({"lease": 1.5, "max_wait": "3s"}, {"lease": 1.5, "max_wait": 3.0}),
        ({"durable": 1}, {"durable": 1}),
    ],
)
def test_an_option_is_what_a_request_gets(options: dict[str, Any], submitted: dict[str, Any]):
    task = App("images").task(**options)(some)
    assert task._options == submitted
    assert App("images").task(some).with_options(**options)._options == submitted


def test_with_options_keeps_the_others_and_changes_no_task():
    task = App("images").task(priority=3, batch_limit=2)(some)
    other = task.with_options(batch_limit=9, id="monday")
    assert other._options == {"priority": 3, "limit": 9, "id": "monday"}
    assert task._options == {"priority": 3, "limit": 2}


@for_each(
    "options, reason",
    [
        ({"priority": 100}, "task some: priority 100 is not valid"),
        ({"backoff": "1m..1s"}, "'1m..1s' ends before it begins"),
        ({"backoff": -3}, "backoff -3 s is not valid: a time from 0s to 24h is expected"),
        ({"time_limit": "soon"}, "'soon' is not a duration"),
        ({"time_limit": True}, "time_limit True is not valid"),
        ({"retain": "367d"}, "retain 367d is not valid: a time from 0s to 366d"),
    ],
)
def test_a_bad_option_is_refused(options: dict[str, Any], reason: str):
    with pytest.raises(InvalidArgument) as refused:
        App("images").task(**options)(some)
    assert reason in str(refused.value)


@pytest.mark.parametrize("option", ["limt", "id"])
def test_an_unknown_option_is_refused_by_name(option: str):
    with pytest.raises(ArgumentsRefused, match=f"task some: option {option} is not valid: "):
        App("images").task(**{option: 3})(some)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"name": ""}, "queue '' is not valid"),
        ({"name": "a", "encoding": "yaml"}, "encoding 'yaml' is not valid: write json or msgpack"),
        ({"name": "a", "unknown_tasks": "x"}, "unknown_tasks 'x' is not valid: write wait or dead"),
    ],
    ids=["name", "encoding", "unknown_tasks"],
)
def test_a_bad_app_is_refused(options: dict[str, Any], reason: str):
    with pytest.raises(InvalidArgument) as refused:
        App(**options)
    assert reason in str(refused.value)


def yields():
    yield 1


@for_each(
    "function, name, reason",
    [
        (some, "some", "task some is registered already, in module tests.tasks.test_app"),
        (yields, None, "task yields is a generator function"),
        (len, None, "is a builtin_function_or_method: write a function"),
        (3, None, "task 3 is an int: write a function"),
        (nothing, "a\nb", "task name 'a\\nb' is not valid"),
    ],
)
def test_what_is_no_task_is_refused(function: Any, name: str | None, reason: str):
    app = App("images")
    app.task(some)
    with pytest.raises(InvalidArgument) as refused:
        app.task(name=name)(function)
    assert reason in str(refused.value)


def test_one_name_in_two_apps_of_one_queue_is_refused():
    one, two, mail = App("images"), App("images"), App("mail")
    one.task(some)
    two.task(nothing)
    assert sorted(merged_tasks([one, two])) == ["nothing", "some"]
    two.task(some)
    with pytest.raises(InvalidArgument, match="two apps of queue images have a task some"):
        merged_tasks([one, two])
    with pytest.raises(InvalidArgument, match="app mail has no task: register one"):
        TaskCalls([one, mail])
    mail.task(some)
    with pytest.raises(InvalidArgument, match="apps of 2 queues cannot share a handler"):
        TaskCalls([one, mail])


def test_a_hook_that_cannot_be_called_is_refused():
    app = App("images")
    with pytest.raises(InvalidArgument, match="on_startup is an int: a function is expected"):
        app.on_startup(3)  # type: ignore[type-var]
    with pytest.raises(InvalidArgument, match="middleware some is not valid: a generator function"):
        app.middleware(some)  # type: ignore[type-var]


def run_eagerly(app: Any) -> None:
    with eager(app):
        return


@for_each(
    "act, said",
    [
        (Executor, "executor of 'images' is not valid: pass an App"),
        (run_eagerly, "eager of 'images' is not valid: pass an App"),
        (run_tasks, "run_tasks of 'images' is not valid: pass an App"),
        (lambda name: Topic(name, "orders"), r"Topic.from_url\('orders'\) opens the topic orders"),
        (lambda name: AsyncTopic(name, "x"), "topic of 'images' is not valid"),
    ],
)
def test_a_name_in_the_place_of_an_app_or_a_connection_is_refused(act: Any, said: str):
    with pytest.raises(InvalidArgument, match=said):
        act("images")


def test_what_is_printed_of_an_app_counts_its_tasks():
    app = App("images")
    app.task(name="one")(lambda: 1)
    assert repr(app) == "<App images: 1 task>"
