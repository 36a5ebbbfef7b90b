"""Measures how long a sub-request waits after its worker's death until it runs again."""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fairlane.protocol import keys
from tests.chaos.evidence.journal import read
from tests.chaos.faults.fleet import pause
from tests.chaos.producers.load import Plan
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from fairlane.queue import Queue
    from tests.chaos.evidence.journal import Execution
    from tests.chaos.faults.fleet import Fleet
    from tests.chaos.producers.load import Load


@dataclass
class Trials:
    """Runs one sub-request at a time, whose worker dies at some moment within a second."""

    queue: Queue
    fleet: Fleet
    load: Load
    client: Any
    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def run(self, way: str) -> None:
        """Runs one trial: kills a `child`, `supervisor` or `group`, or stops the group."""
        number = self.load.submit(self.queue, Plan("w", 1, 1, 5))
        (first,) = wait_until(lambda: self._ran(number), why="it runs")
        member = next(one for one in self.fleet.members if one.pid == first.supervisor)
        pause(self.fleet.rng.random())
        conf = keys.conf(self.queue.name)
        leads = self.client.hget(conf, "lock") == member.id.encode()
        go_on = None
        if way == "stopped":
            go_on = self.fleet.stop(member)
        elif way == "child":
            # Of two children only one has it: the one whose process recorded it.
            self.fleet.kill(member, "child", self._holder(number))
        else:
            self.fleet.kill(member, way)
        hurt = self.fleet.hurt_ns
        found = wait_until(lambda: self._again(number), why="it runs again")
        if go_on is not None:
            go_on()
        name = way if way == "child" else way + (" leads" if leads else "")
        self.seconds[name].append((found[-1].began_ns - hurt) / 1e9)

    def _ran(self, number: int) -> list[Execution]:
        ran = read(self.fleet.journal, self.fleet.deaths).by_request.get(number, [])
        return sorted(ran, key=lambda one: one.began_ns)

    def _again(self, number: int) -> list[Execution]:
        ran = self._ran(number)
        return ran if len(ran) > 1 else []

    def _holder(self, number: int) -> int:
        (first,) = self._ran(number)
        return first.pid

    def figures(self) -> dict[str, str]:
        return {
            f"runs again after, s: {name} ({len(found)})": (
                f"median {statistics.median(found):.2f}, most {max(found):.2f}"
            )
            for name, found in sorted(self.seconds.items())
        }
