"""Tests every row of WonderQ's table of endpoints, with curl against a server of its own."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, cast

import pytest
from starlette.requests import Request

from fairlane.queue import Queue
from fairlane.web import wonderq
from tests.cli.program import hold
from tests.support.processes.takers import let_expire
from tests.support.wait import wait_until
from tests.web.serving import Serving

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis

    from tests.cli.program import Program

UNAUTHORIZED = {"error": "You are unauthorized to perform this action"}
MISSING = {"error": "Missing message"}
UNKNOWN = {"error": "Message does not exist"}
DELETES = ("/messages", "/message")


@pytest.fixture
def guarded(program: Program) -> Iterator[Serving]:
    """Runs a server that needs tokens."""
    program("token", "create", "first", "--scope", "admin")
    with Serving(program) as running:
        yield running


def post(serving: Serving, text: str) -> str:
    """Posts a message; returns its id."""
    answer = serving.call("POST", "/messages", {"message": text})
    assert answer.status == 201
    assert list(answer.json) == ["id"]
    return str(answer.json["id"])


def test_post_returns_201_and_an_id(serving: Serving):
    assert post(serving, "one") != post(serving, "one")


def test_post_takes_a_form_too(serving: Serving):
    answer = serving.curl("--data-urlencode", "message=ä & b", "/messages")
    assert answer.status == 201
    (got,) = serving.curl("/messages").json
    assert got == {"id": answer.json["id"], "message": "ä & b"}


WITHOUT_A_MESSAGE = [
    ["-X", "POST"],
    ["-d", ""],
    ["-d", "massage=a"],
    ["-d", "message="],
    ["-d", "message=a&message=b"],
    *(
        ["-H", "Content-Type: application/json", "-d", given]
        for given in ("{}", '{"message": ""}', '{"message": 1}', '{"message": null}', "[]")
    ),
]


def test_post_without_a_message_is_422(serving: Serving):
    for words in WITHOUT_A_MESSAGE:
        answer = serving.curl(*words, "/messages")
        assert (answer.status, answer.json) == (422, MISSING), words
    assert serving.curl("/messages").json == []


def test_a_form_of_many_fields_is_422(serving: Serving):
    answer = serving.curl("-d", "message=a" + "&b=1" * 100, "/messages")
    assert answer.status == 422
    assert "more than 100 fields" in answer.json["error"]
    assert serving.curl("/messages").json == []


@pytest.mark.rest
def test_a_large_form_is_read_while_others_are_served(monkeypatch: pytest.MonkeyPatch):
    readers: list[bool] = []

    def read(*_: object) -> str:
        readers.append(threading.current_thread() is threading.main_thread())
        return "text"

    async def submit(*_: object) -> tuple[str, int]:
        return "r1", 1

    monkeypatch.setattr(wonderq, "_message", read)
    monkeypatch.setattr(wonderq, "submit_for", submit)

    async def run(size: int) -> None:
        async def receive() -> dict[str, object]:
            return {"type": "http.request", "body": b"x" * size}

        await wonderq.post(cast("Any", None), Request({"type": "http", "headers": []}, receive))

    for size in (100, 100_000):
        asyncio.run(run(size))
    assert readers == [True, False]


def test_get_returns_the_messages_and_leases_them(serving: Serving):
    ids = [post(serving, text) for text in ("one", "two")]
    answer = serving.curl("/messages")
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    assert answer.json == [
        {"id": ids[0], "message": "one"},
        {"id": ids[1], "message": "two"},
    ]
    assert serving.curl("/messages").json == []


def test_delete_returns_204_and_the_message_is_gone(serving: Serving):
    for path in DELETES:
        name = post(serving, "one")
        serving.curl("/messages")
        answer = serving.curl("-X", "DELETE", f"{path}/{name}")
        assert (answer.status, answer.body) == (204, b"")
        again = serving.curl("-X", "DELETE", f"{path}/{name}")
        assert (again.status, again.json) == (404, UNKNOWN)
        assert serving.curl("/messages").json == []


@pytest.mark.rest
def test_delete_of_an_unknown_message_is_404(serving: Serving):
    for path in DELETES:
        for name in ("abc", "abc~2", "a%7Bb", "a~x", "x" * 200):
            answer = serving.curl("-X", "DELETE", f"{path}/{name}")
            assert (answer.status, answer.json) == (404, UNKNOWN)


def test_delete_of_a_message_that_no_program_processes_is_404(serving: Serving):
    name = post(serving, "one")
    answer = serving.curl("-X", "DELETE", f"/messages/{name}")
    assert (answer.status, answer.json) == (404, UNKNOWN)
    assert [one["id"] for one in serving.curl("/messages").json] == [name]


CALLS = [["-d", "message=a", "/messages"], ["/messages"]]
CALLS += [["-X", "DELETE", f"{path}/abc"] for path in DELETES]


def test_without_a_token_or_with_a_wrong_one_it_is_401(guarded: Serving):
    for words in CALLS:
        for header in ([], ["-H", "Authorization: Bearer no"], ["-H", "Authorization: Basic eDp5"]):
            answer = guarded.curl(*header, *words)
            assert (answer.status, answer.json) == (401, UNAUTHORIZED)
            assert answer.headers["www-authenticate"] == "bearer"


def test_a_message_comes_back_after_the_visibility_time(
    program: Program, redis_client: redis.Redis
):
    with Serving(program, "--visible", "1s") as serving:
        name = post(serving, "one")
        assert serving.curl("/messages").json == [{"id": name, "message": "one"}]
        let_expire(redis_client, name)
        again = wait_until(lambda: serving.curl("/messages").json)
        assert again == [{"id": name, "message": "one"}]
        assert serving.curl("-X", "DELETE", f"/messages/{name}").status == 204


def test_each_sub_request_of_a_larger_request_is_a_message(serving: Serving, redis_url: str):
    with Queue.from_url(redis_url) as queue:
        request = queue.submit_request(["a", "b", "c"], id="big", limit=3)
        got = serving.curl("/messages").json
        assert got == [
            {"id": name, "message": text}
            for name, text in (("big", "a"), ("big~1", "b"), ("big~2", "c"))
        ]
        assert serving.curl("-X", "DELETE", "/messages/big~1").status == 204
        assert serving.curl("-X", "DELETE", "/messages/big").status == 204
        assert serving.curl("-X", "DELETE", "/messages/big~1").status == 404
        assert request.progress().done == 2
        request.cancel()


def test_a_message_of_another_queue_can_not_be_deleted(serving: Serving, redis_url: str):
    with Queue.from_url(redis_url, name="other") as queue:
        request = queue.post("mine")
        (taken,) = queue.take()
        assert serving.curl("-X", "DELETE", f"/messages/{request.id}").status == 404
        taken.done()


def test_a_message_that_a_worker_handles_can_not_be_deleted(
    serving: Serving, redis_url: str, redis_client: redis.Redis
):
    name = post(serving, "one")
    hold(redis_url)
    assert serving.curl("-X", "DELETE", f"/messages/{name}").status == 404
    redis_client.flushall()
