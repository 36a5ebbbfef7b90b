"""Tests that a right never reaches an object of another queue, or what another token submitted."""

from __future__ import annotations

import asyncio
import contextlib
import json
from http.client import HTTPConnection
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import pytest

from fairlane import Flow, Queue
from fairlane.errors import RequestExists
from fairlane.operations.audit_trail import AuditEntry
from fairlane.operations.schedules import request_id
from fairlane.operations.webhooks import add_webhook
from fairlane.options_table import BY_NAME
from fairlane.web import trail
from fairlane.web.access import SCOPES, all_scopes
from fairlane.web.app import DESCRIBED
from fairlane.web.trail import Tally
from tests.cli.program import END_S
from tests.web.serving import Serving

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis

    from tests.cli.program import Program

REFUSED = {403, 404, 409, 422}
CONTENT = {  # of calls that would refuse an empty document before they look for the object
    "dead": {"reason": "x"},
    "kill": {"index": 0},
    "requeue": {"everything": True},
    "drop": {"everything": True},
    "PATCH": {"limit": 7},
}


class Answered(NamedTuple):
    status: int
    json: Any


class Caller:
    """Calls a server with one token, over one connection."""

    def __init__(self, serving: Serving, token: str) -> None:
        self.line = HTTPConnection(serving.url.removeprefix("http://"), timeout=END_S)
        self.headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def __call__(self, method: str, path: str, given: Any = None) -> Answered:
        content = None if given is None else json.dumps(given)
        self.line.request(method, path, content, self.headers)
        with self.line.getresponse() as response:
            raw = response.read()
        return Answered(response.status, json.loads(raw) if raw[:1] in b"{[" and raw else None)


@pytest.fixture
def callers(program: Program) -> Iterator[dict[str, Caller]]:
    """A server, and a caller for each scope; `another` has the scope submit, too."""
    named = {scope: scope for scope in SCOPES} | {"another": "submit"}
    texts = {
        name: program("token", "create", name, "--scope", scope).id for name, scope in named.items()
    }
    with Serving(program) as serving, contextlib.ExitStack() as stack:
        found = {name: Caller(serving, text) for name, text in texts.items()}
        for one in found.values():
            stack.enter_context(contextlib.closing(one.line))
        yield found


def kept(client: redis.Redis, *names: str) -> dict[bytes, object]:
    """Returns what Redis has below these hash tags."""
    tags = [f"{{{name}".encode() for name in names]
    keys = [key for key in client.scan_iter() if any(tag in key for tag in tags)]
    return {key: client.dump(key) for key in keys}


def calls_of(objects: dict[str, list[str]]) -> Iterator[tuple[str, str, tuple[str, ...], Any]]:
    """Yields each call whose path names an object, once for each such object of another queue."""
    for end in DESCRIBED:
        for path in (end.path, *end.also):
            if "{" not in path:
                continue
            kind = path.split("/")[1 if path.startswith("/message") else 2]
            if kind == "keys" and end.method == "PUT":
                continue  # it sets the key of that name in its own queue
            for name in objects[kind]:
                head, _, rest = path.partition("{")
                word = path.rpartition("/")[2]
                given = CONTENT.get(word, CONTENT.get(end.method, {}))
                yield end.method, head + name + rest.partition("}")[2], end.scopes, given


@pytest.mark.rest
def test_no_right_reaches_an_object_of_another_queue(
    callers: dict[str, Caller], redis_url: str, redis_client: redis.Redis
):
    with Queue.from_url(redis_url, name="other") as other:
        other.submit_request(["a", "b"], id="foreign", limit=2)
        other.submit_request([], id="ended")
        other.set_key("theirs", 3)
        other.set_key("task/theirs", 3)
        other.schedules.add("nightly", cron="0 3 * * *", bodies=["a"])
        other.driver.run(add_webhook("other", "billing", "https://shop.example/x"))
        run = other.submit_flow(Flow("steps").step("one").step("two"), ["a"], id="run")
        (taken, dead) = other.take(2)
        dead.dead("of another queue")
        objects = {
            "requests": ["foreign", "ended"],
            "taken": [taken.receipt],
            "messages": ["foreign", f"foreign~{taken.index}"],
            "message": ["foreign"],
            "schedules": ["nightly"],
            "webhooks": ["billing"],
            "flows": [run.id],
            "keys": ["theirs"],
            "workers": ["elsewhere:1"],
        }
        before = kept(redis_client, "other", "foreign", "ended", "run")
        for method, path, scopes, given in calls_of(objects):
            for scope in SCOPES:
                may = {*all_scopes([scope])} & {*scopes}
                answered = callers[scope](method, path, given if method != "GET" else None)
                assert answered.status == (404 if may else 403), (method, path, scope, answered)
        for name in ("foreign", "ended"):
            for scope in ("submit", "admin"):
                ways: tuple[dict[str, Any], ...] = (
                    *({"on_duplicate": how, "delay": "1s"} for how in BY_NAME["on_duplicate"].most),
                    {"on_duplicate": "keep", "window": 0},
                    {},
                )
                for options in ways:
                    new = {"bodies": ["mine"], "id": name, **options}
                    answered = callers[scope]("POST", "/v1/requests", new)
                    assert answered.status == 409, (new, answered)
                    assert "is in queue other" in answered.json["detail"]
        waits = {"bodies": ["x"], "after": ["foreign"]}
        assert callers["admin"]("POST", "/v1/requests", waits).status == 404
        for action in ("cancel", "pause", "resume", "delete", "drop_dead", "requeue_dead"):
            many = {"action": action, "ids": ["foreign"], "expected": 9}
            assert callers["admin"]("POST", "/v1/bulk", many).status == 404
        assert kept(redis_client, "other", "foreign", "ended", "run") == before
        taken.done()
        run.cancel("the test is over")


