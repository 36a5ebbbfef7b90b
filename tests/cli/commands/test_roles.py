"""Tests the commands as the users that `fairlane acl` prints: each role has exactly its rights."""

from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
import redis

from fairlane.drivers.sync import SyncDriver
from fairlane.errors import RedisUnfit
from fairlane.operations import lease, tokens
from fairlane.operations.schedules import fire
from fairlane.protocol import acl, keys, scripts
from fairlane.protocol.lua import library
from fairlane.protocol.steps import Command
from tests.cli.program import ON_EVERY_KIND, Program
from tests.support.scripts.requests import once
from tests.support.security import load_scripts
from tests.support.servers.users import Users, forget_scripts, servers_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlane.protocol.steps import Call
    from tests.support.servers.backends import Backend

HANDLER = b"""
def shout(body):
    if body == b"fail":
        raise ValueError("no such thing")
    return body.upper()
"""


@pytest.fixture
def users(redis_server: Backend, redis_url: str) -> Iterator[Users]:
    """Makes users for the queue `req`, on servers that have no scripts."""
    made = Users(redis_url, servers_of(redis_server), "req")
    forget_scripts(made.servers)
    yield made
    made.remove()


@pytest.fixture
def as_role(users: Users, program: Program) -> As:
    """Returns the program, run by a role."""
    program.file(HANDLER, "mine.py")
    return As(users, program)


class As:
    """Runs a command as the user of a role, and checks that nothing it needs was refused."""

    def __init__(self, users: Users, program: Program) -> None:
        self.users, self.program = users, program

    def __call__(self, role: str, *words: object, stdin: bytes = b"", code: int = 0) -> bytes:
        self.program.env["FAIRLANE_REDIS"] = self.users.add(role)
        ended = self.program(*words, stdin=stdin)
        assert ended.code == code, ended.err
        assert self.users.refused() == set()
        return ended.out


@pytest.mark.rest
@ON_EVERY_KIND
def test_each_role_does_its_part_and_nothing_it_needs_is_refused(as_role: As):
    """Only the deployer may load a script."""
    as_role("deployer", "scripts", "load")
    as_role("deployer", "scripts", "verify")
    given = b"a\n" * 40 + b"fail\n"
    as_role("producer", "submit", "-", "--id", "r1", "--attempts", 1, stdin=given)
    as_role("worker", "worker", "--handler", "mine:shout", "--until-idle")
    assert as_role("producer", "wait", "r1", code=1) == b"done, 1 dead\n"
    assert as_role("producer", "results", "r1", code=1).startswith(b"A\nA\n")
    as_role("producer", "status", "r1")
    as_role("producer", "submit", "-", "--id", "r2", stdin=b"a\n")
    for role in ("producer", "monitor", "maintenance"):
        assert b"no worker takes from queue req" in as_role(role, "why", "r2")
    as_role("producer", "cancel", "r2")
    assert b"r1 " in as_role("producer", "list", "--state", "ended")
    assert b" r1 " in as_role("producer", "completions", "--since", "1h")
    for words in (["list"], ["workers"], ["queues"], ["completions"], ["errors", "r1"]):
        as_role("monitor", *words)
        as_role("maintenance", *words)
    as_role("maintenance", "demand")
    for words in (
        ["status"],
        ["status", "r1"],
        ["stats"],
        ["tasks"],
        ["demand"],
        ["queue", "show"],
        ["dead", "list"],
    ):
        as_role("monitor", *words)
    assert b"ValueError" in as_role("monitor", "dead", "list", "r1")
    checks = as_role("monitor", "doctor").decode()
    assert "queue can't be read" not in checks
    assert "timeouts are not readable" in checks


@pytest.mark.rest
@ON_EVERY_KIND
def test_maintenance_does_what_a_person_does(as_role: As):
    as_role("deployer", "scripts", "load")
    role = "maintenance"
    as_role(role, "submit", "-", "--id", "r1", "--attempts", 1, stdin=b"a\nfail\n")
    as_role(role, "pause", "r1")
    as_role(role, "set", "r1", "--priority", 1, "--limit", 9)
    as_role(role, "resume", "r1")
    as_role(role, "queue", "set", "--max-waiting", 100)
    as_role(role, "submit", "-", "--id", "r2", stdin=b"a\n")
    as_role(role, "cancel", "r2")
    as_role("worker", "worker", "--handler", "mine:shout", "--until-idle")
    assert as_role(role, "dead", "requeue", "r1", "--all") == b"1\n"
    as_role("worker", "worker", "--handler", "mine:shout", "--until-idle")
    as_role(role, "wait", "r1", code=1)
    as_role(role, "dead", "drop", "r1", "--all")
    as_role(role, "stats", "--reset")
    as_role(role, "queue", "set", "--max-waiting", 0)
    as_role(role, "doctor")


