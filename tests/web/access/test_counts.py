"""Tests the scope counts: no answer of any call has a body, a result, or the text of an error."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from fairlane import Flow, Queue
from fairlane.common import task_names
from fairlane.operations.call_words import HIDDEN
from fairlane.records import Cause
from fairlane.web.app import DESCRIBED
from fairlane.web.counts import COUNTS, KNOWN, kind_of, without_data
from fairlane.web.live import FindingRow
from tests.cli.program import Dead, Failed, settle
from tests.support.processes.answers import answering, call_of
from tests.support.run.for_each import for_each
from tests.web.serving import Serving
from tests.web.walk import Caller, walk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cli.program import Program

SECRET = "hunter2-of-ann"
TRACEBACK = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\n'
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def call(**arguments: Any) -> str:
    return json.dumps([1, "login", arguments])


def plant(queue: Queue, redis_url: str, submitter: Caller) -> None:
    """Puts the secret wherever a program can put data."""
    tried = {"bodies": [call(password=SECRET)], "id": "retried", "backoff": "1h", "task": "login"}
    assert submitter("POST", "/v1/requests", tried).status == 201
    queue.submit_request([call(password=SECRET)] * 2, id="failed", attempts=1, task="login")

    def answer(_: int, body: bytes) -> bytes:
        del body
        raise Failed(f"ValueError: {SECRET}")

    settle(redis_url, answer)
    queue.submit_request([call(password=SECRET)], id="rejected")

    def reject(_: int, body: bytes) -> bytes:
        del body
        raise Dead(f"{SECRET} is wrong")

    settle(redis_url, reject)
    queue.submit_request([b"x"], id="taken-and-dead")
    queue.take(1)[0].dead(f"no {SECRET}")
    queue.submit_request([call(password=SECRET)], id="ended-2")
    queue.take(1)[0].done(SECRET)
    queue.submit_request([call(password=SECRET)], id="cancelled", task="login", delay="1h").cancel(
        SECRET
    )
    queue.submit_flow(Flow("steps").step("one").step("two"), [SECRET], id="run")
    queue.schedules.add("nightly", cron="0 3 * * *", bodies=[SECRET])
    queue.set_key("acme", 2)
    traced = {"bodies": [call(password=SECRET)], "id": "waiting", "delay": "1h", "task": "login"}
    trace = {"traceparent": TRACE, "tracestate": f"vendor={SECRET}"}
    assert submitter("POST", "/v1/requests", traced, **trace).status == 201
    queue.submit_request([], id="ended-3")


UNFINISHED = ("retried", "waiting")  # their results have no end
NAMES = ("retried", "failed", "rejected", "taken-and-dead", "ended-2", "cancelled", "waiting")
OBJECTS = {
    "requests": NAMES,
    "flows": ("run",),
    "keys": ("acme",),
    "workers": ("w:1",),
    "schedules": ("nightly",),
}


@pytest.fixture
def callers(program: Program) -> Iterator[dict[str, Caller]]:
    scopes = ("counts", "view", "submit")
    texts = {name: program("token", "create", name, "--scope", name).id for name in scopes}
    with Serving(program) as serving:
        yield {name: Caller(serving, text, "ended-3") for name, text in texts.items()}


def test_no_answer_to_a_token_with_the_scope_counts_has_data(
    callers: dict[str, Caller], redis_url: str
):
    def stacks(order: Any) -> dict[str, Any]:
        shown = f'login(password="{SECRET}")'
        return {"calls": [call_of(order.request_id or "waiting", call=shown)], "more": 0}

    with Queue.from_url(redis_url) as queue:
        plant(queue, redis_url, callers["submit"])
        with answering(queue, "w:1", stacks):
            seen = list(walk(callers["counts"], ("counts",), OBJECTS, UNFINISHED))
            full = list(walk(callers["view"], ("view",), OBJECTS, UNFINISHED))
    assert [way for way, answered in seen if SECRET in answered.text] == []
    assert {way for way, _ in seen} == {way for way, _ in full}  # the dashboard works with it
    assert {way for way, answered in full if SECRET in answered.text} >= {
        "get /v1/requests",
        "get /v1/requests/{id}",
        "get /v1/requests/{id}/why",
        "get /v1/requests/{id}/live",
        "get /v1/requests/{id}/errors",
        "get /v1/requests/{id}/dead",
        "get /v1/requests/{id}/results",
        "get /v1/errors",
        "post /v1/workers/{worker}/stacks",
    }
    texts = {way: answered.text for way, answered in seen}
    assert '"ValueError"' in "".join(answered.text for way, answered in seen if "errors" in way)
    assert "fairlane_queue" in texts["get /metrics"]
    with Queue.from_url(redis_url) as queue:
        for name in ("retried", "waiting"):
            queue.request(name).cancel()
        queue.flows.run("run").cancel()


def test_counts_cannot_be_filtered_by_what_they_hide(callers: dict[str, Caller]):
    for query in ("error=a", "fingerprint=0123456789"):
        refused = callers["counts"]("GET", f"/v1/errors?{query}")
        assert (refused.status, "needs a token with the scope view" in refused.text) == (403, True)
        assert callers["view"]("GET", f"/v1/errors?{query}").status == 200
    refused = callers["counts"]("POST", "/v1/requests", {"bodies": ["a"]})
    assert refused.status == 403
    assert "this call needs a token with the scope submit" in refused.text
    assert callers["counts"]("GET", "/v1/errors?task=login").status == 200


def test_causes_and_findings_lose_the_text_of_an_error():
    """A cause names an error that workers gave back or that an attempt had."""
    for kind, name in (("task", "reason"), ("retry", "error")):
        cause = Cause(
            kind, f"waits, after ValueError: {SECRET}", None, {name: f"ValueError: {SECRET}"}
        )
        found = without_data(cause)
        assert (found.text, found.figures) == ("waits, after ValueError", {name: "ValueError"})
    remedy = f"fairlane errors; when its cause is removed, fairlane dead requeue --yes {SECRET}"
    for check in ("given back", "failures", "deaths", "retries", "webhooks"):
        for what, shown in (
            (f"failed: {SECRET}", "failed: an error"),
            (f"died 28 s ago: OSError: {SECRET} (a.py:1 in f)", "died 28 s ago: OSError"),
            ("died 28 s ago: KeyError (a.py:1 in f), task login", "died 28 s ago: KeyError"),
            ("died 28 s ago: KeyError, task login", "died 28 s ago: KeyError"),
            (SECRET, HIDDEN),
        ):
            finding = without_data(FindingRow(check, "warn", what, remedy, "r1", ""))
            assert (finding.what, finding.remedy) == (shown, "fairlane errors")
    other = FindingRow("workers", "bad", "no worker beats", "start one", "", "")
    assert without_data(other) == other


def test_each_type_that_a_call_with_counts_answers_is_known():
    given = {end.gives.__name__ for end in DESCRIBED if COUNTS in end.scopes}
    assert given - KNOWN == {"Live", "str"}  # it is sent as RawLive; the text of the metrics
    with pytest.raises(TypeError, match="is no answer for the scope counts"):
        without_data(task_names)


@for_each(
    "error, kind",
    [
        (TRACEBACK + "my.BadError: x", "my.BadError"),
        ("ValueError: x", "ValueError"),
        ("hunter2", "an error"),
        ("hunter2: x", "an error"),
        (TRACEBACK + "hunter2", "an error"),
        ("", "an error"),
    ],
)
def test_the_kind_of_an_error_is_the_class_of_its_exception(error: str, kind: str):
    assert kind_of(error) == kind
