"""The chaos scenes on a real cluster: primaries are killed or stopped, or slots move, under load.

Three primaries and three replicas with an append-only file each; the queue's lanes are spread over
three shards. The faults are `seconds / faults` apart.
"""

from __future__ import annotations

import contextlib
import random
import tempfile
import time
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairlane.operations.shards import read_shards
from fairlane.protocol import keys
from fairlane.protocol.steps import Command
from fairlane.queue import Queue
from tests.chaos.cluster.cluster_check import ClusterCheck, Glimpses
from tests.chaos.cluster.primaries import Primaries, now_ms
from tests.chaos.faults.fleet import Fleet
from tests.chaos.producers.handlers import name_of
from tests.chaos.producers.load import MEAN_SIZE, Load, quick
from tests.chaos.producers.waiters import Waiters
from tests.chaos.scenes import SETTLE_S, Scale, Scene
from tests.support.scripts.requests import once
from tests.support.servers.backends import OnCluster
from tests.support.servers.clusters import run_cluster, slot_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.chaos.check import Report
    from tests.support.servers.clusters import Cluster

NODE_TIMEOUT_S = 2.0
SOON_S = 3.0  # a failover's stall beyond the node timeout, at most
AWAY_S = 8.0  # a killed or stopped primary, at most; less where faults follow each other sooner
LEASE_MS = 10_000  # longer than a failover takes
SHARDS = 3
WINDOW = 10_000  # sub-requests that may wait
# As in cluster-compose.yml: the slots of the other primaries stay served, and a replica that
# took over takes writes though it has no replica of its own yet.
OPTIONS = ("--cluster-require-full-coverage", "no", "--min-replicas-to-write", "0")
_WHOLE_EVERY_S = 0.25


@dataclass
class ClusterScene(Scene):
    check: ClusterCheck
    cluster: Cluster = field(kw_only=True)
    waiters: Waiters = field(kw_only=True)
    glimpses: Glimpses = field(kw_only=True)
    _looked: float = 0.0

    def begin(self) -> None:
        """Submits request after request at one pace, so that a stall is never for lack of work."""
        a_second = self.scale.sub_requests / max(1.0, self.scale.seconds) / MEAN_SIZE
        self.load.pace = lambda: 1 + a_second * (time.monotonic() - self.began)
        super().begin()
        self.waiters.start()
        self.glimpses.start()

    def tend(self) -> None:
        super().tend()
        self.nemesis.tend()

    def at_times(
        self, act: Callable[[int], None], *, also: Callable[[], None] | None = None
    ) -> None:
        """Acts as often as there are faults, when the cluster is whole; `also` in between."""
        every = self.scale.seconds / self.scale.faults
        for number in range(self.scale.faults):
            due = self.began + every * (number + 0.25)
            self.wait(partial(self._is_due, due), why="the cluster is whole again")
            act(number)
            if also is not None:
                self.wait(partial(_is_past, due + every / 2), every + SETTLE_S)
                also()
        self.wait(partial(_is_past, self.began + self.scale.seconds), every + SETTLE_S)

    def _is_due(self, due: float) -> bool:
        now = time.monotonic()
        if now < due:
            return False
        if not self.nemesis.faults:
            return True
        if now < self._looked + _WHOLE_EVERY_S:
            return False
        self._looked = now
        return bool(self.nemesis.is_whole())

    def finish(self) -> Report:
        """Restarts every node, then checks as usual, and that no end was taken back for good."""
        self.load.most = 0
        self.check.fed_until_ms = now_ms()
        self.nemesis.heal()
        self.cluster.wait_ok()
        self.client = self.check.client = OnCluster(self.cluster).client()
        return super().finish()

    def _is_settled(self) -> bool:
        """Returns whether every request ended or is gone, and none runs again."""
        now = time.monotonic()
        if now < self._looked + 1.0:
            return False
        self._looked = now
        self.check.look_for_lost()
        return super()._is_settled() and not self.check.unended()

    def _unsettled(self) -> str:
        left = {n: self.check.states([n])[n] for n in self.check.unended()[:20]}
        return f"; not ended: {left}"

    def _close_watchers(self) -> None:
        self.waiters.close()
        self.glimpses.close()


@contextlib.contextmanager
def on_cluster(
    name: str, scale: Scale, *, durable: int = 0, soon_s: float = SOON_S
) -> Iterator[ClusterScene]:
    """Stages a cluster of 3 + 3, workers that do not run yet, and a load; `soon_s` as SOON_S."""
    timeout_ms = int(NODE_TIMEOUT_S * 1000)
    with run_cluster(3, 3, *OPTIONS, node_timeout_ms=timeout_ms, appendonly=True) as cluster:
        hurt = Primaries(cluster, random.Random(scale.seed))
        with scene_on(name, scale, cluster, hurt, durable=durable, soon_s=soon_s) as scene:
            yield scene


