"""Tests `fairlane scripts`: every server gets them, replicas too, also after a restart."""

from __future__ import annotations

import json
import signal
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.protocol.lua import Dialect, library
from tests.cli.program import END_S, NO_SERVER, ON_EVERY_KIND, Program, finish
from tests.support.security import load_scripts
from tests.support.servers.clusters import run_cluster
from tests.support.servers.replicas import run_pair
from tests.support.servers.sentinels import run_guarded
from tests.support.servers.users import Users, forget_scripts, servers_of
from tests.support.wait import wait_until

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    import redis

    from tests.support.servers.backends import Backend

pytestmark = pytest.mark.rest  # each has a shorter test of its subject, or is tested as a part

ALL = len([*library()])


@pytest.fixture
def servers(redis_server: Backend, redis_url: str) -> Iterator[list[redis.Redis]]:
    """Returns the servers, which have no scripts."""
    made = servers_of(redis_server)
    forget_scripts(made)
    yield made
    for one in made:
        load_scripts(one)
        one.close()


@pytest.fixture
def deployer(servers: list[redis.Redis], redis_url: str, program: Program) -> Program:
    """Makes the program, as a user that may load scripts and nothing else."""
    program.env["FAIRLANE_REDIS"] = Users(redis_url, servers).add("deployer")
    return program


def looked(program: Program, *words: object, code: int = 0) -> dict[str, Any]:
    """Returns what `fairlane scripts` prints in JSON, by port; checks its exit code."""
    ended = program("scripts", *words, "--json")
    assert ended.code == code, ended.err
    rows = [json.loads(line) for line in ended.out.splitlines()]
    return {row["node"].rpartition(":")[2]: row for row in rows}


def next_line(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    """Returns the next report of a watching process."""
    assert process.stdout is not None
    found: dict[str, Any] = json.loads(process.stdout.readline())
    return found


# ------------------------------------------------------------------ on every kind of server


@ON_EVERY_KIND
def test_what_is_missing_is_named_and_loaded_once(deployer: Program, servers: list[redis.Redis]):
    ended = deployer("scripts", "verify")
    lines = ended.out.decode().splitlines()
    count = len(servers)
    assert (ended.code, len(lines)) == (1, count)
    for line in lines:
        assert line.split()[1] in ("primary", "replica")
        assert f"  {ALL} of {ALL} missing: abandon, acquire, " in line
    assert f"0 of {count} servers have every script" in ended.err
    loaded = deployer("scripts", "load").out.decode()
    assert loaded.count(f"all {ALL} there, {ALL} loaded now\n") == count
    assert deployer("scripts", "load").out.decode().count(f"all {ALL} there\n") == count
    assert deployer("scripts", "verify").code == 0


@ON_EVERY_KIND
def test_loaded_scripts_are_the_texts_that_the_drivers_call(
    deployer: Program, servers: list[redis.Redis]
):
    """So no caller sends a whole script any more."""
    deployer("scripts", "load")
    before = called(servers)
    producer = Users(deployer.env["FAIRLANE_REDIS"], servers).add("producer", "+eval")
    deployer("submit", "-", "--redis", producer, stdin=b"a\n")
    after = called(servers)
    assert after["evalsha"] > before["evalsha"]
    assert after["eval"] == before["eval"]


def called(servers: list[redis.Redis]) -> dict[str, int]:
    stats = [one.info("commandstats") for one in servers]
    return {
        name: sum(one.get(f"cmdstat_{name}", {"calls": 0})["calls"] for one in stats)
        for name in ("eval", "evalsha")
    }


def test_the_same_as_json(deployer: Program):
    for row in looked(deployer, "verify", code=1).values():
        assert row["role"] in ("primary", "replica")
        assert (row["scripts"], len(row["missing"]), row["loaded"]) == (0, ALL, [])
    for row in looked(deployer, "load").values():
        assert (row["scripts"], row["missing"], len(row["loaded"])) == (ALL, [], ALL)
        assert row["error"] is None


# ------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("words", "code"),
    [("load", 5), ("verify", 5), *((f"load --watch {every}", 2) for every in ("0s", "soon", "2h"))],
)
def test_an_unreachable_redis_is_exit_5_and_a_wrong_time_exit_2(
    words: str, code: int, alone: Program
):
    said = "does not answer" if code == 5 else ""
    alone("scripts", *words.split(), "--redis", NO_SERVER).refused(code, said)


