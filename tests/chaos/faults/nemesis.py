"""The faults by name. Each injects its fault once and returns; the fleet undoes it later."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import redis

from tests.chaos.faults.fleet import pause
from tests.support.servers.server_process import Server, _die_with_parent
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from fairlane.queue import Queue
    from tests.chaos.faults.fleet import Fleet, Member
    from tests.chaos.faults.proxy import Running


@dataclass
class Nemesis:
    fleet: Fleet
    server: Server
    client: Any
    proxy: Running | None = None
    done: dict[str, int] = field(default_factory=dict)
    restarts: list[tuple[int, int]] = field(default_factory=list)  # ns: killed, answers again
    _again: subprocess.Popen[bytes] | None = None

    def act(self, name: str, *words: Any) -> None:
        """Injects one fault: the method of this name."""
        getattr(self, name)(*words)
        self.done[name] = self.done.get(name, 0) + 1

    def _member(self) -> Member:
        return self.fleet.rng.choice([one for one in self.fleet.members if one.runs])

    # ------------------------------------------------------------------ workers

    def kill(self, how: str = "") -> None:
        """Kills with kill -9: half of the time a process that runs handlers, else all of them."""
        hows = ("child", "child", "supervisor", "group")
        wait_until(
            lambda: self.fleet.kill(self._member(), how or self.fleet.rng.choice(hows)),
            why="a process to kill",
        )
        self.fleet.tend()

    def stop(self, seconds: float) -> None:
        """Stops two workers with SIGSTOP for so long, of one only a part, then sends SIGCONT."""
        first, second = self.fleet.rng.sample(self.fleet.members, 2)
        part = self.fleet.rng.choice(("supervisor", "children"))
        ways = [self.fleet.stop(first), self.fleet.stop(second, part)]
        pause(seconds)
        for go_on in ways:
            go_on()

    def pause_queue(self, queue: Queue, seconds: float) -> None:
        """Pauses the queue for so long, and kills a worker meanwhile."""
        queue.pause(for_s=seconds)
        self.kill()

    # ------------------------------------------------------------------ Redis

    def flush_scripts(self) -> None:
        self.client.script_flush()

    def cut_clients(self) -> None:
        """Makes the server close all connections but our own."""
        self.client.client_kill_filter(_type="normal", skipme=True)

    def restart(self) -> None:
        """Kills Redis under load with kill -9; it restarts on the same port with its file."""
        process = self._again or self.server.process
        began = time.monotonic_ns()
        process.kill()
        process.wait()
        with (self.server.folder / "server.log").open("ab") as log:
            self._again = subprocess.Popen(
                self.server.process.args,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=_die_with_parent,  # noqa: PLW1509 - runs one system call
            )
        wait_until(self._answers, why="the server is back")
        self.restarts.append((began, time.monotonic_ns()))

    def _answers(self) -> bool:
        with contextlib.suppress(redis.RedisError), contextlib.closing(self.server.client()) as one:
            return bool(one.ping())
        return False

    def close(self) -> None:
        if self._again is not None:
            self._again.send_signal(signal.SIGKILL)
            self._again.wait()

    # ------------------------------------------------------------------ the wire

    def wire(self, command: str) -> None:
        assert self.proxy is not None
        self.proxy.do(command)
