"""The chaos scenes: a server, a fleet, a load and a nemesis, and what must hold at the end."""

from __future__ import annotations

import contextlib
import random
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairlane.queue import Queue
from tests.chaos.check import Check, Ear, Report, leftovers
from tests.chaos.evidence.journal import written
from tests.chaos.evidence.memory import Memory
from tests.chaos.faults.fleet import Fleet
from tests.chaos.faults.nemesis import Nemesis
from tests.chaos.faults.proxy import run_proxy
from tests.chaos.producers.load import Load, long_ones, of_all_kinds, small
from tests.chaos.producers.trials import Trials
from tests.support.servers.server_process import run_server
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.servers.server_process import Server

SETTLE_S = 90.0  # from the last fault to the end of the last request: leases and audits
_SAID_EVERY_S = 5.0
_PATIENT_S = 3.0
AOF = ("--appendonly", "yes", "--auto-aof-rewrite-percentage", "0")


@dataclass
class Scale:
    sub_requests: int
    faults: int
    seconds: float  # at least so long, the faults spread over it
    seed: int
    workers: int = 8
    loud: bool = True


@dataclass
class Scene:
    """A run; made by `stage`."""

    name: str
    scale: Scale
    client: Any
    queue: Queue
    fleet: Fleet
    load: Load
    nemesis: Any  # what it has done to which process, in `done`
    check: Check
    began: float = field(default_factory=time.monotonic)
    _said: float = 0.0

    def begin(self) -> None:
        self.fleet.start()
        self.fleet.wait_ready()
        self.began = time.monotonic()
        self.load.start()

    def spread(self, fault: Callable[[], None]) -> None:
        """Injects the faults in turn, each after some of the work and its share of the time."""
        faults, seconds = self.scale.faults, self.scale.seconds
        share = self.load.most / (2 * faults)
        self.load.allowed = lambda: self.load.most * (0.05 + 0.95 * (self.acted + 1) / (faults + 1))
        self.acted = 0
        ran, at = 0, self.began
        while self.acted < faults:
            due = self.began + seconds * self.acted / faults
            self.wait(partial(self._may_act, ran + share, due, at))
            ran, at = written(self.fleet.journal), time.monotonic()
            fault()
            self.acted += 1
        self.load.allowed = lambda: float("inf")

    acted: int = 0

    def _may_act(self, ran: float, due: float, last: float) -> bool:
        """Returns whether a fault is due, with enough done since the last, or nothing left."""
        now = time.monotonic()
        if now < due:
            return False
        return self.load.is_idle or now > last + _PATIENT_S or written(self.fleet.journal) >= ran

    def wait(self, condition: Callable[[], bool], timeout: float = SETTLE_S, why: str = "") -> None:
        """Waits, shows the progress, and starts killed workers again."""

        def holds() -> bool:
            self.show_progress()
            self.tend()
            return condition()

        wait_until(holds, timeout, every=0.05, why=why or "the work goes on")

    def tend(self) -> None:
        self.fleet.tend()

    def show_progress(self) -> None:
        if self.scale.loud and time.monotonic() - self._said > _SAID_EVERY_S:
            self._said = time.monotonic()
            sys.stderr.write(
                f"{self.name} {self._said - self.began:5.0f} s: "
                f"{self.load.ended:,} of {self.load.count:,} sub-requests ended, "
                f"{len(self.load.logged)} of {len(self.load.requests)} requests, "
                f"{dict(self.nemesis.done)}\n"
            )
            sys.stderr.flush()

    def finish(self) -> Report:
        """Waits for the end of everything, drains the workers, and checks."""
        at = time.monotonic()
        try:
            self.wait(lambda: self.load.is_in, 600, "everything is submitted")
            self.wait(self._is_settled, SETTLE_S, "every request ends")
            self.wait(lambda: not leftovers(self.client, "req"), SETTLE_S, "the queue is empty")
        except AssertionError as error:
            self.check.report.fault("did not settle", f"{error}{self._unsettled()}")
        settled = time.monotonic()
        self.load.close()
        self._close_watchers()
        self.fleet.wait_ready()
        self.fleet.drain()
        if self.check.ear is not None:
            self.check.ear.close()
        report = self.check.run()
        report.figures = {
            "seconds (until the last fault, to settle, to check)": (
                f"{at - self.began:.1f}, {settled - at:.1f}, {time.monotonic() - settled:.1f}"
            ),
            "faults": dict(self.nemesis.done),
        } | report.figures
        return report

    def _is_settled(self) -> bool:
        return self.load.is_done

    def _unsettled(self) -> str:
        return ""

    def _close_watchers(self) -> None:
        """Ends what watches the run, before the workers are drained."""