def test_a_user_without_the_right_gets_one_sentence(
    program: Program, redis_url: str, servers: list[redis.Redis]
):
    worker = Users(redis_url, servers).add("worker")
    ended = program("scripts", "load", "--redis", worker)
    said = ended.out.decode() + ended.err
    if redis_url.startswith("redis+cluster:"):  # nor the other nodes
        assert ended.code == 5
    else:
        assert ended.code == 1
        assert "primary  not known: " in said
    assert "refused a command" in said
    assert "sesame" not in said


# ------------------------------------------------------------------ watching


def test_watching_loads_again_what_was_forgotten(deployer: Program, servers: list[redis.Redis]):
    with deployer.start("scripts", "load", "--watch", "100ms", "--json") as process:
        assert len(next_line(process)["loaded"]) == ALL
        forget_scripts(servers)
        assert len(next_line(process)["loaded"]) == ALL
        process.send_signal(signal.SIGINT)
        ended = finish(process)
    assert (ended.code, ended.out) == (130, b"")


@pytest.mark.slow
def test_watching_goes_on_without_a_server_and_reports_it_once(alone: Program):
    alone.env["FAIRLANE_REDIS"] = NO_SERVER
    with alone.start("scripts", "load", "--watch", "100ms") as process:
        assert process.stderr is not None
        assert b"does not answer" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        ended = finish(process)
    assert ended.code == 130
    assert "does not answer" not in ended.err


# ------------------------------------------------------------------ replicas


@pytest.mark.server
def test_replicas_have_them_too(alone: Program):
    with run_pair() as pair, ExitStack() as later:
        alone.env["FAIRLANE_REDIS"] = pair.primary.url
        found = looked(alone, "load")
        roles = {str(pair.primary.port): "primary", str(pair.replica.port): "replica"}
        assert {port: row["role"] for port, row in found.items()} == roles
        client = later.enter_context(closing(pair.replica.client()))
        forget_scripts([client])
        found = looked(alone, "verify", code=1)
        assert len(found[str(pair.replica.port)]["missing"]) == ALL
        assert found[str(pair.primary.port)]["missing"] == []


@pytest.mark.server
def test_a_replica_that_does_not_answer_is_named(alone: Program):
    with run_pair() as pair:
        alone.env["FAIRLANE_REDIS"] = pair.primary.url
        with pair.frozen():
            found = looked(alone, "load", code=1)
        assert found[str(pair.primary.port)]["error"] is None
        row = found[str(pair.replica.port)]
        assert (row["role"], row["scripts"]) == (None, None)
        assert "does not answer" in row["error"]


@pytest.mark.server
def test_behind_a_sentinel_both_have_them(alone: Program):
    with run_guarded() as trio:
        alone.env["FAIRLANE_REDIS"] = trio.url
        found = looked(alone, "load")
        assert sorted(row["role"] for row in found.values()) == ["primary", "replica"]
        trio.demote_the_master()
        alone("scripts", "verify")
        assert alone("submit", "-", stdin=b"a\n").code == 0


@pytest.mark.slow
@pytest.mark.server
@pytest.mark.rest
def test_every_node_of_a_cluster_has_them_and_gets_them_again(alone: Program):
    """One of them was a replica: after a failover it takes calls immediately."""
    with run_cluster(3, 3) as cluster:
        alone.env["FAIRLANE_REDIS"] = cluster.url
        found = looked(alone, "load")
        assert {int(port) for port in found} == {node.port for node in cluster.nodes}
        roles = sorted(row["role"] for row in found.values())
        assert roles == ["primary"] * 3 + ["replica"] * 3
        victim = cluster.primaries()[0]
        forget_scripts([victim.control])
        found = looked(alone, "verify", code=1)
        assert [int(port) for port, row in found.items() if row["missing"]] == [victim.port]
        with alone.start("scripts", "load", "--watch", "200ms", "--json") as process:
            seen = {next_line(process)["node"] for _ in range(6)}
            assert len(seen) == 6
            cluster.failover(cluster.replica_of(victim))
            cluster.restart(victim)
            wait_until(lambda: has_them(victim.control), END_S, why="it was loaded again")
            process.send_signal(signal.SIGINT)
            assert finish(process).code == 130
        assert looked(alone, "verify").keys() == found.keys()


def has_them(client: redis.Redis) -> bool:
    shas = [script.shas[Dialect.CLUSTER].decode() for script in library()]
    return all(client.script_exists(*shas))
