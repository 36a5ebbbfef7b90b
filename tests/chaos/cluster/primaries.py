"""The faults of a cluster: primaries that are killed, stopped or cut off, and slots that move."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import redis

from tests.support.servers.clusters import node_is_primary

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from tests.support.servers.clusters import Cluster, Node


def now_ms() -> float:
    """Returns the wall clock, which the servers of this machine share."""
    return time.time() * 1000


@dataclass
class Fault:
    """A fault of one primary: the moments are the wall clock's, ms; 0 = not yet."""

    kind: str
    node: Node
    heir: Node
    slots: frozenset[int]
    at_ms: float
    at_ns: int
    away_s: float
    promoted_ms: float = 0.0
    back_ms: float = 0.0

    def __str__(self) -> str:
        return f"{self.kind} of {self.node}, promoted after {self.promoted_ms - self.at_ms:,.0f} ms"

    @property
    def is_over(self) -> bool:
        return self.back_ms > 0


@dataclass
class Move:
    """One slot that moved with its keys."""

    kind: str  # dispatch, request
    slot: int
    keys: int
    at_ms: float
    done_ms: float
    live: list[int] = field(default_factory=list)  # requests in it that had not ended

    @property
    def took_ms(self) -> float:
        return self.done_ms - self.at_ms


@dataclass
class Primaries:
    """Injects faults into a cluster; `tend` brings back each node after its time."""

    cluster: Cluster
    rng: random.Random
    faults: list[Fault] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    _back: dict[int, Callable[[], None]] = field(default_factory=dict)  # fault -> what undoes it

    def kill(self, node: Node, away_s: float) -> Fault:
        """Kills with kill -9; the node comes back with its file, as a replica of its successor."""
        return self._hurt("kill", node, away_s, self.cluster.kill, self.cluster.restart)

    def stop(self, node: Node, away_s: float) -> Fault:
        """Stops with SIGSTOP, later SIGCONT; its connections stay without answers."""
        return self._hurt("stop", node, away_s, self.cluster.stop, self.cluster.cont)

    def cut(
        self,
        kind: str,
        node: Node,
        away_s: float,
        cut: Callable[[], None],
        heal: Callable[[], None],
    ) -> Fault:
        """Cuts the network: the node lives, and is alone, or with a few."""
        return self._hurt(kind, node, away_s, lambda _: cut(), lambda _: heal())

    def _hurt(
        self,
        kind: str,
        node: Node,
        away_s: float,
        hurt: Callable[[Node], None],
        heal: Callable[[Node], None],
    ) -> Fault:
        view = self.cluster.view()
        slots = frozenset(slot for slot, owner in enumerate(view.slots) if owner == node.id)
        heir = self.cluster.replica_of(node)
        fault = Fault(kind, node, heir, slots, now_ms(), time.monotonic_ns(), away_s)
        self._back[len(self.faults)] = lambda: heal(node)
        self.faults.append(fault)
        self.done[kind] += 1
        hurt(node)
        return fault

    def any_primary(self) -> Node:
        """Returns one of them, the dispatch slot's as often as another."""
        return self.rng.choice(self.cluster.primaries())

    def tend(self) -> None:
        """Notes which replica took over, and brings back each node after its time."""
        for number, fault in enumerate(self.faults):
            if fault.is_over:
                continue
            if not fault.promoted_ms:
                with contextlib.suppress(redis.RedisError):
                    if node_is_primary(fault.heir):
                        fault.promoted_ms = now_ms()
            if now_ms() - fault.at_ms >= fault.away_s * 1000:
                self._back.pop(number)()
                fault.back_ms = now_ms()

    def is_whole(self) -> bool:
        """Returns True if every node is back and agrees, and every replica is in step."""
        return all(fault.is_over for fault in self.faults) and self.cluster.is_ok()

    def heal(self) -> None:
        for number, undo in list(self._back.items()):
            undo()
            self.faults[number].back_ms = now_ms()
            del self._back[number]

    def move(self, kind: str, slot: int, live: list[int]) -> Move:
        """Moves a slot to the next primary, with its keys."""
        primaries = self.cluster.primaries()
        at = primaries.index(self.cluster.owner(slot))
        began = now_ms()
        keys = self.cluster.move_slot(slot, primaries[(at + 1) % len(primaries)])
        moved = Move(kind, slot, keys, began, now_ms(), live)
        self.moves.append(moved)
        self.done[f"moved, {kind}"] += 1
        return moved
