"""Tests /v1 with curl against a server of its own: requests, results, takes, ends."""

from __future__ import annotations

import contextlib
import json
import socket
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from fairlane.option_types import RequestOptions
from fairlane.protocol.request_hash import read
from fairlane.queue import Queue
from fairlane.web.schemas import Options
from tests.support.processes.takers import let_expire
from tests.support.wait import wait_until
from tests.web.calls import end_one, is_problem, listening, next_event, submit, take

if TYPE_CHECKING:
    import redis

    from tests.cli.program import Program
    from tests.web.serving import Serving


@pytest.mark.rest
@pytest.mark.parametrize(
    ("order", "first", "rest"),
    [("input", ["0 a"], ["1 b", "2 c", "3 d"]), ("done", ["0 c", "1 a"], ["2 d", "3 b"])],
)
def test_a_stream_of_results_goes_on_at_the_next_one(
    order: str, first: list[str], rest: list[str], serving: Serving
):
    """This works also while the request runs, and after the second break."""
    name = submit(serving, bodies=["a", "b", "c", "d"], limit=4)
    taken = {one["body"]: one["receipt"] for one in take(serving, count=4)}
    path, wants = f"/v1/requests/{name}/results?order={order}", ("-H", "Accept: text/event-stream")
    for body in ("c", "a"):
        serving.call("POST", f"/v1/taken/{taken[body]}/done", {"result": body})
    with listening(serving, *wants, path) as reader:
        assert [_result(next_event(reader)) for _ in first] == first
    last = ("-H", f"Last-Event-ID: {first[-1][0]}")
    with listening(serving, *wants, *last, path) as reader:
        for body in ("d", "b"):
            serving.call("POST", f"/v1/taken/{taken[body]}/done", {"result": body})
        assert [_result(next_event(reader)) for _ in rest] == rest
        assert next_event(reader)["event"] == "end"
    for place, _ in enumerate(rest):
        last = ("-H", f"Last-Event-ID: {rest[place][0]}")
        with listening(serving, *wants, *last, path) as reader:
            found = [next_event(reader) for _ in rest[place:]]
        assert [_result(one) for one in found[:-1]] == rest[place + 1 :]
        assert found[-1]["event"] == "end"
    refused = serving.curl(*wants, "-H", "Last-Event-ID: x", path)
    assert is_problem(refused, 422, "Last-Event-ID 'x' is no id of a result")


def _result(event: dict[str, str]) -> str:
    return f"{event['id']} {json.loads(event['data'])['body']}"


def test_a_request_is_submitted_taken_and_settled(serving: Serving):
    bodies = ["a", "ä", {"base64": "/w=="}]
    name = submit(serving, bodies=bodies, priority=1, limit=3, tags=["x"], id="r1")
    assert submit(serving, bodies=bodies, priority=1, limit=3, tags=["x"], id="r1") == "r1"
    state = serving.curl(f"/v1/requests/{name}").json
    assert (state["state"], state["total"], state["left"], state["priority"]) == ("active", 3, 3, 1)
    taken = take(serving, count=3)
    assert [one["body"] for one in taken] == bodies
    receipts = [one["receipt"] for one in taken]
    done = serving.call("POST", f"/v1/taken/{receipts[0]}/done", {"result": "A"})
    assert (done.status, done.body) == (204, b"")
    assert serving.call("POST", f"/v1/taken/{receipts[0]}/done", {"result": "A"}).status == 204
    assert serving.call("POST", f"/v1/taken/{receipts[1]}/extend", {"visible_for": 60}).json == {
        "goes_on": True
    }
    assert serving.call("POST", f"/v1/taken/{receipts[1]}/release").status == 204
    (again,) = take(serving)
    assert again["body"] == "ä"
    assert serving.call(
        "POST", f"/v1/taken/{again['receipt']}/done", {"result": {"base64": "/w=="}}
    )
    assert serving.call("POST", f"/v1/taken/{receipts[2]}/dead", {"reason": "no"}).status == 204
    found = serving.curl(f"/v1/requests/{name}/results").lines
    assert [(one["index"], one["status"], one["body"]) for one in found] == [
        (0, "done", "A"),
        (1, "done", {"base64": "/w=="}),
        (2, "dead", None),
    ]
    events = serving.curl("-H", "Accept: text/event-stream", "-H", "Last-Event-ID: 1",
                          f"/v1/requests/{name}/results").body.decode()  # fmt: skip
    assert events.startswith("id: 2\nevent: result\ndata: {")
    assert events.endswith("event: end\ndata: {}\n\n")
    (dead,) = serving.curl(f"/v1/requests/{name}/dead").json["dead"]
    assert (dead["index"], dead["body"], dead["error"]) == (2, {"base64": "/w=="}, "no")
    answer = serving.call("POST", f"/v1/requests/{name}/dead/requeue", {"indexes": [2]}).json
    assert answer == {"requeued": 1}
    listed = serving.curl("/v1/requests?state=active&state=done").json["requests"]
    assert [(one["id"], one["state"], one["reopened"]) for one in listed] == [(name, "active", 1)]
    (repair,) = serving.curl(f"/v1/requests/{name}").json["repairs"]
    assert (repair["reopened"], repair["count"]) == (1, 1)
    assert serving.call("POST", f"/v1/requests/{name}/cancel").json["state"] == "cancelled"


