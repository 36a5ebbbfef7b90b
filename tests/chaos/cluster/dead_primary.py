"""Keeps one primary without a replica dead under load; work on the others must not slow down.

The queue is not spread: its own slot is at another primary. There is always more to do than the
workers can, on both sides: requests of the primary that dies, and requests elsewhere.
"""

from __future__ import annotations

import contextlib
import random
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairlane.protocol import keys
from fairlane.queue import Queue
from tests.chaos.check import Check
from tests.chaos.evidence.journal import read
from tests.chaos.evidence.stalls import percentile, shown
from tests.chaos.faults.fleet import Fleet
from tests.chaos.producers.handlers import name_of
from tests.chaos.producers.load import BACKOFF_MS, Load, Plan
from tests.chaos.scenes import Scale, Scene
from tests.support.servers.backends import OnCluster
from tests.support.servers.clusters import run_cluster, slot_of

if TYPE_CHECKING:
    from tests.chaos.check import Report
    from tests.chaos.evidence.journal import Execution
    from tests.support.servers.clusters import Cluster, Node

OPTIONS = ("--cluster-require-full-coverage", "no")
LEASE_MS = 10_000
LEAST_SHARE = 0.8  # of the throughput elsewhere before
LATE_MS = 3_000.0  # 95 % of the retries elsewhere begin sooner: a heartbeat is 1 s
NOTICED_S = 10.0  # from the death until every unit has left what it held there
_WARM_S = 5.0
_BEFORE_S = 60.0  # at most
_AHEAD = 120  # sub-requests that wait on each side, for each worker
_NS = 1_000_000_000


def long_or_flaky(rng: random.Random) -> Plan:
    """Returns requests that take 0.1 s each; some fail at first, and are the most urgent ones."""
    kind = rng.choices("lef", (60, 20, 20))[0]
    priority = 0 if kind == "f" else rng.choice((5, 5, 9))
    return Plan(kind, rng.randint(1, 5 if kind == "f" else 20), rng.randint(1, 4), priority)


@dataclass
class Sides:
    """Two loads as one: requests elsewhere, and those of the primary that dies."""

    elsewhere: Load
    there: Load

    def start(self) -> None:
        for one in self.both:
            one.start()

    def close(self) -> None:
        for one in self.both:
            one.close()

    @property
    def both(self) -> tuple[Load, Load]:
        return self.elsewhere, self.there

    @property
    def is_in(self) -> bool:
        return all(one.is_in for one in self.both)

    @property
    def is_done(self) -> bool:
        return all(one.is_done for one in self.both)

    @property
    def requests(self) -> dict[int, Any]:
        return self.elsewhere.requests | self.there.requests

    @property
    def logged(self) -> dict[int, Any]:
        return dict(self.elsewhere.logged) | dict(self.there.logged)

    @property
    def forgotten(self) -> set[int]:
        return self.elsewhere.forgotten | self.there.forgotten

    @property
    def problems(self) -> list[str]:
        return self.elsewhere.problems + self.there.problems

    @property
    def count(self) -> int:
        return self.elsewhere.count + self.there.count

    @property
    def ended(self) -> int:
        return self.elsewhere.ended + self.there.ended


@dataclass
class Deaths:
    cluster: Cluster
    done: Counter[str] = field(default_factory=Counter)

    @cached_property
    def victim(self) -> Node:
        """Returns a primary that does not have the queue's own slot."""
        dispatch = self.cluster.owner(keys.active("req"))
        return next(node for node in self.cluster.primaries() if node is not dispatch)

    @cached_property
    def slots(self) -> frozenset[int]:
        owners = enumerate(self.cluster.view().slots)
        return frozenset(slot for slot, owner in owners if owner == self.victim.id)

    def is_there(self, number: int) -> bool:
        return slot_of(keys.request_hash(name_of(number))) in self.slots

    def kill(self) -> None:
        """Kills the primary for good."""
        self.done["kill"] += 1
        self.cluster.kill(self.victim)


