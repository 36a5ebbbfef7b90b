"""Tests stacks and kill over HTTP, with a worker that only answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane.queue import Queue
from tests.support.processes.answers import answering, call_of
from tests.web.calls import is_problem, submit
from tests.web.serving import Serving

if TYPE_CHECKING:
    from tests.cli.program import Program


async def _popped(step: Any) -> Any:
    return await step


def hold(queue: Queue, worker: str) -> None:
    """Takes a lease for a worker."""
    from fairlane.operations.lease import acquire
    from fairlane.operations.tokens import parse, pop

    token = parse(queue.driver.run(_popped(pop(queue.name, 10))).tokens[0])
    assert token is not None
    queue.driver.run(acquire(token, worker, "7", 1))


def answer(order: Any) -> dict[str, Any]:
    """Answers as a worker that runs sub-request 7 beside another call."""
    if order.kind == "kill":
        return {"ran_ms": 91_000, "others": 1, "ended_process": True}
    return {"calls": [call_of(order.request_id or "mine", beside=1)], "more": 0}


def test_stacks_are_shown_and_a_call_is_ended(serving: Serving, redis_url: str):
    """The trail names the index, the verdict and the worker of what was ended."""
    name = submit(serving, bodies=[f"{i}" for i in range(9)])
    path = f"/v1/requests/{name}"
    with Queue.from_url(redis_url) as queue:
        hold(queue, "w:1")
        with answering(queue, "w:1", answer):
            (worker,) = serving.call("POST", f"{path}/stacks", {}).json["workers"]
            assert (worker["worker"], worker["calls"][0]["index"]) == ("w:1", 7)
            assert worker["calls"][0]["lines"] == ['  File "/app/mine.py", line 7 in resize']
            found = serving.call("POST", "/v1/workers/w:1/stacks", {}).json
            assert found["calls"][0]["task"] == "resize"
            assert is_problem(serving.call("POST", f"{path}/kill", {"index": 7}), 409, "1 other")
            killed = serving.call("POST", f"{path}/kill", {"index": 7, "others": True}).json
            assert (killed["verdict"], killed["ran_ms"]) == ("charge", 91_000)
            assert is_problem(serving.call("POST", f"{path}/kill", {"index": 3}), 404, "no worker")
    rows = serving.curl("/v1/audit").json["entries"]
    assert any(
        row["given"] == "index=7 verdict=charge worker=w:1" and row["object"] == name
        for row in rows
    )


def test_bad_input_is_refused_in_one_sentence(serving: Serving):
    name = submit(serving, bodies=["a"])
    path = f"/v1/requests/{name}/kill"
    for given, text in [
        ({}, "index is missing"),
        ({"index": -1}, "index"),
        ({"index": 0, "verdict": "now"}, "verdict"),
        ({"index": 0, "how": "x"}, "how"),
    ]:
        assert is_problem(serving.call("POST", path, given), 422, text)
    assert is_problem(serving.call("POST", "/v1/requests/none/stacks", {}), 404, "no request")
    assert is_problem(serving.call("POST", "/v1/workers/w:9/stacks", {}), 404, "no worker w:9")


@pytest.mark.rest
def test_who_may_look_may_see_stacks_and_end_nothing(program: Program, serving: Serving):
    name = submit(serving, bodies=["a"])
    token = program("token", "create", "anna", "--scope", "view").id
    with Serving(program) as guarded:

        def post(path: str) -> Any:
            return guarded.curl(
                "-X", "POST", "-H", f"Authorization: Bearer {token}",
                "-H", "Content-Type: application/json", "-d", '{"index": 0}', path,
            )  # fmt: skip

        assert is_problem(post(f"/v1/requests/{name}/kill"), 403)
        assert post(f"/v1/requests/{name}/stacks").status == 200
