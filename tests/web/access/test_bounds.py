"""Tests that many or large calls keep no others waiting, and what an end of the server leaves."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, cast

import pytest
import redis
from starlette.requests import Request

from fairlane.queue import Queue
from fairlane.web import app as module
from fairlane.web.answers import Refusal
from fairlane.web.bulk import MOST_IDS
from fairlane.web.route import MOST_ITEMS
from tests.cli.program import Program
from tests.support.servers.server_process import run_server
from tests.support.wait import PATIENCE_S, wait_until
from tests.web.calls import is_problem, submit, take
from tests.web.dashboard.test_dashboard import Named
from tests.web.serving import Serving

if TYPE_CHECKING:
    from pathlib import Path

    from fairlane.aio.queue import Queue as AsyncQueue

NDJSON = "Content-Type: application/x-ndjson"
TAKERS = 60


def post(serving: Serving, path: str, value: object, tmp_path: Path) -> object:
    file = tmp_path / "content"
    file.write_text(json.dumps(value))
    return serving.curl(
        *("-H", "Content-Type: application/json", "--data-binary", f"@{file}", path)
    )


def test_a_list_that_is_too_long_is_refused_before_it_is_read(serving: Serving, tmp_path: Path):
    long = ["x"] * (MOST_ITEMS + 1)
    bulk = {"action": "cancel", "dry_run": True}
    nightly = {"name": "n", "cron": "0 3 * * *"}
    for path, value in (
        ("/v1/bulk", {**bulk, "ids": ["x"] * (MOST_IDS + 1)}),
        ("/v1/bulk", {**bulk, "filter": {"tag": long}}),
        ("/v1/bulk", {"action": "drop_dead", "fingerprints": long, "everything": True}),
        ("/v1/requests", {"bodies": long}),
        ("/v1/requests", {"bodies": ["a"], "tags": long}),
        ("/v1/requests", {"bodies": ["a"], "after": long}),
        ("/v1/schedules", {**nightly, "bodies": long}),
        ("/v1/requests/x/dead/requeue", {"indexes": [1] * (MOST_ITEMS + 1)}),
    ):
        answer = post(serving, path, value, tmp_path)
        assert is_problem(answer, 422, "length at most"), path  # type: ignore[arg-type]


def test_a_document_without_bodies_is_small(serving: Serving, tmp_path: Path):
    answer = post(serving, "/v1/take", {"count": 1, "x": "x" * 70_000}, tmp_path)
    assert is_problem(answer, 413, "65,536 bytes")  # type: ignore[arg-type]


@pytest.mark.rest
def test_callers_that_wait_for_work_share_their_connection(serving: Serving, redis_url: str):
    with redis.Redis.from_url(redis_url) as client, ThreadPoolExecutor(TAKERS) as threads:
        take(serving)
        before = len(client.client_list())
        waiting = [threads.submit(take, serving, wait_s=30) for _ in range(TAKERS)]
        wait_until(lambda: any("pop" in one["cmd"] for one in client.client_list()))
        submit(serving, bodies=["x"] * TAKERS, limit=TAKERS)
        found = [one["index"] for done in waiting for one in done.result()]
        assert sorted(found) == [*range(TAKERS)]
        assert len(client.client_list()) < before + TAKERS / 2


@pytest.mark.rest
def test_readers_of_results_share_their_connection(serving: Serving, redis_url: str):
    names = [submit(serving, bodies=["a", "b"], id=f"r{number}") for number in range(20)]
    paths = [f"{serving.url}/v1/requests/{name}/results?order=done" for name in names]
    with redis.Redis.from_url(redis_url) as client:
        before = len(client.client_list())
        readers = [
            subprocess.Popen(["curl", "-sN", "-m", "60", path], stdout=subprocess.PIPE)
            for path in (*paths, *paths)
        ]
        wait_until(lambda: any(one["cmd"] == "xread" for one in client.client_list()))
        for _ in range(2):
            for one in take(serving, count=20):
                path = f"/v1/taken/{one['receipt']}/done"
                assert serving.call("POST", path, {"result": one["body"]}).status == 204
        assert len(client.client_list()) < before + 10
        for reader in readers:
            out, _ = reader.communicate(timeout=PATIENCE_S)
            assert sorted(json.loads(line)["body"] for line in out.splitlines()) == ["a", "b"]


def test_a_caller_has_a_bounded_number_of_long_calls(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "MAX_LONG_CALLS", 2)
    site = module.Site(cast("AsyncQueue", Named()))
    with site.long_call("a"), site.long_call("a"):
        site.check_room("b")
        with pytest.raises(Refusal, match="wait or stream") as refused:
            site.check_room("a")
        assert refused.value.status == 429
    site.check_room("a")
    assert not site.long_calls


def test_the_documents_of_one_caller_are_bounded_together(monkeypatch: pytest.MonkeyPatch):
    """Each of them may be large, and a caller may send many slowly."""
    monkeypatch.setattr(module, "MAX_HELD", 100_000)
    site = module.Site(cast("AsyncQueue", Named()))
    calls = [Request({"type": "http", "headers": []}) for _ in range(3)]
    for one, caller in zip(calls, ("a", "a", "b"), strict=True):
        one.state.counted_as = caller
    assert site.hold(calls[0], 60_000) is None
    refused = site.hold(calls[1], 60_000)
    assert refused is not None
    assert (refused.status, "end some of them first" in refused.detail) == (429, True)
    assert site.hold(calls[2], 60_000) is None
    assert site.hold(calls[1], 30_000) is None
    assert site.hold(calls[1], 30_000) is not None
    assert site.held["a"] == 60_000  # what is refused makes room immediately
    for one in calls:
        site.let_go(one)
    assert not site.held


def upload(serving: Serving, name: str) -> socket.socket:
    """Begins an upload, of which Redis has the first chunk."""
    host, port = serving.url.removeprefix("http://").split(":")
    line = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
    head = f"POST /v1/requests?id={name} HTTP/1.1\r\nHost: localhost\r\n{NDJSON}\r\n"
    line.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
    line.sendall(b"1770\r\n" + b"x\n" * 3_000 + b"\r\n")
    wait_until(lambda: serving.curl(f"/v1/requests/{name}").status == 200)
    return line


@pytest.mark.rest
@pytest.mark.slow
def test_an_upload_that_the_end_of_the_server_breaks_is_withdrawn(program: Program, redis_url: str):
    with Serving(program) as serving, Queue.from_url(redis_url) as queue:
        with upload(serving, "r1") as line:
            serving.running.process.send_signal(signal.SIGTERM)
            found = b"".join(iter(lambda: line.recv(65_536), b""))
        assert found.startswith(b"HTTP/1.1 503 ")
        assert b"the server stops" in found
        assert b"application/problem+json" in found
        # a second signal would cut its end short
        assert serving.running.process.wait(PATIENCE_S) == 0
        assert [one.id for one in queue.list_requests(limit=10).requests] == []


@pytest.mark.slow
@pytest.mark.rest
def test_a_submission_that_an_outage_breaks_is_withdrawn_afterwards(tmp_path: Path):
    with run_server() as server, Serving(Program(tmp_path, server.url)) as serving:
        with upload(serving, "r1") as line:
            server.process.send_signal(signal.SIGSTOP)
            line.sendall(b"1770\r\n" + b"x\n" * 3_000 + b"\r\n")
            line.sendall(b"0\r\n\r\n")
            assert line.recv(65_536).startswith(b"HTTP/1.1 503 ")
            server.process.send_signal(signal.SIGCONT)
        wait_until(lambda: serving.curl("/v1/requests/r1").status == 404)
