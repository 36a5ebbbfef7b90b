"""Models tenants: in each lane their tokens take turns by virtual time.

Redis writes a virtual time as a whole number. So the model computes each time from what Redis had
before, compares it, and takes over the rounded one.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.model.plain.words import agree

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.model.plain.words import Copy

SPAN = 2.0**44  # in the scores of Redis: from one lane to the next
IDLE, CLOCK, COST, SEQ = (n * SPAN for n in (100, 200, 201, 202))
USUAL = 200.0  # tenths of ms: the cost of a turn where none was measured
MEMORY = 32  # turns after which a new mean counts as much as the one before
KEPT = 100_000  # an idle tenant is forgotten when the clock is so far ahead of it
MOST_IDLE = 500  # of more idle tenants, those with the least time are forgotten
FORGOTTEN = 10  # in one turn, at most
Scores = dict[str, float]


@dataclass
class Lane:
    """A lane: the tenants that wait for a turn, and the virtual time of each."""

    tokens: dict[str, deque[tuple[int, Copy]]] = field(default_factory=dict)
    times: dict[str, float] = field(default_factory=dict)  # of those with tokens
    idle: dict[str, float] = field(default_factory=dict)
    clock: float | None = None  # when the last turn began; if none waits, when the last one ends
    mean: float | None = None

    @property
    def now(self) -> float:
        return self.clock or 0.0

    @property
    def cost(self) -> float:
        """Returns what a turn is charged when it is taken."""
        return USUAL if self.mean is None else self.mean

    def add(self, seq: int, copy: Copy) -> None:
        """Adds a token; a tenant that comes later begins at the present virtual time."""
        tenant = copy.tenant
        self.tokens.setdefault(tenant, deque()).append((seq, copy))
        if tenant not in self.times:
            self.times[tenant] = max(self.idle.pop(tenant, 0.0), self.now)

    def take(self) -> Copy | None:
        """Takes the oldest token of the tenant with the least time, and charges by its share."""
        if not self.times:
            return None
        time, tenant = min((time, tenant) for tenant, time in self.times.items())
        _, copy = self.tokens[tenant].popleft()
        self.clock = time
        ends = time + max(1.0, self.cost / copy.share)
        del self.times[tenant]
        if self.tokens[tenant]:
            self.times[tenant] = ends
        else:
            del self.tokens[tenant]
            self.idle[tenant] = ends
            self.clock = time if self.times else max(self.idle.values())
        bound = math.inf if len(self.idle) > MOST_IDLE else max(0.0, self.clock - KEPT)
        old = sorted((at, name) for name, at in self.idle.items() if at < bound)
        for _, name in old[:FORGOTTEN]:
            del self.idle[name]
        return copy

    def charge(self, tenant: str, share: int, turns: int, cost: int) -> None:
        """Replaces the mean that each turn was charged by its measured cost."""
        extra = (cost - turns * self.cost) / share
        if tenant in self.times:
            self.times[tenant] = max(0.0, self.times[tenant] + extra)
        else:
            ends = self.idle.get(tenant, max(0.0, self.now - KEPT)) + extra
            if tenant in self.idle or ends > self.now:
                self.idle[tenant] = max(0.0, ends)
        mean = self.cost + (cost / turns - self.cost) * turns / (turns + MEMORY)
        self.mean = max(0.1, mean)


class Tenants:
    """All lanes of a queue."""

    def __init__(self) -> None:
        self.lanes: dict[int, Lane] = {}
        self.seq = 0

    def lane(self, number: int) -> Lane:
        return self.lanes.setdefault(number, Lane())

    def add(self, number: int, copy: Copy) -> None:
        self.seq += 1
        self.lane(number).add(self.seq, copy)

    def waiting(self) -> Iterator[tuple[int, int, Copy]]:
        """Yields lane, sequence and token of all that wait for their tenant's turn."""
        for number, lane in self.lanes.items():
            for tokens in lane.tokens.values():
                for seq, copy in tokens:
                    yield number, seq, copy

    def compare(self, turns: list[bytes], scores: list[Any]) -> None:
        """Raises Disagreement unless Redis holds the same; takes over its rounded times."""
        wanted = {
            f"{number}|{copy.tenant}|{seq:015d}|{copy.text}" for number, seq, copy in self.waiting()
        }
        agree({one.decode() for one in turns}, wanted, "who waits for a turn")
        found: Scores = {name.decode(): score for name, score in scores}
        exact = self._scores()
        agree(set(found), set(exact), "the tenants")
        for name, score in exact.items():
            agree(abs(found[name] - score) <= 1, True, f"{name}: {found[name]:.0f}, {score:.1f}")
        for number, lane in self.lanes.items():
            base = number * SPAN
            for tenant in lane.times:
                lane.times[tenant] = found[f"{number}|{tenant}"] - base
            for tenant in lane.idle:
                lane.idle[tenant] = found[f"-{number}|{tenant}"] - IDLE - base
            if lane.clock is not None:
                lane.clock = found[f"v{number}"] - CLOCK
            if lane.mean is not None:
                lane.mean = (found[f"c{number}"] - COST) / 1000

    def _scores(self) -> Scores:
        found = {"seq": SEQ + self.seq} if self.seq else {}
        for number, lane in self.lanes.items():
            base = number * SPAN
            found |= {f"{number}|{name}": base + time for name, time in lane.times.items()}
            found |= {f"-{number}|{name}": IDLE + base + time for name, time in lane.idle.items()}
            if lane.clock is not None:
                found[f"v{number}"] = CLOCK + lane.clock
            if lane.mean is not None:
                found[f"c{number}"] = COST + 1000 * lane.mean
        return found