@pytest.mark.rest
@ON_EVERY_KIND
def test_maintenance_repairs_what_a_monitor_finds(as_role: As, redis_client: redis.Redis):
    """--repair sends further commands only where there is damage."""
    as_role("deployer", "scripts", "load")
    as_role("producer", "submit", "-", "--id", "r1", stdin=b"a\n" * 50)
    for name in ("left", "other"):
        redis_client.xadd(f"out:{{{name}}}", {"w": "x"})
    redis_client.delete(keys.active("req"))
    lines = as_role("monitor", "doctor", "--json", code=1).splitlines()
    assert {json.loads(line)["check"] for line in lines} >= {"forgotten", "orphan"}
    as_role("maintenance", "doctor", "--repair", code=0)
    as_role("worker", "worker", "--handler", "mine:shout", "--until-idle")
    assert as_role("producer", "wait", "r1") == b"done\n"


@ON_EVERY_KIND
def test_a_user_for_topics_publishes_and_reads(as_role: As):
    as_role("deployer", "scripts", "load")
    role = "topics"
    as_role(role, "topic", "subscribe", "t", "s")
    as_role(role, "topic", "retain", "t", "--count", 9)
    as_role(role, "topic", "publish", "t", stdin=b"a\nb\n")
    assert as_role(role, "topic", "read", "t", "s") == b"a\nb\n"
    as_role(role, "topic", "show", "t")
    assert as_role(role, "topic", "list") == b"t\n"
    as_role(role, "topic", "unsubscribe", "t", "s")
    as_role(role, "topic", "delete", "t", "--yes")


@ON_EVERY_KIND
def test_a_user_for_lists_does_what_its_commands_do(users: Users, as_role: As, program: Program):
    """A person names its keys."""
    as_role("deployer", "scripts", "load")
    url = program.env["FAIRLANE_REDIS"] = users.add("lists", "~{lists}:*")
    a, b, c, d = (f"{{lists}}:{name}" for name in "abcd")
    assert program("balance", "--out", a, stdin=b"1\n2\n").code == 0
    tracked = ("--namespace", "{lists}:n", "--message-timeout", 9)
    words = ("--in", a, "--out", b, "--out", c, *tracked, "--until-idle")
    assert program("fanout", *words).code == 0
    ended = program("forward", "--from", f"{url}/{b}", "--to", f"{url}/{d}", "--until-idle")
    assert ended.code == 0, ended.err
    assert program("forward", "--from", f"{url}/{b}", "--lag").out.startswith(b"lag 0, forwarded 2")
    assert users.refused() == set()


# ------------------------------------------------------------------ missing rights


def refused(url: str, step: Command | Call[Any]) -> None:
    """Checks that the step is refused, with a sentence that names the missing right."""
    with (
        closing(SyncDriver(url, patience_s=0)) as driver,
        pytest.raises(RedisUnfit, match="`fairlane acl` lists what a role needs"),
    ):
        driver.run(once(step))


@ON_EVERY_KIND
def test_a_producer_cannot_work(as_role: As, users: Users, redis_client: redis.Redis):
    """It can neither take nor complete, although it may run the scripts by name."""
    as_role("deployer", "scripts", "load")
    producer = users.add("producer")
    as_role("producer", "submit", "-", "--id", "r1", stdin=b"a\n" * 50)
    refused(producer, tokens.pop("req", 0))
    with closing(SyncDriver(users.add("worker"))) as driver:
        popped = driver.run(once(tokens.pop("req", 0)))
        token = tokens.parse(popped.tokens[0])
        assert token is not None
        _, held = driver.run(lease.acquire(token, "host:1", "1", 5))
    assert held is not None
    ids = [name for name, _ in held.entries]
    results: list[Any] = [
        part for index in range(len(ids)) for part in (b"%d:d:1:0:0" % index, b"")
    ]
    refused(producer, Command(b"XACK", "sub:{r1}", "sub:{r1}", "1-1"))
    with closing(SyncDriver(producer, patience_s=0)) as driver, pytest.raises(RedisUnfit):
        driver.run(once(lease.complete(held, ids, results, [], keep=False)))
    assert redis_client.exists("out:{r1}") == 0
    assert redis_client.get("counter:{r1}") == b"50"


