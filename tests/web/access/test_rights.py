"""Tests the server as a user of Redis with the least rights, and while Redis is unreachable."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cli.program import ON_EVERY_KIND, Program
from tests.support.security import load_scripts
from tests.support.servers.server_process import run_server
from tests.support.servers.users import Users, servers_of
from tests.support.wait import wait_until
from tests.web.serving import Serving

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.servers.backends import Backend

ROLES = "producer+worker+maintenance+server"


@pytest.mark.rest
@ON_EVERY_KIND
def test_the_roles_that_the_page_names_are_enough(
    redis_server: Backend, redis_url: str, program: Program
):
    users = Users(redis_url, servers_of(redis_server), "req")
    for server in users.servers:
        load_scripts(server)
    program.env["FAIRLANE_REDIS"] = users.add(ROLES)
    with Serving(program) as serving:
        name = serving.call("POST", "/messages", {"message": "one"}).json["id"]
        assert [one["id"] for one in serving.curl("/messages").json] == [name]
        assert serving.curl("-X", "DELETE", f"/messages/{name}").status == 204
        serving.call("POST", "/v1/requests", {"bodies": ["a", "b" * 2_000], "id": "r1"})
        for taken in serving.call("POST", "/v1/take", {"count": 2}).json["taken"]:
            serving.call("POST", f"/v1/taken/{taken['receipt']}/dead", {"reason": "no"})
        for path in ("", "/results", "/dead"):
            assert serving.curl(f"/v1/requests/r1{path}").status == 200
        requeued = serving.call("POST", "/v1/requests/r1/dead/requeue", {"everything": True})
        assert requeued.json["requeued"] == 2
        assert serving.curl("-X", "DELETE", "/messages/r1").status == 404
        messages = serving.curl("/messages").json
        assert len(messages) == 2
        for one in messages:
            assert serving.curl("-X", "DELETE", f"/messages/{one['id']}").status == 204
        for path in ("requests", "queue", "queues", "workers", "errors", "schedules", "flows"):
            assert serving.curl(f"/v1/{path}").status == 200, path
        nightly = {"name": "nightly", "cron": "0 3 * * *", "bodies": ["a"]}
        assert serving.call("POST", "/v1/schedules", nightly).status == 200
        assert serving.curl("-X", "DELETE", "/v1/schedules/nightly").status == 204
        many = {"action": "delete", "everything": True, "expected": 9}
        assert serving.call("POST", "/v1/bulk", many).status == 200
        for path in ("demand", "audit", "me"):
            assert serving.curl(f"/v1/{path}").status == 200, path
        assert serving.curl("/readyz").status == 200
    assert users.refused() == set()
    users.remove()


@pytest.mark.rest
def test_a_redis_that_is_away_is_503_without_its_name(tmp_path: Path):
    with run_server() as server:
        program = Program(tmp_path, server.url)
        with Serving(program) as serving:
            assert serving.curl("/readyz").status == 200
            server.process.kill()
            wait_until(lambda: serving.curl("/readyz").status == 503)
            assert "127.0.0.1" not in serving.curl("/readyz").body.decode()
            assert serving.curl("/livez").status == 200
            refused = serving.call("POST", "/v1/requests", {"bodies": ["a"]})
            assert (refused.status, refused.headers["retry-after"]) == (503, "5")
            assert "127.0.0.1" not in refused.body.decode()
