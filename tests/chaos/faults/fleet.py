"""Runs `rq-worker` processes as a user starts them, and restarts those that a fault killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tests.chaos.evidence import journal
from tests.support.processes.workers import children_of, has_own_traceback
from tests.support.servers.server_process import HOST, _die_with_parent, is_open
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[3]
SHIFTED = Path(__file__).resolve().parents[1] / "shifted"
PROGRAM = Path(sys.executable).with_name("rq-worker")
LOWEST_PORT = 17_000  # below the ports that clients are given
END_S = 30.0
READY_S = 120.0  # eight Pythons that start on a busy machine
_LINGER_NS = 50_000_000

# Handler, processes, concurrency: the shapes of workers, in turn.
SHAPES = (("work", 2, 1), ("work", 1, 2), ("work_async", 1, 2), ("work", 2, 1))
_ports = count(LOWEST_PORT + os.getpid() % 1000 * 10)


def free_port() -> int:
    """Returns a free port that the system does not give to clients."""
    return next(port for port in _ports if not is_open(port))


def pause(seconds: float) -> None:
    threading.Event().wait(seconds)


class Stop(NamedTuple):
    """A worker that was stopped, or a part of it, and when; `cut`: off from the others."""

    supervisor: int
    part: str
    since_ns: int
    until_ns: int


@dataclass
class Member:
    """A place in the fleet and the worker that has it now."""

    place: int
    port: int
    process: subprocess.Popen[bytes]
    log: Path
    host: str = HOST
    hurt: bool = False

    @property
    def id(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def runs(self) -> bool:
        return self.process.poll() is None

    def says(self, text: str) -> bool:
        return text in self.log.read_text(errors="replace")

    def children(self) -> list[int]:
        return children_of(self.pid)


@dataclass
class Fleet:
    """Workers of one queue. Start them from the main thread, because they die with it."""

    folder: Path
    url_of: Callable[[int], str]  # place -> URL
    size: int = 8
    shift_s: Callable[[int], int] = lambda _: 0  # place -> how far its clock is off
    host_of: Callable[[int], str] = lambda _: HOST
    before: Callable[[int], list[str]] = lambda _: []  # place -> what its command line begins with
    rng: random.Random = field(default_factory=random.Random)
    members: list[Member] = field(default_factory=list)
    deaths: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    stops: list[Stop] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    kills: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    starts: int = 0
    unconfirmed: int = 0  # completions of durable requests that no replica confirmed, by the logs
    hurt_ns: int = 0  # the moment of the last fault

    @property
    def journal(self) -> Path:
        return self.folder / "journal"

    def start(self) -> None:
        self.journal.mkdir(exist_ok=True)
        self.members = [self._start(place, free_port()) for place in range(self.size)]

    def wait_ready(self) -> None:
        """Waits until every port is open: it takes connections after the registration."""
        for member in self.members:
            wait_until(
                partial(member.says, "takes from queue"),
                READY_S,
                why=f"worker {member.place} is ready",
            )

    def _start(self, place: int, port: int) -> Member:
        handler, processes, concurrency = SHAPES[place % len(SHAPES)]
        host = self.host_of(place)
        words = [*self.before(place), str(PROGRAM)]
        words += ["--redis", self.url_of(place), "--id", f"{host}:{port}"]
        words += ["--handler", f"tests.chaos.producers.handlers:{handler}"]
        words += ["--processes", str(processes), "--concurrency", str(concurrency)]
        env = os.environ | {journal.FOLDER: str(self.journal)}
        if shift := self.shift_s(place):
            before = [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
            env["PYTHONPATH"] = os.pathsep.join([str(SHIFTED), *before])
            env["FAIRLANE_CHAOS_SHIFT"] = str(shift)
        log = self.folder / f"worker{self.starts}.log"
        self.starts += 1
        with log.open("wb") as out:
            process = subprocess.Popen(
                words,
                cwd=ROOT,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                process_group=0,
                preexec_fn=_die_with_parent,  # noqa: PLW1509 - runs one system call, no Python lock
            )
        return Member(place, port, process, log, host)

    # ------------------------------------------------------------------ faults

    def kill(self, member: Member, how: str, pid: int = 0) -> bool:
        """Kills a `child`, the `supervisor`, or the `group` with kill -9; False without one."""
        if how == "child":
            children = [pid] if pid else member.children()
            if not children:
                return False
            victims = [self.rng.choice(children)]
        else:
            victims = [member.pid] if how == "supervisor" else [*member.children(), member.pid]
        for victim in victims:
            # Before the kill: behind it we may be kept waiting, and others are at work already.
            before = time.monotonic_ns()
            try:
                os.kill(victim, signal.SIGKILL)
            except ProcessLookupError:
                return False
            self.hurt_ns = before
            self.deaths[victim].append(before)
        self.kills[how] += 1
        member.hurt |= how != "child"
        if how != "child":
            member.process.wait()
        for victim in victims:  # children of a killed supervisor live on for a moment
            self.deaths[victim].append(time.monotonic_ns() + _LINGER_NS)
        return True

    def stop(self, member: Member, part: str = "group") -> Callable[[], None]:
        """Stops a worker, its `supervisor` or its `children` with SIGSTOP; the call undoes it."""
        children = member.children() if part != "supervisor" else []
        pids = [*children, *([member.pid] if part != "children" else [])]
        began = self.hurt_ns = time.monotonic_ns()
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)

        def go_on() -> None:
            until = time.monotonic_ns()  # what continues may end before the last SIGCONT
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
            self.stops.append(Stop(member.pid, part, began, until))

        return go_on

    def tend(self) -> None:
        """Restarts killed workers: as the same worker, or as a new one."""
        for place, member in enumerate(self.members):
            if member.runs:
                continue
            if not member.hurt:
                code = member.process.returncode
                self.problems.append(f"a worker ended by itself, exit {code}: {_tail(member.log)}")
            else:
                self._look(member)
            port = member.port if self.rng.random() < 0.5 else free_port()
            self.members[place] = self._start(place, port)

    def _look(self, member: Member) -> None:
        said = member.log.read_text(errors="replace")
        self.unconfirmed += said.count("confirmed it within")
        if has_own_traceback(said):
            self.problems.append(f"a worker's log holds a traceback: {said[-2000:]}")
        else:
            member.log.unlink()

    # ------------------------------------------------------------------ the end

    def drain(self) -> None:
        """Drains all with SIGTERM; every one must end well, and soon."""
        for member in self.members:
            if member.runs:
                member.process.terminate()
        for member in self.members:
            try:
                code = member.process.wait(END_S)
            except subprocess.TimeoutExpired:
                self.problems.append(f"a worker does not drain: {_tail(member.log)}")
                continue
            if code:
                self.problems.append(f"a worker drained with exit {code}: {_tail(member.log)}")
            self._look(member)

    def end(self) -> None:
        for member in self.members:
            if member.runs:
                os.killpg(member.pid, signal.SIGCONT)
                member.process.kill()
                member.process.wait()

    def said(self, text: str) -> int:
        """Returns how often the logs that are left hold this text."""
        return sum(one.read_text(errors="replace").count(text) for one in self.folder.glob("*.log"))


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-2000:]
