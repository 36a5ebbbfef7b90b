"""Tests the support for clusters: failover, restarts, and slots that move."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest
import redis

from fairlane.embedded import find_server
from tests.support.processes.workers import is_alive
from tests.support.servers import server_process
from tests.support.servers.backends import OnCluster, at
from tests.support.servers.clusters import (
    OK_S,
    Cluster,
    Node,
    node_is_primary,
    run_cluster,
    slot_of,
)
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.server, pytest.mark.rest]
SLOT = slot_of("{req}:5")


@pytest.fixture(scope="module")
def formed() -> Iterator[Cluster]:
    with run_cluster() as cluster:
        yield cluster


@pytest.fixture
def cluster(formed: Cluster) -> Cluster:
    """Yields the cluster, whole again and empty, whatever the last test did to it."""
    for node in formed.nodes:
        if node.stopped:
            formed.cont(node)
        if not node.is_live:
            formed.restart(node)
    formed.wait_ok()
    for node in formed.primaries():
        node.ask("FLUSHALL")
    return formed


def fill(node: Node, count: int) -> None:
    for number in range(count):
        node.ask("SET", f"{{req}}:{number}", number)


def elsewhere(cluster: Cluster, node: Node) -> Node:
    return next(other for other in cluster.primaries() if other is not node)


def test_three_primaries_share_the_slots_and_each_has_a_replica(cluster: Cluster):
    owners = cluster.view().owners()
    assert sum(owners.values()) == server_process.SLOTS
    assert len(owners) == 3
    followed = [cluster.primary_of(node) for node in cluster.nodes if node.id not in owners]
    assert sorted(node.port for node in followed) == sorted(n.port for n in cluster.primaries())
    for primary in cluster.primaries():
        assert cluster.primary_of(cluster.replica_of(primary)) is primary


def test_the_url_names_every_node(cluster: Cluster):
    scheme, _, hosts = cluster.url.partition("://")
    assert scheme == "redis+cluster"
    assert hosts.split(",") == [f"127.0.0.1:{node.port}" for node in cluster.nodes]


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_the_replica_takes_the_place_of_a_primary_that_is_gone(cluster: Cluster, how: str):
    lost = cluster.owner(SLOT)
    heir = cluster.replica_of(lost)
    getattr(cluster, how)(lost)
    assert not lost.is_live
    assert not cluster.is_ok()
    cluster.wait_ok()
    assert cluster.owner(SLOT) is heir
    if how == "kill":
        cluster.restart(lost)
    else:
        cluster.cont(lost)
    cluster.wait_ok()
    assert cluster.primary_of(lost) is heir


def test_a_restarted_node_returns_to_its_place(cluster: Cluster):
    replica = cluster.replica_of(cluster.owner(SLOT))
    before = replica.pid
    cluster.restart(replica)
    assert replica.pid != before
    cluster.wait_ok()
    assert replica.ask("CLUSTER", "MYID") == replica.id
    assert cluster.primary_of(replica) is cluster.owner(SLOT)


@pytest.mark.parametrize(("slot", "how"), [(0, ""), (server_process.SLOTS // 2, "FORCE")])
def test_a_replica_is_promoted_on_request(cluster: Cluster, slot: int, how: str):
    old = cluster.owner(slot)
    heir = cluster.replica_of(old)
    cluster.failover(heir, how)
    assert cluster.owner(slot) is heir
    assert cluster.primary_of(old) is heir


def test_a_replica_is_promoted_twice_in_a_row(cluster: Cluster):
    old = cluster.owner(0)
    heir = cluster.replica_of(old)
    cluster.failover(heir)
    cluster.failover(heir)
    cluster.failover(old, "TAKEOVER")
    assert cluster.owner(0) is old


def test_a_slot_moves_with_its_keys(cluster: Cluster):
    source = cluster.owner(SLOT)
    target = elsewhere(cluster, source)
    for number in range(250):
        source.ask("SET", f"{{req}}:5{{{number}}}", number)
    assert cluster.move_slot(SLOT, target) == 250
    assert cluster.owner(SLOT) is target
    assert target.ask("CLUSTER", "COUNTKEYSINSLOT", SLOT) == 250
    assert source.ask("CLUSTER", "COUNTKEYSINSLOT", SLOT) == 0
    assert cluster.move_slot(SLOT, target) == 0
    cluster.wait_ok()


def test_one_may_stand_in_the_middle_of_a_move(cluster: Cluster):
    source = cluster.owner(SLOT)
    target = elsewhere(cluster, source)
    fill(source, 7)
    assert cluster.begin_move(SLOT, target)
    assert cluster.move_keys(SLOT, most=4) == 4
    answers = [answer_of(source, f"{{req}}:{number}") for number in range(7)]
    assert sorted(answers) == ["ASK"] * 4 + ["here"] * 3
    assert answer_of(target, "{req}:0") == "MOVED"
    assert cluster.owner(SLOT) is source
    assert cluster.move_keys(SLOT) == 3
    cluster.finish_move(SLOT)
    assert [answer_of(target, f"{{req}}:{number}") for number in range(7)] == ["here"] * 7


def test_a_move_may_be_undone(cluster: Cluster):
    source = cluster.owner(SLOT)
    fill(source, 7)
    cluster.begin_move(SLOT, elsewhere(cluster, source))
    cluster.move_keys(SLOT, most=4)
    cluster.undo_move(SLOT)
    assert cluster.owner(SLOT) is source
    assert [answer_of(source, f"{{req}}:{number}") for number in range(7)] == ["here"] * 7
    assert answer_of(source, "{req}:new") == "absent"
    cluster.wait_ok()


def answer_of(node: Node, key: str) -> str:
    try:
        found = node.ask("EXISTS", key)
    except redis.exceptions.MovedError:  # redis-py derives it from AskError
        return "MOVED"
    except redis.exceptions.AskError:
        return "ASK"
    return "here" if found else "absent"


def test_an_interrupted_move_is_done_again_after_a_failover(cluster: Cluster):
    source = cluster.owner(SLOT)
    heir = cluster.replica_of(source)
    target = elsewhere(cluster, source)
    fill(source, 7)
    cluster.begin_move(SLOT, target)
    cluster.move_keys(SLOT, most=4)
    wait_until(lambda: in_step(source, heir), why="the replica has what the primary has")
    cluster.kill(source)
    wait_until(lambda: cluster.owner(SLOT) is heir, OK_S, why="the replica is promoted")
    if find_server().flavour == "redis":  # its target waits for the dead source
        assert "cluster_state:fail" in target.ask("CLUSTER", "INFO")
    assert cluster.move_slot(SLOT, target) == 3
    cluster.wait_ok()
    assert [answer_of(target, f"{{req}}:{number}") for number in range(7)] == ["here"] * 7


def in_step(primary: Node, replica: Node) -> bool:
    return bool(primary.ask("ROLE")[1] == replica.ask("ROLE")[4])


def test_a_client_of_every_node_speaks_for_the_cluster(cluster: Cluster):
    with contextlib.closing(OnCluster(cluster).client()) as client:
        for name in ("a", "b", "c", "d"):
            client.set(name, 1)
            assert at(client, name.encode()).get(name) == b"1"
        assert client.dbsize() == 4
        assert sorted(client.keys("*")) == [b"a", b"b", b"c", b"d"]
        client.config_set("maxmemory", 1_000_000_000)
        found = [node.control.config_get("maxmemory") for node in cluster.primaries()]
        assert [set(one.values()) for one in found] == [{"1000000000"}] * 3
        client.config_set("maxmemory", 0)
        client.config_resetstat()
        for name in ("a", "b", "c", "d"):
            client.strlen(name)
        assert client.info("commandstats")["cmdstat_strlen"]["calls"] == 4
        assert client.info("server")["process_id"] in {node.pid for node in cluster.nodes}
        client.flushall()
        assert client.dbsize() == 0
        with contextlib.closing(at(client, b"{a}").pubsub()) as ear:
            ear.ssubscribe("{a}")
            assert ear.get_message(timeout=10)["type"] == "ssubscribe"
            assert client.pubsub_shardnumsub("{a}") == [(b"{a}", 1)]


def test_what_was_written_survives_a_restart_with_an_append_only_file():
    with run_cluster(1, 0, "--appendfsync", "always", appendonly=True) as cluster:
        (node,) = cluster.nodes
        node.ask("SET", "kept", 1)
        cluster.restart(node)
        cluster.wait_ok()
        assert node.ask("GET", "kept") == "1"
        assert node_is_primary(node)


def test_every_process_ends_with_the_cluster():
    with run_cluster(2, 0) as cluster:
        pids = [node.pid for node in cluster.nodes]
        folders = [node.folder for node in cluster.nodes]
        cluster.stop(cluster.nodes[0])
        assert all(is_alive(pid) for pid in pids)
    assert not any(is_alive(pid) for pid in pids)
    assert not any(folder.exists() for folder in folders)


def test_a_wait_that_times_out_raises_what_is_wrong():
    with run_cluster(2, 0) as cluster, contextlib.ExitStack() as later:
        later.callback(cluster.cont, cluster.nodes[0])
        cluster.stop(cluster.nodes[0])
        with pytest.raises(AssertionError, match="whole") as caught:
            cluster.wait_ok(0.1)
        assert "not running" in "".join(caught.value.__notes__)