def dead_primary(scale: Scale) -> Report:
    """Kills a primary for `scale.seconds`, then restarts it with its file."""
    with contextlib.ExitStack() as later:
        cluster = later.enter_context(run_cluster(3, 0, *OPTIONS, appendonly=True))
        deaths = Deaths(cluster)
        folder = Path(later.enter_context(tempfile.TemporaryDirectory(prefix="chaos-")))
        queue = later.enter_context(Queue.from_url(cluster.url))
        rng = random.Random(scale.seed)
        fleet = Fleet(folder, lambda _: cluster.url, scale.workers, rng=rng)
        later.callback(fleet.end)
        load = _sides(cluster, deaths, scale)
        later.callback(load.close)
        client: Any = OnCluster(cluster).client()
        sides: Any = load
        check = Check(queue, client, sides, fleet)
        scene = Scene("dead_primary", scale, client, queue, fleet, sides, deaths, check)
        scene.begin()
        before_s = min(_BEFORE_S, scale.seconds)
        _pass_time(scene, _WARM_S + before_s)
        died = time.monotonic_ns()
        deaths.kill()
        _pass_time(scene, scale.seconds)
        back = time.monotonic_ns()
        for one in load.both:
            one.most = 0
        cluster.restart(deaths.victim)
        cluster.wait_ok()
        put_off = fleet.said("put off a token")
        report = scene.finish()
        report.figures["tokens put off, as logged now and then"] = put_off
        _judge(report, fleet, load, [(died - int(before_s * _NS), died), (died, back)])
        return report


def _sides(cluster: Cluster, deaths: Deaths, scale: Scale) -> Sides:
    given: dict[str, Any] = {
        "plan": long_or_flaky,
        "lease_ms": LEASE_MS,
        "window": _AHEAD * scale.workers,
        "again_s": 1.0,
        "tries": 1_000,
    }
    elsewhere = Load(
        cluster.url, 1 << 40, scale.seed, chosen=lambda n: not deaths.is_there(n), **given
    )
    there = Load(
        cluster.url, 1 << 40, scale.seed + 1, chosen=deaths.is_there, patience_s=lambda _: 5.0,
        **given,
    )  # fmt: skip
    return Sides(elsewhere, there)


def _pass_time(scene: Scene, seconds: float) -> None:
    until = time.monotonic() + seconds
    scene.wait(lambda: time.monotonic() >= until, seconds + 30)


def _judge(report: Report, fleet: Fleet, load: Sides, phases: list[tuple[int, int]]) -> None:
    """Compares the work elsewhere before the death and after it."""
    journal = read(fleet.journal, fleet.deaths)
    runs = [run for number in load.elsewhere.requests for run in journal.by_request[number]]
    rates = [_rate(runs, *phase) for phase in phases]
    lates = [_lates(load, journal.by_request, *phase) for phase in phases]
    died, back = phases[1]
    later = _lates(load, journal.by_request, died + int(NOTICED_S * _NS), back)
    share = rates[1] / max(rates[0], 1e-9)
    report.figures |= {
        "sub-requests a second elsewhere, by phase": [round(rate, 1) for rate in rates],
        "... after the death, of before": f"{share:.0%}",
        "retries elsewhere, by phase": [len(found) for found in lates],
        "... late, ms (median / 95 % / most), before": shown(lates[0]),
        "... late, ms (median / 95 % / most), after": shown(lates[1]),
        f"... late, ms (median / 95 % / most), later than {NOTICED_S:g} s after": shown(later),
    }
    if share < LEAST_SHARE:
        report.fault("too little was done elsewhere", f"{share:.0%} of before")
    high = percentile(later, 0.95)
    if high > LATE_MS:
        report.fault("retries elsewhere were late", f"95 %: {high:,.0f} ms")


def _rate(runs: list[Execution], since: int, until: int) -> float:
    """Returns the executions that ended well in this time, per second."""
    done = sum(since <= run.ended_ns < until and not run.raised for run in runs)
    return done * _NS / (until - since)


def _lates(
    load: Sides, by_request: dict[int, list[Execution]], since: int, until: int
) -> list[float]:
    """Returns how late the retries of this time began after they were due, in ms.

    One that did not begin within this time is late by what is left of it.
    """
    found = []
    for number in load.elsewhere.requests:
        second = {run.place: run.began_ns for run in by_request[number] if run.attempt > 1}
        for run in by_request[number]:
            due = run.ended_ns + BACKOFF_MS[1] * 1_000_000
            if run.raised and run.attempt == 1 and since <= due < until:
                began = min(second.get(run.place, until), until)
                found.append(max(0.0, (began - due) / 1e6))
    return found