def test_a_request_is_changed_paused_and_resumed(serving: Serving):
    name = submit(serving, bodies=["a", "b"])
    changed = serving.call("PATCH", f"/v1/requests/{name}", {"limit": 7, "priority": 2}).json
    assert (changed["limit"], changed["priority"]) == (7, 2)
    assert serving.call("POST", f"/v1/requests/{name}/pause").json["state"] == "paused"
    assert take(serving) == []
    assert serving.call("POST", f"/v1/requests/{name}/resume").json["state"] == "active"
    refused = serving.call("PATCH", f"/v1/requests/{name}", {"limit": 8, "priority": 100})
    assert is_problem(refused, 422, "priority 100")
    assert serving.curl(f"/v1/requests/{name}").json["limit"] == 7
    assert is_problem(serving.call("PATCH", f"/v1/requests/{name}", {}), 422, "nothing")
    cancelled = serving.call("POST", f"/v1/requests/{name}/cancel", {"reason": "enough"}).json
    assert (cancelled["state"], cancelled["reason"]) == ("cancelled", "enough")
    assert is_problem(serving.call("POST", f"/v1/requests/{name}/pause"), 409)


def test_lines_are_submitted_as_they_are(serving: Serving, redis_url: str):
    path = "/v1/requests?id=lines&priority=3&limit=9&tags=x&tags=y"
    content = b'{"n": 1}\n\nplain\r\n"last"'
    answer = serving.call("POST", path, content, **{"Content-Type": "application/x-ndjson"})
    assert (answer.status, answer.json) == (201, {"id": "lines", "total": 4})
    bodies = [one["body"] for one in take(serving, count=9)]
    assert bodies == ['{"n": 1}', "", "plain\r", '"last"']
    with Queue.from_url(redis_url) as queue:
        assert queue.request("lines").progress().tags == ("x", "y")


def test_repeats_are_left_out_of_a_distinct_request(serving: Serving):
    lines = {"Content-Type": "application/x-ndjson"}
    answer = serving.call("POST", "/v1/requests?id=a&distinct=true", b"x\ny\nx\n", **lines)
    assert (answer.status, answer.json) == (201, {"id": "a", "total": 2})
    assert serving.curl("/v1/requests/a").json["left_out"] == 1
    name = submit(serving, bodies=["x", "x"], distinct=True)
    assert serving.curl(f"/v1/requests/{name}").json["total"] == 1


@pytest.mark.rest
def test_each_line_of_a_file_is_a_body(serving: Serving, tmp_path: Any):
    file = tmp_path / "lines.txt"
    file.write_bytes(b"one\n\nthree\r\n" + b"x" * 900_000 + b"\nlast")
    made = serving.curl("-F", f"file=@{file}", "/v1/requests?id=lines&limit=9")
    assert (made.status, made.json) == (201, {"id": "lines", "total": 5})
    bodies = [one["body"] for one in take(serving, count=9)]
    assert bodies == ["one", "", "three\r", "x" * 900_000, "last"]
    assert is_problem(serving.curl("-F", "id=a", "/v1/requests"), 422, "options as parameters")
    two = ["-F", f"a=@{file}", "-F", f"b=@{file}"]
    assert is_problem(serving.curl(*two, "/v1/requests?id=two"), 422, "two files")
    states = [one["state"] for one in serving.curl("/v1/requests?id_prefix=two").json["requests"]]
    assert states in ([], ["cancelled"])
    file.write_bytes(b"x" * 1_100_000)
    assert is_problem(serving.curl("-F", f"file=@{file}", "/v1/requests?id=long"), 413)