@pytest.mark.rest
def test_a_flow_is_of_the_queue_in_which_it_began(callers: dict[str, Caller], redis_url: str):
    with Queue.from_url(redis_url, name="other") as other, Queue.from_url(redis_url) as queue:
        queue.submit_flow(Flow("f").step("a").step("b", queue="other"), ["x"], id="own")
        other.submit_flow(Flow("g").step("a").step("b", queue="req"), ["x"], id="theirs")
        assert callers["view"]("GET", "/v1/flows/theirs").status == 404
        assert callers["operate"]("POST", "/v1/flows/theirs/cancel", {}).status == 404
        assert callers["view"]("GET", "/v1/requests/own.2").status == 404
        steps = callers["view"]("GET", "/v1/flows/own").json["steps"]
        assert [one["queue"] for one in steps] == ["req", "other"]
        assert callers["operate"]("POST", "/v1/flows/own/cancel", {}).status == 200
        assert queue.flows.run("own").progress().state == "cancelled"
        assert other.request("own.2").progress().state == "cancelled"
        assert other.flows.run("theirs").progress().state == "active"
        other.flows.run("theirs").cancel()


def test_the_library_replaces_no_request_of_another_queue(
    redis_url: str, redis_client: redis.Redis
):
    with Queue.from_url(redis_url, name="other") as other, Queue.from_url(redis_url) as queue:
        other.submit_request(["a"], id="foreign", retain=3_600)
        for is_over in (False, True):
            if is_over:
                (taken,) = other.take(1)
                taken.done("its result")
            before = kept(redis_client, "foreign", "other")
            for how in BY_NAME["on_duplicate"].most:
                with pytest.raises(RequestExists, match="is in queue other"):
                    queue.submit_request(["b"], id="foreign", on_duplicate=how, delay=5)
            with pytest.raises(RequestExists, match="is in queue other"):
                queue.submit_many([["b"], ["c"]], ids=["foreign", "mine"])
            assert kept(redis_client, "foreign", "other") == before
            assert "foreign" not in {one.id for one in queue.list_requests().requests}
        assert [one.body for one in other.request("foreign").results()] == [b"its result"]
        queue.request("mine").cancel()


def test_only_operate_replaces_what_another_token_submitted(
    callers: dict[str, Caller], redis_url: str, redis_client: redis.Redis
):
    with Queue.from_url(redis_url) as queue:
        queue.submit_request(["a"], id="of-a-program", delay=600, limit=1)
        made = {"bodies": ["a"], "id": "running", "delay": "10m"}
        assert callers["submit"]("POST", "/v1/requests", made).status == 201
        ended = {"bodies": ["a"], "id": "ended"}
        assert callers["submit"]("POST", "/v1/requests", ended).status == 201
        (taken,) = callers["consume"]("POST", "/v1/take", {}).json["taken"]
        done = callers["consume"]("POST", f"/v1/taken/{taken['receipt']}/done", {"result": "kept"})
        assert done.status == 204
        names = ("running", "ended", "of-a-program")
        before = kept(redis_client, *names)
        for name in names:
            for how in BY_NAME["on_duplicate"].most:
                if how == "keep" and name != "ended":
                    continue
                new = {"bodies": ["b"], "id": name, "on_duplicate": how, "delay": "9m"}
                answered = callers["another"]("POST", "/v1/requests", new)
                assert answered.status == 403, (new, answered)
                assert "scope operate" in answered.json["detail"]
        assert kept(redis_client, *names) == before
        assert [one.body for one in queue.request("ended").results()] == [b"kept"]
        keep = {"bodies": ["b"], "id": "running", "on_duplicate": "keep"}
        assert callers["another"]("POST", "/v1/requests", keep).status == 201
        assert kept(redis_client, *names) == before
        new = {"bodies": ["c"], "on_duplicate": "replace"}
        own = callers["submit"]("POST", "/v1/requests", {**new, "id": "running"})
        operator = callers["admin"]("POST", "/v1/requests", {**new, "id": "of-a-program"})
        assert (own.status, operator.status) == (201, 201)
        page = callers["operate"]("GET", "/v1/audit").json["entries"]
        replaced = {
            (one["who"], one["object"], one["status"]): one["given"]
            for one in page
            if one["object"]
            if one["action"] == "POST /v1/requests"
        }
        assert {*replaced} == {("submit", "running", 201), ("admin", "of-a-program", 201)}
        assert all("on_duplicate=replace" in text for text in replaced.values())
        for one in ("running", "of-a-program"):
            queue.request(one).cancel()


