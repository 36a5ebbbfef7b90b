"""Tests workers without one primary: its requests wait for it, and all others continue."""

from __future__ import annotations

from itertools import count, islice
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from fairlane.protocol import keys
from fairlane.queue import Queue
from tests.support.processes.workers import workers_of
from tests.support.scripts.requests import permits_of
from tests.support.servers.backends import OnCluster
from tests.support.servers.clusters import Cluster, Node, run_cluster
from tests.support.wait import PATIENCE_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fairlane.request import Request
    from tests.support.processes.workers import Workers

pytestmark = [pytest.mark.server, pytest.mark.slow]
# With `everysec` a write waits for a running fsync, after its reply: kill -9 then loses it.
OPTIONS = ("--cluster-require-full-coverage", "no", "--appendfsync", "always")


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with run_cluster(3, 0, *OPTIONS, appendonly=True) as made:
        yield made


@pytest.fixture
def queue(cluster: Cluster) -> Iterator[Queue]:
    with Queue.from_url(cluster.url) as made:
        yield made


@pytest.fixture
def workers(cluster: Cluster, queue: Queue, tmp_path: Path) -> Iterator[Workers]:
    with workers_of(queue, OnCluster(cluster).client(), tmp_path) as made:
        yield made


def ids_at(cluster: Cluster, node: Node, prefix: str) -> Iterator[str]:
    """Returns ids whose requests are at this node."""
    names = (f"{prefix}{n}" for n in count())
    return (name for name in names if cluster.owner(keys.request_hash(name)) is node)


def submit(queue: Queue, names: Iterator[str], most: int, **options: Any) -> list[Any]:
    """Submits requests of these ids."""
    return [queue.submit_request([b"x"] * 20, id=name, **options) for name in islice(names, most)]


@pytest.mark.rest
@pytest.mark.parametrize(
    ("handler", "options"),
    [
        pytest.param("echo", {"tokens": 1}, marks=pytest.mark.rest),
        pytest.param("echo", {}, marks=pytest.mark.rest),
        ("echo_async", {"concurrency": 2}),
        ("echo", {"shards": 3}),
    ],
    ids=["one by one", "bunches", "asyncio", "shards"],
)
def test_a_primary_that_is_gone_costs_its_own_requests_only(
    handler: str, options: dict[str, Any], cluster: Cluster, queue: Queue, workers: Workers
):
    """The requests of the dead node are more urgent, so their tokens are popped first.

    In a spread queue, what waits in a lane of the dead node waits for it, too.
    """
    shards = options.pop("shards", 0)
    alive, gone, _ = cluster.primaries()
    if cluster.owner(keys.active("req")) is gone:
        alive, gone = gone, alive
    queue.set_shards(shards)
    waiting = submit(queue, ids_at(cluster, gone, "gone"), 10, priority=0, limit=3)
    others = submit(queue, ids_at(cluster, alive, "ok"), 10, priority=5, limit=1)
    cluster.kill(gone)
    workers.start(handler, **options)
    assert [other.wait(timeout=PATIENCE_S) for other in others if not is_at(cluster, gone, other)]
    cluster.restart(gone)
    cluster.wait_ok()
    assert [one.wait(timeout=PATIENCE_S) for one in waiting] == ["done"] * len(waiting)
    assert [one.wait(timeout=PATIENCE_S) for one in others] == ["done"] * len(others)


def is_at(cluster: Cluster, node: Node, request: Any) -> bool:
    """Returns whether a token of a request may be in a lane of this node."""
    fields = permits_of(OnCluster(cluster).client(), request.id).values()
    lanes = (int(text.split(":")[3]) for text in fields if text.startswith("q:"))
    shards = {lane // keys.LANES for lane in lanes}
    return any(cluster.owner(keys.delayed("req", shard)) is node for shard in shards)


@pytest.mark.rest
def test_a_permit_whose_node_hung_is_free_before_its_lease_expires(
    cluster: Cluster, queue: Queue, workers: Workers
):
    """The node grants, late, an acquire that was given up; the lease is much longer than the test.

    The first request connects the unit to the node. The second one keeps it busy until the node
    hangs with the third one's token in a lane.
    """
    hung, alive, _ = cluster.primaries()
    if cluster.owner(keys.active("req")) is hung:
        hung, alive = alive, hung
    first, late = submit_at(queue, cluster, hung, 2, attempts=1)
    running = workers.start("hold", tokens=1)
    workers.folder.open_gate()
    assert [one.wait(timeout=PATIENCE_S) for one in (first, late)] == ["done"] * 2
    (workers.folder.path / "gate").unlink()
    noted = len(workers.folder.notes())
    (busy,) = submit_at(queue, cluster, alive, 1)
    wait_until(lambda: len(workers.folder.notes()) > noted, why="the unit is busy")
    (third,) = submit_at(queue, cluster, hung, 1, lease=600)
    cluster.stop(hung)
    workers.folder.open_gate()
    wait_until(lambda: "put off a token" in running.said(), why="an acquire is given up")
    cluster.cont(hung)
    assert [one.wait(timeout=PATIENCE_S) for one in (busy, third)] == ["done"] * 2


def submit_at(
    queue: Queue, cluster: Cluster, node: Node, most: int, **options: Any
) -> list[Request]:
    """Submits requests of one body that are at this node."""
    ids = ids_at(cluster, node, f"one{uuid4().hex}")
    return [queue.submit_request([b"x"], id=name, **options) for name in islice(ids, most)]
