"""Tests GET /v1/requests/{id}/live: a request's changes, for any number of viewers."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.web.calls import is_problem, listening, next_event, submit, take
from tests.web.serving import Serving

if TYPE_CHECKING:
    import subprocess

    import redis

    from tests.cli.program import Program

VIEWERS = 12


def seen(reader: subprocess.Popen[bytes]) -> dict[str, Any]:
    event = next_event(reader)
    assert event["event"] == "request", event
    found: dict[str, Any] = json.loads(event["data"])
    return found


def until(reader: subprocess.Popen[bytes], **wanted: Any) -> dict[str, Any]:
    """Returns the first event whose request has this state."""
    while True:
        found = seen(reader)
        if all(found["request"][name] == value for name, value in wanted.items()):
            return found


def test_a_request_is_sent_now_and_whenever_it_has_changed(serving: Serving):
    path = f"/v1/requests/{submit(serving, bodies=['a', 'b'], limit=2)}"
    with listening(serving, f"{path}/live") as reader:
        first = seen(reader)
        assert first["request"] == serving.curl(path).json
        assert first["why"]["causes"][0]["kind"] == "workers"
        (taken,) = take(serving)
        assert until(reader, held=1)["request"]["waiting"] == 1
        serving.call("POST", f"{path}/pause")
        assert until(reader, state="paused")["why"]["causes"][0]["kind"] == "paused"
        serving.call("POST", f"/v1/taken/{taken['receipt']}/done")
        assert until(reader, done=1)["why"] is not None
        serving.call("POST", f"{path}/cancel")
        ended = until(reader, state="cancelled")
        assert (ended["why"], ended["request"]["cancelled"]) == (None, 1)


@pytest.mark.rest
def test_any_number_of_viewers_costs_one_look_a_second(serving: Serving, redis_client: redis.Redis):
    """ZCARD counts the leases of the request at each check, and in few other reads."""
    path = f"/v1/requests/{submit(serving, bodies=['a', 'b'])}"
    with contextlib.ExitStack() as streams:
        readers = [
            streams.enter_context(listening(serving, f"{path}/live")) for _ in range(VIEWERS)
        ]
        for reader in readers:
            seen(reader)
        redis_client.config_resetstat()
        begun = redis_client.time()[0]
        take(serving)
        found = {until(reader, held=1)["now_ms"] for reader in readers}
        looks = redis_client.info("commandstats")["cmdstat_hgetall"]["calls"]
        took_s = redis_client.time()[0] - begun + 1
        assert looks <= 4 * (took_s + 2)  # of that, why and the take read the request, too
        assert len(found) <= took_s + 1


def test_it_needs_the_scope_view_and_a_request_of_the_queue(program: Program):
    made = {
        name: program("token", "create", name, "--scope", name).id for name in ("view", "submit")
    }
    with Serving(program) as serving:
        token = {name: f"Authorization: Bearer {text}" for name, text in made.items()}
        path = "/v1/requests/nothing/live"
        assert is_problem(serving.curl("-H", token["view"], path), 404, "nothing")
        assert is_problem(serving.curl("-H", token["submit"], path), 403)
