"""Tests ids that outlive results over HTTP and on the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlane.protocol import keys
from tests.web.calls import is_problem, submit, take
from tests.web.serving import Serving

if TYPE_CHECKING:
    import redis

    from tests.cli.program import Program


def end(serving: Serving) -> None:
    (taken,) = take(serving)
    serving.call("POST", f"/v1/taken/{taken['receipt']}/done", {"result": "y"})


def test_a_repeat_over_http_finds_the_request_whose_results_are_gone(
    serving: Serving, redis_client: redis.Redis
):
    given = {"bodies": ["a"], "id": "order-17", "remember": "30d"}
    submit(serving, **given)
    end(serving)
    redis_client.delete(keys.results("order-17"))
    again = serving.call("POST", "/v1/requests", given)
    assert (again.status, again.json) == (201, {"id": "order-17", "total": 1})
    assert take(serving) == []
    shown = serving.curl("/v1/requests/order-17").json
    assert (shown["state"], shown["remember_ms"]) == ("done", 30 * 86_400_000)
    (last,) = serving.curl("/v1/requests/order-17/results").lines
    assert "their retention is over" in last["problem"]["detail"]
    other = {**given, "bodies": ["b"]}
    assert is_problem(serving.call("POST", "/v1/requests", other), 409, "exists with other content")
    assert is_problem(
        serving.call("POST", "/v1/requests", {**given, "id": "x", "remember": "400d"}), 422, "366d"
    )
    assert serving.curl("-X", "DELETE", "/v1/requests/order-17").status == 204
    submit(serving, **given)
    assert len(take(serving)) == 1


def test_another_token_neither_replaces_nor_runs_a_remembered_request(
    program: Program, redis_client: redis.Redis
):
    texts = {
        name: program("token", "create", name, *("--scope", "submit", "--scope", "consume")).id
        for name in ("one", "two")
    }
    with Serving(program) as serving:
        one, two = ({"Authorization": f"Bearer {text}"} for text in texts.values())
        given = {"bodies": ["a"], "id": "order-17", "remember": "30d"}
        assert serving.call("POST", "/v1/requests", given, **one).status == 201
        (taken,) = serving.call("POST", "/v1/take", {}, **one).json["taken"]
        serving.call("POST", f"/v1/taken/{taken['receipt']}/done", {}, **one)
        redis_client.delete(keys.results("order-17"))
        assert serving.call("POST", "/v1/requests", given, **two).status == 201
        assert serving.call("POST", "/v1/take", {}, **two).json["taken"] == []
        replacing = {"bodies": ["b"], "id": "order-17", "on_duplicate": "replace"}
        assert serving.call("POST", "/v1/requests", replacing, **two).status == 403


def test_the_command_line_says_how_long_the_id_is_known(
    program: Program, redis_client: redis.Redis
):
    words = ("submit", "-", "--id", "order-17", "--remember", "30d")
    assert program(*words, stdin=b"").id == "order-17"
    assert program(*words, stdin=b"").id == "order-17"
    status = program("status", "order-17").out.decode()
    assert "its id known 30d" in status
    redis_client.delete(keys.results("order-17"))
    assert program("wait", "order-17").code == 0
