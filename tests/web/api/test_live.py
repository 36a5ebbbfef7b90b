"""Tests GET /v1/live and /v1/doctor: the state of a queue, for any number of viewers."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec
import pytest

from fairlane.protocol import keys
from fairlane.web.live import Live
from tests.cli.program import Program
from tests.support.servers.server_process import run_server
from tests.support.wait import wait_until
from tests.web.calls import listening, next_event, submit
from tests.web.serving import Serving

if TYPE_CHECKING:
    from pathlib import Path

    import redis

VIEWERS = 200


def data_of(event: dict[str, str]) -> dict[str, Any]:
    assert event["event"] == "live", event
    found: dict[str, Any] = json.loads(event["data"])
    return found


def test_the_stream_has_history_first_and_then_what_is_new(serving: Serving):
    submit(serving, bodies=["a", "b"], id="r1", priority=7, limit=2)
    with listening(serving, "/v1/live") as reader:
        first, second = data_of(next_event(reader)), data_of(next_event(reader))
        assert [one["number"] for one in first["frames"]] == [1]
        assert [one["number"] for one in second["frames"]] == [2]
        assert second["frames"][0]["lanes"] == {"7": 2}
        assert second["now"]["requests"][0]["id"] == "r1"
        assert second["now"]["servers"]["nodes"][0]["error"] == ""
        with listening(serving, "/v1/live") as other:
            numbers = [one["number"] for one in data_of(next_event(other))["frames"]]
            assert numbers[:2] == [1, 2]
        with listening(serving, "-H", "Last-Event-ID: 1", "/v1/live") as other:
            numbers = [one["number"] for one in data_of(next_event(other))["frames"]]
            assert numbers[0] == 2


def test_a_worker_that_has_reported_nothing_is_as_the_schema_says(
    serving: Serving, redis_client: redis.Redis
):
    redis_client.zadd(keys.workers("req"), {"w:1": redis_client.time()[0] * 1000})
    with listening(serving, "/v1/live") as reader:
        event = msgspec.json.decode(next_event(reader)["data"], type=Live)
    assert event.now is not None
    (worker,) = event.now.workers
    assert (worker.id, worker.host, worker.per_s, worker.release) == ("w:1", None, None, None)


def test_a_viewer_of_an_earlier_process_begins_anew(serving: Serving):
    for given in ("999", "x", "-3"):
        with listening(serving, "-H", f"Last-Event-ID: {given}", "/v1/live") as reader:
            assert data_of(next_event(reader))["frames"][0]["number"] == 1


@pytest.mark.rest
def test_many_viewers_cost_one_poller(serving: Serving, redis_client: redis.Redis):
    """Each check sends INFO once; so the number of INFO is that of the checks."""
    address = urlsplit(serving.url)
    with contextlib.ExitStack() as streams:
        readers = []
        for _ in range(VIEWERS):
            made = socket.create_connection((address.hostname, address.port), 30)
            streams.enter_context(made)
            made.sendall(b"GET /v1/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
            readers.append(streams.enter_context(made.makefile("rb")))
        begun = _infos(redis_client)
        first = [_number(reader) for reader in readers]
        last = [_number(reader) for reader in readers]
        looks = _infos(redis_client) - begun
        assert looks <= max(last) - min(first) + 5
    wait_until(lambda: _is_quiet(redis_client), 15, every=1.2, why="it rests without a viewer")


def _number(reader: Any) -> int:
    line = next(line for line in reader if line.startswith(b"id: "))
    return int(line[4:])


def _infos(client: redis.Redis) -> int:
    """Returns how often INFO was called, without this call."""
    return int(client.info("commandstats").get("cmdstat_info", {"calls": 0})["calls"])


def _is_quiet(client: redis.Redis) -> bool:
    client.config_resetstat()
    return wait_until(lambda: True, 1, why="") and _infos(client) <= 1


@pytest.mark.rest
@pytest.mark.slow
def test_an_outage_is_one_event_and_the_stream_goes_on(tmp_path: Path):
    with run_server() as server:
        program = Program(tmp_path, server.url)
        with Serving(program) as serving, listening(serving, "/v1/live") as reader:
            assert data_of(next_event(reader))["away"] == ""
            server.process.send_signal(signal.SIGSTOP)
            event = data_of(next_event(reader))
            while not event["away"]:
                event = data_of(next_event(reader))
            assert (event["frames"], event["now"]) == ([], None)
            server.process.send_signal(signal.SIGCONT)
            event = data_of(next_event(reader))
            assert event["away"] == ""
            assert event["frames"]


@pytest.mark.rest
def test_the_doctor_examines_once_a_minute(serving: Serving):
    first, second = (serving.curl("/v1/doctor").json for _ in range(2))
    assert first == second
    checks = {one["check"] for one in first["findings"]}
    assert {"version", "memory", "workers"} <= checks
    assert {one["severity"] for one in first["findings"]} <= {"ok", "note", "warn", "bad"}


_SCOPES = ("view", "consume")


@pytest.mark.rest
def test_both_need_the_scope_view(program: Program):
    made = {name: program("token", "create", name, "--scope", name).id for name in _SCOPES}
    with Serving(program) as serving:
        for path in ("/v1/live", "/v1/doctor"):
            assert serving.curl(path).status == 401
            token = made["consume"]
            assert serving.curl("-H", f"Authorization: Bearer {token}", path).status == 403
        token = made["view"]
        assert serving.curl("-H", f"Authorization: Bearer {token}", "/v1/doctor").status == 200
        with listening(serving, "-H", f"Authorization: Bearer {token}", "/v1/live") as reader:
            assert data_of(next_event(reader))["frames"]
