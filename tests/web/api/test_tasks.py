"""Tests GET /v1/tasks: the tasks of the queue, bounded, and as every other view has them."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import TYPE_CHECKING

import msgspec

from fairlane import Queue
from fairlane.call_records import TaskPage
from tests.operations.observe.test_task_states import holding, measure, quick, slow_call
from tests.support.processes.beats import beat
from tests.web.calls import is_problem, listening, next_event, submit

if TYPE_CHECKING:
    from tests.cli.program import Program
    from tests.web.serving import Serving


def test_tasks_have_the_same_fields_everywhere(serving: Serving, program: Program, redis_url: str):
    submit(serving, bodies=["a"] * 9, id="monday", task="send_mail")
    with Queue.from_url(redis_url) as queue:
        measure(queue, "", send_mail=quick(100), resize=quick(4))
        beat(queue, "w:1", holding(slow_call("monday", 613)))
        library = json.loads(msgspec.json.encode(queue.tasks()))
    http = serving.curl("/v1/tasks").json
    command = json.loads(program("tasks", "--json").out)
    assert list(http) == [one.name for one in fields(TaskPage)] == list(command)[2:]
    for row in (*library["tasks"], *http["tasks"], *command["tasks"]):
        del row["per_s"]  # a moment later it is another one
    names = ("tasks", "more", "is_exact", "long_calls", "releases")
    assert [library[name] for name in names] == [http[name] for name in names]
    assert [command[name] for name in names] == [http[name] for name in names]
    with listening(serving, "/v1/live") as reader:
        live = json.loads(next_event(reader)["data"])["now"]
    assert (live["long_calls"], live["more_long_calls"]) == (http["long_calls"], 0)


def test_the_rows_are_bounded_by_the_caller(serving: Serving, redis_url: str):
    with Queue.from_url(redis_url) as queue:
        measure(queue, "", a=quick(3), b=quick(2), c=quick(1))
    found = serving.curl("/v1/tasks?limit=1").json
    assert ([one["task"] for one in found["tasks"]], found["more"]) == (["a"], 2)
    found = serving.curl("/v1/tasks?by=release").json
    assert [one["waiting"] for one in found["tasks"]] == [None] * 3
    for wrong in ("by=worker", "limit=0", "limit=1001", "other=1"):
        assert is_problem(serving.curl(f"/v1/tasks?{wrong}"), 422)


def test_failures_since_the_release_need_one(serving: Serving):
    answer = serving.curl("/v1/errors?since=release")
    assert is_problem(answer, 422)
    assert "queue req has no release" in answer.json["detail"]


def test_a_filter_that_is_empty_is_refused_and_not_left_out(serving: Serving):
    for name in ("since", "until", "error"):
        answer = serving.curl(f"/v1/errors?{name}=")
        assert is_problem(answer, 422)
        assert f"{name} '' is not valid" in answer.json["detail"]


def test_a_choice_that_is_wrong_names_the_choices(serving: Serving):
    detail = serving.curl("/v1/tasks?by=relase").json["detail"]
    assert detail == "by 'relase' is not known: the values are task and release"
