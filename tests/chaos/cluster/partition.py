"""The chaos scenes with network cuts: a primary is cut off, with a worker and a client beside it.

Six nodes, the workers and two clients have a network namespace each. A cut lasts for longer than a
failover, so that for a while two nodes act as the primary of the same slots.
"""

from __future__ import annotations

import contextlib
import random
import secrets
import tempfile
import threading
import time
from collections import deque
from functools import partial
from itertools import count, cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlane import settings
from fairlane.embedded import find_server
from fairlane.operations.shards import Shards, read_shards
from fairlane.protocol import keys
from fairlane.queue import Queue
from tests.chaos.cluster.cluster_scenes import NODE_TIMEOUT_S, OPTIONS, SOON_S, scene_on
from tests.chaos.cluster.primaries import Primaries
from tests.chaos.faults.fleet import Stop
from tests.chaos.producers.handlers import name_of
from tests.chaos.producers.load import Plan, long_ones, quick
from tests.support.network.lab import make_lab
from tests.support.servers import server_process
from tests.support.servers.clusters import Cluster, Node, slot_of, start_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.chaos.check import Report
    from tests.chaos.cluster.cluster_scenes import ClusterScene
    from tests.chaos.producers.load import Submitted
    from tests.chaos.scenes import Scale
    from tests.support.network.lab import Lab

PORT = 7000
PRIMARIES = 3
AWAY_S = 8.0
WAYS = ("both", "in", "out", "unplug", "one link")
NEAR, FAR = "c0", "c1"  # the clients: with most of the nodes, and on the side that is cut off
_FAR_SUBMITTER = 3
_FIRST_EAGER = 1_000_000
_MOST_EAGER = 300  # a cut
_FAR_PATIENCE_S = 1.0  # it tries the next one if a node is out of reach


class Wire(NamedTuple):
    """The cut links of one fault: its kind, the places on both sides, and the directions."""

    kind: str
    some: list[str]
    others: list[str]


def mixed(rng: random.Random) -> Plan:
    """Returns many small ones, and some whose handlers run into a failover."""
    return quick(rng) if rng.random() < 0.85 else long_ones(rng)


@contextlib.contextmanager
def lab_cluster(lab: Lab, *options: str) -> Iterator[Cluster]:
    """Runs three primaries and three replicas in the places n0 … n5 of a lab."""
    with tempfile.TemporaryDirectory(prefix="fl-l-") as root:
        binary, nodes = find_server(), []
        for number in range(2 * PRIMARIES):
            place = lab[f"n{number}"]
            folder = Path(root) / place.name
            folder.mkdir()
            own = ["--bind", place.host, "--cluster-announce-ip", place.host]
            own += ["--protected-mode", "no", "--appendonly", "yes"]
            own += ["--cluster-node-timeout", str(int(NODE_TIMEOUT_S * 1000)), *options]
            words = [*place.before, *server_process.node_words(binary, folder, PORT, *own)]
            nodes.append(Node(secrets.token_hex(20), PORT, folder, words, host=place.host))
        cluster = Cluster(nodes)
        try:
            start_all(nodes, PRIMARIES, binary)
            cluster.wait_ok()
            yield cluster
        finally:
            cluster.close()


@contextlib.contextmanager
def in_lab(
    name: str, scale: Scale, *, durable: int = 0, soon_s: float = SOON_S
) -> Iterator[tuple[ClusterScene, Lab]]:
    """Stages a cluster in a lab; the last worker is cut off, as is the client FAR."""
    workers = [f"w{number}" for number in range(scale.workers)]
    places = [f"n{number}" for number in range(2 * PRIMARIES)]
    with make_lab([*places, *workers, NEAR, FAR]) as lab, lab_cluster(lab, *OPTIONS) as cluster:
        fleet = {
            "host_of": lambda place: lab[f"w{place}"].host,
            "before": lambda place: lab[f"w{place}"].before,
        }
        given: dict[str, Any] = {
            "plan": mixed,
            "enter": lambda place: lab[FAR if place == _FAR_SUBMITTER else NEAR].enter(),
            "patience_s": lambda place: (
                _FAR_PATIENCE_S if place == _FAR_SUBMITTER else settings.PATIENCE_S
            ),
        }
        hurt = Primaries(cluster, random.Random(scale.seed))
        with scene_on(
            name, scale, cluster, hurt,
            durable=durable, soon_s=soon_s, fleet=fleet, **given,
        ) as scene:  # fmt: skip
            yield scene, lab


