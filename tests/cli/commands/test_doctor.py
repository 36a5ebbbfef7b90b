"""Tests `fairlane doctor`: what it prints and repairs, and its exit codes."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

from fairlane import Queue
from tests.cli.program import NO_SERVER, ON_EVERY_KIND, Program, settle
from tests.support.servers.server_process import run_server

if TYPE_CHECKING:
    import redis

ACTIVE = "{req}:active"


@ON_EVERY_KIND
def test_an_idle_queue_is_well(program: Program, redis_client: redis.Redis):
    ended = program("doctor")
    assert ended.code == 0
    lines = ended.out.decode().partition("\n\n")[0].splitlines()
    assert {line.split()[0] for line in lines} <= {"ok", "warn"}
    assert lines[0].split()[1] == "version"
    assert "queue req: 0 bad, " in ended.err
    assert redis_client.dbsize() == 0


def test_what_is_bad_comes_with_its_remedy(program: Program):
    program("submit", "-", stdin=b"a\n")
    ended = program("doctor")
    shown = ended.out.decode()
    assert ended.code == 1
    assert "bad     workers         no worker beats, and 1 unfinished request waiting\n" in shown
    assert "remedy  workers         start one: fairlane worker --queue req --handler m" in shown
    assert "ok      requests        looked at 1 request of the queue\n" in shown
    assert "1 bad" in ended.err


def test_damage_is_repaired_only_on_request(
    program: Program, redis_client: redis.Redis, redis_url: str
):
    program("submit", "-", "--id", "mine", stdin=b"a\n")
    redis_client.delete(ACTIVE)
    for _ in range(2):
        ended = program("doctor")
        assert b"bad     forgotten       mine  is not in `active`\n" in ended.out
        assert b"remedy  forgotten       --repair: put it there\n" in ended.out
        assert (ended.code, redis_client.exists(ACTIVE)) == (1, 0)
    ended = program("doctor", "--repair")
    assert b"fixed   forgotten       mine  is not in `active`\n" in ended.out
    assert b"forgotten       --repair" not in ended.out
    assert "1 fixed" in ended.err
    assert b"forgotten" not in program("doctor").out
    assert settle(redis_url, lambda _, body: body) == [b"a"]
    assert program("doctor").code == 0


@ON_EVERY_KIND
def test_what_a_person_must_do_is_left(program: Program, redis_client: redis.Redis):
    program("submit", "-", "--id", "mine", stdin=b"a\n")
    redis_client.delete("tok:{mine}")
    redis_client.set("tok:{mine}", "text")
    ended = program("doctor", "--repair")
    assert ended.code == 1
    assert b"remedy  unreadable      look at its keys\n" in ended.out
    redis_client.flushall()


def test_of_many_findings_of_one_kind_a_few_are_shown(
    program: Program, redis_client: redis.Redis, redis_url: str
):
    with Queue.from_url(redis_url) as queue:
        for i in range(13):
            queue.submit_request(["a"], id=f"r{i}")
    redis_client.delete(ACTIVE)
    shown = program("doctor").out.decode()
    assert shown.count("is not in `active`") == 10
    assert "bad     forgotten       and 3 more (--json has all)\n" in shown
    assert shown.count("--repair: put it there") == 1
    assert program("doctor", "--json").out.count(b"is not in `active`") == 13
    assert "13 fixed, 0 bad and left" in program("doctor", "--repair").err


def test_damage_of_another_queue_is_not_reported(program: Program, redis_client: redis.Redis):
    program("submit", "-", "--queue", "slow", stdin=b"a\n")
    redis_client.delete("{slow}:active")
    assert program("doctor").code == 0
    assert program("doctor", "--queue", "slow").code == 1


def test_a_lost_request_is_read_from_the_log(program: Program, redis_client: Any):
    redis_client.zadd(ACTIVE, {"mine": 1_700_000_000_000.5})
    assert b"mine  was there and is gone" in program("doctor", "--repair").out
    (entry,) = redis_client.xrange("{req}:completed")
    assert entry[1][b"state"] == b"lost"


def test_a_subscriber_that_never_comes_is_a_warning_with_its_remedy(
    program: Program, redis_client: redis.Redis
):
    program("topic", "subscribe", "news", "mail")
    program("topic", "retain", "news", "--count", 2)
    program("topic", "publish", "news", stdin=b"a\nb\nc\n")
    ended = program("doctor")
    assert ended.code == 0
    assert b"warn    topics          topic news, subscriber mail  has missed 1 message" in ended.out
    assert b"fairlane topic unsubscribe news mail" in ended.out
    redis_client.flushall()


def test_every_check_is_one_json_value(program: Program):
    checks = [json.loads(line) for line in program("doctor", "--json").out.splitlines()]
    assert [check["check"] for check in checks][:2] == ["version", "eviction"]
    for check in checks:
        assert set(check) == {"state", "check", "subject", "what", "remedy", "see", "can_repair"}
        assert (check["remedy"] is None) == (check["state"] == "ok")


@pytest.mark.server
def test_an_unfit_server_is_reported_and_not_refused(alone: Program):
    with run_server("single", "--maxmemory-policy", "allkeys-lru") as server:
        ended = alone("doctor", "--redis", server.url)
        alone("doctor", "--repair", "--redis", server.url).refused(5, "allkeys-lru")
    assert ended.code == 1
    assert b"bad     eviction        maxmemory-policy is allkeys-lru" in ended.out
    assert b"remedy  eviction        CONFIG SET maxmemory-policy noeviction" in ended.out


@pytest.mark.slow
def test_a_cluster_named_as_one_server_gets_the_url_of_a_cluster(alone: Program):
    with run_server("cluster1") as server:
        ended = alone("doctor", "--redis", server.node_url)
        assert (ended.code, b"redis+cluster://host:port" in ended.out) == (0, True)
        assert b"cluster state ok" in alone("doctor", "--redis", server.url).out


@pytest.mark.rest
@pytest.mark.slow
def test_a_server_that_hangs_or_is_not_there_is_exit_5(alone: Program):
    with run_server("single") as server:
        os.kill(server.pid, signal.SIGSTOP)
        alone("doctor", "--redis", server.url).refused(5, "does not answer")
    alone("doctor", "--redis", NO_SERVER).refused(5, "does not answer")
    alone("doctor", "--redis", NO_SERVER, "--queue", "a{b").refused(2, "is not valid")