@pytest.mark.rest
def test_lines_are_the_same_on_every_way_in(serving: Serving, program: Program, tmp_path: Any):
    raw = b"one\r\n\n\r\n two \n\nlast"
    file = tmp_path / "lines.txt"
    file.write_bytes(raw)
    lines = ["-H", "Content-Type: application/x-ndjson", "--data-binary", f"@{file}"]
    assert serving.curl(*lines, "/v1/requests?id=http&limit=9").status == 201
    assert serving.curl("-F", f"file=@{file}", "/v1/requests?id=form&limit=9").status == 201
    program("submit", file, "--id", "file", "--limit", 9)
    program("submit", "-", "--id", "stdin", "--limit", 9, stdin=raw)
    found: dict[str, dict[int, str]] = {}
    for one in take(serving, count=100):
        found.setdefault(one["id"], {})[one["index"]] = one["body"]
        serving.call("POST", f"/v1/taken/{one['receipt']}/done")
    bodies = ["one\r", "", "\r", " two ", "", "last"]
    ways = ("http", "form", "file", "stdin")
    assert found == {way: dict(enumerate(bodies)) for way in ways}


@pytest.mark.rest
def test_every_option_of_a_request_is_one_over_http(serving: Serving, redis_url: str):
    assert {*Options.__struct_fields__} == {*RequestOptions.__optional_keys__, "id"}
    lines = {"Content-Type": "application/x-ndjson"}
    path = "/v1/requests?id=b&backoff=0.5&backoff=60&delay=10m&limit=1"
    assert serving.call("POST", path, b"x", **lines).status == 201
    submit(serving, bodies=["x"], id="a", backoff=[0.5, 60], delay=600, limit=1)
    with Queue.from_url(redis_url) as queue:
        for name in "ab":
            backoff = queue.driver.run(read(name, "backoff_min", "backoff_max"))
            assert backoff == ["500", "60000"]
            queue.request(name).cancel()
    for wrong in ([1], [1, 2, 3], True, -5, ["a", "b"]):
        answer = serving.call("POST", "/v1/requests", {"bodies": ["x"], "backoff": wrong})
        assert is_problem(answer, 422, "backoff")
    answer = serving.call("POST", "/v1/requests", b"x", **{"Content-Type": "text/plain"})
    words = "send application/json, application/x-ndjson or multipart/form-data"
    assert is_problem(answer, 415, words)


def test_a_submission_that_breaks_off_is_withdrawn(serving: Serving, redis_url: str):
    place = urlsplit(serving.url)
    with Queue.from_url(redis_url) as queue, contextlib.closing(
        socket.create_connection((place.hostname, place.port))
    ) as line:  # fmt: skip
        line.sendall(
            b"POST /v1/requests?id=broken HTTP/1.1\r\n"
            b"Host: localhost\r\nContent-Length: 9000000\r\n"
            b"Content-Type: application/x-ndjson\r\n\r\n" + b"some line\n" * 5_000
        )
        wait_until(lambda: [one.id for one in queue.list_requests().requests] == ["broken"])
        line.close()
        wait_until(lambda: queue.list_requests(states=["running"]).requests == [])
    assert take(serving) == []


def test_results_come_while_the_request_runs(serving: Serving):
    name = submit(serving, bodies=["a", "b"], limit=2)
    first, second = take(serving, count=2)
    with listening(serving, f"/v1/requests/{name}/results") as reader:
        assert reader.stdout
        serving.call("POST", f"/v1/taken/{first['receipt']}/done", {"result": "A"})
        assert json.loads(reader.stdout.readline())["body"] == "A"
        assert serving.curl(f"/v1/requests/{name}").json["state"] == "active"
        serving.call("POST", f"/v1/taken/{second['receipt']}/done", {"result": "B"})
        assert json.loads(reader.stdout.readline())["body"] == "B"
        assert reader.stdout.read() == b""


