"""Runs flows and schedules while workers are killed: no result or tick is lost or doubled."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

from fairlane import Flow
from fairlane.operations.schedules import define, put_schedule, request_id
from fairlane.protocol import keys
from tests.chaos.check import Report, leftovers
from tests.chaos.scenes import SETTLE_S, Scale, Scene, stage
from tests.support.run.teardown import _is_stray
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fairlane.option_types import StepOptions
    from tests.support.servers.server_process import Server

STEPS = 5  # two in a line, two children and their join
EACH = 200  # sub-requests of a flow
TICKS = 20  # of a schedule, all of them missed
LIVE = ("live0", "live1", "live2")  # schedules that are due each second of the run
_SECOND_MS, _MINUTE_MS = 1_000, 60_000


def flows(scale: Scale, server: Server | None = None) -> Report:
    """Runs flows of two steps, two children and a join: each step has each of its results once."""
    with stage("flows", scale, server=server, listens=False) as scene:
        count = max(1, scale.sub_requests // (EACH * STEPS))
        given: StepOptions = {"limit": 4, "attempts": 100, "lease": 2.0}
        flow = Flow("f").step("first", **given).step("second", **given)
        flow = flow.children("one", "two", **given).step("join", **given)
        bodies = [b"%d" % index for index in range(EACH)]
        joined = [b'["%b","%b"]' % (body, body) for body in bodies]
        _begin(scene)
        for number in range(count):
            scene.queue.submit_flow(flow, bodies, id=f"f{number}")
        ids = [f"f{number}.{step}" for number in range(count) for step in range(1, STEPS + 1)]
        _hurt(scene, lambda: _ended(scene), len(ids))
        _settle(scene, len(ids))
        last = f".{STEPS}"
        return _report(scene, {one: joined if one.endswith(last) else bodies for one in ids})


def schedules(scale: Scale, server: Server | None = None) -> Report:
    """Runs schedules that owe many ticks, and some that are due each second: each tick runs once.

    The ids that ran are compared with those of the ticks, whichever leaders die.
    """
    with stage("schedules", scale, server=server, listens=False) as scene:
        count = max(1, scale.sub_requests // TICKS)
        wanted = _owe(scene, count)
        firsts = _add_live(scene)
        _begin(scene)
        _hurt(scene, lambda: _ended(scene), count * TICKS)
        _settle(scene, count * TICKS, idle=False)  # those of each second continue
        least = {name: _next_tick(scene, name) - _SECOND_MS for name in LIVE}
        for one in scene.queue.schedules.list():
            scene.queue.schedules.pause(one.name)
        now = scene.queue.schedules.list()[0].now_ms
        scene.wait(lambda: not leftovers(scene.client, "req"), why="all has ended")
        for name, first in firsts.items():
            wanted |= {key: [b"0"] for key in _live_ids(scene, name, first, least[name], now)}
        live = len(wanted) - count * TICKS
        return _report(scene, wanted).add(**{"ticks missed, of the run": (count * TICKS, live)})


def _owe(scene: Scene, count: int) -> dict[str, list[bytes]]:
    """Adds schedules whose ticks were all missed, some hours ago; returns what they must submit."""
    name = scene.queue.name
    begin = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=2)
    line = f"0-{TICKS - 1} {begin.hour} {begin.day} {begin.month} *"
    definition = define(cron=line, bodies=[b"0"], missed="all", most=TICKS)
    first = int(begin.timestamp() * 1000)
    for number in range(count):
        scene.queue.driver.run(put_schedule(name, f"s{number}", definition))
    scene.client.zadd(keys.schedules(name)[1], {f"s{number}": first for number in range(count)})
    ticks = [first + minute * _MINUTE_MS for minute in range(TICKS)]
    ids = [request_id(name, f"s{number}", tick) for number in range(count) for tick in ticks]
    return {key: [b"0"] for key in ids}


def _add_live(scene: Scene) -> dict[str, int]:
    """Adds schedules that are due each second; returns their first ticks."""
    for name in LIVE:
        scene.queue.schedules.add(name, cron="* * * * * *", bodies=[b"0"], missed="all")
    return {name: _next_tick(scene, name) for name in LIVE}


def _next_tick(scene: Scene, name: str) -> int:
    return int(scene.client.zscore(keys.schedules(scene.queue.name)[1], name))


def _live_ids(scene: Scene, name: str, first: int, least: int, now: int) -> list[str]:
    """Returns the ids of all ticks from the first to the last that ran, and at least to `least`.

    So a gap is a lost tick. A leader may have submitted the tick that was next at the pause.
    """
    ran = {one.id for one in scene.queue.completions("0", follow=False)}
    ids = [request_id(scene.queue.name, name, tick) for tick in range(first, now + 1, _SECOND_MS)]
    last = max((place for place, one in enumerate(ids) if one in ran), default=-1)
    return ids[: max(last, (least - first) // _SECOND_MS) + 1]


def _begin(scene: Scene) -> None:
    """Starts the workers; there is no load of single requests."""
    scene.fleet.start()
    scene.fleet.wait_ready()


def _ended(scene: Scene) -> int:
    return int(scene.client.xlen(keys.completed(scene.queue.name)))


def _hurt(scene: Scene, progress: Callable[[], int], most: int) -> None:
    """Kills processes, each after some more requests have ended."""
    faults = scene.scale.faults
    for number in range(faults):
        least = most * number // (faults + 1)
        wait_until(partial(_has, progress, least), SETTLE_S, why="the work goes on")
        scene.nemesis.act("kill")


def _has(progress: Callable[[], int], least: int) -> bool:
    return progress() >= least


def _settle(scene: Scene, least: int, *, idle: bool = True) -> None:
    """Waits until so many requests have ended, and with `idle` until nothing is left to do."""

    def holds() -> bool:
        scene.fleet.tend()
        return _ended(scene) >= least and not (idle and leftovers(scene.client, "req"))

    try:
        wait_until(holds, 2 * SETTLE_S, every=0.05, why="every request ends")
    except AssertionError as error:
        scene.check.report.fault("did not settle", error)


def compare_ids(report: Report, log: Counter[str], wanted: Iterable[str]) -> None:
    """Compares the ids that ended, with how often each did, with those that were wanted."""
    for name in wanted:
        if not log[name]:
            report.fault("lost", f"{name} has not ended")
        elif log[name] > 1:
            report.fault("completions other than one", f"{name} is logged {log[name]} x")
    for name in log.keys() - set(wanted):
        report.fault("unexpected", f"the end of {name}")


def _report(scene: Scene, wanted: dict[str, list[bytes]]) -> Report:
    """Reports what came out beside what went in; each request ends and is logged once."""
    report = scene.check.report
    scene.fleet.wait_ready()
    scene.fleet.drain()
    log = Counter(one.id for one in scene.queue.completions("0", follow=False))
    compare_ids(report, log, wanted)
    for name in wanted.keys() & log.keys():
        bodies = wanted[name]
        found = Counter(one.body or b"" for one in scene.queue.request(name).results())
        lost, more = Counter(bodies) - found, found - Counter(bodies)
        if lost:
            report.fault("lost", f"{name}: {lost}", lost.total())
        if more:
            report.fault("counted twice", f"{name}: {more}", more.total())
    for key in scene.client.scan_iter(count=1000):
        if _is_stray(scene.client, key):
            report.fault("keys left without a TTL", key)
    for problem in scene.fleet.problems:
        report.fault("problems of workers and producers", problem)
    return report.add(
        requests=len(wanted), results=sum(map(len, wanted.values())), kills=dict(scene.fleet.kills)
    )
