"""Flows and schedules while workers are killed: each result goes on once, each tick comes once."""

from __future__ import annotations

import time
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from fairlane import Flow
from fairlane.operations.schedules.change import put
from fairlane.operations.schedules.schedule import define
from fairlane.protocol import keys
from tests.chaos.check import Report, leftovers
from tests.chaos.scenes import SETTLE_S, Scale, Scene, stage
from tests.support.teardown import _is_stray
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.servers.server_process import Server

STEPS = 3
EACH = 200  # sub-requests of a flow
TICKS = 20  # of a schedule, all of them missed
_MINUTE_MS = 60_000


def flows(scale: Scale, server: Server | None = None) -> Report:
    """Flows of three steps: each step has each result of the one before once, and ends once."""
    with stage("flows", scale, server=server, listens=False) as scene:
        count = max(1, scale.sub_requests // (EACH * STEPS))
        flow = Flow("f")
        for step in range(STEPS):
            flow = flow.step(f"s{step}", limit=4, attempts=100, lease_s=2.0)
        bodies = [b"%d" % index for index in range(EACH)]
        _begin(scene)
        for number in range(count):
            scene.queue.submit_flow(flow, bodies, id=f"f{number}")
        ids = [f"f{number}.{step}" for number in range(count) for step in range(1, STEPS + 1)]
        _hurt(scene, lambda: _ended(scene), len(ids))
        _settle(scene, len(ids))
        return _report(scene, dict.fromkeys(ids, bodies))


def schedules(scale: Scale, server: Server | None = None) -> Report:
    """Schedules that owe many ticks: each tick has one request, whichever leaders die."""
    with stage("schedules", scale, server=server, listens=False) as scene:
        count = max(1, scale.sub_requests // TICKS)
        # A minute that has just begun would bring one tick more in the middle of this.
        now = int(time.time() * 1000) // _MINUTE_MS * _MINUTE_MS
        first = now - (TICKS + 5) * _MINUTE_MS
        wanted: dict[str, list[bytes]] = {}
        definition = define(cron="* * * * *", bodies=[b"0"], missed="all", most=TICKS)
        ticks = keys.schedules(scene.queue.name)[1]
        for number in range(count):
            scene.queue.driver.run(put(scene.queue.name, f"s{number}", definition))
        scene.client.zadd(ticks, {f"s{number}": first for number in range(count)})
        _begin(scene)
        _hurt(scene, lambda: _ended(scene), count * TICKS)
        _settle(scene, count * TICKS)
        for number in range(count):
            scene.queue.schedules.pause(f"s{number}")
        wait_until(lambda: not leftovers(scene.client, "req"), SETTLE_S, why="all has ended")
        for one in scene.queue.completions("0", follow=False):
            wanted[one.id] = [b"0"]
        report = _report(scene, wanted)
        made = Counter(name.split(":")[1] for name in wanted)
        for number in range(count):
            # The ticks of the run itself are added to those that were owed.
            if not TICKS <= made[f"s{number}"] <= TICKS + 5:
                report.fault("lost", f"s{number} has {made[f's{number}']} requests")
        return report


def _begin(scene: Scene) -> None:
    """Starts the workers; there is no load of single requests."""
    scene.fleet.start()
    scene.fleet.wait_ready()


def _ended(scene: Scene) -> int:
    return int(scene.client.xlen(keys.completed(scene.queue.name)))


def _hurt(scene: Scene, progress: Callable[[], int], most: int) -> None:
    """Kills processes, each after some more has ended."""
    faults = scene.scale.faults
    for number in range(faults):
        least = most * number // (faults + 1)
        wait_until(partial(_has, progress, least), SETTLE_S, why="the work goes on")
        scene.nemesis.act("kill")


def _has(progress: Callable[[], int], least: int) -> bool:
    return progress() >= least


def _settle(scene: Scene, least: int) -> None:
    def holds() -> bool:
        scene.fleet.tend()
        return _ended(scene) >= least and not leftovers(scene.client, "req")

    try:
        wait_until(holds, 2 * SETTLE_S, every=0.05, why="every request ends")
    except AssertionError as error:
        scene.check.report.fault("did not settle", error)


def _report(scene: Scene, wanted: dict[str, list[bytes]]) -> Report:
    """What came out, beside what went in; each request ends and is logged once."""
    report = scene.check.report
    scene.fleet.wait_ready()
    scene.fleet.drain()
    log = Counter(one.id for one in scene.queue.completions("0", follow=False))
    for name, bodies in wanted.items():
        if log[name] != 1:
            report.fault("completions other than one", f"{name} is logged {log[name]} x")
        found = Counter(one.body or b"" for one in scene.queue.request(name).results())
        lost, more = Counter(bodies) - found, found - Counter(bodies)
        if lost:
            report.fault("lost", f"{name}: {lost}", lost.total())
        if more:
            report.fault("counted twice", f"{name}: {more}", more.total())
    for name in set(log) - set(wanted):
        report.fault("unexpected", f"the end of {name}")
    for key in scene.client.scan_iter(count=1000):
        if _is_stray(scene.client, key):
            report.fault("keys left without a TTL", key)
    for problem in scene.fleet.problems:
        report.fault("problems of workers and producers", problem)
    return report.add(
        requests=len(wanted), results=sum(map(len, wanted.values())), kills=dict(scene.fleet.kills)
    )
