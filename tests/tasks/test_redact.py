"""Tests that the values of hidden fields are in no view and no log, and still in results."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from fairlane import App, Executor, InvalidArgument, group
from fairlane.operations.call_words import call_words, hide, hide_values
from fairlane.tasks.serve import workers_of
from fairlane.testing import run_tasks
from fairlane.worker import batch_handler
from fairlane.worker.calls import Runner
from fairlane.worker.handlers import shape_of
from tests.support.run.for_each import for_each
from tests.worker.parts import record_of_its_own, slice_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import redis

    from tests.cli.program import Program

SECRET, PIN = 'hunter\'2 "ü"', 4711


@for_each("encode", [msgspec.json.encode, msgspec.msgpack.encode])
def test_a_body_loses_the_values_of_fields_at_any_depth(encode: Any):
    call = (1, "login", {"user": "ann", "password": SECRET, "more": [{"pin": PIN, "n": 1}]})
    names = ("password", "pin")
    hidden = msgspec.json.decode if encode is msgspec.json.encode else msgspec.msgpack.decode
    assert hidden(hide(encode(call), names)) == [
        1, "login", {"user": "ann", "password": "[hidden]", "more": [{"pin": "[hidden]", "n": 1}]},
    ]  # fmt: skip
    words = 'login(user="ann", password="[hidden]", more=[{pin: "[hidden]", n: 1}])'
    assert call_words(encode(call), names) == words
    assert hide(encode(call), ()) == encode(call)


@for_each("body", [b"a line with hunter2", b"\xc1\xff", b'{"password": "hunter2"'])
def test_what_has_no_fields_is_hidden_as_a_whole(body: bytes):
    assert hide(body, ("password",)) == b"[hidden]"


def test_an_error_loses_the_values_that_its_arguments_hide():
    body = msgspec.json.encode((1, "t", {"password": SECRET, "pin": PIN, "n": 7, "ok": True}))
    text = f"ValueError: {SECRET} or {SECRET!r} or {json.dumps(SECRET)} for 4711, 7 of 17, True"
    found = hide_values(text, body, ("password", "pin", "n", "ok"))
    assert "hunter" not in found
    assert found.endswith("for [hidden], [hidden] of 17, True")
    assert hide_values(text, b"no body", ("password",)) == "[hidden]"


def test_no_view_and_no_log_has_a_hidden_value(
    app: App, work: Callable[[], int], program: Program, redis_client: redis.Redis,
    caplog: pytest.LogCaptureFixture,
):  # fmt: skip
    app.redact = ("token",)

    @app.task(redact=["password"], attempts=1)
    def login(user: str, password: str, token: str = "") -> dict[str, str]:
        if user == "bad":
            raise ValueError(f"{user} has no {password} and {token}")
        return {"user": user, "password": password}

    good = login.submit("ann", SECRET, token="t0k3n")
    bad = login.submit("bad", SECRET, token="t0k3n")
    views = [["list", "--queue", "images"], ["status", good.id], ["why", good.id]]
    before = [program(*words, *more).out.decode() for words in views for more in ([], ["--json"])]
    assert all("[hidden]" in text for text in before)
    with caplog.at_level(logging.DEBUG):
        work()
    assert good.result() == {"user": "ann", "password": SECRET}
    after = [
        program(*words, *more).out.decode()
        for words in (
            ["list", "--queue", "images"], ["status", bad.id], ["errors", bad.id],
            ["errors", "--queue", "images"], ["dead", "list", bad.id],
            ["dead", "list", bad.id, "--each"], ["results", bad.id], ["results", good.id],
        )
        for more in ([], ["--json"])
    ]  # fmt: skip
    kept = [value for key in redis_client.keys("error:*") for value in redis_client.hvals(key)]
    for text in (*before, *after, caplog.text, *(str(one) for one in kept)):
        assert "hunter" not in text
        assert "t0k3n" not in text
    assert "bad has no [hidden] and [hidden]" in caplog.text + after[2]
    assert json.loads(program("results", good.id, "--reveal").out)["password"] == SECRET
    again = app.queue.request(bad.id)
    assert again.requeue_dead() == 1
    assert again.progress().redact == ("password", "token")


@for_each("is_batch", [False, True])
def test_an_error_of_any_handler_loses_what_its_request_hides(*, is_batch: bool):
    """The error of a batch may have values of all its bodies."""

    def handler(body: Any) -> None:
        raise ValueError(f"{body!r}")

    bodies = (b'{"pin": "4711"}', b'{"pin": "0815"}')
    called = batch_handler(handler) if is_batch else handler
    runner = Runner(shape_of(called), record_of_its_own(), queue="req")
    outcome = runner.run_slice(slice_of(*bodies, redact=("pin",)), 0)
    assert len(outcome.verdicts) == 2
    for one in outcome.verdicts:
        assert "[hidden]" in one.error
        assert "4711" not in one.error
        assert "0815" not in one.error


def test_the_fields_of_an_app_and_of_every_call_are_hidden_together(redis_url: str):
    app = App("images", redis_url, redact="token")

    @app.task(redact="password")
    def login(password: str) -> None:
        pass

    @app.task
    def other() -> None:
        pass

    def fields(request_id: str) -> tuple[str, ...]:
        return app.queue.request(request_id).progress().redact

    assert fields(login.submit("x").id) == ("password", "token")
    assert fields(login.with_options(redact=["user"]).submit("x").id) == (
        *("user", "password", "token"),
    )
    assert fields(other.submit().id) == ("token",)
    both = group(other.s(), login.s("x")).submit()
    assert fields(both.id) == ("token", "password")
    with Executor(app) as executor:
        future = executor.submit(other)
        run_tasks(app)
        assert future.exception() is None
    (row,) = [one for one in app.queue.list_requests().requests if one.tasks == {"other": None}]
    assert {*row.redact} == {"token", "password"}
    assert workers_of([app])[0].queue.name == "images"
    app.close()


def test_a_field_that_is_no_name_is_refused():
    with pytest.raises(InvalidArgument, match="field 'a b' is not valid"):
        App("images", redact=["a b"])