class Eager:
    """The client on the far side: while cut off, it submits what its primary can take."""

    def __init__(self, scene: ClusterScene, lab: Lab) -> None:
        self._scene, self._lab = scene, lab
        self._numbers = count(_FIRST_EAGER)
        self._thread: threading.Thread | None = None

    def begin(self, node: Node, seconds: float) -> None:
        """Is cut off from now on; returns once it has been at that primary, and continues alone."""
        self.close()
        ready = threading.Event()
        owners = self._scene.cluster.view().slots  # called here: it stays where it is made
        slots = {slot for slot, owner in enumerate(owners) if owner == node.id}
        given = (slots, seconds, ready)
        self._thread = threading.Thread(target=self._work, args=given, daemon=True)
        self._thread.start()
        ready.wait(settings.PATIENCE_S)

    def close(self) -> None:
        if self._thread is not None:
            self._thread.join()

    def _work(self, slots: set[int], seconds: float, ready: threading.Event) -> None:
        self._lab[FAR].enter()
        load = self._scene.load
        refused: deque[Submitted] = deque()
        with Queue.from_url(load.url, patience_s=_FAR_PATIENCE_S) as queue:
            spread = queue.driver.run(read_shards(queue.name))
            self._send(queue, slots, spread.present)
            ready.set()
            until = time.monotonic() + seconds
            for _ in range(_MOST_EAGER):
                if time.monotonic() > until:
                    break
                one = self._send(queue, slots, spread.present)
                if not one.acked_ns:
                    refused.append(one)
        with Queue.from_url(load.url) as queue:
            while refused and refused[0].tries <= load.tries:
                if load.send(queue, refused[0]):
                    refused.popleft()

    def _send(self, queue: Queue, slots: set[int], shards: Shards) -> Submitted:
        """Submits a request of one, all of whose keys are in these slots."""
        number = next(number for number in self._numbers if self._fits(number, slots, shards))
        one = self._scene.load.enlist(number, Plan("e", 1, 1, 5), _FAR_SUBMITTER)
        if self._scene.load.send(queue, one):
            self._scene.load.fresh.append((number, _FAR_SUBMITTER))
        return one

    @staticmethod
    def _fits(number: int, slots: set[int], shards: Shards) -> bool:
        name = name_of(number)
        first = Shards.of(shards.turned(name)).numbers[0]
        return {slot_of(keys.request_hash(name)), slot_of(keys.delayed("req", first))} <= slots


def partition(
    scale: Scale,
    *,
    durable: int = 0,
    ways: tuple[str, ...] = WAYS,
    away_s: float = AWAY_S,
    soon_s: float = SOON_S,
) -> Report:
    """Cuts off a primary, alone or with a worker and a client: both ways, one way, one link."""
    with in_lab("partition", scale, durable=durable, soon_s=soon_s) as (scene, lab):
        turns, eager = cycle(ways), Eager(scene, lab)
        scene.begin()
        scene.at_times(lambda number: cut_off(scene, lab, next(turns), number, away_s, eager))
        scene.nemesis.heal()
        eager.close()
        report = scene.finish()
        return report.add(**far_side(scene))


def partition_durable(scale: Scale) -> Report:
    """Does the same with WAIT 1: nothing that was acknowledged may be gone."""
    return partition(scale, durable=1)


def far_side(scene: ClusterScene) -> dict[str, int]:
    """Counts what was acknowledged to the client that was cut off, and what of it is gone."""
    acked = [
        one for one in scene.load.requests.values() if one.place == _FAR_SUBMITTER and one.acked_ns
    ]
    beside = scene.fleet.members[-1].pid
    cuts = [stop for stop in scene.fleet.stops if stop.supervisor == beside]
    during = [
        one for one in acked if any(cut.since_ns < one.acked_ns < cut.until_ns for cut in cuts)
    ]
    return {
        "acknowledged to the client that was cut off": len(acked),
        "... while it was": len(during),
        "... and gone": sum(one.number in scene.load.forgotten for one in acked),
    }


def cut_off(
    scene: ClusterScene, lab: Lab, kind: str, number: int, away_s: float, eager: Eager
) -> None:
    """Injects one fault. Every other one hits the primary of the dispatch slot."""
    hurt: Primaries = scene.nemesis
    node = scene.cluster.owner(slot_of("{req}")) if number % 2 == 0 else hurt.any_primary()
    place = next(name for name, one in lab.places.items() if one.host == node.host)
    last = f"w{scene.scale.workers - 1}"
    if kind == "unplug":
        hurt.cut(kind, node, away_s, partial(lab.unplug, place), partial(lab.plug, place))
        return
    if kind != "one link" and number % 2 == 0:
        eager.begin(node, away_s)
    some = [place] if kind == "one link" else [place, last, FAR]
    others = ["w0"] if kind == "one link" else lab.others(some)
    ways = "both" if kind == "one link" else kind
    heal = _noting(scene, kind, partial(lab.heal, some, others))
    hurt.cut(
        f"cut {kind}" if kind == ways else kind,
        node,
        away_s,
        partial(lab.cut, some, others, ways),
        heal,
    )


def _noting(scene: ClusterScene, kind: str, heal: Callable[[], None]) -> Callable[[], None]:
    """Notes which worker was cut off, and when, because leases were valid on both sides."""
    began = time.monotonic_ns()
    worker = scene.fleet.members[0 if kind == "one link" else -1]

    def heal_and_note() -> None:
        heal()
        scene.fleet.stops.append(Stop(worker.pid, "cut", began, time.monotonic_ns()))

    return heal_and_note
