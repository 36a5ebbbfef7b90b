"""`fairlane doctor`: what it prints, for whom it still works, and its exit codes."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING

from tests.cli.program import NOBODY, ON_ONE_KIND, Program
from tests.support.servers.server_process import run_server

if TYPE_CHECKING:
    import redis


def test_an_idle_queue_is_well(program: Program, redis_client: redis.Redis):
    ended = program("doctor")
    assert ended.code == 0
    lines = ended.out.decode().partition("\n\n")[0].splitlines()
    assert {line.split()[0] for line in lines} <= {"ok", "warn"}
    assert lines[0].split()[1] == "version"
    assert f"{len(lines)} checks: 0 bad" in ended.err
    assert redis_client.dbsize() == 0


@ON_ONE_KIND
def test_what_is_bad_comes_with_its_mend(program: Program):
    program("submit", "-", stdin=b"a\n")
    ended = program("doctor")
    said = ended.out.decode()
    assert ended.code == 1
    assert "bad   workers      no worker beats, and 1 unfinished request waiting\n" in said
    assert "remedy  workers      start one: fairlane worker --queue req --handler module" in said
    assert "1 bad" in ended.err


@ON_ONE_KIND
def test_every_check_is_one_json_value(program: Program):
    checks = [json.loads(line) for line in program("doctor", "--json").out.splitlines()]
    assert [check["check"] for check in checks][:2] == ["version", "eviction"]
    for check in checks:
        assert set(check) == {"state", "check", "what", "remedy"}
        assert (check["remedy"] is None) == (check["state"] == "ok")


def test_an_unfit_server_is_reported_and_not_refused(alone: Program):
    with run_server("single", "--maxmemory-policy", "allkeys-lru") as server:
        ended = alone("doctor", "--redis", server.url)
        alone("fsck", "--redis", server.url).refused(5, "allkeys-lru")
    assert ended.code == 1
    assert b"bad   eviction     maxmemory-policy is allkeys-lru" in ended.out
    assert b"remedy  eviction     CONFIG SET maxmemory-policy noeviction" in ended.out


def test_a_cluster_named_as_one_server_is_told(alone: Program):
    with run_server("cluster1") as server:
        ended = alone("doctor", "--redis", server.node_url)
        assert (ended.code, b"redis+cluster://host:port" in ended.out) == (0, True)
        assert b"cluster state ok" in alone("doctor", "--redis", server.url).out


def test_a_server_that_hangs_is_given_up(alone: Program):
    with run_server("single") as server:
        os.kill(server.pid, signal.SIGSTOP)
        alone("doctor", "--redis", server.url).refused(5, "does not answer")


def test_nobody_answers(alone: Program):
    alone("doctor", "--redis", NOBODY).refused(5, "does not answer")