def test_endings_are_followed_and_resumed(serving: Serving):
    end_one(serving, "r1")
    with listening(serving, "/v1/completions?since=0") as reader:
        event = next_event(reader)
        assert (event["event"], json.loads(event["data"])["id"]) == ("ended", "r1")
        end_one(serving, "r2")
        later = next_event(reader)
        assert json.loads(later["data"])["id"] == "r2"
    with listening(serving, "-H", f"Last-Event-ID: {event['id']}", "/v1/completions") as reader:
        assert next_event(reader) == later
    assert is_problem(serving.curl("-H", "Last-Event-ID: 1-1", "/v1/completions"), 410)
    assert is_problem(serving.curl("/v1/completions?since=x"), 422)


def test_a_stream_ends_with_the_server(serving: Serving):
    with listening(serving, "/v1/completions?since=0") as reader:
        end_one(serving, "r1")
        assert next_event(reader)["event"] == "ended"
        assert serving.stop().code == 0
        last = next_event(reader)
    assert (last["event"], json.loads(last["data"])["status"]) == ("problem", 503)


@pytest.mark.rest
def test_a_receipt_that_is_too_old_is_410(serving: Serving, redis_client: redis.Redis):
    name = submit(serving, bodies=["a"])
    (first,) = take(serving)
    let_expire(redis_client, name)
    (second,) = wait_until(lambda: take(serving, wait_s=2))
    assert is_problem(
        serving.call("POST", f"/v1/taken/{first['receipt']}/done", {}), 410, "too old"
    )
    assert second["attempt"] == 2
    assert serving.call("POST", f"/v1/taken/{second['receipt']}/done", {}).status == 204


def test_what_is_not_there_is_404(serving: Serving, redis_url: str):
    with Queue.from_url(redis_url, name="other") as queue:
        queue.submit_request(["a"], id="foreign")
        for name in ("nothing", "foreign", "a%7Bb"):
            one = f"/v1/requests/{name}"
            for path in (one, f"{one}/results", f"{one}/dead"):
                assert is_problem(serving.curl(path), 404)
            for word in ("cancel", "pause", "resume", "dead/requeue"):
                given: dict[str, Any] = {"everything": True} if word == "dead/requeue" else {}
                assert is_problem(serving.call("POST", f"{one}/{word}", given), 404)
            assert is_problem(serving.call("PATCH", one, {"limit": 2}), 404)
        assert queue.request("foreign").state() == "active"
        queue.request("foreign").cancel()
    for word in ("done", "dead", "release", "extend"):
        given = {"reason": "x"} if word == "dead" else {}
        assert is_problem(serving.call("POST", f"/v1/taken/no/{word}", given), 404)
    assert is_problem(serving.curl("/v1/nothing"), 404)
    assert is_problem(serving.call("PUT", "/v1/requests"), 405)


