"""Tests writes that a failover lost: the request continues, and its end is logged once."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.protocol import keys
from fairlane.queue import Queue
from tests.support.processes.workers import workers_of
from tests.support.servers.backends import OnCluster
from tests.support.servers.clusters import Cluster, Node, run_cluster
from tests.support.wait import PATIENCE_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.processes.workers import Workers

pytestmark = [pytest.mark.server, pytest.mark.slow]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with run_cluster() as made:
        yield made


@pytest.fixture
def queue(cluster: Cluster) -> Iterator[Queue]:
    with Queue.from_url(cluster.url) as made:
        yield made


@pytest.fixture
def client(cluster: Cluster) -> Any:
    return OnCluster(cluster).client()


@pytest.fixture
def workers(queue: Queue, client: Any, tmp_path: Path) -> Iterator[Workers]:
    with workers_of(queue, client, tmp_path) as made:
        yield made


def id_at(cluster: Cluster, node: Node) -> str:
    """Returns an id whose request is at this node."""
    return next(
        name
        for name in (f"r{n}" for n in count())
        if cluster.owner(keys.request_hash(name)) is node
    )


def part(cluster: Cluster, primary: Node) -> Node:
    """Cuts a primary off from its replica, and returns the replica."""
    replica = cluster.replica_of(primary)
    wait_until(lambda: primary.ask("ROLE")[1] == replica.ask("ROLE")[4], why="it is in step")
    primary.ask("ACL", "SETUSER", "default", "-psync", "-sync")
    primary.ask("CLIENT", "KILL", "TYPE", "replica")
    return replica


def fail_over(cluster: Cluster, primary: Node, heir: Node) -> None:
    cluster.kill(primary)
    wait_until(lambda: heir.ask("ROLE")[0] == b"master", why="the replica is promoted")


def endings(queue: Queue, request_id: str) -> list[str]:
    """Returns the log entries of a request."""
    return [one.state for one in queue.completions("0", follow=False) if one.id == request_id]


@pytest.mark.rest
def test_an_end_that_was_logged_and_taken_back_comes_again(
    cluster: Cluster, queue: Queue, client: Any, workers: Workers
):
    """It is no longer in `active`, and its tokens are gone: the leader finds it."""
    dispatch = cluster.owner("{req}:0")
    primary = next(node for node in cluster.primaries() if node is not dispatch)
    request = queue.submit_request([b"x"] * 3, id=id_at(cluster, primary))
    heir = part(cluster, primary)
    workers.start("echo")
    assert request.wait(timeout=PATIENCE_S) == "done"
    wait_until(lambda: not client.zcard(keys.active("req")), why="it is retired")
    fail_over(cluster, primary, heir)
    assert request.state() == "active"
    assert request.wait(timeout=PATIENCE_S) == "done"
    assert [result.body for result in request.results()] == [b"x"] * 3
    assert endings(queue, request.id) == ["done"]


@pytest.mark.rest
def test_a_request_that_the_dispatch_slot_forgot_goes_on(
    cluster: Cluster, queue: Queue, workers: Workers
):
    """Its intent and its tokens were lost, and it was not."""
    dispatch = cluster.owner("{req}:0")
    primary = next(node for node in cluster.primaries() if node is not dispatch)
    workers.start("echo")
    assert queue.submit_request([b"x"]).wait(timeout=PATIENCE_S) == "done"
    first = workers.running[0]
    heir = part(cluster, dispatch)
    first.stop()
    request = queue.submit_request([b"x"] * 3, id=id_at(cluster, primary))
    fail_over(cluster, dispatch, heir)
    workers.start("echo")
    assert request.wait(timeout=PATIENCE_S) == "done"
    assert endings(queue, request.id) == ["done"]