@contextlib.contextmanager
def stage(
    name: str,
    scale: Scale,
    *,
    server: Server | None = None,
    options: tuple[str, ...] = (),
    proxied: Callable[[int], bool] | None = None,
    shift_s: Callable[[int], int] = lambda _: 0,
    listens: bool = True,
    **load: Any,
) -> Iterator[Scene]:
    """Stages a server (of its own unless given), a queue, workers that wait, and a load."""
    with contextlib.ExitStack() as later:
        server = server or later.enter_context(run_server("single", *options))
        folder = Path(later.enter_context(tempfile.TemporaryDirectory(prefix="chaos-")))
        client = later.enter_context(contextlib.closing(server.client()))
        proxy = later.enter_context(run_proxy(server.port)) if proxied else None
        rng = random.Random(scale.seed)

        def url_of(place: int) -> str:
            return proxy.url if proxy and proxied and proxied(place) else server.url

        fleet = Fleet(folder, url_of, scale.workers, shift_s, rng=rng)
        later.callback(fleet.end)
        queue = later.enter_context(Queue.from_url(server.url))
        given = {"window": max(5_000, scale.sub_requests // 15)} | load
        made = Load(url_of(-1), scale.sub_requests, scale.seed, **given)
        later.callback(made.close)
        nemesis = Nemesis(fleet, server, client, proxy)
        later.callback(nemesis.close)
        ear = Ear(server.client()) if listens else None
        if ear is not None:
            later.callback(ear.close)
        check = Check(queue, client, made, fleet, ear=ear)
        yield Scene(name, scale, client, queue, fleet, made, nemesis, check)


# ------------------------------------------------------------------ the runs


def kill(scale: Scale, server: Server | None = None, how: str = "") -> Report:
    """Kills processes that run handlers, supervisors and whole workers with kill -9."""
    with stage("kill", scale, server=server) as scene:
        scene.begin()
        scene.spread(lambda: scene.nemesis.act("kill", how))
        return scene.finish()


def varied(scale: Scale, server: Server | None = None) -> Report:
    """Does the same with tenants, rates, delays, ageing, `after`, unique ids and pauses."""
    with stage("varied", scale, server=server, plan=of_all_kinds) as scene:
        scene.begin()
        names = cycle(("kill", "kill", "pause_queue"))

        def hurt() -> None:
            name = next(names)
            scene.nemesis.act(name, *((scene.queue, 0.5) if name == "pause_queue" else ()))

        scene.spread(hurt)
        return scene.finish()


def calm(scale: Scale, server: Server | None = None) -> Report:
    """Injects no fault at all: nothing may run twice."""
    with stage("calm", scale, server=server) as scene:
        scene.check.must_run_once = True
        scene.begin()
        return scene.finish()


def stop(scale: Scale, server: Server | None = None, *, lease_ms: int = 2_500) -> Report:
    """Stops a worker, its supervisor or its handlers with SIGSTOP for three leases."""
    with stage("stop", scale, server=server, plan=long_ones, lease_ms=lease_ms) as scene:
        scene.begin()
        scene.spread(lambda: scene.nemesis.act("stop", 3 * lease_ms / 1000))
        return scene.finish()


def scripts(scale: Scale, server: Server | None = None) -> Report:
    """Alternates SCRIPT FLUSH and CLIENT KILL."""
    with stage("scripts", scale, server=server) as scene:
        scene.check.must_run_once = True
        scene.begin()
        names = cycle(("flush_scripts", "cut_clients"))
        scene.spread(lambda: scene.nemesis.act(next(names)))
        return scene.finish()


WIRE = ("cut", "reply", "request", "lose", "stall 1", "reply", "lose", "delay 0.05", "stall 5")


def proxy(scale: Scale, server: Server | None = None, *, direct: int = 2) -> Report:
    """Cuts, halves and stalls the connections of all producers and most workers.

    One stall in nine exceeds the lease of 3 s: workers with a connection of their own continue.
    """
    with stage(
        "proxy", scale, server=server, proxied=lambda place: place >= direct or place < 0
    ) as scene:
        scene.begin()
        commands = cycle(WIRE)

        def hurt() -> None:
            scene.nemesis.act("wire", "delay 0")
            scene.nemesis.act("wire", next(commands))

        scene.spread(hurt)
        scene.nemesis.act("wire", "delay 0")
        report = scene.finish()
        return report.add(wire=scene.nemesis.proxy.done)


def always(scale: Scale) -> Report:
    """Kills and restarts Redis under load; its file is synced with every write."""
    return _restart("always", scale)


def everysec(scale: Scale) -> Report:
    """Does the same with a file that is synced every second."""
    return _restart("everysec", scale)


def _restart(sync: str, scale: Scale) -> Report:
    options = (*AOF, "--appendfsync", sync)
    with stage(sync, scale, options=options, plan=small, listens=False) as scene:
        scene.begin()
        memory = Memory(scene.client, scene.load)

        def hurt() -> None:
            known = memory.known()
            scene.nemesis.act("restart")
            memory.compare(known, scene.nemesis.restarts[-1])

        scene.spread(hurt)
        report = scene.finish()
        memory.add_to(report, may_forget=sync == "everysec")
        return report


def clocks(scale: Scale, server: Server | None = None) -> Report:
    """Sets the wall clocks of workers an hour off, either way, and others after a restart."""
    rng = random.Random(scale.seed)
    shifts: dict[int, Iterator[int]] = defaultdict(lambda: cycle(rng.sample((-3600, 0, 3600), 3)))
    given: dict[str, Any] = {"shift_s": lambda place: next(shifts[place])}
    with stage("clocks", scale, server=server, **given) as scene:
        scene.begin()
        scene.spread(lambda: scene.nemesis.act("kill", "group"))
        return scene.finish()


WAYS = ("group", "group", "supervisor", "child", "group", "group", "stopped")


def recover(
    scale: Scale,
    server: Server | None = None,
    *,
    died: tuple[str, ...] = WAYS,
    lease_ms: int = 3_000,
) -> Report:
    """Measures how soon a dead worker's sub-request runs again, by how it died."""
    scale = replace(scale, sub_requests=0)
    with stage("recover", scale, server=server, lease_ms=lease_ms) as scene:
        scene.begin()
        trials = Trials(scene.queue, scene.fleet, scene.load, scene.client)
        ways = cycle(died)
        for _ in range(scale.faults):
            trials.run(next(ways))
            scene.wait(lambda: scene.load.is_done, why="the request ends")
            scene.show_progress()
        return scene.finish().add(**trials.figures())