def test_bad_content_is_refused_and_nothing_is_written(
    serving: Serving, redis_client: redis.Redis, tmp_path: Any
):
    for raw, status, words in (
        (b"{", 400, "no JSON"),
        (b'{"bodies": ["a"], "priority": 1', 400, "no JSON"),
        (b"{}", 422, "bodies"),
        (b'{"bodies": [1]}', 422, "bodies[0]"),
        (b'{"bodies": "abc"}', 422, "a list is expected"),
        (b'{"bodies": [{"base64": "?"}]}', 422, "base64"),
        (b'{"bodies": ["a"], "priority": "x"}', 422, "priority"),
        (b'{"bodies": ["a"], "priority": 100}', 422, "priority 100"),
        (b'{"bodies": ["a"], "prioritty": 1}', 422, "prioritty"),
        (b'{"bodies": ["a"], "id": "{x}"}', 422, "request id"),
    ):
        given = tmp_path / "content"
        given.write_bytes(raw)
        words_of = ["-H", "Content-Type: application/json", "--data-binary", f"@{given}"]
        assert is_problem(serving.curl(*words_of, "/v1/requests"), status, words), raw
    deep = tmp_path / "deep"
    deep.write_bytes(b"[" * 100_000)
    answer = serving.curl("-H", "Content-Type: application/json", "-d", f"@{deep}", "/messages")
    assert (answer.status, list(answer.json)) == (400, ["error"])
    huge = tmp_path / "huge"
    huge.write_bytes(b"x" * (9 << 20))
    for kind, path in (
        ("application/json", "/v1/requests"),
        ("application/x-ndjson", "/v1/requests?id=r1"),
        ("application/json", "/messages"),
    ):
        answer = serving.curl("-H", f"Content-Type: {kind}", "--data-binary", f"@{huge}", path)
        assert answer.status == 413, (kind, path)
    assert is_problem(serving.call("POST", "/v1/requests", b"a", **{"Content-Type": "text/x"}), 415)
    assert is_problem(serving.curl("/v1/requests?limit=0"), 422)
    twice = "parameter limit is given twice: give it once"
    assert is_problem(serving.curl("/v1/requests?limit=1&limit=2"), 422, twice)
    assert is_problem(serving.curl("/v1/requests?limit=1&limit=1&limit=1"), 422, "3 times")
    assert is_problem(serving.curl("/v1/requests?colour=red"), 422, "colour")
    assert is_problem(serving.call("POST", "/v1/take", {"count": 101}), 422)
    assert is_problem(serving.call("POST", "/v1/take", {"wait_s": 61}), 422)
    assert is_problem(serving.call("POST", "/v1/take", {"visible_for": 0}), 422)
    assert list(redis_client.scan_iter("req:*")) == []


def test_a_parameter_beside_a_document_is_refused(serving: Serving):
    for path in ("/v1/requests?id=r1&priority=7", "/v1/take?count=2", "/v1/queue/pause?for_s=1"):
        answer = serving.call("POST", path, {"bodies": ["a"]} if "requests" in path else {})
        assert is_problem(answer, 422, "is not read here: give it in the JSON")
    assert serving.curl("/v1/requests/r1").status == 404
    assert not serving.curl("/v1/queue").json["is_paused"]


def test_another_content_of_an_id_is_409(serving: Serving):
    submit(serving, bodies=["a"], id="r1")
    assert is_problem(serving.call("POST", "/v1/requests", {"bodies": ["b"], "id": "r1"}), 409)


def test_the_liveness_and_readiness_probes_succeed(serving: Serving):
    for path in ("/livez", "/readyz"):
        answer = serving.curl(path)
        assert (answer.status, answer.json) == (200, {"status": "ok"})


def test_without_tokens_no_page_of_another_site_may_call(serving: Serving):
    for header in ("Host: evil.example", "Sec-Fetch-Site: cross-site", "Sec-Fetch-Site: same-site"):
        assert is_problem(serving.curl("-H", header, "/v1/requests"), 403)
    assert serving.curl("-H", "Sec-Fetch-Site: same-origin", "/v1/requests").status == 200


@pytest.mark.rest
def test_many_streams_cost_one_call_and_leave_nothing(serving: Serving, redis_client: redis.Redis):
    """Callers connect and close; each gets its own position in the log."""

    def blocked() -> int:
        return int(redis_client.info("clients")["blocked_clients"])

    with contextlib.ExitStack() as streams:
        path = "/v1/completions?since=0"
        readers = [streams.enter_context(listening(serving, path)) for _ in range(20)]
        end_one(serving, "r1")
        for reader in readers:
            assert json.loads(next_event(reader)["data"])["id"] == "r1"
        wait_until(lambda: blocked() == 1)
    wait_until(lambda: blocked() == 0)
    assert serving.curl("/readyz").status == 200


@pytest.mark.rest
def test_a_take_whose_caller_has_gone_takes_nothing(serving: Serving):
    given = json.dumps({"wait_s": 60, "visible_for": 3600})
    with listening(serving, "-H", "Content-Type: application/json", "-d", given, "/v1/take"):
        assert serving.curl("/readyz").status == 200
    submit(serving, bodies=["a"])
    (taken,) = wait_until(lambda: take(serving))
    assert (taken["body"], taken["attempt"]) == ("a", 1)