@contextlib.contextmanager
def scene_on(
    name: str,
    scale: Scale,
    cluster: Cluster,
    hurt: Primaries,
    *,
    durable: int,
    soon_s: float,
    fleet: dict[str, Any] | None = None,
    **load: Any,
) -> Iterator[ClusterScene]:
    """Stages a scene on an existing cluster; `fleet` and the rest are for Fleet and Load."""
    with contextlib.ExitStack() as later:
        folder = Path(later.enter_context(tempfile.TemporaryDirectory(prefix="chaos-")))
        queue = later.enter_context(Queue.from_url(cluster.url))
        queue.set_shards(SHARDS)
        made = Fleet(folder, lambda _: cluster.url, scale.workers, rng=hurt.rng, **(fleet or {}))
        later.callback(made.end)
        given: dict[str, Any] = {
            "plan": quick,
            "lease_ms": LEASE_MS,
            "submitters": 4,
            "window": WINDOW,
            "durable": durable,
            "again_s": 1.0,
            "tries": 90,
        } | load
        source = Load(cluster.url, 1 << 40, scale.seed, **given)  # it ends with its time
        later.callback(source.close)
        listeners = Waiters(source, cluster.url, enter=source.enter)
        glimpses = Glimpses(cluster.url, enter=partial(source.enter, 0))
        check = ClusterCheck(
            queue, None, source, made,
            hurt=hurt, waiters=listeners, glimpses=glimpses, most_s=NODE_TIMEOUT_S + soon_s,
        )  # fmt: skip
        yield ClusterScene(
            name, scale, None, queue, made, source, hurt, check,
            cluster=cluster, waiters=listeners, glimpses=glimpses,
        )  # fmt: skip


# ------------------------------------------------------------------ the runs


def failover(scale: Scale, *, durable: int = 0, soon_s: float = SOON_S) -> Report:
    """Kills or stops each primary in turn; half-way to the next one, kills a worker."""
    with on_cluster("failover", scale, durable=durable, soon_s=soon_s) as scene:
        hurt: Primaries = scene.nemesis
        ways = cycle((hurt.kill, hurt.stop))
        away_s = min(AWAY_S, scale.seconds / scale.faults * 0.4)

        def act(_: int) -> None:
            next(ways)(hurt.any_primary(), away_s)

        scene.begin()
        scene.at_times(act, also=lambda: kill_worker(scene))
        return scene.finish()


def failover_durable(scale: Scale) -> Report:
    """Does the same with WAIT 1: nothing that was acknowledged may be gone."""
    return failover(scale, durable=1)


def _is_past(moment: float) -> bool:
    return time.monotonic() >= moment


def kill_worker(scene: ClusterScene) -> None:
    """Kills one worker, or one of its processes."""
    running = [one for one in scene.fleet.members if one.runs]
    scene.fleet.kill(scene.fleet.rng.choice(running), scene.fleet.rng.choice(("child", "group")))


def reshard(scale: Scale) -> Report:
    """Moves the dispatch slots and `faults` request slots to another primary, one by one."""
    with on_cluster("reshard", scale) as scene:
        hurt: Primaries = scene.nemesis
        dispatch = _dispatch_slots(scene.queue)
        often = max(1, scale.faults // (2 * len(dispatch)))  # each of them twice
        turns = cycle(dispatch)
        moved: set[int] = set()

        def act(number: int) -> None:
            if number % often == often // 2:
                hurt.move("dispatch", next(turns), [])
            slot, live = _next_slot(scene, moved)
            moved.add(slot)
            hurt.move("request", slot, live)

        scene.begin()
        scene.at_times(act)
        return scene.finish()


def _dispatch_slots(queue: Queue) -> list[int]:
    """Returns the queue's own slot and those of its shards."""
    spread = queue.driver.run(read_shards(queue.name))
    return [slot_of(keys.delayed(queue.name, shard)) for shard in (0, *spread.present.numbers)]


def _next_slot(scene: ClusterScene, moved: set[int]) -> tuple[int, list[int]]:
    """Returns a slot that has not moved yet, with unfinished requests in it if there is one."""
    named = Command(b"ZRANGE", keys.active("req"), 0, -1)
    found: dict[int, list[int]] = {}
    for name in scene.queue.driver.run(once(named)):
        slot = slot_of(keys.request_hash(name.decode()))
        found.setdefault(slot, []).append(int(name[1:]))
    for slot, live in found.items():
        if slot not in moved:
            return slot, live
    numbers = range(len(scene.load.requests))
    slots = (slot_of(keys.request_hash(name_of(number))) for number in reversed(numbers))
    return next(slot for slot in slots if slot not in moved), []
