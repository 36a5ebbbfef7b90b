"""Tests that no command, no call over HTTP, no log and no archive shows a field that is hidden."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fairlane import App
from fairlane.cli.program import COMMANDS
from fairlane.operations.observe import snapshot
from fairlane.tasks.serve import workers_of
from fairlane.worker import Reject
from tests.web.serving import Serving
from tests.web.walk import Caller, walk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cli.program import Program

SECRETS = ("hunter2", "t0k3n-of-ann", "mister-x", "4711-0815")
QUEUE = ("--queue", "images")
# Commands that show no bodies, results or errors; stacks have tests of their own.
OTHERS = {
    *("submit", "worker", "wait", "pause", "resume", "set", "cancel", "delete", "kill"),
    *("fanout", "forward", "balance", "topic", "serve", "token", "webhook", "spark", "scripts"),
    *("acl", "server", "completion", "stacks"),
}


@pytest.fixture
def app(redis_url: str) -> Iterator[App]:
    made = App("images", redis_url, redact="token")
    yield made
    made.close()


def tasks_of(app: App) -> dict[str, str]:
    """Submits calls whose arguments, results and errors have secrets; returns their requests."""

    @app.task(redact=["password"], attempts=2, backoff="1ms")
    def login(user: str, password: str, token: str, how: str = "well") -> dict[str, Any]:
        if how == "fails":
            raise ValueError(f"{user}: {password}, {token!r}")
        if how == "rejects":
            raise Reject(f"{user}: {password}, {token!r}")
        return {"user": user, "password": password, "token": token}

    given = ("hunter2", "t0k3n-of-ann")
    other = login.with_options(redact=["user"])
    found = {
        "done": login.submit("ann", *given).id,
        "failed": login.submit("bob", *given, how="fails").id,
        "rejected": login.submit("eve", *given, how="rejects").id,
        "of_call": other.submit("mister-x", *given, how="fails").id,
    }
    no_call = app.queue.submit_request(
        [b'{"pin": "4711-0815"}', b"pin=4711-0815"], redact="pin", attempts=1
    )
    return {**found, "no_call": no_call.id}


def commands(names: dict[str, str]) -> Iterator[list[str]]:
    """Yields the commands that show something, of each request."""
    for name in names.values():
        for words in (["status"], ["why"], ["errors"], ["dead", "list"], ["results"]):
            yield [*words, name, *QUEUE[: 0 if words[0] == "results" else 2]]
        yield ["dead", "list", name, "--each", *QUEUE]
    for words in (
        *(["status"], ["list"], ["errors"], ["dead", "list"], ["workers"], ["completions"]),
        *(["stats"], ["demand"], ["queue", "show"], ["key", "list"], ["schedule", "list"]),
        *(["flow", "list"], ["doctor"], ["tasks"]),
    ):
        yield [*words, *QUEUE]
    yield ["queues"]


def test_no_command_no_call_no_log_and_no_archive_has_a_hidden_value(
    app: App, program: Program, caplog: pytest.LogCaptureFixture, redis_url: str
):
    names = tasks_of(app)
    shown: list[tuple[object, str]] = []

    def look(*, has_ended: bool) -> None:
        for words in commands(names):
            if words[0] == "results" and not has_ended:  # it would wait for the end
                continue
            for more in ([], ["--json"]):
                ended = program(*words, *more)
                shown.append(([*words, *more], ended.out.decode() + ended.err))
        shown.append(("top", repr(app.queue.driver.run(snapshot("images")))))

    look(has_ended=False)
    with caplog.at_level(logging.DEBUG):
        workers_of([app])[0].run(until_idle=True)
    shown.append(("log", caplog.text))
    shown += [("record", repr(vars(record))) for record in caplog.records]
    look(has_ended=True)
    last = app.queue.submit_request([], id="the-last").id
    with Serving(program, *QUEUE) as serving:
        objects = {"requests": [*names.values()]}
        scopes = ("view", "submit", "consume", "operate")
        caller = Caller(serving, "", last)
        shown += [(way, answered.text) for way, answered in walk(caller, scopes[:1], objects)]
    assert program("archive", "kept", *QUEUE).code == 0
    for file in Path(program.folder, "kept").rglob("*"):
        if file.suffix == ".parquet":
            import pyarrow.parquet as pq

            shown.append((file, str(pq.read_table(file).to_pylist())))
    program("report", "kept", "out")
    shown += [
        (file, file.read_text(errors="replace"))
        for file in Path(program.folder, "out").rglob("*")
        if file.is_file()
    ]
    for secret in SECRETS:
        assert [way for way, text in shown if secret in text] == [], secret
    everything = "".join(text for _, text in shown)
    assert "ann" in everything  # what is not hidden is shown
    assert "bob: [hidden], '[hidden]'" in everything
    (result,) = app.queue.request(names["done"]).results()
    assert b"hunter2" in (result.body or b"")  # a program reads its own results in full
    walked = {words[0] for words in commands(names)} | {"archive", "report", "top"}
    assert {*COMMANDS} == walked | OTHERS


def test_an_archive_reveals_what_is_asked_for(app: App, program: Program):
    names = tasks_of(app)
    workers_of([app])[0].run(until_idle=True)
    import pyarrow.parquet as pq

    program("archive", "full", *QUEUE, "--reveal")
    tables = {
        table: pq.read_table(file).to_pylist()
        for table in ("results", "dead")
        for file in Path(program.folder, "full", table).rglob("*.parquet")
    }
    results = {row["request"]: row["result"] for row in tables["results"]}
    bodies = {row["request"]: row["body"] for row in tables["dead"]}
    assert b"hunter2" in results[names["done"]]
    assert b"hunter2" in bodies[names["failed"]]