@ON_EVERY_KIND
@pytest.mark.parametrize("role", ["worker", "producer", "maintenance", "monitor"])
def test_no_role_reaches_the_server_itself_or_foreign_keys(
    role: str, users: Users, redis_client: redis.Redis
):
    redis_client.set("{other}:0", "x", px=60_000)
    login = users.login(role)
    for words in (
        *("FLUSHALL", "FLUSHDB", "CONFIG GET requirepass", "CONFIG SET maxmemory 1", "KEYS *"),
        *("EVAL return 0", "SCRIPT LOAD return", "SCRIPT FLUSH", "ACL LIST", "SHUTDOWN NOSAVE"),
        *("EXISTS {other}:0", "HGETALL session:{r1}", "PUBLISH news x"),
    ):
        with pytest.raises(redis.exceptions.NoPermissionError):
            login.execute_command(*words.split())
    login.close()
    assert redis_client.exists("{other}:0")


@ON_EVERY_KIND
def test_a_monitor_writes_nothing_by_any_command(users: Users, redis_client: redis.Redis):
    rows = users.servers[0].execute_command("COMMAND").values()
    writing = {row["name"] for row in rows if "write" in row["flags"]}
    assert "xadd" in writing
    allowed = {rule[1:] for rule in acl.rules("monitor") if rule[0] == "+"}
    assert allowed & writing == set()
    url = users.add("monitor")
    for server in users.servers:
        load_scripts(server)
    redis_client.zadd(keys.active("req"), {"r1": 1})
    refused(url, scripts.reschedule_active((keys.active("req"),), rows=["r1", "1", 2]))
    redis_client.delete(keys.active("req"))
    refused(url, scripts.insert_tokens((keys.delayed("req"), b"{req}:5"), tokens=(5, 1, 0, "x")))
    assert redis_client.dbsize() == 0


@ON_EVERY_KIND
def test_a_deployer_sees_no_key(users: Users):
    url = users.add("deployer")
    for words in ((b"EXISTS", b"{req}:active"), (b"SCAN", b"0"), (b"EVAL", b"return 1", b"0")):
        refused(url, Command(*words))


def test_a_user_of_one_queue_sees_only_the_names_of_others(users: Users, program: Program):
    for queue in ("other", "req"):
        program("submit", "-", "--queue", queue, stdin=b"a\n")
    ended = program("queues", "--redis", users.add("monitor"))
    assert (ended.code, ended.err) == (0, "")
    assert [line.split() for line in ended.out.decode().splitlines()[1:]] == [
        ["other", *"------"],
        ["req", "1", "nothing", "works", "on", "them", "now", *"10100"],
    ]


def test_any_worker_may_submit_what_schedules_owe(
    as_role: As, users: Users, redis_client: redis.Redis
):
    """It may be the leader; the queue has no room at first."""
    as_role("deployer", "scripts", "load")
    as_role("maintenance", "schedule", "add", "daily", "0 7 * * *", "--body", "x")
    as_role("maintenance", "queue", "set", "--max-waiting", 1)
    as_role("producer", "submit", "-", "--id", "r1", stdin=b"a\n")
    redis_client.zadd(keys.schedules("req")[1], {"daily": 1_000})
    with closing(SyncDriver(users.add("worker"))) as driver:
        assert driver.run(fire("req")).full is not None
        redis_client.hdel(keys.conf("req"), "max_waiting")
        assert driver.run(fire("req")).requests == 1
    listed = as_role("monitor", "schedule", "list", "--json")
    assert json.loads(listed)["state"] == "active"
    redis_client.flushall()


# ------------------------------------------------------------------ refusals


def test_a_refused_command_is_one_sentence(as_role: As, users: Users):
    """This includes a user for one queue that names another."""
    as_role("deployer", "scripts", "load")
    as_role("producer", "submit", "-", "--id", "r1", stdin=b"a\n")
    as_role.program.env["FAIRLANE_REDIS"] = users.add("monitor")
    for words in (["pause", "r1"], ["submit", "-", "--json"], ["wait", "r1"]):
        as_role.program(*words).refused(5, "refused a command", "`fairlane acl`")
    as_role.program.env["FAIRLANE_REDIS"] = users.add("producer")
    ended = as_role.program("submit", "-", "--json", "--queue", "other", stdin=b"a\n")
    ended.refused(5, "refused a command")


def test_the_doctor_reports_what_it_may_not_look_at(users: Users, program: Program):
    ended = program("doctor", "--redis", users.add("topics"))
    assert ended.code == 1
    said = ended.out.decode()
    assert "ok      scripts         what is loaded is not readable" in said
    assert "bad     queue           the queue can't be read: " in said
    said = program("doctor", "--redis", users.add("monitor")).out.decode()
    count = len([*library()])
    assert f"{count} of {count} are not loaded, and this user may not load them" in said
    assert "remedy  scripts         run `fairlane scripts load`" in said
