"""Tests the API calls of the dashboard, with curl against a server of its own."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING, Any

import pytest
from starlette.testclient import TestClient

from fairlane import Flow, settings
from fairlane.operations import audit_trail
from fairlane.operations.audit_trail import AuditEntry
from fairlane.queue import Queue
from fairlane.web import asgi, trail
from tests.support.wait import wait_until
from tests.web.calls import is_problem, submit, take
from tests.web.serving import Serving

if TYPE_CHECKING:
    from fairlane.protocol.steps import Operation
    from tests.cli.program import Program


def die(serving: Serving, name: str, *reasons: str) -> None:
    """Submits a request whose sub-requests die for these reasons."""
    submit(serving, id=name, bodies=[f"body {i}" for i in range(len(reasons))], limit=9)
    for taken, reason in zip(take(serving, count=len(reasons)), reasons, strict=True):
        path = f"/v1/taken/{taken['receipt']}/dead"
        assert serving.call("POST", path, {"reason": reason}).status == 204


def post(serving: Serving, path: str, **given: Any) -> Any:
    answer = serving.call("POST", path, given)
    assert answer.status == 200, answer
    return answer.json


@pytest.mark.rest
def test_a_caller_sees_its_name_and_its_scopes(program: Program, serving: Serving):
    local = serving.curl("/v1/me").json
    assert (local["name"], local["has_tokens"], local["queue"]) == ("local", False, "req")
    token = program("token", "create", "anna", "--scope", "operate").id
    with Serving(program) as guarded:
        mine = guarded.curl("-H", f"Authorization: Bearer {token}", "/v1/me").json
    assert (mine["name"], mine["scopes"], mine["has_tokens"]) == ("anna", ["view", "operate"], True)


def test_it_reports_why_a_request_waits_and_how_much_could_start(serving: Serving):
    name = submit(serving, bodies=["a", "b", "c"], limit=2)
    found = serving.curl(f"/v1/requests/{name}/why").json
    assert (found["request"]["id"], found["causes"][0]["kind"]) == (name, "workers")
    assert (found["lane_place"]["place"], found["estimate"]["starts_ms"]) == (1, None)
    take(serving)
    demand = serving.curl("/v1/demand").json
    assert (demand["demand"], demand["held"], demand["wanted"]) == (1, 1, 2)
    assert is_problem(serving.curl("/v1/requests/nothing/why"), 404)


def test_a_request_is_shown_in_full(serving: Serving):
    name = submit(serving, bodies=["a"], rate="10/s", burst=3, retain=3600, tags=["x"])
    found = serving.curl(f"/v1/requests/{name}").json
    assert (found["queue"], found["rates"], found["tags"]) == ("req", ["10/s"], ["x"])
    assert found["opens_ms"] is None


@pytest.mark.rest
def test_a_rate_is_changed_and_bad_values_change_nothing(serving: Serving):
    name = submit(serving, bodies=["a"], rate="10/s", tenant="anna")
    path = f"/v1/requests/{name}"
    assert serving.call("PATCH", path, {"rate": "20/m", "burst": 2}).status == 200
    assert serving.curl(path).json["rates"] == ["20/m"]
    assert is_problem(serving.call("PATCH", path, {"priority": 7, "rate": "fast"}), 422, "fast")
    assert serving.call("PATCH", path, {"weight": 3, "share": 4}).status == 200
    found = serving.curl(path).json
    assert (found["share"], found["rates"]) == (4, ["20/m, each counts for 3"])
    wanted = {"action": "set", "ids": [name], "share": 5, "weight": 2, "expected": 1}
    assert post(serving, "/v1/bulk", **wanted)["changed"] == 1
    assert serving.curl(path).json["share"] == 5
    assert is_problem(serving.call("PATCH", path, {"priority": 7, "share": 0}), 422, "share 0")
    plain = f"/v1/requests/{submit(serving, bodies=['a'])}"
    assert is_problem(serving.call("PATCH", plain, {"limit": 7, "share": 2}), 422, "no tenant")
    assert is_problem(serving.call("PATCH", plain, {"limit": 7, "weight": 2}), 422)
    assert serving.curl(plain).json["limit"] != 7
    assert is_problem(serving.call("PATCH", path, {"burst": 2}), 422, "burst needs a rate")
    assert is_problem(serving.call("PATCH", path, {}), 422, "nothing to set")
    assert serving.curl(path).json["priority"] == 5


@pytest.mark.rest
def test_failures_are_grouped_for_a_request_and_for_the_queue(serving: Serving):
    die(serving, "r1", "bad host", "bad host", "no disk")
    die(serving, "r2", "bad host")
    found = serving.curl("/v1/requests/r1/errors").json
    assert [(one["count"], one["headline"]) for one in found["groups"]] == [
        (2, "bad host"),
        (1, "no disk"),
    ]
    assert (found["more"], found["retries"], found["due_ms"]) == (0, 0, None)
    groups = serving.curl("/v1/errors").json["groups"]
    assert [(one["count"], one["requests"]) for one in groups] == [(3, 2), (1, 1)]
    assert {one["id"] for one in groups[0]["examples"]} == {"r1", "r2"}


def test_dead_sub_requests_are_read_requeued_and_dropped(serving: Serving):
    die(serving, "r1", "bad host", "no disk", "no disk")
    page = serving.curl("/v1/requests/r1/dead").json
    assert [(one["index"], one["body"]) for one in page["dead"]] == [
        (0, "body 0"), (1, "body 1"), (2, "body 2"),
    ]  # fmt: skip
    assert serving.curl(f"/v1/requests/r1/dead?after={page['after']}").json == {
        "dead": [],
        "after": None,
    }
    path = "/v1/requests/r1/dead"
    assert sum(one["count"] for one in serving.curl("/v1/errors").json["groups"]) == 3
    again = post(serving, f"{path}/requeue", indexes=[0])
    assert sum(one["count"] for one in serving.curl("/v1/errors").json["groups"]) == 2
    assert again["requeued"] == 1
    assert [one["body"] for one in take(serving, count=9)] == ["body 0"]
    assert post(serving, f"{path}/drop", fingerprints=[page["dead"][1]["fingerprint"]]) == {
        "dropped": 2
    }
    assert is_problem(serving.call("POST", f"{path}/drop"), 422, "no dead sub-request is chosen")
    assert is_problem(serving.call("POST", f"{path}/requeue", {"indexes": [7]}), 404, "index 7")
    both = {"indexes": [1], "everything": True}
    assert is_problem(serving.call("POST", f"{path}/requeue", both), 422, "two ways")
    assert is_problem(serving.curl(f"{path}?after=x"), 422, "no place")


def test_a_request_is_deleted_once_it_has_ended(serving: Serving):
    submit(serving, id="r1", bodies=["a"])
    assert is_problem(serving.curl("-X", "DELETE", "/v1/requests/r1"), 409, "has not ended")
    assert serving.curl("-X", "DELETE", "/v1/requests/r1?cancel=true").status == 204
    for _ in range(2):
        assert is_problem(serving.curl("-X", "DELETE", "/v1/requests/r1"), 404)


def test_many_requests_are_counted_and_then_changed(serving: Serving):
    for i in range(5):
        submit(serving, id=f"night-{i}", bodies=["a"], tags=["nightly"])
    submit(serving, id="day", bodies=["a"])
    wanted = {"action": "cancel", "filter": {"tag": ["nightly"]}, "reason": "late"}
    counted = post(serving, "/v1/bulk", **wanted, dry_run=True)
    assert (counted["matched"], counted["changed"], len(counted["ids"])) == (5, 0, 5)
    assert is_problem(serving.call("POST", "/v1/bulk", wanted), 422, "expected is missing")
    few = {**wanted, "expected": 4}
    assert is_problem(serving.call("POST", "/v1/bulk", few), 409, "5 requests match, not 4")
    done = post(serving, "/v1/bulk", **wanted, expected=5)
    assert (done["changed"], done["failed"]) == (5, 0)
    assert serving.curl("/v1/requests/night-0").json["reason"] == "late"
    assert serving.curl("/v1/requests/day").json["state"] == "active"
    ids = {"action": "set", "ids": ["day"], "priority": 1, "expected": 1}
    assert post(serving, "/v1/bulk", **ids)["changed"] == 1
    assert serving.curl("/v1/requests/day").json["priority"] == 1
    for action in ("pause", "resume"):
        assert post(serving, "/v1/bulk", action=action, everything=True, expected=9)["changed"] == 1
    ended = {"action": "delete", "filter": {"state": ["ended"]}, "expected": 5}
    assert post(serving, "/v1/bulk", **ended)["changed"] == 5


@pytest.mark.rest
def test_the_dead_of_many_requests_are_requeued(serving: Serving):
    die(serving, "r1", "bad host")
    die(serving, "r2", "bad host", "no disk")
    wanted = {"action": "requeue_dead", "everything": True, "expected": 2}
    assert post(serving, "/v1/bulk", **wanted)["changed"] == 2
    assert len(take(serving, count=9)) == 3


@pytest.mark.rest
def test_the_dead_of_many_requests_are_counted_and_then_dropped(serving: Serving):
    die(serving, "r1", "bad host")
    die(serving, "r2", "bad host", "no disk")
    wanted = {"action": "drop_dead", "filter": {"state": ["ended"]}}
    counted = post(serving, "/v1/bulk", **wanted, dry_run=True)
    assert (counted["matched"], counted["dead"]) == (2, 3)
    assert is_problem(serving.call("POST", "/v1/bulk", wanted), 422, "expected is missing")
    (group, _) = serving.curl("/v1/errors").json["groups"]
    one = {"action": "drop_dead", "everything": True, "fingerprints": [group["fingerprint"]]}
    done = post(serving, "/v1/bulk", **one, expected=2)
    assert (done["changed"], done["dead"], done["failed"]) == (2, 2, 0)
    done = post(serving, "/v1/bulk", **wanted, expected=2)
    assert (done["matched"], done["changed"], done["dead"]) == (1, 1, 1)
    assert serving.curl("/v1/errors").json["groups"] == []
    entry = serving.curl("/v1/audit?limit=1").json["entries"][0]
    assert (entry["action"], "drop_dead" in entry["given"]) == ("POST /v1/bulk", True)


@pytest.mark.rest
def test_a_bulk_that_is_no_choice_is_refused(serving: Serving, redis_url: str):
    with Queue.from_url(redis_url, name="other") as queue:
        queue.submit_request(["a"], id="foreign")
        for given, status, words in (
            ({"action": "cancel"}, 422, "no request is chosen"),
            ({"action": "cancel", "filter": {}}, 422, "no request is chosen"),
            ({"action": "cancel", "ids": ["a"], "everything": True}, 422, "two ways"),
            ({"action": "pause", "everything": True, "limit": 2}, 422, "limit is not for"),
            ({"action": "set", "everything": True}, 422, "nothing to set"),
            ({"action": "explode", "everything": True}, 422, "explode"),
            ({"action": "cancel", "filter": {"state": ["lost"]}}, 422, "state lost"),
            ({"action": "cancel", "ids": ["nothing"]}, 404, "nothing"),
            ({"action": "cancel", "ids": ["foreign"]}, 404, "foreign"),
        ):
            answer = serving.call("POST", "/v1/bulk", {**given, "expected": 9})
            assert is_problem(answer, status, words)
        assert queue.request("foreign").state() == "active"
        queue.request("foreign").cancel()


def test_the_queue_is_shown_paused_and_resumed(serving: Serving):
    submit(serving, bodies=["a", "b"], priority=7, limit=2)
    found = serving.curl("/v1/queue").json
    assert (found["requests"], found["lanes"], found["max_waiting"]) == (1, {"7": 2}, None)
    paused = post(serving, "/v1/queue/pause", for_s=600)
    assert paused["is_paused"] is True
    assert serving.curl("/v1/queue").json["paused_until_ms"] == paused["paused_until_ms"]
    assert take(serving) == []
    assert post(serving, "/v1/queue/resume")["was_paused"] is True
    assert post(serving, "/v1/queue/resume")["was_paused"] is False
    assert is_problem(serving.call("POST", "/v1/queue/pause", {"for_s": 0}), 422, "for_s 0")
    assert len(take(serving, count=2)) == 2


def test_queues_and_workers_are_listed(serving: Serving):
    submit(serving, bodies=["a"])
    (row,) = serving.curl("/v1/queues").json["queues"]
    assert (row["name"], row["backlog"]["waiting"], row["requests"], row["is_paused"]) == (
        "req",
        1,
        1,
        False,
    )
    assert is_problem(serving.curl("/v1/queues?after=x"), 422, "cursor")
    assert serving.curl("/v1/workers").json == {"workers": [], "more": 0}


def test_schedules_are_added_listed_paused_and_removed(serving: Serving):
    nightly = {"name": "nightly", "cron": "0 3 * * *", "bodies": ["a", "b"], "tz": "Europe/Berlin"}
    made = post(serving, "/v1/schedules", **nightly, priority=2, tags=["x"])
    assert (made["state"], made["sub_requests"]) == ("active", 2)
    assert (made["options"], len(made["next"])) == ({"priority": 2, "tags": ["x"]}, 5)
    assert serving.curl("/v1/schedules").json["schedules"] == [made]
    paused = post(serving, "/v1/schedules/nightly/pause")
    assert (paused["state"], paused["next"]) == ("paused", [])
    assert post(serving, "/v1/schedules/nightly/resume")["state"] == "active"
    assert serving.curl("-X", "DELETE", "/v1/schedules/nightly").status == 204
    assert is_problem(serving.curl("-X", "DELETE", "/v1/schedules/nightly"), 404, "no schedules")
    for wrong, words in (
        ({"cron": "often"}, "cron line"),
        ({"tz": "Moon"}, "Moon"),
        ({"name": "a:b"}, "a:b"),
        ({"bodies": []}, "no body"),
        ({"run_at": "2030-01-01"}, "run_at"),
        ({"limit": 0}, "limit 0"),
    ):
        assert is_problem(serving.call("POST", "/v1/schedules", {**nightly, **wrong}), 422, words)


@pytest.mark.rest
def test_flows_are_found_and_shown(serving: Serving, redis_url: str):
    flow = Flow("import").step("fetch").step("store")
    with Queue.from_url(redis_url) as queue, Queue.from_url(redis_url, name="other") as other:
        queue.submit_flow(flow, ["a", "b"], id="run1", properties={"city": "Bonn"})
        other.submit_flow(flow, ["a"], id="foreign")
        (found,) = serving.curl("/v1/flows?property=city%3DBonn&flow=import").json["flows"]
        assert (found["id"], found["state"]) == ("run1", "active")
        steps = [(one["step"], one["sources"], one["request"]["total"]) for one in found["steps"]]
        assert steps == [("fetch", [], 2), ("store", ["fetch"], 0)]
        assert [one["gets"] for one in found["steps"]] == ["input", "results"]
        assert serving.curl("/v1/flows/run1").json == found
        assert serving.curl("/v1/flows?property=city%3DKiel").json == {"flows": [], "after": None}
        for name in ("most", "self", "flow"):  # also words of the library
            assert serving.curl(f"/v1/flows?property={name}%3D5").json == {
                "flows": [],
                "after": None,
            }
        assert is_problem(serving.curl("/v1/flows?property=city"), 422, "NAME=VALUE")
        twice = "/v1/flows?property=city%3Da&property=city%3Db"
        assert is_problem(serving.curl(twice), 422, "a property is given twice")
        for name in ("foreign", "nothing", "a%7Bb"):
            assert is_problem(serving.curl(f"/v1/flows/{name}"), 404)
            assert is_problem(serving.call("POST", f"/v1/flows/{name}/cancel"), 404)
        assert post(serving, "/v1/flows/run1/cancel", reason="late")["state"] == "cancelled"
        other.flows.run("foreign").cancel()


def test_changes_stand_in_the_audit_trail(program: Program):
    token = program("token", "create", "anna", "--scope", "admin").id
    bearer = {"Authorization": f"Bearer {token}"}
    with Serving(program) as serving:
        for path, given in (
            ("/v1/requests", {"bodies": ["a"], "id": "r1"}),
            ("/v1/requests/r1/pause", {}),
            ("/v1/requests/r1/cancel", {"reason": "too\nlate"}),
            ("/v1/requests/nothing/cancel", {}),
            ("/v1/queue/pause", {"for_s": -1}),
        ):
            serving.call("POST", path, given, **bearer)
        serving.call("POST", "/v1/requests/r1/pause", {})  # without a token
        words = ["-H", f"Authorization: Bearer {token}"]
        wait_until(lambda: "token created" in serving.curl(*words, "/v1/audit").body.decode())
        page = serving.curl(*words, "/v1/audit").json
        assert [
            (one["who"], one["action"].split("/")[-1], one["object"], one["status"])
            for one in page["entries"]
            if one["who"] == "anna"
        ] == [
            ("anna", "pause", "", 422),
            ("anna", "cancel", "nothing", 404),
            ("anna", "cancel", "r1", 200),
            ("anna", "pause", "r1", 200),
        ]
        mine = [one for one in page["entries"] if one["who"] == "anna"]
        assert mine[2]["given"] == "too\nlate"
        assert "for_s -1" in mine[0]["detail"]
        key = token.split("_")[1]
        assert {(one["token"], one["address"]) for one in mine} == {(key, "127.0.0.1")}
        others = [one for one in page["entries"] if one["who"] != "anna"]
        assert {(one["who"], one["action"], one["object"], one["status"]) for one in others} == {
            ("", "POST /v1/requests/{id}/pause", "", 401),
            ("fairlane token", "token created", key, None),
        }
        first = serving.curl(*words, "/v1/audit?limit=3").json
        rest = serving.curl(*words, f"/v1/audit?limit=3&after={first['after']}").json
        assert first["entries"] + rest["entries"] == page["entries"]
        assert rest["after"] is None
        assert is_problem(serving.curl(*words, "/v1/audit?after=x"), 422, "cursor")
        assert json.dumps(page).count(token) == 0


def test_a_caller_that_closes_its_connection_is_no_bug(program: Program):
    with Serving(program) as serving:
        submit(serving, bodies=["a"], id="r1")
        host, port = serving.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as caller:
            head = f"POST /v1/requests/r1/cancel HTTP/1.1\r\nHost: {host}:{port}\r\n"
            kind = "Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
            caller.sendall((head + kind).encode())
            wait_until(lambda: serving.curl("/v1/audit").json["entries"])
        wait_until(lambda: serving.curl("/v1/audit").json["entries"][0]["status"])
        (entry,) = serving.curl("/v1/audit").json["entries"]
        assert (entry["status"], entry["detail"]) == (499, "the caller closed the connection")
        assert "Traceback" not in serving.stop().err


@pytest.mark.rest
def test_a_caller_displaces_no_entries_of_another(
    serving: Serving, redis_url: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(settings, "AUDIT_ENTRIES", 100)
    with Queue.from_url(redis_url) as queue:
        run = queue.driver.run
        first = AuditEntry("anna", "POST /v1/requests/{id}/cancel", "r1", token="0a0a0a0a")
        run(audit_trail.begin("req", first))
        for number in range(1_000):
            run(audit_trail.begin("req", AuditEntry("eve", "x", f"r{number}", token="0b0b0b0b")))
        assert len(run(audit_trail.read_trail("req", 1_000))[0]) < 500
        pages, after = [], ""
        while page := run(audit_trail.read_trail("req", 7, after)):
            pages += [entry for _, entry in page[0]]
            if not (after := page[1]):
                break
        assert pages == [entry for _, entry in run(audit_trail.read_trail("req", 1_000))[0]]
        assert pages[-1] == first
        for number in range(audit_trail.MOST_PARTS + 3):
            run(audit_trail.begin("req", AuditEntry("many", "x", token=f"{number:08x}")))
        parts = run(audit_trail.read_trail("req", 1_000))[0]
        assert len({entry.token for _, entry in parts}) == audit_trail.MOST_PARTS
    is_problem(serving.curl("/v1/audit?after=99999999999999999999-0~a"), 422, "cursor")


def test_a_large_entry_leaves_room_for_few(redis_url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(settings, "AUDIT_BYTES", 100_000)
    ids = " ".join(f"request-{number:05}" for number in range(1_000))
    with Queue.from_url(redis_url) as queue:
        for _ in range(400):
            queue.driver.run(audit_trail.begin("req", AuditEntry("anna", "POST /v1/bulk", ids=ids)))
        page, after = queue.driver.run(audit_trail.read_trail("req", 1_000))
    assert len(page) <= 200
    assert after == ""
    assert page[0][1].ids == ids


@pytest.mark.rest
def test_dry_runs_leave_no_entry_and_a_bulk_change_leaves_its_filter_or_its_ids(serving: Serving):
    for name in ("r1", "r2", "r3"):
        submit(serving, bodies=["a"], id=name, tags=["nightly"])
    chosen = {"action": "pause", "filter": {"tag": ["nightly"]}}
    for _ in range(3):
        assert serving.call("POST", "/v1/bulk", {**chosen, "dry_run": True}).status == 200
    assert serving.curl("/v1/audit").json["entries"] == []
    assert serving.call("POST", "/v1/bulk", {**chosen, "expected": 3}).status == 200
    ids = {"action": "cancel", "ids": ["r1", "r2", "r3"], "expected": 3}
    assert serving.call("POST", "/v1/bulk", ids).status == 200
    by_ids, by_filter = serving.curl("/v1/audit").json["entries"]
    assert (by_ids["ids"], by_filter["ids"]) == (["r1", "r2", "r3"], [])
    assert '"tag":["nightly"]' in by_filter["given"]
    assert "matched=3" in by_filter["given"]


def test_an_entry_has_what_is_changed_before_the_change(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
):
    """So a server that dies meanwhile leaves it."""
    entries: list[AuditEntry] = []

    def watched(queue: str, began: str, entry: AuditEntry) -> Operation[str]:
        entries.append(entry)
        return rewrite(queue, began, entry)

    rewrite = audit_trail.rewrite
    monkeypatch.setattr(trail, "rewrite", watched)
    indexes = {"indexes": [0, 7]}
    with TestClient(asgi(url=redis_url, tokens=None), base_url="http://localhost") as client:
        client.post("/v1/requests", json={"bodies": ["a"], "id": "r1"})
        for path, given in (
            ("bulk", {"action": "pause", "ids": ["r1"], "expected": 9}),
            ("bulk", {"action": "cancel", "everything": True, "expected": 9}),
            ("webhooks", {"name": "h", "url": "https://shop.example/hook"}),
            ("schedules", {"name": "n", "cron": "0 3 * * *", "bodies": ["a"], "limit": 7}),
            ("requests/r1/dead/drop", indexes),
        ):
            assert client.post(f"/v1/{path}", json=given).status_code in {200, 201, 404}, path
    before = [one for one in entries if not one.status]
    assert [(one.ids, "matched=" in one.given) for one in before[:4]] == [
        ("r1", False), ("r1", True), ("", False), ("", True),
    ]  # fmt: skip
    assert "url=https://shop.example/hook" in before[4].given
    assert "limit=7" in before[5].given
    assert (before[6].given, before[6].ids) == ("indexes", "0 7")
    assert all(one.status for one in entries if one not in before)


@pytest.mark.rest
def test_the_trail_has_takes_refusals_and_changes_of_tokens(program: Program):
    made = {
        scope: program("token", "create", "anna", "--scope", scope)
        for scope in ("admin", "consume", "submit")
    }
    ids = {scope: one.id.split("_")[1] for scope, one in made.items()}
    bearer = {scope: {"Authorization": f"Bearer {one.id}"} for scope, one in made.items()}
    with Serving(program) as serving:

        def entries() -> list[dict[str, Any]]:
            words = ["-H", f"Authorization: {bearer['admin']['Authorization']}"]
            return list(serving.curl(*words, "/v1/audit").json["entries"])

        serving.call("POST", "/v1/requests", {"bodies": ["a", "b"], "limit": 2}, **bearer["submit"])
        serving.call("POST", "/v1/take", {"count": 2}, **bearer["consume"])
        for _ in range(5):
            serving.call("POST", "/v1/take", {"count": 2}, **bearer["submit"])
            serving.call("POST", "/v1/queue/pause", {})
        hook = {"name": "billing", "url": "https://shop.example/hook"}
        serving.call("POST", "/v1/webhooks", hook, **bearer["admin"])
        found = {
            (one["token"], one["action"], one["status"], one["count"], one["address"])
            for one in entries()
            if not one["action"].startswith("token ")
        }
        assert found == {
            (ids["consume"], "POST /v1/take", 200, 2, "127.0.0.1"),
            (ids["submit"], "POST /v1/take", 403, 1, "127.0.0.1"),
            ("", "POST /v1/queue/pause", 401, 1, "127.0.0.1"),
            (ids["admin"], "POST /v1/webhooks", 201, 1, "127.0.0.1"),
        }
        (added,) = (one for one in entries() if one["action"] == "POST /v1/webhooks")
        assert added["given"] == "url=https://shop.example/hook"
        program("token", "revoke", ids["consume"])
        wait_until(lambda: "token revoked" in {one["action"] for one in entries()})
        changed = {
            (one["action"], one["object"]) for one in entries() if one["action"][:5] == "token"
        }
        assert changed == {
            *(("token created", one) for one in ids.values()),
            ("token revoked", ids["consume"]),
        }
    with Serving(program) as serving:  # the refusals of the first server were counted at its end
        words = ["-H", f"Authorization: {bearer['admin']['Authorization']}"]
        page = serving.curl(*words, "/v1/audit").json["entries"]
        refused = [one["count"] for one in page if one["status"] == 403]
        assert sorted(refused) == [1, 4]


@pytest.mark.rest
def test_the_dead_are_chosen_by_task_error_and_time(serving: Serving):
    call = '[1,"send_mail",{"to":"ann"}]'
    submit(serving, id="mail", bodies=[call, "a line"], task={"send_mail": 1}, limit=9)
    for taken, reason in zip(take(serving, count=2), ("no such box", "bad line"), strict=True):
        path = f"/v1/taken/{taken['receipt']}/dead"
        assert serving.call("POST", path, {"reason": reason}).status == 204
    assert serving.curl("/v1/requests/mail").json["tasks"] == {"send_mail": 1, "other": 1}
    dead = serving.curl("/v1/requests/mail/dead").json["dead"]
    assert [(one["task"], one["call"]) for one in dead] == [
        ("send_mail", 'send_mail(to="ann")'),
        (None, None),
    ]
    for path in ("/v1/errors", "/v1/requests/mail/errors"):
        for query, count in (
            *(("task=send_mail", 1), ("error=BAD", 1), ("since=10m", 2), ("until=10m", 0)),
            *(("task=send_mail&task=x&error=bad", 0), ("", 2), ("task=never_seen", 0)),
        ):
            groups = serving.curl(f"{path}?{query}").json["groups"]
            assert sum(one["count"] for one in groups) == count, (path, query)
    assert is_problem(serving.call("GET", "/v1/errors?since=soon"), 422, "since 'soon'")
    assert is_problem(serving.call("GET", "/v1/errors?task=%0A"), 422, "task name")
    wanted = {"action": "drop_dead", "everything": True, "tasks": ["send_mail"], "since": "1h"}
    assert post(serving, "/v1/bulk", **wanted, dry_run=True)["dead"] == 1
    assert post(serving, "/v1/bulk", **wanted, expected=1)["dead"] == 1
    assert serving.curl("/v1/errors?task=send_mail").json["requests"] == []
    done = post(serving, "/v1/requests/mail/dead/requeue", error="bad line", until="1h")
    assert done["requeued"] == 0
    assert post(serving, "/v1/requests/mail/dead/requeue", error="bad line")["requeued"] == 1
    found = serving.curl("/v1/requests?task=send_mail").json["requests"]
    assert "mail" in [one["id"] for one in found]
