"""Runs requests with limits and order by key: never more than a limit, and each in its order."""

from __future__ import annotations

import time
from collections import defaultdict
from itertools import count, cycle
from typing import TYPE_CHECKING, Any

from fairlane.protocol import keys
from fairlane.protocol.request_hash import hmget, parse_fields
from fairlane.protocol.steps import run_all
from tests.chaos.evidence.journal import Execution, read
from tests.chaos.evidence.key_holders import (
    Limit,
    above,
    gaps,
    leases,
    most_at_a_time,
    out_of_order,
)
from tests.chaos.evidence.stalls import shown
from tests.chaos.producers.handlers import name_of
from tests.chaos.producers.load import Plan
from tests.chaos.scenes import AOF, SETTLE_S, Scale, Scene, stage
from tests.support.wait import wait_until

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator

    from tests.chaos.check import Report
    from tests.chaos.evidence.journal import Journal
    from tests.support.servers.server_process import Server

MOST = 7  # the highest limit
# The limits of these keys change. A submission that names another limit is not refused for them.
CHANGING = {f"task/c{n}": 1 + n % MOST for n in range(10)}
LIMITS = {f"k{n}": 1 + n % MOST for n in range(40)} | CHANGING
CALLS = 100  # of an order key
REACHED = {"n1": 1, "n2": 2, "n3": 3}  # no more than three workers have
_LEASE_MS = 6_000
_STOPPED_MS = 2_500
_PAGE = 500


def _keyed(rng: random.Random) -> Plan:
    """Returns a request of one or two keys."""
    names = rng.sample(list(LIMITS), rng.choice((1, 2)))
    kind, priority = rng.choices("eslf", (30, 50, 5, 15))[0], rng.choice((0, 5, 5, 9, 50, 99))
    size = rng.choices((1, rng.randint(2, 12), rng.randint(13, 60)), (50, 40, 10))[0]
    limits = {name: LIMITS[name] for name in names}
    size = min(size, 3) if kind == "l" else size
    return Plan(kind, size, rng.randint(1, 8), priority, (("limits", limits),))


def _ordered(orders: int) -> Callable[[random.Random], Plan]:
    """Returns a source of calls of so many order keys in turn; a few have a limit by key, too."""
    numbers = count()

    def plan(rng: random.Random) -> Plan:
        kind = rng.choices("eslf", (30, 40, 20, 10))[0]
        options: dict[str, Any] = {"order_key": f"o{next(numbers) % orders}"}
        if rng.random() < 0.1:
            options["limits"] = {"k6": LIMITS["k6"]}
        size = rng.choices((1, 3), (90, 10))[0]
        return Plan(kind, size, 1, rng.choice((0, 5, 50)), tuple(options.items()))

    return plan


def _reached(rng: random.Random) -> Plan:
    name = rng.choice(list(REACHED))
    return Plan("l", 1, 1, 5, (("limits", {name: REACHED[name]}),))


# ------------------------------------------------------------------ the runs


def keyed(scale: Scale, server: Server | None = None) -> Report:
    """Kills with kill -9, loses replies, flushes the scripts, and changes limits of keys."""
    return _limits("keyed", scale, server)


def keyed_stopped(scale: Scale, server: Server | None = None) -> Report:
    """Stops workers with SIGSTOP for three leases, their clocks an hour off; changes limits."""
    return _limits("keyed_stopped", scale, server)


def keyed_restarted(scale: Scale, server: Server | None = None) -> Report:
    """Kills Redis under load, which comes back with its append-only file; changes limits."""
    return _limits("keyed_restarted", scale, server)


def ordered(scale: Scale, server: Server | None = None) -> Report:
    """Has four producers of order keys, a tenth fails once, and kills with kill -9."""
    return _orders("ordered", scale, server)


def ordered_stopped(scale: Scale, server: Server | None = None) -> Report:
    """Does the same, but stops workers with SIGSTOP for three leases."""
    return _orders("ordered_stopped", scale, server)


def ordered_restarted(scale: Scale, server: Server | None = None) -> Report:
    """Does the same, but kills Redis under load, which comes back with its append-only file."""
    return _orders("ordered_restarted", scale, server)


def reached(scale: Scale, server: Server | None = None) -> Report:
    """Measures how long a free place of a key waits for work that is there already."""
    given = {"plan": _reached, "window": scale.sub_requests, "lease_ms": _LEASE_MS}
    with stage("reached", scale, server=server, **given) as scene:
        scene.load.start()
        wait_until(lambda: scene.load.is_in, SETTLE_S, why="everything is submitted")
        scene.fleet.start()
        scene.fleet.wait_ready()
        if scale.faults:
            scene.spread(lambda: scene.nemesis.act("kill"))
        report = scene.finish()
        journal = read(scene.fleet.journal, scene.fleet.deaths)
        for name, limit in REACHED.items():
            calls = [
                (scene.load.requests[number].acked_ns, run.began_ns, run.ended_ns)
                for number, runs in _of_key(scene, journal, name)
                for run in runs
            ]
            waits = [one / 1e6 for one in gaps(calls, limit)]
            most = most_at_a_time([(began, ended) for _, began, ended in calls])
            report.figures[f"limit {limit}: most at a time"] = most
            report.figures[f"... {limit}: to a start, ms: 50 %, 95 %, most"] = shown(waits)
        return _checked(scene, report)


def _limits(name: str, scale: Scale, server: Server | None) -> Report:
    limits = {key: Limit(limit) for key, limit in LIMITS.items()}
    with stage(name, scale, server=server, plan=_keyed, **_staged(name)) as scene:
        scene.begin()
        hurt = _faults(scene)

        def hurt_and_change() -> None:
            next(hurt)
            key = scene.fleet.rng.choice(list(CHANGING))
            limit, sent = scene.fleet.rng.randint(1, MOST), time.monotonic_ns()
            scene.queue.set_key(key, limit)
            limits[key].changes.append((sent, time.monotonic_ns(), limit))

        scene.spread(hurt_and_change)
        report = scene.finish()
        _check_limits(scene, report, limits)
        return _checked(scene, report)