def test_a_token_continues_no_open_request_of_another(
    callers: dict[str, Caller], redis_url: str, redis_client: redis.Redis
):
    with Queue.from_url(redis_url) as queue:
        opened = queue.open(id="half")
        before = kept(redis_client, "half")
        answered = callers["another"]("POST", "/v1/requests", {"bodies": [], "id": "half"})
        assert (answered.status, "continued" in answered.json["detail"]) == (403, True)
        assert kept(redis_client, "half") == before
        opened.seal()


@pytest.mark.rest
def test_a_token_takes_no_tick_of_a_schedule(callers: dict[str, Caller], redis_url: str):
    """The tick would find that its request is there already, and run nothing."""
    for queue in ("req", "other"):
        name = request_id(queue, "nightly", 1_800_000_000_000)
        new = {"bodies": ["mine"], "id": name, "delay": "10m"}
        refused = callers["submit"]("POST", "/v1/requests", new)
        assert (refused.status, "schedule's ticks" in refused.json["detail"]) == (403, True)
        assert callers["operate"]("POST", "/v1/requests", new).status == 403  # not its scope
    plain = {"bodies": ["mine"], "id": "shop:nightly:2026", "delay": "10m"}
    assert callers["submit"]("POST", "/v1/requests", plain).status == 201
    with Queue.from_url(redis_url) as opened:
        opened.request("shop:nightly:2026").cancel()


def test_a_sign_in_is_in_the_audit_trail(program: Program):
    token = program("token", "create", "night-watch", "--scope", "admin").id
    with Serving(program) as serving:
        words = ["-H", "Sec-Fetch-Site: same-origin", "-H", "Content-Type: application/json"]
        for text in ("wrong", token):
            given = ["-X", "POST", "-d", json.dumps({"token": text})]
            serving.curl(*words, *given, "/dashboard/session")
        page = serving.curl("-H", f"Authorization: Bearer {token}", "/v1/audit").json["entries"]
    found = {
        (one["who"], one["token"], one["status"], one["address"])
        for one in page
        if one["action"] == "POST /dashboard/session"
    }
    key = token.split("_")[1]
    assert found == {("", "", 401, "127.0.0.1"), ("night-watch", key, 204, "127.0.0.1")}


def test_callers_without_a_token_do_not_keep_a_sign_in_out_of_the_trail(
    monkeypatch: pytest.MonkeyPatch,
):
    written: list[tuple[str, str]] = []

    async def write(_: Tally, entry: AuditEntry, part: str, count: int) -> None:
        del part, count
        written.append((entry.token, entry.address))

    monkeypatch.setattr(trail, "_TALLIES_MOST", 3)
    monkeypatch.setattr(Tally, "_write", write)

    async def run() -> None:
        tally = Tally(cast("Any", None))
        for token in ("", "one"):
            for number in range(5):
                entry = AuditEntry("", "POST /x", token=token, address=f"192.0.2.{number}")
                await tally._note(entry, "access", 1)

    asyncio.run(run())
    assert written == [(token, f"192.0.2.{n}") for token in ("", "one") for n in range(3)]


@pytest.mark.rest
def test_only_operators_see_which_token_submitted_a_request(program: Program):
    made = {name: program("token", "create", name, "--scope", name).id for name in SCOPES}
    with Serving(program) as serving:
        bearer = {name: {"Authorization": f"Bearer {token}"} for name, token in made.items()}
        serving.call("POST", "/v1/requests", {"bodies": ["a"], "id": "r1"}, **bearer["submit"])
        shown = {
            name: serving.call("GET", "/v1/requests/r1", **one).json["by"]
            for name, one in bearer.items()
            if name != "consume"
        }
        serving.call("POST", "/v1/requests/r1/cancel", {}, **bearer["operate"])
        ended = serving.call("GET", "/v1/requests/r1", **bearer["operate"]).json["by"]
    key = made["submit"].split("_")[1]
    assert shown == {"counts": None, "view": None, "submit": None, "operate": key, "admin": key}
    assert ended == key
