"""Tests that one fact has one record: the same fields by HTTP, in a terminal and in Python."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from fairlane import Progress, Queue
from fairlane.records import Completion, RequestCounts, WhyWaiting, WorkerPage
from tests.support.processes.beats import beat
from tests.web.calls import listening, next_event, submit, take

if TYPE_CHECKING:
    from tests.cli.program import Program
    from tests.web.serving import Serving

FULL = [one.name for one in fields(Progress)]
ROW = [one.name for one in fields(RequestCounts)]


@pytest.mark.rest
def test_a_request_has_the_same_fields_everywhere(
    serving: Serving, program: Program, redis_url: str
):
    submit(serving, bodies=["a", "b"], id="r1", limit=2, tags=["x"])
    take(serving)
    with Queue.from_url(redis_url) as queue:
        library = json.loads(msgspec.json.encode(queue.request("r1").progress()))
    command = json.loads(program("status", "r1", "--json").out)
    http = serving.curl("/v1/requests/r1").json
    with listening(serving, "/v1/requests/r1/live") as reader:
        live = json.loads(next_event(reader)["data"])["request"]
    why = json.loads(program("why", "r1", "--json").out)["request"]
    assert [list(one) for one in (library, command, http, live, why)] == [FULL] * 5
    read_for_status = dict.fromkeys(["holders", "retries_waiting", "next_retry_ms", "long_calls"])
    assert {**command, **read_for_status} == library == http == live == why
    assert (http["limit"], http["held"], http["tags"], http["reason"]) == (2, 1, ["x"], None)


@pytest.mark.rest
def test_a_row_of_a_request_has_the_same_fields_everywhere(
    serving: Serving, program: Program, redis_url: str
):
    """Names and order of these fields are those of the request in full."""
    submit(serving, bodies=["a"], id="r1")
    with listening(serving, "/v1/live") as reader:
        live = json.loads(next_event(reader)["data"])["now"]["requests"]
    command = json.loads(program("status", "--json").out)["requests"]
    listed = json.loads(program("list", "--json").out)["requests"]
    http = serving.curl("/v1/requests").json["requests"]
    with Queue.from_url(redis_url) as queue:
        page = json.loads(msgspec.json.encode(queue.list_requests()))["requests"]
    rows: list[list[dict[str, Any]]] = [live, command, listed, http, page]
    assert [[list(one) for one in each] for each in rows] == [[ROW]] * 5
    assert command == listed == http == page
    assert FULL[: len(ROW)] == ROW


@pytest.mark.rest
def test_an_ending_has_the_same_fields_everywhere(
    serving: Serving, program: Program, redis_url: str
):
    submit(serving, bodies=[], id="r1")
    command = json.loads(program("completions", "--json").out)
    with listening(serving, "/v1/completions?since=0") as reader:
        http = json.loads(next_event(reader)["data"])
    with Queue.from_url(redis_url) as queue:
        (library,) = queue.completions("0", follow=False)
    assert [one.name for one in fields(Completion)] == ROW
    assert list(command) == list(http) == ROW
    assert command == http == json.loads(msgspec.json.encode(library))


def test_what_holds_up_a_request_has_the_same_fields_everywhere(
    serving: Serving, program: Program, redis_url: str
):
    submit(serving, bodies=["a"], id="r1", limit=2, delay="1h")
    command = json.loads(program("why", "r1", "--json").out)
    http = serving.curl("/v1/requests/r1/why").json
    with Queue.from_url(redis_url) as queue:
        library = json.loads(msgspec.json.encode(queue.request("r1").why()))
    assert list(command) == [one.name for one in fields(WhyWaiting)]
    for found in (command, http, library):
        found.pop("now_ms")
        found["causes"][0].pop("text")  # it says how long from now
    assert command == http == library


def test_workers_queues_and_demand_have_the_same_fields_everywhere(
    serving: Serving, program: Program, redis_url: str
):
    submit(serving, bodies=["a"], id="r1")
    with Queue.from_url(redis_url) as queue:
        beat(queue, "w:1")
        command = json.loads(program("workers", "--json").out)
        page = serving.curl("/v1/workers").json
        (http,) = page["workers"]
        library = json.loads(msgspec.json.encode(queue.workers()))
        demand = json.loads(msgspec.json.encode(queue.demand()))
    (own,) = library["workers"]
    for found in (command, http, own):
        found.pop("beat_age_ms")
    assert list(page) == [one.name for one in fields(WorkerPage)]
    assert command == http == own
    assert json.loads(program("demand", "--json").out) == serving.curl("/v1/demand").json == demand
    assert json.loads(program("queues", "--json").out) == serving.curl("/v1/queues").json


def test_failures_have_the_same_fields_everywhere(
    serving: Serving, program: Program, redis_url: str
):
    submit(serving, bodies=["a"], id="r1")
    (taken,) = take(serving)
    serving.call("POST", f"/v1/taken/{taken['receipt']}/dead", {"reason": "no such account"})
    with Queue.from_url(redis_url) as queue:
        library = json.loads(msgspec.json.encode(queue.errors()))
        of_request = json.loads(msgspec.json.encode(queue.request("r1").errors()))
    http = serving.curl("/v1/errors").json
    (group,) = http["groups"]
    command = json.loads(program("errors", "--json").out)
    assert http == library
    assert command == {"state": "dead", **group}
    found = serving.curl("/v1/requests/r1/errors").json
    (one,) = found["groups"]
    assert found["groups"] == of_request["groups"]
    assert json.loads(program("errors", "r1", "--json").out) == {"state": "dead", **one}
    assert json.loads(program("dead", "list", "r1", "--json").out) == one