def _orders(name: str, scale: Scale, server: Server | None) -> Report:
    plan = _ordered(max(5, scale.sub_requests // CALLS))
    with stage(
        name,
        scale,
        server=server,
        plan=plan,
        submitters=4,
        **_staged(name),
    ) as scene:
        scene.begin()
        hurt = _faults(scene)
        scene.spread(lambda: next(hurt))
        report = scene.finish()
        _check_order(scene, report)
        return _checked(scene, report)


def _staged(name: str) -> dict[str, Any]:
    """Returns how a run is staged, by the end of its name."""
    if name.endswith("stopped"):
        return {"lease_ms": _STOPPED_MS, "shift_s": lambda place: (0, 3600, -3600)[place % 3]}
    if name.endswith("restarted"):
        options = (*AOF, "--appendfsync", "always")
        return {"options": options, "listens": False, "lease_ms": _LEASE_MS}
    return {"proxied": lambda place: place >= 2 or place < 0, "lease_ms": _LEASE_MS}


def _faults(scene: Scene) -> Iterator[None]:
    """Injects the faults of a run, one at each step."""
    act = scene.nemesis.act
    others = cycle(("wire lose", "flush_scripts", "wire reply", "", "wire request", ""))
    while True:
        if scene.name.endswith("stopped"):
            act("stop", 3 * _STOPPED_MS / 1000)
        elif scene.name.endswith("restarted"):
            act("restart")
        else:
            act("kill")
            name, _, command = next(others).partition(" ")
            if name:
                act(name, *([command] if command else []))
        yield


# ------------------------------------------------------------------ what must hold


def _of_key(scene: Scene, journal: Journal, name: str) -> Iterator[tuple[int, list[Execution]]]:
    """Yields the requests that name a key, each with its executions on workers not stopped."""
    for number, one in scene.load.requests.items():
        if name in dict(one.plan.options).get("limits", ()):
            runs = journal.by_request.get(number, [])
            yield number, [run for run in runs if not scene.check.stopped(run)]


def _check_limits(scene: Scene, report: Report, limits: dict[str, Limit]) -> None:
    """Counts leases that were granted above the limit of a key, and how many there were."""
    journal = read(scene.fleet.journal, scene.fleet.deaths)
    handlers, granted, count_all = defaultdict[int, int](int), defaultdict[int, int](int), 0
    for name, limit in limits.items():
        found, ran = [], list[tuple[int, int]]()
        for number, runs in _of_key(scene, journal, name):
            found += leases(number, runs)
            ran += [(run.began_ns, run.ended_ns) for run in runs]
        count_all += len(found)
        for lease, number, allowed in above(found, limit):
            report.fault("leases above the limit of a key", f"{name}: {number}/{allowed}, {lease}")
        if name in CHANGING:
            continue
        most = most_at_a_time(ran)
        if most > limit.first:
            report.fault("handlers above the limit of a key", f"{name}: {most}")
        handlers[limit.first] = max(handlers[limit.first], most)
        granted[limit.first] = max(
            granted[limit.first], most_at_a_time([(one.granted, one.ended) for one in found])
        )
    changes = [len(limit.changes) for limit in limits.values()]
    report.figures |= {
        "leases of keys": count_all,
        "changes of limits": sum(changes),
        "limit: most handlers, most leases at a time": ", ".join(
            f"{limit}: {handlers[limit]}, {granted[limit]}" for limit in sorted(handlers)
        ),
    }


def _check_order(scene: Scene, report: Report) -> None:
    """Compares the places that requests took with when they were submitted, and when they ran."""
    journal = read(scene.fleet.journal, scene.fleet.deaths)
    by_key = defaultdict[str, list[tuple[int, int]]](list)
    numbers = [one for one in scene.load.requests if one not in scene.load.forgotten]
    for first in range(0, len(numbers), _PAGE):
        some = numbers[first : first + _PAGE]
        found = scene.queue.driver.run(run_all([hmget(name_of(one), "keys") for one in some]))
        for number, row in zip(some, found, strict=True):
            name = dict(scene.load.requests[number].plan.options)["order_key"]
            text = parse_fields(("keys",), row)[0].partition(f"!{name}=")[2]
            by_key[name].append((int(text.partition(",")[0]), number))
    for name, places in by_key.items():
        calls = list[tuple[str, list[Execution]]]()
        acked = 0
        for _, number in sorted(places):
            one = scene.load.requests[number]
            if one.acked_ns < acked:
                report.fault("places against the submission", f"{name}: request {number}")
            acked = max(acked, one.sent_ns)
            runs = [run for run in journal.by_request[number] if not scene.check.stopped(run)]
            for index in range(one.plan.size):
                of_call = [run for run in runs if run.place == index]
                calls.append((f"{number}.{index} of {name}", of_call))
        for wrong in out_of_order(calls):
            report.fault("calls out of their order", wrong)
    report.figures |= {"order keys": len(by_key), "starts": journal.count}


def _checked(scene: Scene, report: Report) -> Report:
    """Checks that no key is in use any more."""
    tag = keys.of_limits(scene.queue.name)[3].rpartition(b":")[0]
    for key in scene.client.scan_iter(match=tag + b":key:*", count=1000):
        report.fault("keys in use at the end", f"{key}: {scene.client.zrange(key, 0, 3)}")
    if scene.nemesis.proxy is not None:
        report.figures["wire"] = scene.nemesis.proxy.done
    return report
